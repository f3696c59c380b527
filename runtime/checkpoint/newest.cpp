// Finding the newest checkpoint of a run, or the newest that is intact.
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/step_dirs.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

// Checkpoints and attempts at them, newest first; none if the directory does not exist.
std::vector<StepDir> list_checkpoints(const fs::path& checkpoints_dir, Diagnostics& diagnostics) {
  std::error_code error;
  if (!fs::exists(fs::status(checkpoints_dir, error)) &&
      (!error || error == std::errc::no_such_file_or_directory ||
       error == std::errc::not_a_directory)) {
    return {};
  }
  try {
    std::vector<StepDir> dirs = step_dirs(checkpoints_dir);
    std::erase_if(dirs, [](const StepDir& dir) { return dir.name.deleted; });
    return dirs;
  } catch (const fs::filesystem_error& failed) {
    // Not "no checkpoint": that would start the run from the beginning.
    diagnostics.add({.code = "ckpt.unreadable",
                     .what = fmt::format("cannot list {}: {}", checkpoints_dir.string(),
                                         failed.code().message()),
                     .help = "make the run directory readable for this user"});
    return {};
  }
}

void passed_over(const fs::path& dir, const std::string& why, Diagnostics& diagnostics) {
  diagnostics.add({.code = "ckpt.incomplete",
                   .what = fmt::format("passed over {}: {}", dir.string(), why),
                   .help = "",
                   .severity = Diagnostic::Severity::warning});
}

// An attempt's folder is none, whatever is in it.
CommitCheck check_candidate(const StepDir& candidate) {
  if (candidate.name.is_checkpoint()) return check_commit(candidate.path);
  return {.state = CommitState::uncommitted, .reason = {}, .manifest = {}};
}

std::string uncommitted_reason(const StepDir& candidate) {
  if (candidate.name.fence)
    return "it is not complete: it is being written, or that was broken off";
  return fmt::format("it has no {}, so it was never complete", kMarkerName);
}

// What is wrong with a committed checkpoint, reading all of it; nothing if it is intact. Throws
// ckpt.unreadable.
std::optional<std::string> damage_of(const fs::path& dir) {
  try {
    CheckpointReader(dir).verify();
    return std::nullopt;
  } catch (const Error& error) {
    if (error.exit() == Exit::environment) throw;
    return error.diagnostics().front().what;
  }
}

void set_aside(const fs::path& dir) {
  fs::path target = dir.string() + ".damaged";
  for (int i = 2; fs::exists(target); ++i) target = fmt::format("{}.damaged-{}", dir.string(), i);
  std::error_code ignored;  // what cannot be renamed stays; saving that step will say so
  fs::rename(dir, target, ignored);
}

}  // namespace

fs::path newest_checkpoint(const fs::path& checkpoints_dir, Diagnostics& diagnostics) {
  for (const StepDir& candidate : list_checkpoints(checkpoints_dir, diagnostics)) {
    const CommitCheck check = check_candidate(candidate);
    if (check.state == CommitState::committed) return candidate.path;
    if (check.state == CommitState::missing) continue;  // not a directory
    if (check.state == CommitState::unreadable) {
      diagnostics.add(*check.unreadable);
      return {};
    }
    const bool damaged = check.state == CommitState::damaged;
    passed_over(candidate.path, damaged ? check.reason : uncommitted_reason(candidate),
                diagnostics);
  }
  return {};
}

fs::path newest_intact_checkpoint(const fs::path& checkpoints_dir, Damaged damaged,
                                  Diagnostics& diagnostics) {
  std::vector<fs::path> spoiled;
  fs::path intact;
  for (const StepDir& candidate : list_checkpoints(checkpoints_dir, diagnostics)) {
    const CommitCheck check = check_candidate(candidate);
    if (check.state == CommitState::missing) continue;
    // One that cannot be read is not passed over: it may be the one to go on from.
    if (check.state == CommitState::unreadable) throw Error(Exit::environment, *check.unreadable);
    if (check.state == CommitState::uncommitted) {
      passed_over(candidate.path, uncommitted_reason(candidate), diagnostics);
      continue;
    }
    const std::optional<std::string> damage =
        check.state == CommitState::damaged ? check.reason : damage_of(candidate.path);
    if (!damage) {
      intact = candidate.path;
      break;
    }
    passed_over(candidate.path, *damage, diagnostics);
    spoiled.push_back(candidate.path);
  }
  if (intact.empty() && !spoiled.empty()) {
    diagnostics.add(
        {.code = "ckpt.none_intact",
         .what = fmt::format("none of the checkpoints in {} is intact", checkpoints_dir.string()),
         .help = "restore one from a copy, or start a new run with --fresh"});
    return {};
  }
  if (damaged == Damaged::set_aside) {
    for (const fs::path& dir : spoiled) set_aside(dir);
  }
  return intact;
}

}  // namespace mtl
