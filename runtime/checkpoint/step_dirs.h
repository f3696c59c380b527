// The names under a run's `checkpoints/`:
//   step-00000100             a checkpoint
//   step-00000100.writing-3   an attempt at it by the ranks of fence 3, until it is one
//   *.deleted                 either, on its way out
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace mtl {

inline constexpr const char* kCheckpoints = "checkpoints";

struct StepName {
  int64_t step = 0;
  std::optional<int64_t> fence;  // of an attempt
  bool deleted = false;
  bool is_checkpoint() const { return !fence && !deleted; }
};
// Nothing for any other name.
std::optional<StepName> parse_step_name(std::string_view name);

struct StepDir {
  StepName name;
  std::filesystem::path path;
};
// Newest first, a checkpoint before the attempts at its step. Throws filesystem_error.
std::vector<StepDir> step_dirs(const std::filesystem::path& checkpoints_dir);

// The folder of an attempt. What is on its way to its place in the run directory or from there lies
// in it; see fence_off_attempts() for why.
std::filesystem::path attempt_path(const CheckpointAttempt& attempt);

// Deletes the attempts of `fence` and of those before it, and what was left half deleted. Throws
// filesystem_error, and what sync_directory() does.
void remove_attempts(const std::filesystem::path& checkpoints_dir, int64_t fence);

}  // namespace mtl
