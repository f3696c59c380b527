// Programs written with accelerate, accelerate's own test scripts among them, under mtl launch.
#include <doctest/doctest.h>

#include "clients/clients.h"

using namespace mtl::test;

namespace {

void runs_well(const std::vector<std::string>& program, const std::string& says,
               const std::vector<std::string>& worlds = {"2", "4"}) {
  const auto env = accelerate_environment();
  Shell shell;
  for (const std::string& world : worlds) {
    std::vector<std::string> argv = {"launch", "--cpu", "--num_processes", world};
    argv.insert(argv.end(), program.begin(), program.end());
    const Outcome outcome = without_chance([&] { return shell.mtl(argv, env); });
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    CHECK_MESSAGE(outcome.out.find(says) != std::string::npos, outcome.out);
  }
}

}  // namespace

TEST_CASE("accelerate's test_script passes") {
  runs_well({"-m", "accelerate.test_utils.scripts.test_script"}, "**Breakpoint trigger test**");
}
TEST_CASE("accelerate's test_sync passes") {
  runs_well({"-m", "accelerate.test_utils.scripts.test_sync"},
            "**Test `accumulate` gradient accumulation with optimizer");
}
TEST_CASE("accelerate's test_ops passes") {
  runs_well({"-m", "accelerate.test_utils.scripts.test_ops"}, "testing reduce_mean");
}
TEST_CASE("accelerate's distributed data loop passes") {
  runs_well({client("data_loop.py")}, "Test join with non DDP distributed raises warning",
            {"2"});  // it counts on two
}

TEST_CASE("a training with accelerate is the one it is without a launcher") {
  const auto env = accelerate_environment();
  Shell shell;
  const std::string python = env.at("PATH").substr(0, env.at("PATH").find(':')) + "/python";
  // By hand: each process with the variables that accelerate reads. They meet at a port which the
  // first reserves for them all, bound and not listening.
  const std::string by_hand = R"(
import os, socket, subprocess, sys
reserved = socket.socket(); reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
reserved.bind(("127.0.0.1", 0))
world = int(sys.argv[1])
ranks = [subprocess.Popen([sys.executable, sys.argv[2]], env=dict(os.environ, RANK=str(rank),
         LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world),
         MASTER_ADDR="127.0.0.1", MASTER_PORT=str(reserved.getsockname()[1]),
         ACCELERATE_USE_CPU="true", OMP_NUM_THREADS="1")) for rank in range(world)]
sys.exit(max(rank.wait() for rank in ranks))
)";
  for (const std::string world : {"2", "4"}) {
    const Outcome expected = without_chance([&] {
      return shell.run({python, "-c", by_hand, world, client("train_accelerate.py")}, env);
    });
    REQUIRE_MESSAGE(expected.code == 0, expected.err);
    REQUIRE(lines(expected.out, "epoch 2 ").size() > 10);
    const Outcome outcome = without_chance([&] {
      return shell.mtl({"launch", "--cpu", "--num_processes", world, client("train_accelerate.py")},
                       env);
    });
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    CHECK(lines(outcome.out, "epoch ") == lines(expected.out, "epoch "));
    CHECK(lines(outcome.out, "processes ") == "processes " + world + "\n");
  }
}
