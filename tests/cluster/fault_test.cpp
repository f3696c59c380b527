// What breaks in the middle of a job on several machines: whole machines, cables, single processes,
// memory, disks. Each is named, ends or goes on as asked, and leaves nothing.
#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>

#include "cluster/tiny_run.h"
#include "support/text.h"

using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

// Each rank writes the time, over and over, into a file of its own per generation.
std::string ticking(const Cluster& cluster) {
  return cluster.script("tick", "out=" + (cluster.work() / "t-").string() +
                                    "$TORCHELASTIC_RESTART_COUNT-$RANK\n"
                                    "echo started rank $RANK of $WORLD_SIZE on $(hostname)\n"
                                    "while :; do date +%s.%N >> $out; sleep 0.05; done\n");
}

// Until all ranks of the generation have written.
bool all_tick(const Cluster& cluster, int generation, int world) {
  return wait_until([&] {
    int ticking = 0;
    for (const auto& [name, text] : cluster.files("t-" + std::to_string(generation) + "-")) {
      ticking += has(text, "\n") ? 1 : 0;
    }
    return ticking == world;
  });
}

double first_tick(const Cluster& cluster, int generation) {
  double first = 1e18;
  for (const auto& [name, text] : cluster.files("t-" + std::to_string(generation) + "-")) {
    first = std::min(first, std::stod(text));
  }
  return first;
}
double last_tick(const Cluster& cluster, int generation) {
  double last = 0;
  for (const auto& [name, text] : cluster.files("t-" + std::to_string(generation) + "-")) {
    std::istringstream in(text);
    for (std::string line; std::getline(in, line) && line.size() > 15;) {
      last = std::max(last, std::stod(line));
    }
  }
  return last;
}

// Two ranks on each of three machines, that sleep.
Command sleepers(const Cluster& cluster, std::vector<std::string> flags) {
  const std::string script = cluster.script("sleepers", "exec sleep 1000\n");
  flags.insert(flags.end(), {"--hosts", "m1:2,m2:2,m3:2", "--grace", "2", "--", script});
  Command job = cluster.launch(flags);
  const auto sleep_on = [&](int machine) {
    return cluster.pids(machine, "sleep 1000").size() == 2;
  };
  REQUIRE_MESSAGE(wait_until([&] { return sleep_on(1) && sleep_on(2) && sleep_on(3); }), job.err());
  return job;
}

// An agent's first process and the keeper, its child.
struct NodeProcesses {
  pid_t agent = 0, keeper = 0;
};
NodeProcesses of_node(const Cluster& cluster, int machine) {
  NodeProcesses found;
  for (const pid_t pid : cluster.pids(machine, "agent --stdio")) {
    const std::string number = std::to_string(pid);
    std::istringstream in(file_text("/proc/" + number + "/status"));
    pid_t parent = 0;
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with("PPid:")) parent = std::stoi(line.substr(5));
    }
    const auto agents = cluster.pids(machine, "agent --stdio");
    const bool is_keeper = std::find(agents.begin(), agents.end(), parent) != agents.end();
    (is_keeper ? found.keeper : found.agent) = pid;
  }
  return found;
}

}  // namespace

