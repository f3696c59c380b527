// Machines that join a rendezvous and get their ranks there: between a least and a most number,
// with late ones, lost ones, some that come back, and the loss of the rendezvous itself.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include "cluster/tiny_run.h"

using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

// `last_call`: seconds that more than the least are waited for.
std::vector<std::string> join(const std::string& nodes, const std::vector<std::string>& program,
                              const std::string& backend = "c10d",
                              const std::string& last_call = "1") {
  std::vector<std::string> args = {
      "--nnodes",       nodes,   "--nproc_per_node", "2",
      "--rdzv_backend", backend, "--rdzv_endpoint",  "m1:29400",
      "--rdzv_id",      "job-7", "--rdzv_conf",      "last_call_timeout=" + last_call,
      "--grace",        "10"};
  args.insert(args.end(), program.begin(), program.end());
  return args;
}

// Every rank says where it is, and that it was asked to end.
std::vector<std::string> staying(const Cluster& cluster) {
  return {"--", cluster.script("stay",
                               "me=$TORCHELASTIC_RESTART_COUNT-$RANK\n"
                               "trap 'echo $(hostname) > asked-$me; exit 0' TERM INT\n"
                               "echo $WORLD_SIZE $(hostname) > up-$me\nsleep 1000 & wait\n")};
}

// Begins with all of at most so many, however long the last one takes to come.
std::vector<std::string> join_all(const std::string& nodes,
                                  const std::vector<std::string>& program) {
  return join(nodes, program, "c10d", "600");
}

bool all_up(const Cluster& cluster, int generation, int world) {
  const std::string beginning = "up-" + std::to_string(generation) + "-";
  return wait_until([&] {
    const auto files = cluster.files(beginning);
    if (files.size() != static_cast<size_t>(world)) return false;
    for (const auto& [name, text] : files) {
      if (!text.starts_with(std::to_string(world) + " ") || !text.ends_with("\n")) return false;
    }
    return true;
  });
}

}  // namespace

TEST_CASE_FIXTURE(Machines, "elastic: a job begins with the least and grows with who comes late") {
  Cluster cluster(3);
  const auto program = staying(cluster);
  Command first = cluster.launch(join("2:3", program), 1);
  Command second = cluster.launch(join("2:3", program, "tcp"), 2);
  REQUIRE_MESSAGE(all_up(cluster, 0, 4), first.err());
  Command third = cluster.launch(join("2:3", program), 3);
  REQUIRE_MESSAGE(all_up(cluster, 1, 6), first.err());
  CHECK(cluster.files("asked-0-").size() == 4);  // with grace
  CHECK_MESSAGE(first.says("m3 has come: the job goes on with it", kPatience), first.err());
  // Whoever was there keeps its ranks.
  for (int rank = 0; rank < 4; ++rank) {
    const std::string number = std::to_string(rank);
    CHECK(cluster.files("up-0-")["up-0-" + number].substr(2) ==
          cluster.files("up-1-")["up-1-" + number].substr(2));
  }
  // A fourth has no place: it waits, and takes that of one that is lost.
  second.signal(SIGKILL);
  REQUIRE_MESSAGE(all_up(cluster, 2, 4), first.err());
  Command again = cluster.launch(join("2:3", program), 2);
  REQUIRE_MESSAGE(all_up(cluster, 3, 6), first.err());
  first.signal(SIGINT);
  for (Command* command : {&first, &again, &third}) {
    const CommandEnd end = command->wait(kPatience);
    CHECK_MESSAGE(end.code == 0, end.err);
    CHECK(!has(end.err, "error["));
  }
  CHECK(cluster.files("asked-3-").size() == 6);
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "elastic: a spare takes the place of a machine that loses its power") {
  Cluster cluster(4);
  const auto program = staying(cluster);
  std::vector<Command> typed;
  for (const int machine : {1, 2, 3})
    typed.push_back(cluster.launch(join("3:3", program), machine));
  REQUIRE_MESSAGE(all_up(cluster, 0, 6), typed[0].err());
  typed.push_back(cluster.launch(join("3:3", program), 4));
  std::this_thread::sleep_for(300ms);
  CHECK(cluster.files("up-1-").empty());  // it is full
  cluster.kill(2);
  REQUIRE_MESSAGE(all_up(cluster, 1, 6), typed[0].err());
  CHECK_MESSAGE(typed[0].says("going on without m2", kPatience), typed[0].err());
  typed[3].signal(SIGTERM);
  for (const size_t i : {0, 2, 3}) {
    const CommandEnd end = typed[i].wait(kPatience);
    CHECK_MESSAGE(end.code == 0, end.err);
  }
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "elastic: without the rendezvous' machine the others end and say so") {
  Cluster cluster(3);
  const auto program = staying(cluster);
  std::vector<Command> typed;
  for (const int machine : {1, 2, 3})
    typed.push_back(cluster.launch(join_all("2:3", program), machine));
  REQUIRE_MESSAGE(all_up(cluster, 0, 6), typed[0].err());
  SUBCASE("power") {
    cluster.kill(1);
  }
  SUBCASE("frost") {
    cluster.freeze(1);
  }
  SUBCASE("process") {
    typed[0].signal(SIGKILL);
  }
  for (const size_t i : {1, 2}) {
    const CommandEnd end = typed[i].wait(kPatience);
    CHECK_MESSAGE(end.code == 1, end.err);
    CHECK_MESSAGE(has(end.err, "error[launch.controller_lost]: "), end.err);
  }
  for (const int machine : {2, 3}) {
    CHECK(wait_until([&] { return cluster.pids(machine, "stay").empty(); }));
  }
}

