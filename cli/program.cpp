// The table of commands, and the screen that one sees first.
#include <cstdio>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command_description.h"
#include "cli/commands.h"
#include "common/error.h"
#include "common/terminal.h"

namespace mtl {

namespace {

// What to do for a command by the name that it has elsewhere: in accelerate, or behind a group.
std::string command_called(const std::string& word) {
  static const std::pair<const char*, const char*> kElsewhere[] = {
      {"train", "mtl launch train.yaml trains"},
      {"run", "mtl launch starts a train.yaml or a program"},
      {"resume", "mtl launch with the same train.yaml goes on from the newest checkpoint"},
      {"sample", "mtl generate writes text"},
      {"status", "mtl ps lists what runs, mtl report says what a run did"},
      {"init", "mtl recipes cp NAME writes a train.yaml, mtl config asks where to run"},
      {"merge-weights",
       "mtl ckpt merge RUN -o model.safetensors merges those of mtl; those of "
       "accelerate's FSDP only accelerate does"},
      {"to-fsdp2", "mtl reads the keys of both versions of FSDP as they are"},
      {"tpu-config", "mtl does not run on TPUs"}};
  for (const auto& [name, help] : kElsewhere) {
    if (word == name) return help;
  }
  std::vector<std::string> groups;
  for (const Command& command : commands()) {
    if (command.summary == nullptr) continue;
    for (const auto& [member, what] : describe({command.name}).members) {
      if (member == word) groups.push_back(fmt::format("mtl {} {}", command.name, word));
    }
  }
  return groups.empty() ? "" : fmt::format("did you mean {}?", fmt::join(groups, " or "));
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> kCommands = {
      {"config", "ask where to run; write, change or explain it", command_config},
      {"plan", "what a run needs, how fast it would be, how to lay it out", command_plan},
      {"launch", "train a model, or start any program on every rank", command_launch},
      {"submit", "launch as a job of SLURM: mtl launch --via slurm", command_submit, true},
      {"test", "check a set-up: start, network, a tiny training", command_test},
      {"generate", "write text with a trained model", command_generate},
      {"data", "make and inspect corpora and tokenizers", command_data},
      {"ckpt", "inspect, convert, check and thin out checkpoints", command_ckpt},
      {"ps", "what of yours runs and waits, here and in SLURM", command_ps, true},
      {"logs", "what the ranks of a run have printed", command_logs},
      {"report", "what a run did, or several, as a page with curves", command_report, true},
      {"stop", "end a run with a checkpoint, or take a job out of the queue", command_stop, true},
      {"top", "the same as ps, again and again", command_top, true},
      {"recipes", "ready train.yaml files, for laptops up to hundreds of GPUs", command_recipes},
      {"doctor", "what is wrong with this machine, or these, and its cure", command_doctor},
      {"topo", "how GPUs and network cards are connected, and what follows", command_topo, true},
      {"estimate-memory", "a model's memory by type, and to train it under ZeRO",
       command_estimate_memory, true},
      {"env", "what a bug report needs to say about this machine", command_env, true},
      {"help", "all commands, exit codes, settings, errors, or one command", command_help},
      {"version", "print the version", command_version, true},
      {"completion", "what makes bash, zsh and fish complete mtl's words", command_completion,
       true},
      {"__complete", nullptr, command_complete},
      {"__share", nullptr, command_share},
      {"worker", nullptr, command_worker},
      {"agent", nullptr, command_agent},
      {"selftest", nullptr, command_selftest},
  };
  return kCommands;
}

std::string overview(int columns, bool all) {
  const int width = columns < 40 ? 40 : (columns > 100 ? 100 : columns);
  std::string text = "usage: mtl COMMAND [options]    (every command has --help)\n\n";
  text += wrap_text(
      "One program from \"these machines, this text\" to a trained language model: it plans the "
      "run, starts the processes, trains, checkpoints and resumes.",
      width, 0, 0);
  text += "\n\nExamples:\n";
  constexpr int kLeastRight = 20, kBelow = 6;
  const auto row = [&](std::string_view left, std::string_view right, int column) {
    if (width < column + kLeastRight) {
      text +=
          fmt::format("  {}\n{:{}}{}\n", left, "", kBelow, wrap_text(right, width, kBelow, kBelow));
      return;
    }
    text +=
        fmt::format("  {:<{}}", left, column - 2) + wrap_text(right, width, column, column) + '\n';
  };
  row("mtl config default", "write the settings of this machine", 43);
  row("mtl launch --num_processes 4 train.yaml", "train on 4 processes", 43);
  row("mtl generate runs/shakespeare \"ROMEO:\"", "write with what was trained", 43);
  text += "\nCommands:\n";
  std::vector<std::string_view> lesser;
  for (const Command& command : commands()) {
    if (command.summary == nullptr) continue;
    if (command.lesser && !all) {
      lesser.emplace_back(command.name);
    } else {
      row(command.name, command.summary, all ? 20 : 14);
    }
  }
  const std::string end = all ? "The same launch again continues the run."
                              : fmt::format("Also: {}", fmt::join(lesser, " "));
  text += '\n' + wrap_text(end, width, 0, 0);
  return text + '\n';
}

int run_program(const Arguments& args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h") {
    std::fputs(overview(terminal_columns(STDOUT_FILENO)).c_str(), stdout);
    return 0;
  }
  if (args[0] == "--version" || args[0] == "-V") return command_version({});
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    if (args[0] == command.name) return command.run(args.behind_first());
    if (command.summary != nullptr) names.emplace_back(command.name);
  }
  if (args[0].starts_with('-')) {
    const auto guess = did_you_mean(args[0], {"--help", "--version"});
    throw Error(Exit::usage,
                Diagnostic{.code = "usage.unknown_option",
                           .what = fmt::format("mtl has no option '{}'", args[0]),
                           .help = guess ? fmt::format("did you mean {}?", *guess)
                                         : "options follow the command; see: mtl --help"});
  }
  std::string help = command_called(args[0]);
  if (const auto guess = did_you_mean(args[0], names); guess && help.empty()) {
    help = fmt::format("did you mean mtl {}?", *guess);
  }
  throw Error(Exit::usage,
              Diagnostic{.code = "usage.unknown_command",
                         .what = fmt::format("mtl has no command '{}'", args[0]),
                         .help = help.empty() ? "see the commands with: mtl --help" : help});
}

}  // namespace mtl
