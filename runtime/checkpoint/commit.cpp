// From shards to a checkpoint: preparing its directory, the commit, pruning, and finding the newest
// one. The order of the steps on disk is the whole point:
//   shards -> their directory entries -> manifest -> COMMITTED -> `latest` -> pruning
// each durable before the next begins. What is to be deleted is renamed first (and the rename made
// durable), so that no crash leaves a half-deleted directory under a checkpoint's name.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <optional>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "common/files.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hash.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/shard_files.h"
#include "runtime/checkpoint/strict_json.h"
#include "runtime/checkpoint/write_error.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

constexpr const char* kPrefix = "step-";
constexpr const char* kDeleted = ".deleted";

// The step of "step-00000100"; nothing for any other name.
std::optional<int64_t> step_of(const fs::path& dir) {
  const std::string name = dir.filename().string();
  const std::string_view prefix = kPrefix;
  if (!name.starts_with(prefix) || name.size() < prefix.size() + 8) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data() + prefix.size(), end, step);
  if (error != std::errc() || last != end || step < 0) return std::nullopt;
  return step;
}

// Without a trailing slash and with a parent to put `latest` into.
fs::path normal(const fs::path& dir) {
  fs::path path = fs::absolute(dir).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

void delete_checkpoint(const fs::path& dir) {
  fs::path doomed = dir;
  doomed += kDeleted;
  fs::remove_all(doomed);
  fs::rename(dir, doomed);
  sync_directory(dir.parent_path());
  fs::remove_all(doomed);
}

struct StepDir {
  int64_t step;
  fs::path path;
};

// Newest first.
std::vector<StepDir> step_dirs(const fs::path& checkpoints_dir) {
  std::vector<StepDir> dirs;
  for (const auto& entry : fs::directory_iterator(checkpoints_dir)) {
    if (const auto step = step_of(entry.path())) dirs.push_back({*step, entry.path()});
  }
  std::sort(dirs.begin(), dirs.end(),
            [](const StepDir& a, const StepDir& b) { return a.step > b.step; });
  return dirs;
}

// Checks that each file is there as the chunks say, and describes it for the manifest.
std::map<std::string, ShardFileRecord> describe_files(const fs::path& dir,
                                                      const std::vector<ChunkRecord>& chunks) {
  std::map<std::string, std::vector<const ChunkRecord*>> by_file;
  for (const ChunkRecord& chunk : chunks) by_file[chunk.file].push_back(&chunk);
  std::map<std::string, ShardFileRecord> files;
  for (auto& [name, parts] : by_file) {
    const ShardStart start = read_shard_start(dir / name);
    const auto differs = [&](const std::string& what) {
      throw Error(Exit::data, Diagnostic{.code = "ckpt.file",
                                         .what = fmt::format("{} is not what its rank reported: {}",
                                                             (dir / name).string(), what),
                                         .help = "does another run write into this directory?"});
    };
    const auto& entries = start.header.entries;
    if (entries.size() != parts.size()) {
      differs(fmt::format("it holds {} tensors instead of {}", entries.size(), parts.size()));
    }
    std::sort(parts.begin(), parts.end(), [](const ChunkRecord* a, const ChunkRecord* b) {
      return std::pair(a->byte_offset, a->bytes) < std::pair(b->byte_offset, b->bytes);
    });
    for (size_t i = 0; i < entries.size(); ++i) {
      if (parts[i]->byte_offset != start.header.data_start + entries[i].begin ||
          parts[i]->bytes != entries[i].end - entries[i].begin ||
          parts[i]->dtype != entries[i].dtype || parts[i]->extent != entries[i].shape) {
        differs(fmt::format("'{}' differs", entries[i].name));
      }
    }
    files[name] = {.bytes = start.file_bytes,
                   .header_bytes = start.header.data_start,
                   .header_xxh3 = start.header_xxh3};
  }
  return files;
}

void point_latest(const fs::path& dir) {
  const fs::path run_dir = dir.parent_path().parent_path();
  const fs::path latest = run_dir / "latest";
  const fs::path fresh = run_dir / fmt::format("latest.{}.tmp", ::getpid());
  fs::remove(fresh);
  fs::create_directory_symlink(dir.parent_path().filename() / dir.filename(), fresh);
  std::error_code error;
  fs::rename(fresh, latest, error);
  if (error) {
    std::error_code ignored;
    fs::remove(fresh, ignored);
    throw fs::filesystem_error("cannot replace the link", latest, error);
  }
  sync_directory(run_dir);
}

void prune(const fs::path& dir, int64_t keep_last) {
  const fs::path checkpoints_dir = dir.parent_path();
  for (const auto& entry : fs::directory_iterator(checkpoints_dir)) {
    // What a crash left of an earlier deletion.
    if (entry.path().extension() == kDeleted && step_of(entry.path().stem())) {
      fs::remove_all(entry.path());
    }
  }
  if (keep_last <= 0) return;
  const int64_t step = step_of(dir).value_or(0);
  // The one just committed counts and stays, wherever its step stands among the others.
  int64_t kept = 1;
  for (const StepDir& other : step_dirs(checkpoints_dir)) {
    if (other.path.filename() == dir.filename()) continue;
    switch (check_commit(other.path).state) {
      case CommitState::committed:
        if (kept++ >= keep_last) delete_checkpoint(other.path);
        break;
      case CommitState::uncommitted:
        // An attempt that failed; newer ones may be somebody's work in progress.
        if (other.step < step) delete_checkpoint(other.path);
        break;
      case CommitState::damaged:  // kept: a person may want to save something from it
      case CommitState::missing:
        break;
    }
  }
}

// Runs what may fail without harm to the checkpoint, which is complete by now.
template <class Call>
void try_to(const std::string& what, std::vector<Diagnostic>& warnings, Call call) {
  std::string reason;
  try {
    call();
    return;
  } catch (const fs::filesystem_error& error) {
    reason = error.what();
  } catch (const Error& error) {
    reason = error.diagnostics()[0].what;
  }
  warnings.push_back({.code = "ckpt.tidy",
                      .what = fmt::format("cannot {}: {}", what, reason),
                      .notes = {"the checkpoint itself is complete"},
                      .help = "check the permissions and the space of the run directory",
                      .severity = Diagnostic::Severity::warning});
}

}  // namespace

