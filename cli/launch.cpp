// mtl launch: reads the command line and tells a train.yaml from a program.
#include "cli/launch.h"

#include <filesystem>

#include <fmt/format.h>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "common/error.h"

namespace mtl {

namespace {

void declare(CommandLine& line, LaunchOptions& options, std::string& program,
             std::vector<std::string>& arguments) {
  line.example("mtl launch train.yaml", "train on this machine");
  line.example("mtl launch --num_processes 4 train.yaml parallel.tp=2 train.steps=2000",
               "4 ranks, with settings that win over the file");
  line.example("mtl launch --dry-run train.yaml", "the plan, and where each value comes from");
  line.example("mtl launch --num_processes 2 script.py --lr 1e-3",
               "a PyTorch script, as torchrun does");
  line.example("mtl launch --num_processes 2 -- ./program --flag", "any program");
  line.positional("train.yaml | PROGRAM", program,
                  "a train.yaml trains with mtl; a .py script runs under python3; anything else, "
                  "or whatever follows `--`, is started as it is");
  line.rest(
      "key=value | ARGS", arguments,
      "after a train.yaml: settings, such as train.steps=2000; after a program: its arguments");
  declare_where_to_run(line, options.run);
  line.flag("cpu", options.cpu, "use the CPU even where there are GPUs");
  line.group("A run (train.yaml)");
  line.flag("fresh", options.run.fresh,
            "start a new run instead of continuing the newest one of that name");
  line.group("A program");
  line.flag("module,m", options.module, "PROGRAM is a Python module, as in python3 -m");
  line.flag("no_python", options.no_python, "start PROGRAM itself, even if it is a .py file");
  line.group("Other");
  line.option("grace", "S", options.grace_s, 0,
              "seconds from the request to stop until what still runs is killed", "30");
  line.flag("dry-run", options.dry_run, "check and show everything, start nothing");
}

// A setting in front of the train.yaml would be taken for the program.
void check_order(const std::string& program) {
  if (program.find('=') == std::string::npos || std::filesystem::exists(program)) return;
  throw Error(Exit::usage,
              Diagnostic{.code = "usage.order",
                         .what = fmt::format("'{}' stands where the program or train.yaml belongs",
                                             program),
                         .help = "settings follow the file: mtl launch train.yaml " + program});
}

}  // namespace

bool is_train_yaml(const LaunchOptions& options, const std::string& program, bool after_separator) {
  return !after_separator && !options.module && !options.no_python &&
         (program.ends_with(".yaml") || program.ends_with(".yml"));
}

int command_launch(const Arguments& args) {
  LaunchOptions options;
  std::string program;
  std::vector<std::string> arguments;
  CommandLine line(
      {"launch [options] train.yaml [key=value ...]", "launch [options] [-m] PROGRAM [args ...]"},
      "Trains what a train.yaml describes, or starts any program, one process per "
      "rank (launch.spawn=threads trains with one process and a thread per rank). The same command "
      "continues a run that was stopped; all errors of the "
      "configuration are reported before anything starts.");
  declare(line, options, program, arguments);

  const SplitArguments split = line.split(args);
  Arguments own = split.own;
  if (!split.program.empty()) {
    own.insert(own.end(), {"--", split.program});
    own.insert(own.end(), split.rest.begin(), split.rest.end());
  }
  if (!line.parse(own)) return 0;
  check_order(program);
  if (is_train_yaml(options, program, split.after_separator)) {
    // Both sides of a train.yaml are ours, so options may follow it as well.
    Arguments both = {program};
    both.insert(both.end(), split.rest.begin(), split.rest.end());
    if (!line.parse(both)) return 0;
    return launch_run(options, program, arguments);
  }
  if (options.run.fresh) {
    throw Error(Exit::usage, Diagnostic{.code = "usage.option",
                                        .what = "--fresh is for a train.yaml; " + program +
                                                " is started as a program",
                                        .help = "leave --fresh out"});
  }
  return launch_program(options, program, arguments);
}

}  // namespace mtl
