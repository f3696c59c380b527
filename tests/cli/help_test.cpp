// What mtl says of itself: the first screen, help, topics, usage errors, version.
#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "cli/program.h"
#include "common/terminal.h"
#include "common/text.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;

namespace {

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("mtl alone and --help are the same single screen on stdout") {
  Shell shell;
  const Outcome alone = shell.mtl({});
  CHECK(alone.code == 0);
  CHECK(alone.err.empty());
  CHECK(shell.mtl({"--help"}).out == alone.out);
  CHECK(shell.mtl({"-h"}).out == alone.out);
  CHECK(std::count(alone.out.begin(), alone.out.end(), '\n') <= 24);
  for (const char* command :
       {"config", "plan", "launch", "generate", "doctor", "recipes", "help"}) {
    CAPTURE(command);
    CHECK(has(alone.out, std::string("\n  ") + command + ' '));
  }
  // The others are named, and mtl help has them all.
  const Outcome all = shell.mtl({"help"});
  for (const char* command : {"topo", "estimate-memory", "env", "version"}) {
    CAPTURE(command);
    CHECK(has(alone.out, std::string(" ") + command));
    CHECK_FALSE(has(alone.out, std::string("\n  ") + command + ' '));
    CHECK(has(all.out, std::string("\n  ") + command + ' '));
  }
  CHECK_FALSE(has(alone.out, "worker"));
  CHECK_FALSE(has(alone.out, "\033"));
}

TEST_CASE("the first screen fits a narrow terminal, its words under the commands") {
  Shell shell;
  for (const int columns : {40, 50, 59, 62, 63, 80}) {
    for (const Words& args : {Words{}, Words{"help"}}) {
      CAPTURE(columns);
      const Outcome outcome = shell.mtl(args, {{"COLUMNS", std::to_string(columns)}});
      for (const std::string& line : lines_of(outcome.out)) {
        CAPTURE(line);
        // What is typed stays on one line.
        if (line.starts_with("  mtl ") || line.starts_with("usage")) continue;
        CHECK(display_width(line) <= columns);
      }
      const std::string example = "  mtl launch --num_processes 4 train.yaml";
      CHECK(has(outcome.out, columns < 63 ? example + "\n      train on 4 processes\n"
                                          : example + "  train on 4 processes\n"));
    }
  }
}

TEST_CASE(
    "the texts of mtl help TOPIC fit a narrow terminal and stay what they are in a wide one") {
  Shell shell;
  const auto words = [](const std::string& text) {
    std::istringstream in(text);
    std::vector<std::string> all;
    for (std::string word; in >> word;) all.push_back(word);
    return all;
  };
  for (const char* topic : {"exit-codes", "errors", "settings", "signals"}) {
    CAPTURE(topic);
    const std::string wide = shell.mtl({"help", topic}, {{"COLUMNS", "120"}}).out;
    CHECK(shell.mtl({"help", topic}, {{"COLUMNS", "80"}}).out == wide);
    const std::string narrow = shell.mtl({"help", topic}, {{"COLUMNS", "60"}}).out;
    CHECK(words(narrow) == words(wide));
    for (const std::string& line : lines_of(narrow)) {
      CAPTURE(line);
      if (!line.starts_with("  error[")) CHECK(display_width(line) <= 60);
    }
  }
  CHECK(
      has(shell.mtl({"help", "exit-codes"}, {{"COLUMNS", "60"}}).out,
          "\n   75  stopped on request with a complete checkpoint: run\n       the same command"));
}

TEST_CASE("every command has help that fits, starts with usage, and names its options") {
  Shell shell;
  const std::vector<std::pair<Words, Words>> table = {
      {{"config"}, {"default", "show", "schema"}},
      {{"config", "default"}, {"--config_file", "--mixed_precision", "no|fp16|bf16|fp8"}},
      {{"config", "show"}, {"--config_file"}},
      {{"config", "schema"}, {"train.yaml"}},
      {{"launch"},
       {"--config_file", "--num_processes", "--cpu", "--mixed_precision", "--fresh", "--dry-run",
        "--grace", "--module", "--no_python", "key=value", "train.yaml", "--hosts", "--nnodes",
        "--tee", "launch-flags"}},
      {{"plan"},
       {"--num_processes", "--config_file", "--mixed_precision", "--svg", "--json", "--gpus",
        "--gpu-type", "h100-80g", "--tune", "--write", "--simulate"}},
      {{"generate"},
       {"--tokens", "--temperature", "--top_k", "--top_p", "--seed", "RUN", "PROMPT"}},
      {{"version"}, {}},
      {{"help"}, {"exit-codes", "errors", "launch-flags", "settings", "signals"}},
      {{"env"}, {"--json", "--python"}},
      {{"recipes"}, {"ls", "show", "cp"}},
      {{"recipes", "ls"}, {"--json"}},
      {{"recipes", "show"}, {"NAME"}},
      {{"recipes", "cp"}, {"NAME", "DIR"}},
      {{"estimate-memory"}, {"MODEL", "--gpus", "--layers", "--kv_heads", "--json"}},
      {{"topo"}, {"--file", "--bench", "--json"}},
      {{"doctor"}, {"--hosts", "--hostfile", "--paste", "--json", "--run_dir"}},
      {{"worker"}, {"RUN_DIR"}},
      {{"ckpt"}, {"ls", "prune", "export"}},
      {{"ckpt", "prune"}, {"--keep_every", "--keep_last, --keep-last"}},
      {{"data"}, {"tokenize", "merge"}},
      {{"submit"}, {"--slurm_partition", "--partition gpu", "--wait"}},
  };
  for (const auto& row : table) {
    const Words &command = row.first, &parts = row.second;
    CAPTURE(command[0]);
    for (const char* columns : {"50", "80", "250"}) {
      Words args = command;
      args.emplace_back("--help");
      const Outcome help = shell.mtl(args, {{"COLUMNS", columns}});
      CHECK(help.code == 0);
      CHECK(help.err.empty());
      CHECK(help.out.rfind("usage: mtl " + command[0], 0) == 0);
      for (const std::string& part : parts) {
        CAPTURE(part);
        CHECK(has(help.out, part));
      }
      std::istringstream lines(help.out);
      for (std::string line; std::getline(lines, line);) {
        CAPTURE(line);
        // Examples are copied whole, so they are not broken.
        const bool example = line.rfind("  mtl ", 0) == 0;
        CHECK(display_width(line) <= (example ? 100 : std::min(std::stoi(columns), 100)));
        CHECK((line.empty() || line.back() != ' '));
      }
    }
    Words asked = {"help"};
    asked.insert(asked.end(), command.begin(), command.end());
    Words direct = command;
    direct.emplace_back("--help");
    CHECK(shell.mtl(asked).out == shell.mtl(direct).out);
  }
}

TEST_CASE("usage errors: exit code 2, on stderr, with what was meant") {
  Shell shell;
  struct Case {
    Words args;
    const char* code;
    const char* hint;
  };
  const std::vector<Case> table = {
      {{"lanch", "x.yaml"}, "error[usage.unknown_command]", "did you mean mtl launch?"},
      {{"frobnicate"}, "error[usage.unknown_command]", "mtl --help"},
      {{"train", "x.yaml"}, "error[usage.unknown_command]", "mtl launch train.yaml"},
      {{"tokenize"}, "error[usage.unknown_command]", "did you mean mtl data tokenize?"},
      {{"import"},
       "error[usage.unknown_command]",
       "did you mean mtl config import or mtl ckpt import?"},
      {{"merge-weights", "a", "b"}, "error[usage.unknown_command]", "mtl ckpt merge"},
      {{"--hlep"}, "error[usage.unknown_option]", "did you mean --help?"},
      {{"--num_processes", "2", "launch"},
       "error[usage.unknown_option]",
       "options follow the command"},
      {{"launch"}, "error[usage.missing]", "mtl launch --help"},
      {{"launch", "--num_proceses", "2", "t.yaml"},
       "error[usage.unknown_option]",
       "--num_processes?"},
      {{"launch", "--num_processes", "zero", "t.yaml"}, "error[usage.value]", "mtl launch --help"},
      {{"launch", "t.yaml", "--frsh"}, "error[usage.unknown_option]", "did you mean --fresh?"},
      {{"launch", "t.yaml", "steps"}, "error[usage.override]", "train.steps=2000"},
      {{"launch", "train.steps=5", "t.yaml"}, "error[usage.order]", "train.yaml train.steps=5"},
      {{"launch", "--fresh", "--", "true"}, "error[usage.option]", "--fresh"},
      {{"plan"}, "error[usage.missing]", "mtl plan --help"},
      {{"generate", "run"}, "error[usage.missing]", "mtl generate --help"},
      {{"generate", "--temperature", "-1", "run", "x"},
       "error[usage.value]",
       "mtl generate --help"},
      {{"generate", "run", "x", "y"}, "error[usage.extra]", "mtl generate --help"},
      {{"config", "defualt"}, "error[usage.unknown_command]", "did you mean mtl config default?"},
      {{"help", "exit-code"}, "error[usage.unknown_topic]", "did you mean mtl help exit-codes?"},
      {{"version", "now"}, "error[usage.extra]", "mtl version --help"},
      {{"worker"}, "error[usage.missing]", "mtl worker --help"},
  };
  for (const Case& c : table) {
    std::string words;
    for (const std::string& word : c.args) words += word + ' ';
    CAPTURE(words);
    const Outcome outcome = shell.mtl(c.args);
    CHECK(outcome.code == 2);
    CHECK(outcome.out.empty());
    CAPTURE(outcome.err);
    CHECK(outcome.err.rfind(c.code, 0) == 0);
    CHECK(has(outcome.err, c.hint));
    CHECK_FALSE(has(outcome.err, "\033"));
  }
}

TEST_CASE("checks neither show nor take what only a launch has") {
  Shell shell;
  for (const char* command : {"doctor", "topo", "test"}) {
    CAPTURE(std::string(command));
    const std::string help = shell.mtl({command, "--help"}).out;
    CHECK(has(help, "--num_processes"));
    for (const char* flag : {"--dry-run", "--module", "--no_python", "A program:"}) {
      CHECK_FALSE(has(help, flag));
    }
    for (const char* flag : {"--dry-run", "--dry_run=true", "-m", "--no_python", "--run_path"}) {
      CAPTURE(std::string(flag));
      const Outcome outcome = shell.mtl({command, flag});
      CHECK(outcome.code == 2);
      CHECK(outcome.out.empty());
      CHECK(has(outcome.err, "error[usage.option]: --"));
      CHECK(has(outcome.err, std::string("is for mtl launch, and mtl ") + command));
    }
  }
  // What starts ranks does not either where the environment says so.
  for (const Words& words : {Words{"topo", "--bench"}, Words{"test"}}) {
    const Outcome outcome = shell.mtl(words, {{"MTL_DRY_RUN", "1"}});
    CHECK(outcome.code == 2);
    CHECK(has(outcome.err, "MTL_DRY_RUN is for mtl launch"));
  }
}

TEST_CASE("colour is forced and forbidden by the environment") {
  Shell shell;
  CHECK(has(shell.mtl({"nope"}, {{"CLICOLOR_FORCE", "1"}}).err, "\033[1;31merror"));
  CHECK_FALSE(has(shell.mtl({"nope"}, {{"CLICOLOR_FORCE", "1"}, {"NO_COLOR", "1"}}).err, "\033"));
}

TEST_CASE("topics") {
  Shell shell;
  const Outcome codes = shell.mtl({"help", "exit-codes"});
  CHECK(codes.code == 0);
  CHECK(has(codes.out, "75"));
  for (const char* topic : {"exit-codes", "errors", "launch-flags", "settings", "signals"}) {
    CAPTURE(topic);
    const std::string text = shell.mtl({"help", topic}).out;
    CHECK(text.size() > 100);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) CHECK(display_width(line) <= 80);
  }
}

TEST_CASE("version") {
  Shell shell;
  const Outcome version = shell.mtl({"version"});
  CHECK(version.code == 0);
  CHECK(version.out.rfind("mtl ", 0) == 0);
  CHECK(shell.mtl({"--version"}).out == version.out);
  CHECK(shell.mtl({"-V"}).out == version.out);
}

TEST_CASE("an output that cannot be written is not a success") {
  Shell shell;
  const Outcome full = shell.run({"/bin/sh", "-c", std::string(MTL_PROGRAM) + " help > /dev/full"});
  CHECK(full.code == 4);
  // More than a buffer: the write that failed is not the last one.
  for (const char* what : {"config schema", "help launch-flags"}) {
    CAPTURE(what);
    const Outcome much =
        shell.run({"/bin/sh", "-c", fmt::format("{} {} > /dev/full", MTL_PROGRAM, what)});
    CHECK(much.code == 4);
    CHECK(has(much.err, "error[output.write]: the output cannot be written"));
  }
  const Outcome beyond =
      shell.run({"/bin/sh", "-c", "ulimit -f 1; " + std::string(MTL_PROGRAM) + " help > out.txt"});
  CHECK(beyond.code == 4);
  CHECK(has(beyond.err, "the output cannot be written: File too large"));
}
