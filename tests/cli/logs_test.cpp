// mtl logs, run as a person does.
#include <chrono>
#include <csignal>
#include <fstream>

#include <doctest/doctest.h>

#include "cli/program.h"
#include "support/processes.h"
#include "support/text.h"

using namespace mtl::test;

TEST_CASE("logs of all ranks have prefixes and one rank's is raw") {
  const Shell shell;
  shell.write("out/rank-00000.log", "a\nb\n");
  shell.write("out/rank-00001.log.1", "old\n");
  shell.write("out/rank-00001.log", std::string("c\r50%\r\0\xff\n", 9));
  Outcome all = shell.mtl({"logs", "out"});
  CHECK(all.code == 0);
  CHECK(all.out.starts_with("rank 0| a\nrank 0| b\nrank 1| old\n"));
  CHECK(all.err.empty());
  CHECK(shell.mtl({"logs", "out", "--rank", "1"}).out == std::string("old\nc\r50%\r\0\xff\n", 13));
  CHECK(shell.mtl({"logs", "--lines", "1", "--rank=0", "out"}).out == "b\n");
  CHECK(shell.mtl({"logs", "--lines", "1", "out"}).out.starts_with("rank 0| b\nrank 1| "));
}

TEST_CASE("logs of a run are found by its directory and its name and as the newest") {
  const Shell shell;
  for (const char* run : {"runs/one/20250101-000000", "runs/two/20240101-000000"}) {
    shell.write(std::string(run) + "/resolved.yaml", "");
    shell.write(std::string(run) + "/logs/rank-00000.log", std::string(run) + "\n");
    shell.write(std::string(run) + "/logs/node-00001.log", "agent\n");
  }
  const auto logs = shell.dir() / "runs/one/20250101-000000/logs/rank-00000.log";
  std::filesystem::last_write_time(logs,
                                   std::filesystem::last_write_time(logs) - std::chrono::hours(1));
  CHECK(shell.mtl({"logs"}).out == "rank 0| runs/two/20240101-000000\n");
  CHECK(shell.mtl({"logs", "runs/one"}).out == "rank 0| runs/one/20250101-000000\n");
  CHECK(shell.mtl({"logs", "one"}).out == "rank 0| runs/one/20250101-000000\n");
  CHECK(shell.mtl({"logs", "runs/one/20250101-000000"}).out ==
        "rank 0| runs/one/20250101-000000\n");
  CHECK(shell.mtl({"logs", "one", "--node", "1"}).out == "agent\n");
}

TEST_CASE("logs begin with what the console of the run has shown") {
  const Shell shell;
  shell.write("out/launcher.log", "step=1\nstep=2\n");
  shell.write("out/rank-00000.log", "a\n");
  CHECK(shell.mtl({"logs", "out"}).out == "step=1\nstep=2\nrank 0| a\n");
  CHECK(shell.mtl({"logs", "out", "--lines", "1"}).out == "step=2\nrank 0| a\n");
  CHECK(shell.mtl({"logs", "out", "--rank", "0"}).out == "a\n");
}

TEST_CASE("logs that are not there are named") {
  const Shell shell;
  CHECK(shell.mtl({"logs"}).code == 6);
  CHECK(shell.mtl({"logs"}).err.find("error[logs.missing]") != std::string::npos);
  CHECK(shell.mtl({"logs", "nowhere"}).err.find("error[run.missing]") != std::string::npos);
  for (int rank : {0, 1, 2, 5}) shell.write("out/rank-" + std::to_string(rank) + ".log", "");
  const Outcome outcome = shell.mtl({"logs", "out", "--rank", "4"});
  CHECK(outcome.code == 6);
  CHECK(outcome.err.find("rank 4 has no log") != std::string::npos);
  CHECK(outcome.err.find("ranks: 0-2, 5") != std::string::npos);
  CHECK(shell.mtl({"logs", "out", "more"}).code == 2);
  CHECK(shell.mtl({"logs", "out", "--rank", "1", "--node", "1"}).code == 2);
}

TEST_CASE("logs are followed with ranks that come later") {
  const Shell shell;
  std::string many;
  for (int i = 0; i < 20; ++i) many += std::to_string(i) + "\n";
  shell.write("out/rank-00000.log", many);
  const pid_t pid = shell.start({MTL_PROGRAM, "logs", "-f", "out"});
  const auto shown = [&] { return file_text(shell.dir() / "stdout.txt"); };
  const bool first = wait_until([&] { return shown().find("rank 0| 19\n") != std::string::npos; });
  std::ofstream(shell.dir() / "out/rank-00000.log", std::ios::app) << "added\n";
  shell.write("out/rank-00001.log", "new rank\n");
  const bool later = wait_until([&] {
    return shown().find("rank 0| added\n") != std::string::npos &&
           shown().find("rank 1| new rank\n") != std::string::npos;
  });
  kill(pid, SIGINT);
  const Outcome outcome = shell.finish(pid);
  CHECK(first);
  CHECK(later);
  CHECK(outcome.code == 128 + SIGINT);
  CHECK(outcome.out.starts_with("rank 0| 10\n"));
}
