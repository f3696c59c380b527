#include "runtime/checkpoint/catalog.h"

#include <algorithm>
#include <functional>
#include <map>
#include <system_error>
#include <utility>

#include <sys/stat.h>

#include <fmt/format.h>

#include "common/files.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/step_dirs.h"
#include "runtime/checkpoint/write_error.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

std::vector<StepDir> dirs_of(const fs::path& run_dir) {
  const fs::path dir = run_dir / kCheckpoints;
  std::error_code error;
  if (!fs::exists(dir, error) && !error) return {};
  try {
    return step_dirs(dir);
  } catch (const fs::filesystem_error& failed) {
    throw Error(Exit::data, Diagnostic{.code = "ckpt.unreadable",
                                       .what = fmt::format("cannot list {}: {}", dir.string(),
                                                           failed.code().message()),
                                       .help = "make the run directory readable for this user"});
  }
}

void each_file(const fs::path& dir, const std::function<void(const struct stat&)>& visit) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(dir, error), end; !error && it != end;
       it.increment(error)) {
    struct stat file = {};
    if (::lstat(it->path().c_str(), &file) == 0 && S_ISREG(file.st_mode)) visit(file);
  }
}

int64_t bytes_below(const fs::path& dir) {
  int64_t bytes = 0;
  each_file(dir, [&](const struct stat& file) { bytes += file.st_size; });
  return bytes;
}

void count_freed(std::vector<CheckpointEntry>& entries) {
  std::map<std::pair<dev_t, ino_t>, nlink_t> gone;  // names, by file
  for (CheckpointEntry& entry : entries) {
    entry.bytes = 0;
    each_file(entry.path, [&](const struct stat& file) {
      if (++gone[{file.st_dev, file.st_ino}] == file.st_nlink) entry.bytes += file.st_size;
    });
  }
}

std::string linked(const fs::path& run_dir, const char* name) {
  std::error_code error;
  return fs::read_symlink(run_dir / name, error).filename().string();
}

}  // namespace

std::optional<double> metric_of(const nlohmann::json& state, const std::string& name) {
  if (!state.is_object()) return std::nullopt;
  const auto metrics = state.find("metrics");
  if (metrics == state.end() || !metrics->is_object()) return std::nullopt;
  const auto found = metrics->find(name);
  if (found == metrics->end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::vector<CheckpointEntry> list_run(const fs::path& run_dir, const KeepRules& keep) {
  const std::string latest = linked(run_dir, "latest");
  const std::string best = linked(run_dir, "best");
  std::vector<CheckpointEntry> entries;
  std::vector<SavedStep> saved;
  for (const StepDir& dir : dirs_of(run_dir)) {
    if (dir.name.deleted) continue;
    CheckpointEntry entry;
    entry.path = dir.path;
    entry.step = dir.name.step;
    entry.status = "unfinished";
    CommitCheck check;
    if (dir.name.is_checkpoint()) check = check_commit(dir.path);
    if (dir.name.is_checkpoint() && check.state == CommitState::missing) continue;  // no folder
    if (check.state == CommitState::damaged || check.state == CommitState::unreadable) {
      entry.status = check.state == CommitState::damaged ? "damaged" : "unreadable";
      entry.reason = check.reason;
    } else if (check.state == CommitState::committed) {
      try {
        Manifest manifest = parse_manifest(check.manifest, dir.path / kManifestName);
        entry.state = std::move(manifest.state);
        add_evaluation(dir.path, entry.state);
        entry.version = manifest.version;
        entry.status = "committed";
      } catch (const Error& error) {
        entry.status = "damaged";
        entry.reason = error.diagnostics().front().what;
      }
    } else {
      entry.reason = "it is being written, or that was broken off";
    }
    entry.bytes = bytes_below(dir.path);
    entry.latest = dir.path.filename() == latest;
    entry.best = dir.path.filename() == best;
    if (entry.status == "committed") {
      saved.push_back({.step = entry.step, .metric = metric_of(entry.state, keep.metric)});
    }
    entries.push_back(std::move(entry));
  }
  for (const Kept& kept : judge(keep, saved)) {
    for (CheckpointEntry& entry : entries) {
      if (entry.status == "committed" && entry.step == kept.step) entry.kept = kept;
    }
  }
  return entries;
}

nlohmann::json to_json(const CheckpointEntry& entry) {
  nlohmann::json json = {{"path", entry.path.string()}, {"step", entry.step},
                         {"status", entry.status},      {"bytes", entry.bytes},
                         {"latest", entry.latest},      {"best", entry.best}};
  if (!entry.reason.empty()) json["reason"] = entry.reason;
  if (entry.status != "committed" || !entry.state.is_object()) return json;
  json["version"] = entry.version;
  for (const char* key : {"time", "layout", "tokens", "mtl"}) {
    if (entry.state.contains(key)) json[key] = entry.state.at(key);
  }
  for (const char* key : {"loss", "valid_loss"}) {
    if (const auto value = metric_of(entry.state, key)) json[key] = *value;
  }
  nlohmann::json reasons = nlohmann::json::array();
  if (entry.kept.last) reasons.push_back("keep_last");
  if (entry.kept.every) reasons.push_back("keep_every");
  if (entry.kept.best) reasons.push_back("keep_best");
  json["kept_by"] = std::move(reasons);
  return json;
}

namespace {

[[noreturn]] void fail_delete(const fs::path& path, const std::error_code& error) {
  throw Error(
      Exit::environment,
      Diagnostic{.code = "ckpt.write",
                 .what = fmt::format("cannot delete {}: {}", path.string(), error.message()),
                 .help = "whoever may write in its folder can delete it"});
}

}  // namespace

std::vector<CheckpointEntry> prune_run(const fs::path& run_dir, const KeepRules& keep,
                                       bool dry_run) {
  std::vector<CheckpointEntry> goes = list_run(run_dir, keep);
  bool newest = true;
  std::erase_if(goes, [&](const CheckpointEntry& entry) {
    if (entry.status != "committed") return true;
    return std::exchange(newest, false) || entry.kept.stays();
  });
  count_freed(goes);
  if (dry_run) return goes;
  for (const CheckpointEntry& entry : goes) {
    std::error_code error;
    // What is pointed at goes last.
    if (entry.best) fs::remove(run_dir / "best", error);
    // Under another name first, so that nobody finds half of it.
    fs::path doomed = entry.path;
    doomed += ".deleted";
    fs::remove_all(doomed, error);
    fs::rename(entry.path, doomed, error);
    if (error) fail_delete(entry.path, error);
    as_write_error(entry.path, [&] { sync_directory(entry.path.parent_path()); });
    fs::remove_all(doomed, error);
    if (error) fail_delete(doomed, error);
  }
  return goes;
}

}  // namespace mtl
