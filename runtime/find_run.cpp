#include "runtime/find_run.h"

#include <algorithm>
#include <cstdio>
#include <system_error>

#include <fmt/format.h>

#include "common/error.h"
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

fs::path find_run(const std::string& text) {
  const fs::path path(text);
  for (const char* mark : {"manifest.json", "resolved.yaml", kCheckpoints}) {
    if (fs::exists(path / mark)) return path;
  }
  for (const fs::path& candidate : {path, fs::path("runs") / path}) {
    const std::vector<fs::path> runs = runs_of(candidate);
    if (!runs.empty()) return runs.front();
  }
  std::string help = "give a directory such as runs/NAME or runs/NAME/ID";
  if (fs::exists(path / "config.json")) {
    help =
        fmt::format("make a run of a Hugging Face folder first: mtl ckpt import {} -o RUN", text);
  } else if (path.extension() == ".yaml" || path.extension() == ".yml") {
    help = "give the run that it has trained, by its run.name: runs/NAME";
  }
  throw Error(
      Exit::data,
      {.code = "run.missing",
       .what = fmt::format("'{}' is neither a run, nor the name of one, nor a checkpoint", text),
       .help = help});
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
    throw Error(Exit::data,
                {.code = "ckpt.missing",
                 .what = run.string() + " has no complete checkpoint",
                 .help = fmt::format("{}see: mtl ckpt ls {}; mtl launch {} goes on "
                                     "training",
                                     others_of(run), run.string(), (run / "train.yaml").string())});
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
