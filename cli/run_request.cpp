#include "cli/run_request.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <unistd.h>

#include <fmt/format.h>

#include "common/terminal.h"
#include "launcher/request/launch_surroundings.h"
#include "launcher/settings/launch_config_place.h"
#include "launcher/settings/train_settings.h"
#include "runtime/engine_words.h"
#include "runtime/metrics/format.h"
#include "runtime/spec/schema.h"

namespace mtl {

LaunchConfig load_launch_config(const LaunchGiven& given, Diagnostics& diagnostics) {
  const std::string named = given_text(given, "config_file");
  if (means_no_config(named)) return {};
  if (!named.empty()) return read_launch_config(named, diagnostics);
  const std::string path = default_launch_config_path();
  if (path.empty()) return {};
  return read_launch_config(path, diagnostics);
}

std::string config_file_notice(const LaunchConfig& file, const LaunchGiven& given) {
  // Who names a file knows it.
  if (file.path.empty() || !given_text(given, "config_file").empty()) return {};
  const bool theirs = file.path != own_config_path();
  return fmt::format("config: {}{}\n", file.path,
                     theirs ? " (accelerate's; mtl config writes one of your own)" : "");
}

void read_launch_environment(LaunchGiven& given) {
  Diagnostics diagnostics;
  given.environment = flags_in_environment(environ, diagnostics);
  read_surroundings(given, diagnostics);
  diagnostics.throw_if_errors();
}

void print_warnings(const std::vector<Diagnostic>& warnings) {
  const bool color = inspect_terminal(STDERR_FILENO).color;
  for (const Diagnostic& warning : warnings) fmt::print(stderr, "{}", render(warning, color));
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
                                   const std::vector<std::string>& arguments,
                                   const std::string& engine, const LaunchConfig& file) {
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
  const LaunchConfig weaker = with_parallelism(file, options.given.environment);
  for (const auto& [key, value] : train_settings(options.given.flags, engine, weaker)) {
    if (!given(key)) all.push_back(key + '=' + value);
  }
  if (options.fresh && !given("checkpoint.resume")) all.push_back("checkpoint.resume=never");
  all.insert(all.end(), arguments.begin(), arguments.end());
  return all;
}

namespace {

// What flags in the environment decide of a train.yaml, as the settings that say the same.
void add_environment(const FlagValues& values, const std::string& engine, const LaunchConfig& file,
                     TrainSettings& settings) {
  for (const auto& [key, value] : train_settings(values, engine, file)) {
    const std::string name = spec::environment_name(key);
    const bool said = std::any_of(settings.begin(), settings.end(),
                                  [&](const auto& setting) { return setting.first == name; });
    if (!said) settings.emplace_back(name, value);
  }
}

}  // namespace

void add_launch_section(const ResolvedSpec& resolved, LaunchGiven& given) {
  const auto add = [&](const std::string& key, const std::string& name,
                       const std::vector<std::string>& texts) {
    const Place place = resolved.place_of(key);
    switch (resolved.origin_of(key)) {
      case Origin::train_yaml:
        given.train_yaml.insert_or_assign(
            name, FlagValue{texts, fmt::format("{}:{}", place.file, place.line)});
        break;
      case Origin::environment:
        given.environment.insert({name, {texts, place.file}});
        break;
      case Origin::command_line:
        given.flags.insert({name, {texts, key}});
        break;
      default:
        break;
    }
  };
  const TrainSpec::Launch& launch = resolved.spec.launch;
  add("launch.via", "via", {launch.via});
  for (const auto& [name, texts] : launch.slurm)
    add("launch.slurm." + name, "slurm_" + name, texts);
  for (const auto& [name, texts] : launch.kubernetes) {
    add("launch.kubernetes." + name, "kubernetes_" + name, texts);
  }
}

namespace {

// Every task of an array has its own number in place of %a; checked is the first one.
std::vector<std::string> of_first_task(std::vector<std::string> arguments,
                                       const LaunchGiven& given) {
  const std::string array = given_text(given, "slurm_array");
  if (array.empty() || given_text(given, "via") != "slurm") return arguments;
  const std::string first = array.substr(0, array.find_first_not_of("0123456789"));
  for (std::string& argument : arguments) {
    for (size_t at = 0; (at = argument.find("%a", at)) != std::string::npos; at += first.size()) {
      argument.replace(at, 2, first);
    }
  }
  return arguments;
}

// What the file, the environment and the arguments say under `launch`; what is wrong with them is
// told by check_run().
ResolvedSpec launch_section(const std::string& train_yaml,
                            const std::vector<std::string>& arguments) {
  SpecSources sources;
  sources.train_yaml = train_yaml;
  sources.environment = settings_in_environment(environ);
  for (const std::string& argument : arguments) {
    if (argument.starts_with("launch.")) sources.overrides.push_back(argument);
  }
  Diagnostics ignored;
  return load_spec(sources, ignored);
}

}  // namespace

bool ranks_are_elsewhere(const LaunchRequest& request) {
  return request.starts_agents() || request.via == "slurm" || request.via == "kubernetes";
}

std::vector<Error> wrong_words_of_ranks(const LaunchRequest& request) {
  if (request.via == "slurm" || request.via == "kubernetes") return {};
  return wrong_engine_words([&](const std::string& name) -> std::string {
    const auto given = request.env.find(name);
    if (given != request.env.end()) return given->second;
    const char* value = std::getenv(name.c_str());
    return value != nullptr ? value : "";
  });
}

PreparedRun prepare_run(const RunOptions& given_options, const std::string& train_yaml,
                        const std::vector<std::string>& given_arguments, std::optional<int> world) {
  Diagnostics all;
  PreparedRun run;
  RunOptions options = given_options;
  add_launch_section(launch_section(train_yaml, given_arguments), options.given);
  const std::vector<std::string> arguments = of_first_task(given_arguments, options.given);
  const LaunchConfig file = load_launch_config(options.given, all);
  const std::string engine = engine_of(file, options.given);
  run.config_file = file.path;
  run.config_notice = config_file_notice(file, options.given);
  run.request = resolve_launch(file, options.given, true, all);
  // A plan is a plan wherever the machines will meet.
  Diagnostics diagnostics;
  for (const Diagnostic& diagnostic : all.all()) {
    const bool meeting =
        diagnostic.code == "launch.address" || diagnostic.code == "launch.machine_rank";
    if (!options.plan_only || !meeting) diagnostics.add(diagnostic);
  }
  run.world = world ? *world
              : run.request.ranks > 0
                  ? run.request.ranks
                  : std::max(1, run.request.local_ranks) * std::max(1, run.request.max_nodes);
  // With the ranks that a machine has in the end, whoever said so.
  LaunchConfig counted = file;
  counted.num_machines = std::max(1, run.request.max_nodes);
  counted.num_processes = run.world;
  RunRequest request;
  request.sources.train_yaml = train_yaml;
  request.sources.overrides = overrides(options, arguments, engine, counted);
  request.sources.environment = settings_in_environment(environ);
  add_environment(options.given.environment, engine, counted, request.sources.environment);
  request.sources.default_config = train_settings(counted);
  request.sources.default_config_path = file.path;
  request.world = run.world;
  request.plan_only = options.plan_only;
  if (options.too_many_bytes > 0) {
    request.memory = [bytes = options.too_many_bytes] {
      return RankMemory{bytes - 1,
                        fmt::format("less than the {} that a rank did not get",
                                    human_bytes(static_cast<double>(bytes))),
                        true};
    };
  }
  // A plan may be of other machines.
  if (!request.memory && !options.plan_only && !ranks_are_elsewhere(run.request)) {
    const int nodes = std::max(1, run.request.max_nodes);
    const int here = std::max(1, (run.world + nodes - 1) / nodes);
    request.memory = [here, use_cpu = run.request.config.use_cpu] {
      return rank_memory(here, use_cpu);
    };
  }
  Exit exit = Exit::config;
  if (!options.plan_only) {
    for (const Error& wrong : wrong_words_of_ranks(run.request)) {
      if (!diagnostics.has_errors()) exit = wrong.exit();
      for (const Diagnostic& diagnostic : wrong.diagnostics()) diagnostics.add(diagnostic);
    }
  }
  try {
    run.checked = check_run(request);
  } catch (const Error& error) {
    if (!diagnostics.has_errors()) throw;
    exit = Exit::config;
    for (const Diagnostic& diagnostic : error.diagnostics()) diagnostics.add(diagnostic);
  }
  diagnostics.throw_if_errors(exit);
  run.warnings = diagnostics.all();
  run.warnings.insert(run.warnings.end(), run.checked.warnings.begin(), run.checked.warnings.end());
  return run;
}

}  // namespace mtl
