#include "cli/config/config_file.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "common/error.h"
#include "common/files.h"
#include "common/text.h"
#include "launcher/settings/launch_config_place.h"
#include "launcher/settings/train_settings.h"

namespace mtl {

namespace fs = std::filesystem;

std::string config_target(const std::string& named) {
  const std::string path = named.empty() ? own_config_path() : named;
  if (path.ends_with(".json")) {
    throw Error(
        Exit::usage,
        {.code = "usage.value",
         .what = fmt::format("{} would be read as JSON by accelerate, and mtl writes YAML", path),
         .help = "name a .yaml file"});
  }
  if (path == "none") {
    throw Error(Exit::usage,
                {.code = "usage.value",
                 .what = "--config_file none means that there is no file, so none is written",
                 .help = "name another, or ./none"});
  }
  const fs::path parent = fs::path(path).parent_path();
  if (!parent.empty()) make_directories(parent);
  std::error_code ignored;
  const fs::path folder = parent.empty() ? fs::path(".") : parent;
  const bool is_folder = fs::is_directory(path, ignored);
  if (is_folder || access(folder.c_str(), W_OK | X_OK) != 0) {
    throw Error(Exit::environment,
                {.code = "file.write",
                 .what = is_folder ? fmt::format("{} is a folder", path)
                                   : fmt::format("cannot write into {}", folder.string()),
                 .help = "name another place: --config_file FILE"});
  }
  return path;
}

std::string config_in_use(const std::string& named) {
  const std::string path = named.empty() ? default_launch_config_path() : named;
  if (path.empty()) {
    throw Error(Exit::config, {.code = "file.missing",
                               .what = fmt::format("there is no {} and none of accelerate's ({})",
                                                   own_config_path(), accelerate_config_path()),
                               .help = "mtl config asks and writes one, mtl config default writes "
                                       "one without asking"});
  }
  return path;
}

std::string config_text(const std::string& path) {
  constexpr size_t kMostBytes = size_t{1} << 20;
  try {
    return read_file(path, kMostBytes);
  } catch (const Error& error) {
    throw Error(Exit::config, error.diagnostics());
  }
}

LaunchConfig load_config(const std::string& path) {
  Diagnostics diagnostics;
  LaunchConfig config = read_launch_config(path, diagnostics);
  diagnostics.throw_if_errors();
  return config;
}

void write_config(const std::string& path, const LaunchConfig& config) {
  write_file_atomic(path, launch_config_yaml(config), Readers::owner);
  fmt::print("{}\n", path);
  std::fflush(stdout);
}

std::vector<std::string> config_decisions(const LaunchConfig& config) {
  std::vector<std::string> lines;
  for (const auto& [key, value] : train_settings(config)) {
    lines.push_back(fmt::format("train.yaml: {}={}", key, value));
  }
  const std::string& type = config.distributed_type;
  for (const IgnoredKey& ignored : config.ignored) {
    if (ignored.neutral) continue;
    const bool engine =
        (type == "FSDP" && ignored.key == "fsdp_config") ||
        (type == "DEEPSPEED" && ignored.key == "deepspeed_config") ||
        ((type == "FSDP" || type == "DEEPSPEED") && ignored.key == "parallelism_config");
    lines.push_back(engine ? fmt::format("the rest of {} is for PyTorch programs", ignored.key)
                    : ignored.key.ends_with("_config") || ignored.key.find('.') != std::string::npos
                        ? fmt::format("{} is for PyTorch programs; mtl's own runtime has no use "
                                      "for it",
                                      ignored.key)
                        : fmt::format("{} means nothing to mtl's own runtime", ignored.key));
  }
  return lines;
}

std::vector<std::string> line_changes(const std::string& before, const std::string& after) {
  const std::vector<std::string> a = lines_of(before), b = lines_of(after);
  // common[i][j]: the longest common part of what follows a[i] and b[j].
  std::vector<std::vector<size_t>> common(a.size() + 1, std::vector<size_t>(b.size() + 1, 0));
  for (size_t i = a.size(); i-- > 0;) {
    for (size_t j = b.size(); j-- > 0;) {
      common[i][j] =
          a[i] == b[j] ? common[i + 1][j + 1] + 1 : std::max(common[i + 1][j], common[i][j + 1]);
    }
  }
  std::vector<std::string> lines;
  size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    if (i < a.size() && j < b.size() && a[i] == b[j]) {
      lines.push_back(fmt::format("  {}", a[i++]));
      ++j;
    } else if (i < a.size() && (j == b.size() || common[i + 1][j] >= common[i][j + 1])) {
      lines.push_back(fmt::format("- {}", a[i++]));
    } else {
      lines.push_back(fmt::format("+ {}", b[j++]));
    }
  }
  return lines;
}

}  // namespace mtl
