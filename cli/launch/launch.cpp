// mtl launch: reads the command line and tells a train.yaml from a program.
#include "cli/launch/launch.h"

#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/launch/launch_slurm.h"
#include "cli/launch_flags.h"
#include "common/error.h"
#include "common/shell_word.h"
#include "launcher/agent/signals.h"

namespace mtl {

namespace {

void declare(CommandLine& line, LaunchOptions& options, std::string& program,
             std::vector<std::string>& arguments, bool submits) {
  if (submits) {
    line.example("mtl submit --slurm_partition gpu --slurm_time 12:00:00 train.yaml",
                 "a job of one node");
    line.example("mtl submit --num_machines 4 --nproc_per_node 8 train.yaml train.steps=2000",
                 "of four nodes with 8 GPUs each");
    line.example("mtl submit --dry-run train.yaml", "the script of the job, to read or keep");
    line.example("mtl submit --wait --num_machines 2 -- ./program --flag",
                 "any program; follow it, and end with its exit code");
  } else {
    line.example("mtl launch train.yaml", "train on this machine");
    line.example("mtl launch --num_processes 4 train.yaml parallel.tp=2 train.steps=2000",
                 "4 ranks, with settings that win over the file");
    line.example("mtl launch --dry-run train.yaml", "the plan, and where each value comes from");
    line.example("mtl launch --num_processes 2 script.py --lr 1e-3",
                 "a PyTorch script, as torchrun does");
    line.example("mtl launch --num_processes 2 -- ./program --flag", "any program");
    line.example("mtl launch --hosts a:4,b:4 train.yaml", "on two machines, by ssh");
  }
  line.positional("train.yaml | PROGRAM", program,
                  "a train.yaml trains with mtl; a .py script runs under python3; anything else, "
                  "a .yaml behind `--` too, is started as it is");
  line.rest(
      "key=value | ARGS", arguments,
      "after a train.yaml: settings, such as train.steps=2000; after a program: its arguments");
  line.group("A run (train.yaml)");
  line.flag(kFreshFlag.name, options.run.fresh, kFreshFlag.help);
  declare_launch_flags(line, options.run.given.flags, submits);
  line.flag(kJsonFlag.name, options.json,
            submits ? "one JSON document instead of words, schema mtl.submit/1" : kJsonFlag.help);
  if (submits) {
    line.footnote("Of SLURM's flags slurm_ may be left out: --partition gpu --time 12:00:00.");
  }
  line.footnote(
      "All of accelerate's and torchrun's flags are taken; those for Megatron-LM, FSDP, DeepSpeed, "
      "FP8 and ParallelismConfig, and the rest: mtl help launch-flags.");
}

// A setting in front of the train.yaml would be taken for the program.
void check_order(const std::string& program) {
  if (program.find('=') == std::string::npos || std::filesystem::exists(program)) return;
  throw Error(
      Exit::usage,
      Diagnostic{
          .code = "usage.order",
          .what = fmt::format("'{}' stands where the program or train.yaml belongs", program),
          .help = "settings follow the file: mtl launch train.yaml " + shell_word(program)});
}

// What the command itself reads, once flags and environment are known.
void read_switches(LaunchOptions& options) {
  const LaunchGiven& given = options.run.given;
  options.dry_run = is_on(given, "dry_run");
  options.module = is_on(given, "module");
  options.no_python = is_on(given, "no_python");
  options.run_path = is_on(given, "run_path");
  options.quiet = is_on(given, "quiet");
  // A job that SLURM starts again, or its successor, goes on with what it began.
  if (const std::string mark = begun_mark(); !mark.empty() && std::filesystem::exists(mark)) {
    options.run.fresh = false;
  }
  const bool submits = given_text(given, "via") == "slurm";
  if (options.json && !options.dry_run && !submits) {
    throw Error(Exit::usage, Diagnostic{.code = "usage.option",
                                        .what = "--json goes with --dry-run",
                                        .help = "leave it out, or add --dry-run"});
  }
  if (options.module + options.no_python + options.run_path > 1) {
    throw Error(Exit::usage,
                Diagnostic{.code = "usage.option",
                           .what = "--module, --no_python and --run_path exclude each other",
                           .help = "leave all but one out"});
  }
}

}  // namespace

std::string begun_mark() {
  const char* script = std::getenv("MTL_JOB_SCRIPT");
  if (script == nullptr || *script != '/' || std::getenv("SLURM_JOB_ID") == nullptr) return {};
  const std::filesystem::path path = script;
  // A script that was kept from a dry run lies in no folder of the job's own.
  const bool own = path.filename() == "job.sbatch";
  std::string name = own ? "begun" : path.filename().string() + ".begun";
  const char* task = std::getenv("SLURM_ARRAY_TASK_ID");
  if (task != nullptr) name += fmt::format("-{}", task);
  return (path.parent_path() / name).string();
}

bool is_train_yaml(const LaunchOptions& options, const std::string& program, bool after_separator) {
  return !after_separator && !options.module && !options.no_python && !options.run_path &&
         (program.ends_with(".yaml") || program.ends_with(".yml"));
}

namespace {

// Once the command line is read; `line` reads again what follows a train.yaml.
int launch_parsed(CommandLine& line, const SplitArguments& split, LaunchOptions& options,
                  std::string& program, std::vector<std::string>& arguments) {
  check_order(program);
  hold_usr2();
  read_launch_environment(options.run.given);
  const StepShare share = share_step(options.run.given);
  if (share.stands_by) return 0;
  read_switches(options);
  if (!options.quiet) say(stderr, unused_nodes_notice(options.run.given.around));
  if (is_train_yaml(options, program, split.after_separator)) {
    // Both sides of a train.yaml are ours, so options may follow it as well.
    Arguments both = {program};
    both.insert(both.end(), split.rest.begin(), split.rest.end());
    if (!line.parse(both)) return 0;
    read_switches(options);
    if (goes_to_kubernetes(options, program, arguments)) {
      return launch_kubernetes(options, program, arguments, split.after_separator);
    }
    return launch_run(options, program, arguments);
  }
  if (goes_to_kubernetes(options, {}, {})) {
    return launch_kubernetes(options, program, arguments, split.after_separator);
  }
  if (options.run.fresh) {
    throw Error(Exit::usage, Diagnostic{.code = "usage.option",
                                        .what = "--fresh is for a train.yaml; " + program +
                                                " is started as a program",
                                        .help = "leave --fresh out"});
  }
  return launch_program(options, program, arguments);
}

int launch(const Arguments& args, bool submits) {
  LaunchOptions options;
  std::string program;
  std::vector<std::string> arguments;
  const std::string name = submits ? "submit" : "launch";
  CommandLine line(
      {name + " [options] train.yaml [key=value ...]", name + " [options] [-m] PROGRAM [args ...]"},
      submits ? "Checks a launch as mtl launch does and submits it to SLURM as a job that "
                "starts it on its nodes: mtl launch --via slurm. The script that is "
                "submitted, the train.yaml as it is now and the log lie in a folder of "
                "the job's own."
              : "Trains what a train.yaml describes, or starts any program, one process "
                "per rank (launch.spawn=threads trains with one process and a thread per "
                "rank). The same command continues a run that was stopped; all errors of "
                "the configuration are reported before anything starts.");
  declare(line, options, program, arguments, submits);
  if (submits) options.run.given.flags["via"] = {{"slurm"}, "mtl submit"};
  options.words = {"mtl", name};
  options.words.insert(options.words.end(), args.begin(), args.end());

  const SplitArguments split = line.split(args);
  options.after_separator = split.after_separator;
  Arguments own(split.own, args.description);
  if (!split.program.empty()) {
    own.insert(own.end(), {"--", split.program});
    own.insert(own.end(), split.rest.begin(), split.rest.end());
  }
  if (!line.parse(own)) return 0;
  try {
    return launch_parsed(line, split, options, program, arguments);
  } catch (const Error& error) {
    // Who reads the document learns what is wrong from it too.
    const bool documents = options.json && is_on(options.run.given, "dry_run");
    if (documents && !submits) fmt::print("{}\n", problems_json(error).dump(2));
    throw;
  }
}

}  // namespace

int command_launch(const Arguments& args) {
  return launch(args, false);
}

int command_submit(const Arguments& args) {
  return launch(args, true);
}

}  // namespace mtl
