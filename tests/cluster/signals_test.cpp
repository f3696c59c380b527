// A person at a terminal: Ctrl-C, TERM, HUP, a window that is closed. The ranks get their grace,
// the exit code is as documented, the terminal is as it was, nothing is left. build/bench/signals
// does this for longer.
#include <chrono>
#include <thread>

#include "cluster/signal_rounds.h"
#include "cluster/tiny_run.h"

using namespace mtl::test;
using namespace std::chrono_literals;

TEST_CASE_FIXTURE(Machines, "Ctrl-C TERM HUP and a closed terminal give the ranks their grace") {
  Cluster cluster(2);
  StopRounds rounds;
  for (size_t turn = 0; turn < kStopSignals.size(); ++turn) stop_round(rounds, cluster, turn);
  for (const std::string& wrong : rounds.wrong) FAIL_CHECK(wrong);
}

TEST_CASE_FIXTURE(Machines, "a second Ctrl-C does not wait for the grace") {
  Cluster cluster(2);
  const std::string script = cluster.script(
      "deaf", "trap '' INT TERM\necho > ready-$RANK\nwhile :; do sleep 0.05; done\n");
  Terminal terminal;
  Command job = terminal.start(cluster, 0, {"--hosts", "m1,m2", "--grace", "600", "--", script});
  REQUIRE(wait_until([&] { return cluster.files("ready-").size() == 2; }));
  terminal.type("\x03");
  REQUIRE_MESSAGE(terminal.shows("SIGINT: asked the job to stop"), terminal.text());
  terminal.type("\x03");
  const CommandEnd end = job.wait(kPatience);
  CHECK_MESSAGE(end.code == 130, terminal.text());
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "output that nobody takes does not keep Ctrl-C from being heard") {
  Cluster cluster(1);
  // Far more than a terminal holds, of which nothing is read until the end.
  const std::string script = cluster.script(
      "loud",
      "echo > ready-$RANK\nwhile :; do echo 1234567890123456789012345678901234567890; done\n");
  Terminal terminal;
  Command job = terminal.start(cluster, 0, {"--hosts", "m1", "--grace", "5", "--", script});
  REQUIRE(wait_until([&] { return cluster.files("ready-").size() == 1; }));
  std::this_thread::sleep_for(500ms);
  terminal.type("\x03");
  // The ranks end while the console stands still; then it is read.
  CHECK(wait_until([&] { return cluster.pids(1, "loud").empty(); }));
  CHECK(wait_until([&] {
    terminal.text();
    return !job.running();
  }));
  CHECK(job.wait(kPatience).code == 130);
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines,
                  "a training run whose window is closed saves and its status line is no harm") {
  Cluster cluster(2);
  TinyRun tiny(cluster, 100'000, 100'000);
  Terminal terminal;
  std::vector<std::string> args = {"--hosts", "m1,m2", "train.yaml",
                                   "run.dir=" + (cluster.work() / "run").string()};
  Command job = terminal.start(cluster, 0, args);
  REQUIRE(wait_until([&] {
    terminal.text();
    return tiny.last_step("run") >= 3;
  }));
  terminal.close_window();
  const CommandEnd end = job.wait(kPatience);
  CHECK(end.code == 75);
  CHECK(tiny.checkpoints("run").size() == 1);
  CHECK_NOTHING_LEFT(cluster);
}
