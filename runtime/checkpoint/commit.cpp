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
#include <set>
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
#include "runtime/checkpoint/write_parts.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

constexpr const char* kLatest = "latest";
constexpr const char* kBest = "best";

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
    const auto differs = [&file = name, &dir](const std::string& what) {
      throw Error(Exit::data, Diagnostic{.code = "ckpt.file",
                                         .what = fmt::format("{} is not what its rank reported: {}",
                                                             (dir / file).string(), what),
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

// Points `<run>/<name>` at the checkpoint in `dir`.
void point_link(const CheckpointAttempt& attempt, const char* name, const fs::path& dir) {
  const fs::path run_dir = dir.parent_path().parent_path();
  const fs::path link = run_dir / name;
  const fs::path target = dir.parent_path().filename() / dir.filename();
  std::error_code error;
  if (fs::read_symlink(link, error) == target && !error) return;
  fs::path fresh = attempt_path(attempt) / name;
  fs::create_directory_symlink(target, fresh);
  fs::rename(fresh, link, error);
  if (error == std::errc::cross_device_link) {
    // `checkpoints` is a link to a larger disk. The next commit corrects what a late rank does
    // here.
    fresh = run_dir / fmt::format("{}.{}.tmp", name, ::getpid());
    fs::remove(fresh);
    fs::create_directory_symlink(target, fresh);
    fs::rename(fresh, link, error);
    std::error_code ignored;
    if (error) fs::remove(fresh, ignored);
  }
  if (error) throw fs::filesystem_error("cannot replace the link", link, error);
  sync_directory(run_dir);
}

// What is pointed at stays: `best` goes before its checkpoint does.
void drop_best(const CheckpointAttempt& attempt, const fs::path& checkpoint) {
  const fs::path link = checkpoint.parent_path().parent_path() / kBest;
  std::error_code error;
  if (fs::read_symlink(link, error).filename() != checkpoint.filename() || error) return;
  fs::rename(link, attempt_path(attempt) / kBest, error);
  if (error == std::errc::cross_device_link) fs::remove(link, error);
  sync_directory(link.parent_path());
}

// Moves what is not kept into the attempt's folder, which is deleted in the end.
void prune(const CheckpointAttempt& attempt, const fs::path& dir, const KeepRules& keep,
           const std::vector<SavedStep>& saved) {
  const int64_t step = parse_step_name(dir.filename().string())->step;
  std::set<int64_t> stay;
  std::set<int64_t> known;
  for (const Kept& kept : judge(keep, saved, step)) {
    known.insert(kept.step);
    if (kept.stays()) stay.insert(kept.step);
  }
  for (const StepDir& other : step_dirs(dir.parent_path())) {
    if (!other.name.is_checkpoint() || other.path.filename() == dir.filename()) continue;
    bool goes = false;
    switch (check_commit(other.path).state) {
      case CommitState::committed:
        goes = known.contains(other.name.step) && !stay.contains(other.name.step);
        break;
      case CommitState::uncommitted:
        // An attempt that failed; newer ones may be somebody's work in progress.
        goes = other.name.step < step;
        break;
      case CommitState::damaged:  // kept: a person may want to save something from it
      case CommitState::unreadable:
      case CommitState::missing:
        break;
    }
    if (!goes) continue;
    drop_best(attempt, other.path);
    fs::rename(other.path, attempt_path(attempt) / other.path.filename());
  }
}

// The extra files, durable but for their names.
std::map<std::string, ExtraFileRecord> write_extras(const fs::path& dir,
                                                    const std::vector<ExtraFile>& extras) {
  std::map<std::string, ExtraFileRecord> records;
  for (const ExtraFile& extra : extras) {
    as_write_error(dir / extra.name, [&] { write_file_atomic(dir / extra.name, extra.content); });
    records[extra.name] = {.bytes = static_cast<int64_t>(extra.content.size()),
                           .xxh3 = Xxh3::of(extra.content)};
  }
  return records;
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

void make_room(const CheckpointAttempt& attempt, int64_t newest, const KeepRules& keep) {
  if (keep.last <= 0) return;
  const fs::path checkpoints = normal(attempt.dir).parent_path();
  const fs::path dir = checkpoint_path(checkpoints, newest);
  try {
    const std::vector<SavedStep> saved = saved_steps(checkpoints, keep);
    int64_t last = -1;
    for (const SavedStep& one : saved) last = std::max(last, one.step);
    const fs::path latest = fs::read_symlink(checkpoints.parent_path() / kLatest);
    if (last != newest || latest.filename() != dir.filename()) return;
    prune(attempt, dir, keep, saved);
    sync_directory(checkpoints);
    for (const fs::directory_entry& moved : fs::directory_iterator(attempt_path(attempt))) {
      if (moved.path() != written_path(attempt)) fs::remove_all(moved.path());
    }
  } catch (const fs::filesystem_error&) {
    // The commit tries it again, and tells of it.
  } catch (const Error&) {
  }
}

void write_manifest(const fs::path& dir, const std::vector<ChunkRecord>& chunks,
                    const nlohmann::json& state, const std::vector<ExtraFile>& extras) {
  const std::string text = manifest_text({.state = state,
                                          .extras = write_extras(dir, extras),
                                          .files = describe_files(dir, chunks),
                                          .chunks = chunks});
  as_write_error(dir / kManifestName, [&] { write_file_atomic(dir / kManifestName, text); });
  as_write_error(dir / kMarkerName,
                 [&] { write_file_atomic(dir / kMarkerName, hash_text(Xxh3::of(text)) + "\n"); });
}

void write_new_checkpoint(const fs::path& out, const nlohmann::json& state,
                          const std::vector<ExtraFile>& extras,
                          const std::vector<std::vector<CheckpointTensor>>& ranks) {
  const fs::path dir = normal(out);
  std::error_code error;
  if (fs::exists(fs::symlink_status(dir, error))) {
    throw Error(Exit::usage, Diagnostic{.code = "ckpt.exists",
                                        .what = dir.string() + " is there already",
                                        .help = "give a directory that is not there yet"});
  }
  fs::path written = dir;
  written += fmt::format(".{}.tmp", ::getpid());
  as_write_error(written, [&] { make_directories(written); });
  try {
    std::vector<ChunkRecord> chunks;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      for (ChunkRecord& chunk : write_shards_into(written, static_cast<int>(rank), ranks[rank])) {
        chunks.push_back(std::move(chunk));
      }
    }
    check_tiling(chunks, true);
    write_manifest(written, chunks, state, extras);
    fs::rename(written, dir, error);
    if (error) fail_write(dir, error.message());
    as_write_error(dir, [&] { sync_directory(dir.parent_path()); });
  } catch (...) {
    fs::remove_all(written, error);
    throw;
  }
}

std::vector<Diagnostic> commit_checkpoint(const CheckpointAttempt& attempt,
                                          const std::vector<ChunkRecord>& chunks,
                                          const nlohmann::json& state, const KeepRules& keep,
                                          const std::vector<ExtraFile>& extras) {
  const fs::path dir = normal(attempt.dir);
  refuse_committed(dir);
  check_tiling(chunks, true);
  nlohmann::json whole = state;
  whole["fence"] = attempt.fence;
  write_manifest(written_path(attempt), chunks, whole, extras);
  as_write_error(dir, [&] {
    try {
      publish(attempt, dir);
    } catch (const fs::filesystem_error& error) {
      fail_write(dir, error.code().message());
    }
  });
  std::vector<Diagnostic> warnings;
  try_to("point `latest` at " + dir.string(), warnings, [&] { point_link(attempt, kLatest, dir); });
  // What `latest` still points to must stay.
  if (!warnings.empty()) return warnings;
  try_to("delete old checkpoints of " + dir.parent_path().string(), warnings, [&] {
    if (keep.last <= 0 && keep.best <= 0) return;
    const std::vector<SavedStep> saved = saved_steps(dir.parent_path(), keep);
    const auto best = keep.best > 0 ? best_step(keep, saved) : std::nullopt;
    if (best) point_link(attempt, kBest, checkpoint_path(dir.parent_path(), *best));
    if (keep.last > 0) prune(attempt, dir, keep, saved);
  });
  try_to("delete what is left over in " + dir.parent_path().string(), warnings,
         [&] { remove_attempts(dir.parent_path(), attempt.fence); });
  return warnings;
}

void complete_evaluation(const CheckpointAttempt& attempt, const nlohmann::json& metrics,
                         const KeepRules& keep) {
  const fs::path dir = normal(attempt.dir);
  const fs::path folder = attempt_path(attempt);
  as_write_error(dir / kEvaluatedName, [&] {
    try {
      fs::create_directory(folder);
      write_file_atomic(folder / kEvaluatedName,
                        nlohmann::json{{"metrics", metrics}}.dump() + "\n");
      fs::rename(folder / kEvaluatedName, dir / kEvaluatedName);
      sync_directory(dir);
      if (keep.best > 0) {
        const auto best = best_step(keep, saved_steps(dir.parent_path(), keep));
        if (best) point_link(attempt, kBest, checkpoint_path(dir.parent_path(), *best));
      }
      fs::remove_all(folder);
    } catch (const fs::filesystem_error& error) {
      fail_write(dir / kEvaluatedName, error.code().message());
    }
  });
}

void abandon_checkpoint(const CheckpointAttempt& attempt) {
  std::error_code ignored;
  fs::remove_all(attempt_path(attempt), ignored);
}

std::vector<SavedStep> saved_steps(const fs::path& checkpoints_dir, const KeepRules& keep) {
  std::vector<SavedStep> saved;
  for (const StepDir& dir : step_dirs(checkpoints_dir)) {
    if (!dir.name.is_checkpoint()) continue;
    const CommitCheck check = check_commit(dir.path);
    if (check.state != CommitState::committed) continue;
    saved.push_back({.step = dir.name.step});
    if (keep.best <= 0) continue;  // reading all of a manifest takes a while
    try {
      Manifest manifest = parse_manifest(check.manifest, dir.path / kManifestName);
      add_evaluation(dir.path, manifest.state);
      const nlohmann::json metrics = manifest.state.value("metrics", nlohmann::json::object());
      const auto found = metrics.find(keep.metric);
      if (found != metrics.end() && found->is_number()) saved.back().metric = found->get<double>();
    } catch (const Error&) {
      // Of another version: it counts among the last ones.
    } catch (const nlohmann::json::exception&) {
    }
  }
  return saved;
}

}  // namespace mtl
