// Runs of our own trainer over several machines: the same numbers as on one, checkpoints that any
// number of machines continues, and requests to stop.
#include <chrono>
#include <csignal>
#include <map>

#include "cluster/tiny_run.h"

using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

const std::vector<std::string> kLayout = {"parallel.tp=2"};
const std::vector<std::string> kHere = {"--num_processes", "4"};
// No machine is lost for standing still.
const std::vector<std::string> kThere = {"--hosts", "m1:2,m2:2", "--dead_after", "120"};

std::vector<std::string> with_steps(int steps) {
  std::vector<std::string> settings = kLayout;
  settings.push_back("train.steps=" + std::to_string(steps));
  return settings;
}

}  // namespace

TEST_CASE_FIXTURE(Machines, "a run over four machines or two has the losses of one") {
  Cluster cluster;
  TinyRun tiny(cluster, 12);
  const CommandEnd one = tiny.trained("one", kHere, kLayout);
  REQUIRE_MESSAGE(one.code == 0, one.err);
  const auto losses = tiny.losses("one");
  REQUIRE(losses.rbegin()->first == 12);
  const auto weights = tiny.weights("one");
  REQUIRE(!weights.empty());
  const std::map<std::string, std::string> layouts = {
      {"four", "m1,m2,m3,m4"}, {"two", "m1:2,m2:2"}, {"uneven", "m3:3,m1:1"}, {"other", "m2:4"}};
  for (const auto& [name, hosts] : layouts) {
    const CommandEnd end = tiny.trained(name, {"--hosts", hosts, "--dead_after", "120"}, kLayout);
    CHECK_MESSAGE(end.code == 0, name, ": ", end.err);
    CHECK(tiny.losses(name) == losses);
    CHECK(tiny.weights(name) == weights);
    CHECK_NOTHING_LEFT(cluster);
  }
}

TEST_CASE_FIXTURE(Machines,
                  "what several machines saved goes on with one and the other way round") {
  Cluster cluster(2);
  TinyRun tiny(cluster, 12);
  const auto goes_on = [&](const std::string& name, const std::vector<std::string>& first,
                           const std::vector<std::string>& then) {
    const CommandEnd begun = tiny.trained(name, first, with_steps(6));
    CHECK_MESSAGE(begun.code == 0, begun.err);
    CHECK(tiny.last_step(name) == 6);
    const CommandEnd end = tiny.trained(name, then, with_steps(12));
    CHECK_MESSAGE(end.code == 0, end.err);
    CHECK(tiny.last_step(name) == 12);
    return tiny.weights(name);
  };
  const auto weights = goes_on("one", kHere, kHere);
  REQUIRE(!weights.empty());
  CHECK(goes_on("to-one", kThere, kHere) == weights);
  CHECK(goes_on("to-two", kHere, kThere) == weights);
  // There is nothing left to do, and that is said at once.
  const CommandEnd again = tiny.trained("to-two", kThere, with_steps(12));
  CHECK(again.code == 0);
  CHECK_MESSAGE(has(again.err, "is complete"), again.err);
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "Ctrl-C of a run on two machines saves it and gives 75") {
  Cluster cluster(2);
  TinyRun tiny(cluster, 100'000, 100'000);
  Command job = tiny.train("run", kThere, kLayout);
  REQUIRE_MESSAGE(tiny.reached("run", 3), job.err());
  job.signal(SIGUSR1);
  REQUIRE(wait_until([&] { return tiny.checkpoints("run").size() == 1; }));
  const int there = tiny.last_step("run");
  CHECK(tiny.reached("run", there + 3));  // and it goes on
  REQUIRE(job.running());
  job.signal(SIGINT);
  const CommandEnd end = job.wait(kPatience);
  CHECK_MESSAGE(end.code == 75, end.err);
  CHECK(has(end.err, "SIGINT: asked the job to stop"));
  CHECK(has(end.err, "stopped with a complete checkpoint"));
  CHECK(!has(end.err, "error["));
  CHECK_NOTHING_LEFT(cluster);
  const int stopped = tiny.last_step("run");
  // USR1 may reach two ranks in different steps, which then ask for a checkpoint each.
  const std::vector<std::string> saved = tiny.checkpoints("run");
  CHECK(saved.size() >= 2);
  CHECK(saved.back() == mtl::checkpoint_path("", stopped).filename());
  const CommandEnd more = tiny.trained("run", kThere, with_steps(stopped + 2));
  CHECK_MESSAGE(more.code == 0, more.err);
  CHECK(tiny.last_step("run") == stopped + 2);
}
