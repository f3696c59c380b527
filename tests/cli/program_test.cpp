// The real program: help, usage errors, exit codes, settings, and launching programs of others.
#include "cli/program.h"

#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/terminal.h"
#include "common/text.h"
#include "support/text.h"

using mtl::test::Outcome;
using mtl::test::Shell;

namespace {

using Words = std::vector<std::string>;

using mtl::test::has;

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
      for (const std::string& line : mtl::lines_of(outcome.out)) {
        CAPTURE(line);
        // What is typed stays on one line.
        if (line.starts_with("  mtl ") || line.starts_with("usage")) continue;
        CHECK(mtl::display_width(line) <= columns);
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
    for (const std::string& line : mtl::lines_of(narrow)) {
      CAPTURE(line);
      if (!line.starts_with("  error[")) CHECK(mtl::display_width(line) <= 60);
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
  for (const auto& [command, parts] : table) {
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
        CHECK(mtl::display_width(line) <= (example ? 100 : std::min(std::stoi(columns), 100)));
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
    for (std::string line; std::getline(lines, line);) CHECK(mtl::display_width(line) <= 80);
  }
}

TEST_CASE("version") {
  Shell shell;
  const Outcome version = shell.mtl({"version"});
  CHECK(version.code == 0);
  CHECK(version.out.rfind("mtl ", 0) == 0);
  CHECK(shell.mtl({"--version"}).out == version.out);
}

TEST_CASE("an output that cannot be written is not a success") {
  Shell shell;
  const Outcome full = shell.run({"/bin/sh", "-c", std::string(MTL_PROGRAM) + " help > /dev/full"});
  CHECK(full.code == 4);
  const Outcome beyond =
      shell.run({"/bin/sh", "-c", "ulimit -f 1; " + std::string(MTL_PROGRAM) + " help > out.txt"});
  CHECK(beyond.code == 4);
  CHECK(has(beyond.err, "cannot write the output: File too large"));
}

TEST_CASE("config default writes once and never overwrites") {
  Shell shell;
  const std::string path = (shell.dir() / "xdg/mtl/default_config.yaml").string();
  const Outcome first = shell.mtl({"config", "default", "--mixed_precision", "bf16"});
  CHECK(first.code == 0);
  CHECK(first.out == path + '\n');
  const std::string text = mtl::test::file_text(path);
  CHECK(has(text, "mixed_precision: bf16"));
  const Outcome second = shell.mtl({"config", "default"});
  CHECK(second.code == 0);
  CHECK(second.out == path + '\n');
  CHECK(has(second.err, "not overwritten"));
  CHECK(mtl::test::file_text(path) == text);

  const Outcome here = shell.mtl({"config", "default", "--config-file", "sub/here.yaml"});
  CHECK(here.code == 0);
  CHECK(has(mtl::test::file_text(shell.dir() / "sub/here.yaml"), "compute_environment"));

  const Outcome show = shell.mtl({"config", "show"});
  CHECK(show.code == 0);
  CHECK(has(show.out, path));
  CHECK(has(show.out, "precision.dtype=bf16"));
}

TEST_CASE("config show without a file, and with a broken one") {
  Shell shell;
  CHECK(shell.mtl({"config", "show"}).code == 0);
  CHECK(shell.mtl({"config", "show", "--config_file", "missing.yaml"}).code == 3);
  shell.write("bad.yaml", "num_proceses: 4\n");
  const Outcome bad = shell.mtl({"config", "show", "--config_file", "bad.yaml"});
  CHECK(bad.code == 3);
  CHECK(has(bad.err, "num_processes"));
  CHECK(has(bad.err, "bad.yaml:1"));
}

TEST_CASE("config schema is a JSON schema on stdout") {
  Shell shell;
  const Outcome schema = shell.mtl({"config", "schema"});
  CHECK(schema.code == 0);
  CHECK(schema.out[0] == '{');
  CHECK(has(schema.out, "micro_batch"));
}

TEST_CASE("a program is started once per rank with torchrun's environment") {
  Shell shell;
  const Outcome outcome = shell.mtl(
      {"launch", "--num_processes", "3", "--", "/bin/sh", "-c",
       "echo \"$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $1\" > rank-$RANK.txt; "
       "test -n \"$MASTER_PORT\" && echo from $RANK",
       "name", "--num_processes"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string r = std::to_string(rank);
    CHECK(mtl::test::file_text(shell.dir() / ("rank-" + r + ".txt")) ==
          r + ' ' + r + " 3 3 127.0.0.1 --num_processes\n");
  }
  CHECK(outcome.out == "from 0\n");
}

TEST_CASE("the exit code of a job is that of the first failing rank, which is the last word") {
  Shell shell;
  const Outcome outcome =
      shell.mtl({"launch", "--num_processes", "2", "--grace", "1", "--", "/bin/sh", "-c",
                 "if [ $RANK = 1 ]; then echo it broke >&2; exit 41; fi; sleep 60"});
  CHECK(outcome.code == 41);
  CHECK(has(outcome.err, "rank 1"));
  CHECK(has(outcome.err, "it broke"));
}

TEST_CASE("a program that asks to be requeued is no failure") {
  Shell shell;
  const Outcome outcome =
      shell.mtl({"launch", "--num_processes", "2", "--", "sh", "-c", "exit 75"});
  CHECK(outcome.code == 75);
  CHECK_FALSE(has(outcome.err, "error"));
  CHECK_FALSE(has(outcome.err, "warning"));
}

TEST_CASE("a program that is missing or cannot be executed") {
  Shell shell;
  CHECK(shell.mtl({"launch", "no-such-program-at-all"}).code == 127);
  const Outcome script = shell.mtl({"launch", "-n", "1", "no-such-script.py", "--x", "1"});
  CHECK(script.code == 127);
  CHECK(has(script.err, "there is no script 'no-such-script.py'"));
  shell.write("data.txt", "text");
  CHECK(shell.mtl({"launch", "./data.txt"}).code == 126);
}

TEST_CASE("scripts and modules run under python3") {
  Shell shell;
  shell.write("script.py", "import os, sys\nprint(os.environ['RANK'], sys.argv[1:])\n");
  const Outcome script = shell.mtl({"launch", "script.py", "--cpu", "x"});
  CHECK(script.code == 0);
  CHECK(script.out == "0 ['--cpu', 'x']\n");
  const Outcome module = shell.mtl({"launch", "-m", "script", "--cpu"});
  CHECK(module.code == 0);
  CHECK(module.out == "0 ['--cpu']\n");
}

TEST_CASE("torchrun's flags may be cut short, as its parser has it, and nobody else's") {
  Shell shell;
  const Words program = {"--", "/bin/sh", "-c", "echo $RANK of $WORLD_SIZE as $ROLE_NAME"};
  const auto launched = [&](Words args) {
    args.insert(args.begin(), "launch");
    args.insert(args.end(), program.begin(), program.end());
    return shell.mtl(args);
  };
  for (const Words& args : std::vector<Words>{{"--nproc", "2", "--rol", "x"},
                                              {"--nproc_per=2", "--rol=x"},
                                              {"--nproc-per-n", "2", "--no=1", "--role", "x"},
                                              {"--stand", "--nproc=2", "--max-r=1", "--ro=x"}}) {
    CAPTURE(args[0]);
    if (args.size() == 5) {  // --no_python, --node_rank
      CHECK(launched(args).code == 2);
      continue;
    }
    const Outcome outcome = launched(args);
    CHECK(outcome.code == 0);
    CHECK(outcome.out == "0 of 2 as x\n");
  }
  // accelerate's take their whole names, and what could be another's is none.
  for (const char* other : {"--num=2", "--num_proc=2", "--mixed=bf16", "--rdzv=c10d", "--cp=2"}) {
    CAPTURE(other);
    CHECK(launched({other}).code == 2);
  }
  const Outcome several = launched({"--rdzv", "c10d"});
  CHECK(has(several.err, "it could be --rdzv_conf, --rdzv_backend, --rdzv_endpoint, --rdzv_id"));
}

TEST_CASE("a -- right behind a script is argparse's, as under torchrun and accelerate") {
  Shell shell;
  shell.write("script.py", "import sys\nprint(sys.argv[1:])\n");
  CHECK(shell.mtl({"launch", "script.py", "--", "a"}).out == "['a']\n");
  CHECK(shell.mtl({"launch", "-m", "script", "--", "--", "a"}).out == "['--', 'a']\n");
  CHECK(shell.mtl({"launch", "script.py", "a", "--", "b"}).out == "['a', '--', 'b']\n");
  CHECK(shell.mtl({"launch", "--", "/bin/echo", "--", "a"}).out == "-- a\n");
}

TEST_CASE("PYTHON_EXEC names the interpreter, as for torchrun") {
  Shell shell;
  shell.write("script.py", "print('no')\n");
  const Outcome outcome = shell.mtl({"launch", "script.py", "x"}, {{"PYTHON_EXEC", "/bin/echo"}});
  CHECK(outcome.out == "-u script.py x\n");
}

TEST_CASE("Ctrl-C is a KeyboardInterrupt, so that except and finally run") {
  Shell shell;
  shell.write("script.py",
              "import os, time\n"
              "try:\n"
              "  os.kill(int(os.environ['LAUNCHER']), 2)\n"
              "  time.sleep(60)\n"
              "except KeyboardInterrupt:\n"
              "  print('saved')\n"
              "finally:\n"
              "  print('closed')\n");
  shell.write("run.sh", "export LAUNCHER=$$; exec " MTL_PROGRAM " launch script.py\n");
  const Outcome outcome = shell.run({"/bin/sh", "run.sh"});
  CAPTURE(outcome.err);
  CHECK(outcome.out == "saved\nclosed\n");
}

TEST_CASE("a file that says NO means a process without a number, unless torchrun's words ask") {
  Shell shell;
  shell.write("no.yaml", "distributed_type: 'NO'\nnum_processes: 1\n");
  Words program = {"--", "/bin/sh", "-c", "echo ${RANK-none} ${MASTER_ADDR-none}"};
  Words args = {"launch", "--config_file", "no.yaml"};
  args.insert(args.end(), program.begin(), program.end());
  CHECK(shell.mtl(args).out == "none none\n");
  args.insert(args.begin() + 1, "--nproc_per_node=1");
  CHECK(shell.mtl(args).out == "0 127.0.0.1\n");
}

TEST_CASE("the config file decides the number of processes, the option wins") {
  Shell shell;
  shell.write(
      "two.yaml",
      "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_processes: 2\n");
  const Words program = {"--", "/bin/sh", "-c", "echo $WORLD_SIZE"};
  Words args = {"launch", "--config_file", "two.yaml"};
  args.insert(args.end(), program.begin(), program.end());
  CHECK(shell.mtl(args).out == "2\n");
  args.insert(args.begin() + 1, "--num-processes=1");
  CHECK(shell.mtl(args).out == "1\n");
  CHECK(shell.mtl({"launch", "--config_file", "missing.yaml", "true"}).code == 3);
  CHECK(shell
            .mtl({"launch", "--", "/bin/sh", "-c", "echo $WORLD_SIZE"},
                 {{"MTL_CONFIG_FILE", "two.yaml"}, {"MTL_NUM_PROCESSES", "3"}})
            .out == "3\n");
  shell.write("many.yaml", "num_machines: 2\nnum_processes: 2\ndistributed_type: 'NO'\n");
  const Outcome many = shell.mtl({"launch", "--config_file", "many.yaml", "true"});
  CHECK(many.code == 3);
  CHECK(has(many.err, "launch.address"));
  CHECK(has(many.err, "launch.machine_rank"));
}

TEST_CASE("a dry run shows what accelerate is told where there is no device for it") {
  Shell shell;
  const std::string told = shell
                               .mtl({"launch", "-q", "-n", "1", "--", "/bin/sh", "-c",
                                     "echo ACCELERATE_USE_CPU=$ACCELERATE_USE_CPU"})
                               .out;
  REQUIRE(told.starts_with("ACCELERATE_USE_CPU="));
  const std::string line = told.substr(0, told.find('\n'));
  CHECK(has(shell.mtl({"launch", "--dry-run", "-n", "1", "--", "true"}).out, line));
  const Outcome document = shell.mtl({"launch", "--dry-run", "--json", "-n", "1", "--", "true"});
  CHECK(has(document.out, "\"ACCELERATE_USE_CPU\": \"" + line.substr(line.find('=') + 1) + '"'));
}

TEST_CASE("flags of accelerate and torchrun reach the program as its environment") {
  Shell shell;
  const Outcome outcome =
      shell.mtl({"launch",
                 "--nproc-per-node=2",
                 "--use_fsdp",
                 "--fsdp_offload_params=true",
                 "--no-cpu",
                 "--role",
                 "trainer",
                 "--rdzv_id",
                 "job9",
                 "--max-restarts",
                 "0",
                 "--env",
                 "A=x y",
                 "--monitor_interval",
                 "5",
                 "--master_port",
                 "0",
                 "-t",
                 "0",
                 "--",
                 "/bin/sh",
                 "-c",
                 "test $RANK = 1 || echo $FSDP_OFFLOAD_PARAMS $ROLE_NAME $TORCHELASTIC_RUN_ID $A "
                 "$WORLD_SIZE ${SLURM_PROCID-none} $(dirname $TORCHELASTIC_ERROR_FILE)"},
                {{"SLURM_PROCID", "7"}});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(has(outcome.out, "true trainer job9 x y 2 none /"));
  CHECK(has(outcome.err, "--monitor_interval"));
  // What the ranks may leave behind goes away with the launch.
  const std::string folder = outcome.out.substr(outcome.out.rfind(' ') + 1);
  CHECK_FALSE(std::filesystem::exists(folder.substr(0, folder.find('\n'))));
}

TEST_CASE("contradictions of a launch are reported together before anything starts") {
  Shell shell;
  const Outcome outcome =
      shell.mtl({"launch", "--cpu", "--multi_gpu", "--nnodes", "3:2", "--use_fsdp",
                 "--use_deepspeed", "--", "/bin/sh", "-c", "touch started"});
  CHECK(outcome.code == 3);
  CHECK(has(outcome.err, "--cpu and --multi_gpu"));
  CHECK(has(outcome.err, "launch.nodes"));
  CHECK(has(outcome.err, "--use_fsdp and --use_deepspeed"));
  CHECK_FALSE(std::filesystem::exists(shell.dir() / "started"));
}

TEST_CASE("all ranks start again as often as max_restarts says") {
  Shell shell;
  const Words program = {"--", "/bin/sh", "-c",
                         "echo $RANK >> runs-$TORCHELASTIC_RESTART_COUNT.txt; "
                         "test $TORCHELASTIC_RESTART_COUNT = 2 || exit 9"};
  Words args = {"launch", "-n", "1", "--max_restarts", "2"};
  args.insert(args.end(), program.begin(), program.end());
  const Outcome outcome = shell.mtl(args);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(has(outcome.err, "restart 2 of 2"));
  CHECK(mtl::test::file_text(shell.dir() / "runs-2.txt") == "0\n");
  CHECK_FALSE(std::filesystem::exists(shell.dir() / "runs-3.txt"));
  args[4] = "1";
  CHECK(shell.mtl(args).code == 9);
}

TEST_CASE("threads per rank are said once and only where nobody chose them") {
  Shell shell;
  const Words args = {"launch", "-n", "2", "--", "true"};
  // Whoever runs the tests may have chosen it.
  const Words unset = {"/usr/bin/env", "-u",  "OMP_NUM_THREADS", MTL_PROGRAM, "launch", "-n", "2",
                       "--",           "true"};
  CHECK(has(shell.run(unset).err, "OMP_NUM_THREADS="));
  CHECK(shell.mtl(args, {{"OMP_NUM_THREADS", "3"}}).err.empty());
  CHECK(shell.mtl({"launch", "-q", "-n", "2", "--", "true"}).err.empty());
  CHECK(shell.mtl({"launch", "-n", "1", "--", "true"}).err.empty());
}

TEST_CASE("--dry-run of a program prints what would be started, and starts nothing") {
  Shell shell;
  const Outcome outcome = shell.mtl(
      {"launch", "--dry-run", "--num_processes", "2", "--", "/bin/sh", "-c", "touch started"});
  CHECK(outcome.code == 0);
  CHECK(has(outcome.out, "\nrank 1\n  host     "));
  CHECK(has(outcome.out, "\n  device   "));
  CHECK(has(outcome.out, "\n  binding  none\n"));
  CHECK(has(outcome.out, " RANK=1 "));
  CHECK(has(outcome.out, " /bin/sh -c 'touch started'\n"));
  // The command can be copied: it gives what rank 1 would have given.
  const size_t at = outcome.out.rfind("  command  ");
  const std::string line = outcome.out.substr(at + 11);
  const Outcome copied = shell.run({"/bin/sh", "-c", line});
  CHECK(copied.code == 0);
  CHECK(std::filesystem::exists(shell.dir() / "started"));
  std::filesystem::remove(shell.dir() / "started");
  CHECK_FALSE(std::filesystem::exists(shell.dir() / "started"));
}
