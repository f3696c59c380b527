#include "cli/run_request.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string_view>
#include <unistd.h>

#include <fmt/format.h>

#include "cli/command_line.h"
#include "common/terminal.h"

namespace mtl {

void declare_where_to_run(CommandLine& line, RunOptions& options) {
  line.group("Where to run");
  line.option("num_processes", "N", options.num_processes, 1,
              "number of processes in total, one per rank", "that of the config file, else 1");
  line.option("config_file", "FILE", options.config_file,
              "launch settings, as mtl config default or accelerate config wrote them",
              "accelerate's default_config.yaml, if there is one");
  line.choice("mixed_precision", {"no", "fp16", "bf16", "fp8"}, options.mixed_precision,
              "compute type; precision.dtype=... is the same for a train.yaml and wins",
              "that of the config file");
}

LaunchConfig load_launch_config(const RunOptions& options, Diagnostics& diagnostics) {
  if (!options.config_file.empty()) return read_launch_config(options.config_file, diagnostics);
  const std::string path = default_launch_config_path();
  if (!std::filesystem::exists(path)) return {};
  return read_launch_config(path, diagnostics);
}

int world_size(const RunOptions& options, const LaunchConfig& config) {
  const int64_t asked = options.num_processes.value_or(config.num_processes);
  return static_cast<int>(std::clamp<int64_t>(asked, 1, std::numeric_limits<int>::max()));
}

void print_warnings(const std::vector<Diagnostic>& warnings) {
  const bool color = inspect_terminal(STDERR_FILENO).color;
  for (const Diagnostic& warning : warnings) fmt::print(stderr, "{}", render(warning, color));
}

void check_machines(const LaunchConfig& config, Diagnostics& diagnostics) {
  if (config.num_machines <= 1) return;
  diagnostics.add({.code = "launch.machines",
                   .what = fmt::format("num_machines is {}, and this version of mtl starts the "
                                       "processes of one machine only",
                                       config.num_machines),
                   .place = Place{config.path},
                   .help = "set num_machines: 1, or name another file with --config_file"});
}

std::vector<std::pair<std::string, std::string>> settings_in_environment(
    const char* const* environment) {
  std::vector<std::pair<std::string, std::string>> settings;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = entry.substr(0, equals);
    if (!name.starts_with("MTL_") || name.find("__") == std::string_view::npos) continue;
    settings.emplace_back(name, entry.substr(equals + 1));
  }
  // The order of the environment is accidental; errors should not be.
  std::sort(settings.begin(), settings.end());
  return settings;
}

std::vector<std::string> overrides(const RunOptions& options,
                                   const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    const size_t equals = argument.find('=');
    if (equals != std::string::npos && equals > 0) continue;
    throw Error(Exit::usage,
                Diagnostic{.code = "usage.override",
                           .what = fmt::format("'{}' is not key=value", argument),
                           .help = "after train.yaml come settings, such as train.steps=2000"});
  }
  const auto given = [&](const std::string& key) {
    return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
      return argument.compare(0, key.size() + 1, key + '=') == 0;
    });
  };
  std::vector<std::string> all;
  if (options.mixed_precision && !given("precision.dtype")) {
    const std::string& precision = *options.mixed_precision;
    all.push_back("precision.dtype=" + (precision == "no" ? "fp32" : precision));
  }
  if (options.fresh && !given("checkpoint.resume")) all.push_back("checkpoint.resume=never");
  all.insert(all.end(), arguments.begin(), arguments.end());
  return all;
}

PreparedRun prepare_run(const RunOptions& options, const std::string& train_yaml,
                        const std::vector<std::string>& arguments) {
  RunRequest request;
  request.sources.train_yaml = train_yaml;
  request.sources.overrides = overrides(options, arguments);
  request.sources.environment = settings_in_environment(environ);

  Diagnostics diagnostics;
  PreparedRun run;
  run.config = load_launch_config(options, diagnostics);
  run.world = world_size(options, run.config);
  check_machines(run.config, diagnostics);
  request.world = run.world;
  request.sources.default_config = train_settings(run.config);
  request.sources.default_config_path = run.config.path;
  try {
    run.checked = check_run(request);
  } catch (const Error& error) {
    if (!diagnostics.has_errors()) throw;
    for (const Diagnostic& diagnostic : error.diagnostics()) diagnostics.add(diagnostic);
  }
  diagnostics.throw_if_errors();
  run.warnings = diagnostics.all();
  run.warnings.insert(run.warnings.end(), run.checked.warnings.begin(), run.checked.warnings.end());
  for (const IgnoredKey& ignored : run.config.ignored) {
    if (ignored.neutral) continue;
    run.warnings.push_back({.code = "launch.ignored_key",
                            .what = fmt::format("'{}' means nothing to mtl's own runtime and is "
                                                "ignored",
                                                ignored.key),
                            .place = ignored.place,
                            .severity = Diagnostic::Severity::warning});
  }
  return run;
}

}  // namespace mtl
