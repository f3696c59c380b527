// The checkpoints of a run as a person sees them: what is there, why it stays, and thinning out.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/checkpoint/checkpoint.h"

namespace mtl {

struct CheckpointEntry {
  std::filesystem::path path;
  int64_t step = 0;
  // "committed", "damaged" (the commit marker or the manifest; `mtl ckpt verify` reads all bytes),
  // "unreadable" (as ckpt.unreadable), "unfinished" (an attempt, or one without its marker)
  std::string status;
  std::string reason;  // of what is not committed
  int64_t bytes = 0;   // of its files
  int64_t version = 0;
  nlohmann::json state = nlohmann::json::object();  // of a committed one
  Kept kept;
  bool latest = false, best = false;  // the links of the run point here
};
// Newest first. Throws Error (Exit::data) ckpt.unreadable.
std::vector<CheckpointEntry> list_run(const std::filesystem::path& run_dir, const KeepRules& keep);
nlohmann::json to_json(const CheckpointEntry& entry);

// A number under "metrics" in a checkpoint's state.
std::optional<double> metric_of(const nlohmann::json& state, const std::string& name);

// What the rules do not keep, newest first, with the bytes that are free when they are gone: of a
// file with other names those of the last. `dry_run`: nothing is deleted. The newest stays in any
// case, and so does what is not committed. Throws Error (Exit::environment) ckpt.write.
std::vector<CheckpointEntry> prune_run(const std::filesystem::path& run_dir, const KeepRules& keep,
                                       bool dry_run);

}  // namespace mtl
