#include "runtime/find_run.h"

#include <algorithm>
#include <cstdio>
#include <system_error>

#include <fmt/format.h>

#include "common/error.h"
#include "common/shell_word.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/step_dirs.h"

namespace mtl {

namespace fs = std::filesystem;

std::vector<fs::path> runs_of(const fs::path& name_dir) {
  std::vector<fs::path> runs;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(name_dir, ignored)) {
    if (fs::exists(entry.path() / "resolved.yaml", ignored)) runs.push_back(entry.path());
  }
  std::sort(runs.rbegin(), runs.rend());
  return runs;
}

namespace {

// What to give in place of a path that is no run: what it holds, or lies beside it.
std::string near_run(const std::string& text) {
  if (text.empty()) return "give its name or its folder; mtl ps --all shows them";
  const fs::path path =
      fs::path(text).has_filename() ? fs::path(text) : fs::path(text).parent_path();
  std::error_code ignored;
  if (fs::exists(path / "config.json", ignored)) {
    return fmt::format("make a run of a Hugging Face folder first: mtl ckpt import {} -o RUN",
                       shell_word(text));
  }
  if (path.extension() == ".yaml" || path.extension() == ".yml") {
    return "give the run that it has trained, by its run.name: runs/NAME";
  }
  if (path.filename() == kCheckpoints) {
    return fmt::format("give one of the checkpoints in it, or {}", path.parent_path().string());
  }
  if (const fs::path folder = path.parent_path();
      folder.filename() == kCheckpoints && fs::exists(folder, ignored)) {
    return "see which there are: mtl ckpt ls " + shell_word(folder.parent_path().string());
  }
  // The folder of all runs, or a name with a slip in it.
  fs::path newest;
  std::vector<std::string> names;
  const bool holds = fs::is_directory(path, ignored);
  for (const auto& name : fs::directory_iterator(holds ? path : fs::path("runs"), ignored)) {
    const std::vector<fs::path> runs = runs_of(name.path());
    if (runs.empty()) continue;
    names.push_back(name.path().filename());
    if (newest.empty() || runs.front().filename() > newest.filename()) newest = runs.front();
  }
  if (holds && !newest.empty()) {
    return fmt::format("it holds runs: give one, such as {} (the newest)",
                       newest.parent_path().string());
  }
  if (const auto guess = did_you_mean(path.filename(), names); guess && !holds) {
    return fmt::format("did you mean runs/{}?", *guess);
  }
  return "give a directory such as runs/NAME or runs/NAME/ID; mtl ps --all names those that there "
         "are";
}

}  // namespace

fs::path find_run(const std::string& text) {
  const fs::path path(text);
  for (const char* mark : {"manifest.json", "resolved.yaml"}) {
    if (fs::exists(path / mark)) return path;
  }
  // An imported model at runs/NAME has the runs of that name beside its checkpoint: what was
  // trained on counts.
  if (const std::vector<fs::path> runs = runs_of(path); !runs.empty()) return runs.front();
  if (fs::exists(path / kCheckpoints)) return path;
  if (const std::vector<fs::path> runs = runs_of("runs" / path); !runs.empty()) return runs.front();
  throw Error(
      Exit::data,
      {.code = "run.missing",
       .what = fmt::format("'{}' is neither a run, nor the name of one, nor a checkpoint", text),
       .help = near_run(text)});
}

namespace {

// A run that was begun and never saved hides those before it, which mtl launch goes on with.
std::string others_of(const fs::path& run) {
  const fs::path name_dir = (run.has_filename() ? run : run.parent_path()).parent_path();
  for (const fs::path& other : runs_of(name_dir)) {
    Diagnostics passed_over;
    if (newest_checkpoint(other / kCheckpoints, passed_over).empty()) continue;
    return fmt::format("give {}, which has one, or ", other.string());
  }
  Diagnostics passed_over;
  const fs::path own = newest_checkpoint(name_dir / kCheckpoints, passed_over);
  if (!own.empty()) return fmt::format("give {}, the model that was imported, or ", own.string());
  return "";
}

template <typename Newest>
fs::path checkpoint_of(const fs::path& run, Newest newest) {
  if (fs::exists(run / "manifest.json")) return run;
  Diagnostics passed_over;
  const fs::path found = newest(run / kCheckpoints, passed_over);
  passed_over.throw_if_errors(Exit::data);
  for (const Diagnostic& warning : passed_over.all()) fmt::print(stderr, "{}", render(warning));
  if (found.empty()) {
    throw Error(Exit::data, {.code = "ckpt.missing",
                             .what = run.string() + " has no complete checkpoint",
                             .help = fmt::format("{}see: mtl ckpt ls {}; mtl launch {} goes on "
                                                 "training",
                                                 others_of(run), shell_word(run.string()),
                                                 shell_word((run / "train.yaml").string()))});
  }
  return found;
}

}  // namespace

fs::path find_checkpoint(const std::string& text) {
  return checkpoint_of(find_run(text), newest_checkpoint);
}

fs::path find_intact_checkpoint(const std::string& text) {
  return checkpoint_of(find_run(text), [](const fs::path& folder, Diagnostics& passed_over) {
    return newest_intact_checkpoint(folder, Damaged::pass_over, passed_over);
  });
}

std::optional<fs::path> named_checkpoint(const std::string& name, const std::string& run_dir) {
  const fs::path path(name);
  if (fs::exists(path / "manifest.json")) return path;
  const std::vector<fs::path> runs = fs::exists(path / kCheckpoints) ? std::vector{path}
                                     : fs::exists(path)              ? runs_of(path)
                                                        : runs_of(fs::path(run_dir) / path);
  for (const fs::path& run : runs) {
    Diagnostics passed_over;
    const fs::path newest = newest_checkpoint(run / kCheckpoints, passed_over);
    if (!newest.empty() && !passed_over.has_errors()) return newest;
  }
  return std::nullopt;
}

}  // namespace mtl
