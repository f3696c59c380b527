// mtl help TOPIC: a text on what concerns every command, or a command's own help.
#include "cli/help/help.h"

#include <algorithm>
#include <cstdio>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/help/help_blocks.h"
#include "cli/launch_flags.h"
#include "common/error.h"
#include "common/terminal.h"

namespace mtl {

const std::vector<HelpTopic>& help_topics() {
  static const std::vector<HelpTopic> kTopics = {
      {"exit-codes", "what the exit code of a command means",
       R"(Exit codes of every mtl command:
    0  done
    1  the run failed
    2  usage: an unknown command or option, or a value of the wrong kind
    3  configuration: train.yaml, default_config.yaml, flags put wrongly
    4  environment: permissions, ports, devices
    5  out of memory
    6  data or checkpoint damaged, missing or incompatible
    7  a rank hangs, or something took too long
   75  stopped on request with a complete checkpoint: run the same command again
  126  the launched program cannot be executed
  127  the launched program does not exist
128+n  ended by signal n (130: Ctrl-C, 143: TERM): a program by the first one,
       a training run by a second one, since the first gives 75

The exit code of a job is that of the first rank that failed.
)"},
      {"errors", "how mtl says what is wrong",
       R"(How mtl says what is wrong:

  error[mesh.heads]: model.heads 6 cannot be split over parallel.tp 4
    --> train.yaml:14:7
    note: facts that explain it
    help: what to do next

All errors of the configuration are reported at once, before anything starts.
The code in brackets is stable: scripts may rely on it. When ranks fail, the
last thing on the screen is the first failure: which rank, where, why, its last
lines; the others' messages are in the logs/ of the run directory. Errors go to
stderr, data goes to stdout.
)"},
      {"launch-flags", "every flag of mtl launch", ""},
      {"settings", "where a value comes from",
       R"(Where a value comes from, weakest first:

  1  built in
  2  default_config.yaml, as `mtl config` or `accelerate config` wrote it: where
     to run
  3  train.yaml: what to train
  4  the environment: MTL_TRAIN__STEPS=2000 sets train.steps,
     MTL_NUM_PROCESSES=4 a launch flag
  5  the command line: --mixed_precision bf16, then train.steps=2000

Where to run (processes, machines, devices, logs) comes from 1, 2, 4 and 5;
every launch flag has a variable of its name (mtl help launch-flags).

`mtl launch --dry-run train.yaml` shows every value and its origin; a run keeps
them in its resolved.yaml. `mtl config schema` prints the JSON Schema of
train.yaml, for editors.
)"},
      {"signals", "what Ctrl-C and other signals do",
       R"(While a run is going:

  Ctrl-C or TERM   finish the step, write a checkpoint, stop: exit code 75
  a second one     stop at once
  USR1             write a checkpoint and go on

The same mtl launch command continues the run from its newest complete
checkpoint.
)"},
  };
  return kTopics;
}

int command_help(const Arguments& args) {
  std::vector<std::string> topic_names;
  for (const HelpTopic& topic : help_topics()) topic_names.push_back(topic.name);
  CommandLine line({"help [TOPIC | COMMAND]"}, fmt::format("Topics: {}. With a command, its help.",
                                                           fmt::join(topic_names, ", ")));
  std::vector<std::string> words;
  line.rest("TOPIC", words, "a topic or a command; without one, the overview");
  if (!line.parse(args)) return 0;
  if (words.empty()) {
    std::fputs(overview(terminal_columns(STDOUT_FILENO), true).c_str(), stdout);
    return 0;
  }
  if (words[0] == "launch-flags" || words[0] == "launch_flags") {
    std::fputs(launch_flags_text(terminal_columns(STDOUT_FILENO)).c_str(), stdout);
    return 0;
  }
  for (const HelpTopic& topic : help_topics()) {
    if (topic.name != words[0]) continue;
    std::fputs(fitted_help(topic.text, terminal_columns(STDOUT_FILENO)).c_str(), stdout);
    return 0;
  }
  std::vector<std::string> names = topic_names;
  for (const Command& command : commands()) {
    if (command.name == words[0]) {
      Arguments rest(words.begin() + 1, words.end());
      rest.emplace_back("--help");
      return command.run(rest);
    }
    if (command.summary != nullptr) names.emplace_back(command.name);
  }
  const auto guess = did_you_mean(words[0], names);
  throw Error(Exit::usage,
              Diagnostic{.code = "usage.unknown_topic",
                         .what = fmt::format("there is no help on '{}'", words[0]),
                         .help = guess ? fmt::format("did you mean mtl help {}?", *guess)
                                       : fmt::format("topics: {}", fmt::join(topic_names, ", "))});
}

}  // namespace mtl
