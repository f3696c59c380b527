// A machine behind a bad line: it joins, and is not taken for dead.
#include "cluster/jobs.h"

using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

// Two machines, of which the second is behind the line, for so long. Returns what went wrong.
std::string lives(Cluster& cluster, const std::string& dead_after, int seconds) {
  const auto start = std::chrono::steady_clock::now();
  const std::string script =
      cluster.script("stay", "echo > up-$RANK; sleep " + std::to_string(seconds) + "\n");
  Command job =
      cluster.launch({"--hosts", "m1:2,m2:2", "--dead_after", dead_after, "--", script});
  if (!wait_until([&] { return cluster.files("up-").size() == 4; })) {
    return "no start: " + job.err();
  }
  const std::chrono::duration<double> joined = std::chrono::steady_clock::now() - start;
  MESSAGE("all ranks run after " << joined.count() << " s");
  const CommandEnd end = job.wait(std::chrono::seconds(seconds) + kPatience);
  return end.code == 0 ? "" : end.err;
}

}  // namespace

TEST_CASE_FIXTURE(Machines, "40 ms or a loss of 30 % do not make a machine dead") {
  Cluster cluster(2);
  SUBCASE("40 ms") {
    cluster.delay(2, 40ms);
    CHECK(lives(cluster, "5", 6) == "");
  }
  SUBCASE("30 % lost") {
    cluster.loss(2, 30);
    CHECK(lives(cluster, "30", 6) == "");
  }
  CHECK_NOTHING_LEFT(cluster);
}

// By hand: build/tests/test_cluster -ns -tc="*for a minute*"
TEST_CASE_FIXTURE(Machines, "40 ms or a loss of 30 % for a minute" * doctest::skip()) {
  Cluster cluster(2);
  SUBCASE("40 ms, as it is") {
    cluster.delay(2, 40ms);
    CHECK(lives(cluster, "5", 60) == "");
  }
  SUBCASE("30 % lost, as it is") {
    cluster.loss(2, 30);
    CHECK(lives(cluster, "5", 60) == "");
  }
  SUBCASE("30 % lost, 15 s") {
    cluster.loss(2, 30);
    CHECK(lives(cluster, "15", 60) == "");
  }
  SUBCASE("30 % lost, 30 s") {
    cluster.loss(2, 30);
    CHECK(lives(cluster, "30", 60) == "");
  }
}
