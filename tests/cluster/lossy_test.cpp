// A machine behind a bad line: it joins, and is not taken for dead.
#include "cluster/jobs.h"

using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

// Two machines, of which the second is behind the line, for so long: by ssh, or typed on both.
// Returns what went wrong.
std::string lives(Cluster& cluster, const std::string& dead_after, int seconds, bool typed) {
  const auto start = std::chrono::steady_clock::now();
  const std::string script =
      cluster.script("stay", "echo > up-$RANK; sleep " + std::to_string(seconds) + "\n");
  std::vector<Command> jobs;
  for (const int rank : {0, 1}) {
    std::vector<std::string> args = {"--dead_after", dead_after};
    if (typed) {
      args.insert(args.end(), {"--num_machines", "2", "--machine_rank", std::to_string(rank),
                               "--main_process_ip", "m1", "--num_processes", "4"});
    } else {
      args.insert(args.end(), {"--hosts", "m1:2,m2:2"});
    }
    args.insert(args.end(), {"--", script});
    if (typed || rank == 0) jobs.push_back(cluster.launch(args, typed ? rank + 1 : 0));
  }
  if (!wait_until([&] { return cluster.files("up-").size() == 4; })) {
    return "no start: " + jobs[0].err();
  }
  const std::chrono::duration<double> joined = std::chrono::steady_clock::now() - start;
  MESSAGE("all ranks run after " << joined.count() << " s");
  std::string wrong;
  for (Command& job : jobs) {
    const CommandEnd end = job.wait(std::chrono::seconds(seconds) + kPatience);
    if (end.code != 0) wrong += end.err;
  }
  for (const auto& [name, text] : cluster.files("up-")) fs::remove(cluster.work() / name);
  return wrong;
}

}  // namespace

TEST_CASE_FIXTURE(Machines, "40 ms or a loss of 30 % do not make a machine dead") {
  Cluster cluster(2);
  SUBCASE("40 ms") {
    cluster.delay(2, 40ms);
    CHECK(lives(cluster, "5", 6, false) == "");
  }
  SUBCASE("30 % lost") {
    cluster.loss(2, 30);
    // Typed, not by ssh: there chance decides whether a host is found at all (three lost ARP requests
    // are "no route to host").
    CHECK(lives(cluster, "30", 2, true) == "");
  }
  CHECK_NOTHING_LEFT(cluster);
}

// By hand: build/tests/test_cluster -ns -tc="*for a minute*"
TEST_CASE_FIXTURE(Machines, "40 ms or a loss of 30 % for a minute" * doctest::skip()) {
  Cluster cluster(2);
  SUBCASE("40 ms, as it is") {
    cluster.delay(2, 40ms);
    CHECK(lives(cluster, "5", 60, true) == "");
  }
  SUBCASE("30 % lost, as it is") {
    cluster.loss(2, 30);
    CHECK(lives(cluster, "5", 60, true) == "");
  }
  SUBCASE("30 % lost, 15 s") {
    cluster.loss(2, 30);
    CHECK(lives(cluster, "15", 60, true) == "");
  }
  SUBCASE("30 % lost, 30 s") {
    cluster.loss(2, 30);
    CHECK(lives(cluster, "30", 60, true) == "");
  }
}
