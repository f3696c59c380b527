// mtl launch of programs that are not ours: how they are started, and how they end.
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "cli/program.h"
#include "support/text.h"

using namespace mtl::test;

namespace {

using Words = std::vector<std::string>;

}  // namespace

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
    CHECK(file_text(shell.dir() / ("rank-" + r + ".txt")) ==
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

TEST_CASE("where the output of a rank that failed is, is said as it is") {
  Shell shell;
  const auto told = [&](const std::string& rank, const Words& flags = {}) {
    Words words = {"launch", "-n", "2", "--grace", "1"};
    words.insert(words.end(), flags.begin(), flags.end());
    const std::string script = "if [ $RANK = " + rank + " ]; then exit 41; fi; sleep 60";
    words.insert(words.end(), {"--", "/bin/sh", "-c", script});
    const Outcome outcome = shell.mtl(words);
    CHECK(outcome.code == 41);
    return outcome.err;
  };
  CHECK(has(told("0"), "help: see its output above\n"));
  CHECK(has(told("1"), "help: see its output (--tee 3 shows it, --log_dir DIR keeps it)\n"));
  CHECK(has(told("1", {"--tee", "3"}), "help: see its output above\n"));
  CHECK(has(told("1", {"--log_dir", "logs"}), "help: see its log, logs/rank-00001.log\n"));
}

TEST_CASE("a program that is alone reads what mtl is given, of several none does") {
  Shell shell;
  const auto read = [&](const std::string& ranks) {
    return shell.run({"/bin/sh", "-c",
                      "echo hello | " MTL_PROGRAM " launch -q -n " + ranks + " --tee 1 -- cat"});
  };
  CHECK(read("1").out == "rank 0| hello\n");
  CHECK(read("2").out == "");
}

TEST_CASE("more ranks than there can be open files for are refused before they are made") {
  Shell shell;
  const auto started = [&](const std::string& limit) {
    return shell.run(
        {"/bin/sh", "-c", "ulimit " + limit + "; exec " MTL_PROGRAM " launch -n 100 -- true"});
  };
  const Outcome outcome = started("-n 256");
  CAPTURE(outcome.err);
  CHECK(outcome.code == 4);
  CHECK(has(outcome.err,
            "error[launch.descriptor]: 100 ranks on this machine need 728 open "
            "files, and its limit is 256\n"));
  // Of a limit that may be raised nobody needs to hear.
  CHECK(started("-S -n 256").code == 0);
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
  CHECK(file_text(shell.dir() / "runs-2.txt") == "0\n");
  CHECK_FALSE(std::filesystem::exists(shell.dir() / "runs-3.txt"));
  args[4] = "1";
  CHECK(shell.mtl(args).code == 9);
}
