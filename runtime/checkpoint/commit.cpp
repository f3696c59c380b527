// From shards to a checkpoint: preparing its folder, the commit, pruning. The order of the steps on
// disk is the whole point:
//   shards -> their directory entries -> manifest -> COMMITTED -> its name -> `latest` -> pruning
// each durable before the next begins. What is to be deleted is renamed first (and the rename made
// durable), so that no crash leaves a half-deleted directory under a checkpoint's name. Every
// rename in or out of `checkpoints/` has the attempt's folder at its other end: so it fails once
// another fence has taken that away (fence_off_attempts).
#include <algorithm>
#include <cerrno>
#include <map>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "common/files.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hash.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/shard_files.h"
#include "runtime/checkpoint/step_dirs.h"
#include "runtime/checkpoint/strict_json.h"
#include "runtime/checkpoint/write_error.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

constexpr const char* kLatest = "latest";

// Without a trailing slash and with a parent to put `latest` into.
fs::path normal(const fs::path& dir) {
  fs::path path = fs::absolute(dir).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

// Once committed it stays as it is.
void refuse_committed(const fs::path& dir) {
  if (check_commit(dir).state != CommitState::committed) return;
  throw Error(Exit::data,
              Diagnostic{.code = "ckpt.exists",
                         .what = dir.string() + " is a complete checkpoint and stays as it is",
                         .help = "resume from it, or remove it first"});
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

// Gives the written checkpoint its name.
void publish(const CheckpointAttempt& attempt, const fs::path& dir) {
  const fs::path written = written_path(attempt);
  std::error_code error;
  // What was never complete there, or is damaged and not set aside, makes room.
  if (fs::exists(fs::symlink_status(dir, error))) {
    fs::rename(dir, attempt_path(attempt) / dir.filename());
  }
  fs::rename(written, dir);
  try {
    sync_directory(dir.parent_path());
  } catch (const Error&) {
    // It may be there without being durable: whoever gets an Error finds no checkpoint. Unless the
    // run has gone on without us, and from it.
    fs::rename(dir, written, error);
    const bool gone = error == std::errc::no_such_file_or_directory ||
                      error == std::error_code(ESTALE, std::generic_category());
    if (error && !gone) {
      fs::remove(dir / kMarkerName, error);
    }
    throw;
  }
}

void point_latest(const CheckpointAttempt& attempt, const fs::path& dir) {
  const fs::path run_dir = dir.parent_path().parent_path();
  const fs::path latest = run_dir / kLatest;
  const fs::path target = dir.parent_path().filename() / dir.filename();
  fs::path fresh = attempt_path(attempt) / kLatest;
  fs::create_directory_symlink(target, fresh);
  std::error_code error;
  fs::rename(fresh, latest, error);
  if (error == std::errc::cross_device_link) {
    // `checkpoints` is a link to a larger disk. The next commit corrects what a late rank does
    // here.
    fresh = run_dir / fmt::format("{}.{}.tmp", kLatest, ::getpid());
    fs::remove(fresh);
    fs::create_directory_symlink(target, fresh);
    fs::rename(fresh, latest, error);
    std::error_code ignored;
    if (error) fs::remove(fresh, ignored);
  }
  if (error) throw fs::filesystem_error("cannot replace the link", latest, error);
  sync_directory(run_dir);
}

// Moves what is not kept into the attempt's folder, which is deleted in the end.
void prune(const CheckpointAttempt& attempt, const fs::path& dir, int64_t keep_last) {
  if (keep_last <= 0) return;
  const int64_t step = parse_step_name(dir.filename().string())->step;
  // The one just committed counts and stays, wherever its step stands among the others.
  int64_t kept = 1;
  for (const StepDir& other : step_dirs(dir.parent_path())) {
    if (!other.name.is_checkpoint() || other.path.filename() == dir.filename()) continue;
    bool goes = false;
    switch (check_commit(other.path).state) {
      case CommitState::committed:
        goes = kept++ >= keep_last;
        break;
      case CommitState::uncommitted:
        // An attempt that failed; newer ones may be somebody's work in progress.
        goes = other.name.step < step;
        break;
      case CommitState::damaged:  // kept: a person may want to save something from it
      case CommitState::missing:
        break;
    }
    if (goes) fs::rename(other.path, attempt_path(attempt) / other.path.filename());
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

void prepare_checkpoint(const CheckpointAttempt& attempt) {
  const fs::path dir = normal(attempt.dir);
  const auto name = parse_step_name(dir.filename().string());
  if (!name || !name->is_checkpoint()) {
    fail_write(dir, "a checkpoint's directory is named step- and the number of the step");
  }
  refuse_committed(dir);
  const fs::path folder = attempt_path(attempt);
  as_write_error(folder, [&] { make_directories(dir.parent_path()); });
  std::string in_the_way;
  try {
    remove_attempts(dir.parent_path(), attempt.fence);
  } catch (const fs::filesystem_error& error) {
    in_the_way = error.code().message();  // only if it is ours; else the commit says it
  } catch (const Error& error) {
    in_the_way = error.diagnostics()[0].what;
  }
  try {
    if (!fs::create_directory(folder)) fail_write(folder, "cannot clear it: " + in_the_way);
    fs::create_directory(written_path(attempt));
  } catch (const fs::filesystem_error& error) {
    fail_write(folder, error.code().message());
  }
}

std::vector<Diagnostic> commit_checkpoint(const CheckpointAttempt& attempt,
                                          const std::vector<ChunkRecord>& chunks,
                                          const nlohmann::json& state, int64_t keep_last) {
  const fs::path dir = normal(attempt.dir);
  refuse_committed(dir);
  check_tiling(chunks, true);
  const fs::path written = written_path(attempt);
  nlohmann::json whole = state;
  whole["fence"] = attempt.fence;
  const std::string text = manifest_text(
      {.state = std::move(whole), .files = describe_files(written, chunks), .chunks = chunks});
  as_write_error(written / kManifestName,
                 [&] { write_file_atomic(written / kManifestName, text); });
  as_write_error(written / kMarkerName, [&] {
    write_file_atomic(written / kMarkerName, hash_text(Xxh3::of(text)) + "\n");
  });
  as_write_error(dir, [&] {
    try {
      publish(attempt, dir);
    } catch (const fs::filesystem_error& error) {
      fail_write(dir, error.code().message());
    }
  });
  std::vector<Diagnostic> warnings;
  try_to("point `latest` at " + dir.string(), warnings, [&] { point_latest(attempt, dir); });
  // What `latest` still points to must stay.
  if (!warnings.empty()) return warnings;
  try_to("delete old checkpoints of " + dir.parent_path().string(), warnings,
         [&] { prune(attempt, dir, keep_last); });
  try_to("delete what is left over in " + dir.parent_path().string(), warnings,
         [&] { remove_attempts(dir.parent_path(), attempt.fence); });
  return warnings;
}

}  // namespace mtl