fs::path checkpoint_path(const fs::path& checkpoints_dir, int64_t step) {
  return checkpoints_dir / fmt::format("{}{:08d}", kPrefix, step);
}

void prepare_checkpoint_dir(const fs::path& given_dir, bool replace_committed) {
  const fs::path dir = normal(given_dir);
  if (!step_of(dir)) {
    fail_write(dir, "a checkpoint's directory is named step- and the number of the step");
  }
  if (check_commit(dir).state == CommitState::committed && !replace_committed) {
    throw Error(Exit::data,
                Diagnostic{.code = "ckpt.exists",
                           .what = dir.string() + " is a complete checkpoint and stays as it is",
                           .help = "resume from it, or remove it first"});
  }
  try {
    std::error_code error;
    if (fs::exists(fs::symlink_status(dir, error))) delete_checkpoint(dir);
    make_directories(dir);
    sync_directory(dir.parent_path());
  } catch (const fs::filesystem_error& error) {
    fail_write(dir, error.what());
  } catch (const Error& error) {
    fail_write(dir, error.diagnostics()[0].what);
  }
}

std::vector<Diagnostic> commit_checkpoint(const fs::path& given_dir,
                                          const std::vector<ChunkRecord>& chunks,
                                          const nlohmann::json& state, int64_t keep_last) {
  const fs::path dir = normal(given_dir);
  if (check_commit(dir).state == CommitState::committed) {
    throw Error(Exit::data, Diagnostic{.code = "ckpt.exists",
                                       .what = dir.string() + " is committed already",
                                       .help = "save under another step, or remove it first"});
  }
  check_tiling(chunks, true);
  const std::string text =
      manifest_text({.state = state, .files = describe_files(dir, chunks), .chunks = chunks});
  // A marker that an earlier attempt left must not meet the new manifest.
  std::error_code error;
  if (fs::remove(dir / kMarkerName, error); error) fail_write(dir / kMarkerName, error.message());
  as_write_error(dir, [&] {
    sync_directory(dir);
    sync_directory(dir.parent_path());
  });
  as_write_error(dir / kManifestName, [&] { write_file_atomic(dir / kManifestName, text); });
  as_write_error(dir / kMarkerName, [&] {
    try {
      write_file_atomic(dir / kMarkerName, hash_text(Xxh3::of(text)) + "\n");
    } catch (const Error&) {
      // It may be there without being durable: whoever gets an Error finds no checkpoint.
      fs::remove(dir / kMarkerName, error);
      throw;
    }
  });
  std::vector<Diagnostic> warnings;
  try_to("point `latest` at " + dir.string(), warnings, [&] { point_latest(dir); });
  try_to("delete old checkpoints of " + dir.parent_path().string(), warnings,
         [&] { prune(dir, keep_last); });
  return warnings;
}

namespace {

// The step directories of a run, newest first; none if the directory does not exist.
std::vector<StepDir> list_checkpoints(const fs::path& checkpoints_dir, Diagnostics& diagnostics) {
  std::error_code error;
  if (!fs::exists(fs::status(checkpoints_dir, error)) &&
      (!error || error == std::errc::no_such_file_or_directory ||
       error == std::errc::not_a_directory)) {
    return {};
  }
  try {
    return step_dirs(checkpoints_dir);
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

std::string uncommitted_reason() {
  return fmt::format("it has no {}, so it was never complete", kMarkerName);
}

// What is wrong with a committed checkpoint, reading all of it; nothing if it is intact.
std::optional<std::string> damage_of(const fs::path& dir) {
  try {
    CheckpointReader(dir).verify();
    return std::nullopt;
  } catch (const Error& error) {
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
    const CommitCheck check = check_commit(candidate.path);
    if (check.state == CommitState::committed) return candidate.path;
    if (check.state == CommitState::missing) continue;  // not a directory
    const bool damaged = check.state == CommitState::damaged;
    passed_over(candidate.path, damaged ? check.reason : uncommitted_reason(), diagnostics);
  }
  return {};
}

fs::path newest_intact_checkpoint(const fs::path& checkpoints_dir, Damaged damaged,
                                  Diagnostics& diagnostics) {
  std::vector<fs::path> spoiled;
  fs::path intact;
  for (const StepDir& candidate : list_checkpoints(checkpoints_dir, diagnostics)) {
    const CommitCheck check = check_commit(candidate.path);
    if (check.state == CommitState::missing) continue;
    if (check.state == CommitState::uncommitted) {
      passed_over(candidate.path, uncommitted_reason(), diagnostics);
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
