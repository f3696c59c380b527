// mtl config: where to run, in a file that accelerate reads too. Without a member it asks; the
// members write, change, check and explain the file without asking.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/config/config_file.h"
#include "cli/launch_flags.h"
#include "cli/run_request.h"
#include "common/error.h"
#include "launcher/config/config_edit.h"

namespace mtl {

namespace {

struct Member {
  const char* name;
  const char* what;
  int (*run)(const Arguments&);
};
constexpr Member kMembers[] = {
    {"default", "write what suits this machine, without asking", config_default},
    {"show", "print what mtl launch would use", config_show},
    {"set", "change keys: mtl config set num_processes=8", config_set},
    {"update", "rewrite the file with today's keys", config_update},
    {"validate", "every problem of a file, with its place", config_validate},
    {"import", "read accelerate's file, or a torchrun or Megatron command", config_import},
    {"schema", "print the JSON Schema of train.yaml, or of this file", config_schema}};

// From flags alone.
int write_from_flags(const std::string& named, const FlagValues& flags, bool force) {
  Diagnostics diagnostics;
  const LaunchConfig config = config_of_flags(flags, diagnostics);
  if (!diagnostics.has_errors()) check_launch_config(config, diagnostics);
  diagnostics.throw_if_errors();
  const std::string path = config_target(named);
  if (!force && std::filesystem::exists(path)) {
    throw Error(Exit::config,
                {.code = "config.exists",
                 .what = fmt::format("{} is there already", path),
                 .help = "--force replaces it; mtl config set changes single keys of it"});
  }
  print_warnings(diagnostics.all());
  write_config(path, config);
  for (const std::string& line : config_decisions(config)) fmt::print(stderr, "{}\n", line);
  return 0;
}

}  // namespace

int command_config(const Arguments& args) {
  std::vector<std::string> names;
  for (const Member& member : kMembers) {
    names.emplace_back(member.name);
    if (!args.empty() && args[0] == member.name) {
      return member.run(args.behind_first());
    }
  }
  bool no_input = false, force = false;
  FlagValues flags;
  std::vector<std::string> words;
  CommandLine line({"config [--config_file FILE]", "config --no-input [flags of mtl launch]",
                    "config MEMBER [options]"},
                   "Asks where to run - machines, processes, precision, parallel degrees - and "
                   "writes it to a file that mtl launch and accelerate launch read. Answers are "
                   "checked at once, Esc goes back, and nothing is written before you have seen "
                   "the file. Answers may also be piped in, a line each.");
  line.example("mtl config", "the questions");
  for (const Member& member : kMembers) {
    line.member(member.name, member.what);
  }
  line.example("mtl config --no-input --num_processes 8 --megatron_lm_tp_degree 4",
               "write the file from flags");
  line.rest("MEMBER", words, "what to do without asking; each has its own --help");
  line.flag("no-input", no_input, "ask nothing: the file is what the flags say");
  line.flag("force", force, "with --no-input: replace a file that is there");
  declare_config_flags(line, flags);
  line.footnote(
      "The file is $XDG_CONFIG_HOME/mtl/default_config.yaml (~/.config/mtl/default_config.yaml) "
      "unless --config_file names another. Where it is absent, mtl launch reads accelerate's. "
      "--no-input takes every flag of mtl launch: mtl help launch-flags.");
  if (!line.parse(args)) return 0;
  if (!words.empty()) {
    if (std::find(names.begin(), names.end(), words[0]) != names.end()) {
      throw Error(
          Exit::usage,
          Diagnostic{.code = "usage.order",
                     .what = fmt::format("options stand in front of '{}'", words[0]),
                     .help = fmt::format("put them behind it: mtl config {} ...", words[0])});
    }
    const auto guess = did_you_mean(words[0], names);
    throw Error(Exit::usage,
                Diagnostic{.code = "usage.unknown_command",
                           .what = fmt::format("mtl config has no '{}'", words[0]),
                           .help = guess ? fmt::format("did you mean mtl config {}?", *guess)
                                         : fmt::format("it knows {}", fmt::join(names, ", "))});
  }
  std::string path;
  if (const auto named = flags.find("config_file"); named != flags.end()) {
    path = named->second.texts.back();
    flags.erase(named);
  }
  if (no_input) return write_from_flags(path, flags, force);
  if (!flags.empty() || force) {
    throw Error(Exit::usage,
                Diagnostic{.code = "usage.option",
                           .what = fmt::format("{} goes with --no-input; without, mtl config asks",
                                               flags.empty() ? std::string("--force")
                                                             : flags.begin()->second.origin),
                           .help = "add --no-input, or change a file with mtl config set"});
  }
  return config_wizard(path);
}

}  // namespace mtl