TEST_CASE_FIXTURE(Machines, "elastic: a machine that is taken back leaves and the others go on") {
  Cluster cluster(3);
  // They end of the signal, and those of m3 only when they have to.
  const std::string script =
      cluster.script("stay",
                     "me=$TORCHELASTIC_RESTART_COUNT-$RANK\n"
                     "trap 'echo > asked-$me; [ $(hostname) = m3 ] || { trap - TERM; "
                     "kill -TERM $$; }' TERM INT\n"
                     "echo $WORLD_SIZE $(hostname) > up-$me\nwhile :; do sleep 0.05; done\n");
  std::vector<Command> typed;
  for (const int machine : {1, 2, 3}) {
    typed.push_back(cluster.launch(join_all("1:3", {"--grace", "600", "--", script}), machine));
  }
  REQUIRE_MESSAGE(all_up(cluster, 0, 6), typed[0].err());
  typed[2].signal(SIGTERM);
  REQUIRE(wait_until([&] { return cluster.files("asked-0-").size() == 6; }));
  const std::string word = "m3: SIGTERM arrived there: it leaves, and the job goes on with 2 nodes";
  CHECK_MESSAGE(typed[0].says(word, kPatience), typed[0].err());
  CHECK_MESSAGE(typed[2].says(word, kPatience), typed[2].err());
  std::this_thread::sleep_for(400ms);  // at once it would be the same request
  typed[2].signal(SIGTERM);            // 600 s are too long
  CHECK(typed[2].wait(kPatience).code == 143);
  REQUIRE_MESSAGE(all_up(cluster, 1, 4), typed[0].err());
  for (const auto& [name, text] : cluster.files("up-1-")) CHECK_FALSE(has(text, "m3"));
  typed[0].signal(SIGINT);  // where the rendezvous is, it is meant for all
  for (const size_t i : {0, 1}) {
    const CommandEnd end = typed[i].wait(kPatience);
    CHECK_MESSAGE(end.code == 130, end.err);
  }
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "hosts: a machine that is taken back leaves and the others go on") {
  Cluster cluster(3);
  std::vector<std::string> args = {"--hosts", "m1,m2,m3", "--nnodes", "2:3", "--grace", "10"};
  for (const std::string& word : staying(cluster)) args.push_back(word);
  Command job = cluster.launch(args);
  REQUIRE_MESSAGE(all_up(cluster, 0, 3), job.err());
  const auto agents = cluster.pids(3, "agent --stdio");  // and its keeper, which came later
  REQUIRE(!agents.empty());
  kill(*std::min_element(agents.begin(), agents.end()), SIGTERM);
  REQUIRE_MESSAGE(all_up(cluster, 1, 2), job.err());
  CHECK(has(job.err(), "m3: SIGTERM arrived there: it leaves, and the job goes on with 2 nodes"));
  CHECK_FALSE(has(job.err(), "lost"));
  CHECK(wait_until([&] { return cluster.pids(3, "stay").empty(); }));
  job.signal(SIGINT);
  const CommandEnd end = job.wait(kPatience);
  CHECK_MESSAGE(end.code == 0, end.err);
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines,
                  "elastic: a run of ours grows and shrinks and ends with its checkpoint") {
  Cluster cluster(3);
  TinyRun tiny(cluster, 100'000, 100'000);
  const auto type = [&](int machine) { return tiny.train("run", join("1:3", {}), {}, machine); };
  Command first = type(1);
  REQUIRE_MESSAGE(tiny.reached("run", 2), first.err());
  Command second = type(2);
  REQUIRE_MESSAGE(first.says("m2 has come", kPatience), first.err());
  // It goes on where it was: growth is a stop with a checkpoint.
  REQUIRE(wait_until([&] { return cluster.pids(2, "exe worker").size() == 2; }));
  CHECK(tiny.checkpoints("run").size() == 1);
  const int then = tiny.last_step("run");
  REQUIRE_MESSAGE(tiny.reached("run", then + 2), first.err());
  second.signal(SIGKILL);
  REQUIRE_MESSAGE(first.says("going on without m2", kPatience), first.err());
  CHECK(tiny.reached("run", tiny.last_step("run") + 2));
  // One that is asked to leave saves with the others.
  Command third = type(3);
  REQUIRE_MESSAGE(first.says("m3 has come", kPatience), first.err());
  REQUIRE(wait_until([&] { return cluster.pids(3, "exe worker").size() == 2; }));
  REQUIRE_MESSAGE(tiny.reached("run", tiny.last_step("run") + 2), first.err());
  third.signal(SIGTERM);
  const CommandEnd left = third.wait(kPatience);
  CHECK_MESSAGE(left.code == 75, left.err);
  CHECK_MESSAGE(first.says("goes on with 1 node", kPatience), first.err());
  CHECK(tiny.reached("run", tiny.last_step("run") + 2));
  first.signal(SIGINT);
  const CommandEnd end = first.wait(kPatience);
  CHECK_MESSAGE(end.code == 75, end.err);
  CHECK_NOTHING_LEFT(cluster);
}