TEST_CASE_FIXTURE(Machines, "a lost machine ends a job of fixed size and is named") {
  Cluster cluster;
  std::string how;
  int code = 7;
  SUBCASE("power") {
    how = "kill";
  }
  SUBCASE("cable") {
    how = "cut";
  }
  SUBCASE("frost") {
    how = "freeze";
  }
  CAPTURE(how);
  Command job = cluster.launch({"--hosts", "m1,m2,m3,m4", "--", ticking(cluster)});
  REQUIRE(all_tick(cluster, 0, 4));
  if (how == "kill") cluster.kill(3);
  if (how == "cut") cluster.cut(3);
  if (how == "freeze") cluster.freeze(3);
  const CommandEnd end = job.wait(kPatience);
  CHECK_MESSAGE(end.code == code, end.err);
  CHECK_MESSAGE(has(end.err, "error[launch.node_lost]: node 2 (m3) was lost"), end.err);
  if (how == "freeze") cluster.thaw(3);
  if (how == "cut") {
    // It is alone, and has ended its ranks by itself.
    CHECK_MESSAGE(wait_until([&] { return cluster.pids(3, "tick").empty(); }, kPatience),
                  cluster.left(0s));
    cluster.heal(3);
  }
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "with min and max a job goes on without a lost machine") {
  Cluster cluster;
  std::string how;
  SUBCASE("power") {
    how = "kill";
  }
  SUBCASE("cable") {
    how = "cut";
  }
  SUBCASE("frost") {
    how = "freeze";
  }
  CAPTURE(how);
  Command job =
      cluster.launch({"--hosts", "m1:2,m2:2,m3:2,m4:2", "--nnodes", "3:4", "--", ticking(cluster)});
  REQUIRE(all_tick(cluster, 0, 8));
  if (how == "kill") cluster.kill(3);
  if (how == "cut") cluster.cut(3);
  if (how == "freeze") cluster.freeze(3);
  REQUIRE_MESSAGE(all_tick(cluster, 1, 6), job.err());
  CHECK_MESSAGE(has(job.err(), "m3 was lost"), job.err());
  CHECK_MESSAGE(has(job.err(), "going on without m3"), job.err());
  if (how == "cut") cluster.heal(3);
  if (how == "freeze") cluster.thaw(3);
  // The old generation had no rank any more when the new one began; nor has it one later. What a
  // frozen machine still wrote as it thawed, before its agent knew, came after: 2 ticks of a rank.
  CHECK_MESSAGE(wait_until([&] { return cluster.pids(3, "tick").empty(); }, kPatience),
                cluster.left(0s));
  if (how != "freeze") CHECK(last_tick(cluster, 0) < first_tick(cluster, 1));
  CHECK(job.running());
  job.signal(SIGTERM);
  const CommandEnd end = job.wait(kPatience);
  CHECK_MESSAGE(end.code == 143, end.err);
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "one rank that fails is said once and ends all") {
  Cluster cluster;
  const std::string script =
      cluster.script("fail",
                     "if [ $RANK = 5 ]; then sleep 0.3; echo last words >&2; exit 42; fi\n"
                     "trap 'echo $RANK > termed-$RANK; exit 0' TERM\nsleep 1000 & wait\n");
  const CommandEnd end = cluster.launched({"--hosts", "m1:2,m2:2,m3:2,m4:2", "--", script});
  CHECK(end.code == 42);
  CHECK_MESSAGE(count_of(end.err, "exited with code 42") == 2, end.err);
  CHECK_MESSAGE(has(end.err, "rank 5 on m3 exited with code 42: asked 7 ranks to stop\n"), end.err);
  CHECK(has(end.err, "error[rank.died]: rank 5 (local 1 on m3, pid "));
  CHECK(has(end.err, "| last words"));
  CHECK(cluster.files("termed-").size() == 7);
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "a failing rank on one machine starts all machines again") {
  Cluster cluster;
  const std::string script = cluster.script(
      "again",
      "echo gen $TORCHELASTIC_RESTART_COUNT > ran-$TORCHELASTIC_RESTART_COUNT-$RANK\n"
      "if [ $RANK = 2 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ]; then kill -SEGV $$; fi\n"
      "if [ $TORCHELASTIC_RESTART_COUNT = 2 ]; then exit 0; fi\nexec sleep 1000\n");
  const CommandEnd end = cluster.launched(
      {"--hosts", "m1,m2,m3,m4", "--max_restarts", "3", "--grace", "2", "--", script});
  CHECK_MESSAGE(end.code == 0, end.err);
  CHECK(has(end.err, "restart 1 of 3: rank 2 on m3 was killed by SIGSEGV"));
  CHECK(has(end.err, "restart 2 of 3: rank 2 on m3 was killed by SIGSEGV"));
  CHECK(cluster.files("ran-2-").size() == 4);
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines,
                  "kill -9 of a rank keeper agent or session is named and leaves nothing") {
  Cluster cluster(3);
  Command job = sleepers(cluster, {});
  int code = 0;
  std::string headline;
  SUBCASE("rank") {
    const auto sleeping = cluster.pids(2, "sleep 1000");
    REQUIRE(sleeping.size() == 2);
    kill(sleeping[0], SIGKILL);
    code = 137;
    headline = "on m2, pid";
  }
  SUBCASE("keeper") {
    kill(of_node(cluster, 2).keeper, SIGKILL);
    code = 4;
    headline = "error[launch.keeper_died]: m2: ";
  }
  SUBCASE("agent") {
    kill(of_node(cluster, 2).agent, SIGKILL);
    code = 1;
    headline = "error[launch.node_lost]: node 1 (m2) was lost: its agent is gone";
  }
  SUBCASE("session") {
    for (const pid_t pid : cluster.pids(2, "sshd: root@notty")) kill(pid, SIGKILL);
    code = 1;
    headline = "error[launch.node_lost]: node 1 (m2) was lost: its agent is gone";
  }
  SUBCASE("launcher") {
    job.signal(SIGKILL);
    code = 137;
  }
  const CommandEnd end = job.wait(kPatience);
  CHECK_MESSAGE(end.code == code, end.err);
  CHECK_MESSAGE(has(end.err, headline), end.err);
  CHECK(count_of(end.err, "error[") == (headline.empty() ? 0 : 1));
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "a rank that somebody stops is named and gives 7") {
  Cluster cluster(3);
  Command job = sleepers(cluster, {});
  const auto sleeping = cluster.pids(3, "sleep 1000");
  REQUIRE(sleeping.size() == 2);
  kill(sleeping[0], SIGSTOP);
  const CommandEnd end = job.wait(kPatience);
  CHECK_MESSAGE(end.code == 7, end.err);
  CHECK_MESSAGE(has(end.err, "on m3, pid "), end.err);
  CHECK(has(end.err, "was stopped by SIGSTOP"));
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "a full disk for the logs is a warning and the job goes on") {
  Cluster cluster(2);
  for (const int machine : {1, 2}) {
    REQUIRE(cluster
                .run(machine, {"/bin/sh", "-c",
                               "mkdir /mnt/local/logs && mount -t tmpfs -o size=64k tmpfs "
                               "/mnt/local/logs"})
                .code == 0);
  }
  const std::string script =
      cluster.script("chatter",
                     "i=0; while [ $i -lt 3000 ]; do echo line $i of rank $RANK, to fill the disk; "
                     "i=$((i+1)); done\necho done > done-$RANK\n");
  const CommandEnd end =
      cluster.launched({"--hosts", "m1,m2", "--log_dir", "/mnt/local/logs", "--", script});
  CHECK_MESSAGE(end.code == 0, end.err);
  CHECK_MESSAGE(has(end.err, "No space left"), end.err);
  CHECK(has(end.err, "warning: m2: "));
  CHECK(cluster.files("done-").size() == 2);
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines,
                  "after a cut the old part saves nothing and the run goes on with fewer") {
  Cluster cluster;
  int lost = 0;
  SUBCASE("a cut cable") {
    lost = 4;
  }
  SUBCASE("frost of rank 0 which wakes up between two of its instructions") {
    lost = 1;
  }
  CAPTURE(lost);
  const std::string machine = "m" + std::to_string(lost);
  TinyRun tiny(cluster, 100'000, 1);
  Command job =
      tiny.train("run", {"--hosts", "m1,m2,m3,m4", "--nnodes", "3:4"}, {"checkpoint.keep_last=0"});
  REQUIRE_MESSAGE(tiny.reached("run", 3), job.err());
  lost == 4 ? cluster.cut(lost) : cluster.freeze(lost);
  REQUIRE_MESSAGE(job.says("going on without " + machine, kPatience), job.err());
  const int then = tiny.last_step("run");
  REQUIRE_MESSAGE(tiny.reached("run", then + 3), job.err());
  lost == 4 ? cluster.heal(lost) : cluster.thaw(lost);
  CHECK_MESSAGE(wait_until([&] { return cluster.pids(lost, "worker").empty(); }, kPatience),
                cluster.left(0s));
  REQUIRE_MESSAGE(tiny.reached("run", tiny.last_step("run") + 3), job.err());
  job.signal(SIGINT);
  const CommandEnd end = job.wait(kPatience);
  CHECK_MESSAGE(end.code == 75, end.err);
  CHECK_NOTHING_LEFT(cluster);
  // Every checkpoint is whole, to the byte, and from where the others went on it is theirs.
  const int stopped = tiny.last_step("run");
  const auto fences = tiny.verified("run");
  REQUIRE(fences.rbegin()->first == stopped);
  CHECK(fences.size() == static_cast<size_t>(stopped));
  const std::vector<int> resumed = tiny.resumed_at("run");
  REQUIRE(resumed.size() == 1);
  for (const auto& [step, fence] : fences) {
    CAPTURE(step);
    CHECK(fence == (step <= resumed[0] ? 1 : 2));
  }
  const CommandEnd more =
      tiny.trained("run", {"--hosts", "m2,m3"}, {"train.steps=" + std::to_string(stopped + 2)});
  CHECK_MESSAGE(more.code == 0, more.err);
  CHECK(!has(more.err, "damaged"));
}

TEST_CASE_FIXTURE(Machines, "a rank that the kernel kills for its memory is named so") {
  // The agent of m2 runs in a group that may have 100 MiB.
  const bool v1 = fs::exists("/sys/fs/cgroup/memory");
  const fs::path root = v1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
  Cluster cluster(2);
  const fs::path group = root / cluster.dir().filename();
  std::error_code refused;
  fs::create_directory(group, refused);
  {
    std::ofstream limit(group / (v1 ? "memory.limit_in_bytes" : "memory.max"));
    limit << "104857600" << std::flush;
    if (!limit) {
      fs::remove(group, refused);
      MESSAGE("no limits of memory can be set here");
      return;
    }
  }
  const std::string limited =
      cluster.script("limited", "if [ $(hostname) = m2 ]; then echo $$ > " + group.string() +
                                    "/cgroup.procs; fi\nexec " MTL_PROGRAM " \"$@\"\n");
  const std::string greedy =
      cluster.write("greedy.py",
                    "import os, time\n"
                    "if os.environ['RANK'] == '1': x = bytearray(400 << 20)\n"
                    "time.sleep(1000)\n");
  const CommandEnd end =
      cluster.launched({"--hosts", "m1,m2", "--grace", "2", "--remote_program", limited, greedy});
  CHECK_MESSAGE(end.code == 137, end.err);
  CHECK_MESSAGE(has(end.err, "rank 1 (local 0 on m2, pid "), end.err);
  CHECK_MESSAGE(has(end.err, "out-of-memory killer struck in this job's memory cgroup"), end.err);
  CHECK_NOTHING_LEFT(cluster);
  fs::remove(group, refused);
}
