// The same command typed on every machine, each with its machine_rank: in any order of start, with
// nodes that are missing, twice there, strangers or unable; over IPv6 and a second network.
#include <chrono>
#include <csignal>
#include <thread>

#include "cluster/tiny_run.h"

using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

// The command of node `rank`, typed on machine rank + 1; node 0 is m1.
std::vector<std::string> node(int rank, int nodes, const std::vector<std::string>& program,
                              const std::vector<std::string>& flags = {},
                              const std::string& address = "m1") {
  std::vector<std::string> args = {"--num_machines",      std::to_string(nodes),
                                   "--machine_rank",      std::to_string(rank),
                                   "--main_process_ip",   address,
                                   "--main_process_port", "29500",
                                   "--num_processes",     std::to_string(2 * nodes)};
  args.insert(args.end(), flags.begin(), flags.end());
  args.insert(args.end(), program.begin(), program.end());
  return args;
}

std::vector<std::string> program_of(const std::string& script) {
  return {"--", "/bin/sh", "-c", script};
}

const std::string kSay =
    "echo $RANK $WORLD_SIZE $LOCAL_RANK $GROUP_RANK $(hostname) $MASTER_ADDR > ran-$RANK";

}  // namespace

TEST_CASE_FIXTURE(Machines, "the same command on two or three machines in any order of start") {
  Cluster cluster(3);
  std::vector<int> order;
  SUBCASE("two, node 0 first") {
    order = {0, 1};
  }
  SUBCASE("two, node 0 last") {
    order = {1, 0};
  }
  SUBCASE("three, in order") {
    order = {0, 1, 2};
  }
  SUBCASE("three, node 0 last") {
    order = {2, 1, 0};
  }
  SUBCASE("three, node 0 between") {
    order = {1, 0, 2};
  }
  const int nodes = static_cast<int>(order.size());
  std::vector<Command> typed;
  for (const int rank : order) {
    typed.push_back(cluster.launch(node(rank, nodes, program_of(kSay)), rank + 1));
    std::this_thread::sleep_for(200ms);  // so that the order is one
  }
  for (Command& command : typed) {
    const CommandEnd end = command.wait(kPatience);
    CHECK_MESSAGE(end.code == 0, end.err);
    CHECK(!has(end.err, "error["));
  }
  REQUIRE(cluster.files("ran-").size() == static_cast<size_t>(2 * nodes));
  for (int rank = 0; rank < 2 * nodes; ++rank) {
    const std::string number = std::to_string(rank);
    CHECK(cluster.files("ran-")["ran-" + number] ==
          number + " " + std::to_string(2 * nodes) + " " + std::to_string(rank % 2) + " " +
              std::to_string(rank / 2) + " " + Lab::name(rank / 2 + 1) + " m1\n");
  }
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "a missing node is named after five seconds and Ctrl-C ends the wait") {
  Cluster cluster(3);
  Command first = cluster.launch(node(0, 3, program_of(kSay)), 1);
  Command second = cluster.launch(node(1, 3, program_of(kSay)), 2);
  CHECK_MESSAGE(first.says("waiting for machine_rank 2: 2 nodes of 3 here", kPatience),
                first.err());
  CHECK_MESSAGE(second.says("waiting for machine_rank 2: 2 nodes of 3 here", kPatience),
                second.err());
  bool on_node_0 = true;
  SUBCASE("at node 0") {}
  SUBCASE("elsewhere") {
    on_node_0 = false;
  }
  (on_node_0 ? first : second).signal(SIGINT);
  for (Command* command : {&first, &second}) {
    const CommandEnd end = command->wait(kPatience);
    CHECK_MESSAGE(end.code == 130, end.err);
    CHECK(!has(end.err, "error["));
  }
  CHECK(cluster.files("ran-").empty());
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "without node 0 the others say where they wait and Ctrl-C ends it") {
  Cluster cluster(2);
  Command typed = cluster.launch(node(1, 2, program_of(kSay)), 2);
  CHECK_MESSAGE(typed.says("waiting for the rendezvous at m1 port 29500", kPatience), typed.err());
  typed.signal(SIGINT);
  const CommandEnd end = typed.wait(kPatience);
  CHECK_MESSAGE(end.code == 130, end.err);
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "two nodes with one rank: the second is refused and the job goes on") {
  Cluster cluster(3);
  Command first = cluster.launch(node(0, 2, program_of(kSay)), 1);
  REQUIRE(wait_until([&] { return !cluster.pids(1, "launch").empty(); }));
  SUBCASE("the same as another") {
    // m1's rendezvous has its rank 0 once it waits for the other one.
    REQUIRE(first.says("waiting for machine_rank 1", kPatience));
    const CommandEnd twin = cluster.launch(node(0, 2, program_of(kSay)), 3).wait(kPatience);
    CHECK_MESSAGE(has(twin.err, "note: m1 is no address of m3"), twin.err);
    CHECK_MESSAGE(twin.code == 4, twin.err);
    CHECK_MESSAGE(has(twin.err, "error[launch.join]: m3 cannot take part: "), twin.err);
  }
  SUBCASE("beyond the last") {
    const CommandEnd third = cluster.launch(node(2, 2, program_of(kSay)), 3).wait(kPatience);
    CHECK_MESSAGE(third.code == 3, third.err);
  }
  Command second = cluster.launch(node(1, 2, program_of(kSay)), 2);
  for (Command* command : {&first, &second}) {
    const CommandEnd end = command->wait(kPatience);
    CHECK_MESSAGE(end.code == 0, end.err);
  }
  CHECK(cluster.files("ran-").size() == 4);
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "a node with another token is kept out and said so") {
  Cluster cluster(3);
  const auto token = [&](const std::string& name, const std::string& text) {
    const std::string path = cluster.write(name, text);
    fs::permissions(path, fs::perms(0600));
    return std::vector<std::string>{"--token_file", path};
  };
  const auto right = token("right", "the right one");
  Command first = cluster.launch(node(0, 2, program_of("sleep 1; " + kSay), right), 1);
  const CommandEnd wrong =
      cluster.launch(node(1, 2, program_of(kSay), token("wrong", "another")), 3).wait(kPatience);
  CHECK_MESSAGE(wrong.code == 4, wrong.err);
  CHECK_MESSAGE(has(wrong.err, "error[rendezvous.auth]: the rendezvous at m1 port 29500"),
                wrong.err);
  Command second = cluster.launch(node(1, 2, program_of("sleep 1; " + kSay), right), 2);
  const CommandEnd without = cluster.launch(node(1, 2, program_of(kSay)), 3).wait(kPatience);
  CHECK_MESSAGE(without.code == 4, without.err);
  for (Command* command : {&first, &second}) CHECK(command->wait(kPatience).code == 0);
  CHECK(cluster.files("ran-").size() == 4);
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "machines meet over IPv6 and over a second network") {
  Cluster cluster(2);
  std::string address, interface;
  SUBCASE("an IPv6 address") {
    address = Lab::address(1, 0, true);
  }
  SUBCASE("a name of one") {
    address = "m1-6";
  }
  SUBCASE("the second network") {
    address = "m1-eth1";
    interface = "eth1";
  }
  SUBCASE("the second network for the ranks only") {
    address = "m1";
    interface = "10.78.0.0/16";
  }
  SUBCASE("a name that means 127.0.1.1 at home") {
    address = "m1";
    REQUIRE(cluster
                .run(1, {"/bin/sh", "-c",
                         "grep -v m1$ /etc/hosts > /run/hosts; echo 127.0.1.1 m1 >> /run/hosts; "
                         "mount --bind /run/hosts /etc/hosts"})
                .code == 0);
  }
  SUBCASE("a name of several addresses, of which the other machine knows the last one") {
    address = "m1-all";
    for (const int machine : {1, 2}) {
      std::string known;
      for (const std::string& one :
           {Lab::address(1, 0), Lab::address(1, 0, true), Lab::address(1, 1)}) {
        if (machine == 1 || one == Lab::address(1, 1)) known += "echo " + one + " m1-all; ";
      }
      REQUIRE(cluster
                  .run(machine, {"/bin/sh", "-c",
                                 "(cat /etc/hosts; " + known +
                                     ") > /run/hosts; "
                                     "mount --bind /run/hosts /etc/hosts"})
                  .code == 0);
    }
  }
  std::vector<std::string> flags;
  if (!interface.empty()) {
    flags = {"--interface", interface};
    if (address != "m1") {
      for (const int machine : {1, 2}) cluster.cut(machine, 0);
    }
  }
  TinyRun tiny(cluster, 4);
  std::vector<std::string> argv = {"train.yaml", "run.dir=" + (cluster.work() / "run").string(),
                                   "parallel.tp=2"};
  Command first = cluster.launch(node(0, 2, argv, flags, address), 1);
  Command second = cluster.launch(node(1, 2, argv, flags, address), 2);
  for (Command* command : {&first, &second}) {
    const CommandEnd end = command->wait(kPatience);
    CHECK_MESSAGE(end.code == 0, end.err);
  }
  CHECK(tiny.last_step("run") == 4);
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "ranks meet on the interface that was asked for") {
  Cluster cluster(2);
  for (const std::string interface : {"eth1", "10.78.0.0/16"}) {
    const CommandEnd end = cluster.launched({"--hosts", "m1,m2", "--interface", interface, "--",
                                             "/bin/sh", "-c", "echo $MASTER_ADDR > at-$RANK"});
    CHECK_MESSAGE(end.code == 0, end.err);
    CHECK(cluster.files("at-")["at-0"] == "10.78.0.1\n");
    CHECK(cluster.files("at-")["at-1"] == "10.78.0.1\n");
  }
  const CommandEnd none =
      cluster.launched({"--hosts", "m1,m2", "--interface", "eth7", "--", "true"});
  CHECK(none.code == 4);
  CHECK_MESSAGE(has(none.err, "error[launch.interface]: "), none.err);
  CHECK(has(none.err, "eth1"));  // what there is
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "an address that is no name or taken is said at once") {
  Cluster cluster(2);
  // A name may come later than the node (a pod's), so it is waited for, and said why.
  Command waits =
      cluster.launch(node(1, 2, program_of(kSay), {"--join_timeout", "7"}, "nowhere"), 2);
  CHECK_MESSAGE(waits.says("waiting for the rendezvous at nowhere port 29500: ", kPatience),
                waits.err());
  const CommandEnd end = waits.wait(kPatience);
  CHECK_MESSAGE(end.code == 4, end.err);
  CHECK_MESSAGE(has(end.err, "error[rendezvous.connect]: "), end.err);
  CHECK_MESSAGE(count_of(end.err, "nowhere") >= 2, end.err);
  Command taken = cluster.start(1, {"/usr/bin/python3", "-c",
                                    "import socket, time\n"
                                    "s = socket.create_server(('', 29500))\n"
                                    "print('up', flush=True)\ntime.sleep(1000)\n"});
  REQUIRE(taken.says("up", kPatience));
  const CommandEnd first = cluster.launch(node(0, 2, program_of(kSay)), 1).wait(kPatience);
  CHECK_MESSAGE(first.code == 4, first.err);
  CHECK_MESSAGE(has(first.err, "error[rendezvous.port]: "), first.err);
  CHECK_MESSAGE(has(first.err, "port 29500 is taken by process "), first.err);
  CHECK_MESSAGE(has(first.err, "python3"), first.err);
  // Who meets at a port of other programs, or of another job, joins in vain, and is told whose it
  // is.
  taken.signal(SIGKILL);
  taken.wait(kPatience);
  Command other =
      cluster.launch({"--rdzv_backend", "c10d", "--rdzv_endpoint", "m1:29500", "--rdzv_id", "other",
                      "--nnodes", "2", "--nproc_per_node", "1", "--", "true"},
                     1);
  REQUIRE_MESSAGE(other.says("whoever reaches m1 port 29500", kPatience), other.err());  // has it
  const CommandEnd late =
      cluster
          .launch({"--rdzv_backend", "c10d", "--rdzv_endpoint", "m1:29500", "--rdzv_id", "mine",
                   "--nnodes", "2", "--nproc_per_node", "1", "--", "true"},
                  1)
          .wait(kPatience);
  CHECK_MESSAGE(late.code == 4, late.err);
  CHECK_MESSAGE(has(late.err, "error[rendezvous.auth]: "), late.err);
  CHECK_MESSAGE(has(late.err, "port 29500 is taken by process "), late.err);
  CHECK_MESSAGE(has(late.err, "--rdzv_id other"), late.err);
}

TEST_CASE_FIXTURE(Machines, "a node that fails ends all and all give its code") {
  Cluster cluster(3);
  const auto program = program_of(
      "if [ $RANK = 5 ]; then sleep 0.3; echo why >&2; exit 42; fi\n"
      "trap 'echo $RANK > termed-$RANK; exit 0' TERM\nsleep 1000 & wait\n");
  std::vector<Command> typed;
  for (int rank = 0; rank < 3; ++rank) {
    typed.push_back(cluster.launch(node(rank, 3, program), rank + 1));
  }
  for (Command& command : typed) {
    const CommandEnd end = command.wait(kPatience);
    CHECK_MESSAGE(end.code == 42, end.err);
    CHECK_MESSAGE(has(end.err, "rank 5 on m3 exited with code 42: asked 5 ranks to stop\n"),
                  end.err);
    CHECK_MESSAGE(count_of(end.err, "exited with code 42") == 2, end.err);
    CHECK(has(end.err, "error[rank.died]: rank 5 (local 1 on m3, pid "));
    CHECK(has(end.err, "| why"));
  }
  CHECK(cluster.files("termed-").size() == 5);
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "a node or node 0 that is killed ends the others with a reason") {
  Cluster cluster(3);
  const auto program = program_of("echo $$ > pid-$RANK; exec sleep 1000");
  std::vector<Command> typed;
  for (int rank = 0; rank < 3; ++rank) {
    typed.push_back(cluster.launch(node(rank, 3, program, {"--grace", "2"}), rank + 1));
  }
  REQUIRE(wait_until([&] { return cluster.files("pid-").size() == 6; }));
  size_t victim = 0;
  std::string words;
  int code = 0;
  SUBCASE("node 0's process") {
    words = "error[launch.controller_lost]: ";
    code = 1;
  }
  SUBCASE("another's process") {
    victim = 2;
    words = "error[launch.node_lost]: node 2 (m3) was lost: its agent is gone";
    code = 1;
  }
  SUBCASE("node 0's machine") {
    cluster.kill(1);
    words = "error[launch.controller_lost]: ";
    code = 1;
  }
  SUBCASE("another's machine") {
    victim = 2;
    cluster.kill(3);
    words = "error[launch.node_lost]: node 2 (m3) was lost: ";
    code = 7;
  }
  typed[victim].signal(SIGKILL);
  for (size_t i = 0; i < typed.size(); ++i) {
    const CommandEnd end = typed[i].wait(kPatience);
    CHECK_MESSAGE(end.code == (i == victim ? 137 : code), end.err);
    if (i != victim) CHECK_MESSAGE(has(end.err, words), end.err);
  }
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines,
                  "a run typed on two machines has the losses of one and can be continued") {
  Cluster cluster(2);
  TinyRun tiny(cluster, 8);
  REQUIRE(tiny.trained("one", {"--num_processes", "4"}, {"parallel.tp=2"}).code == 0);
  const auto both = [&](const std::string& steps) {
    std::vector<Command> typed;
    for (int rank = 0; rank < 2; ++rank) {
      typed.push_back(tiny.train("two", node(rank, 2, {}), {"parallel.tp=2", steps}, rank + 1));
    }
    return typed;
  };
  for (Command& command : both("train.steps=8")) {
    const CommandEnd end = command.wait(kPatience);
    CHECK_MESSAGE(end.code == 0, end.err);
  }
  CHECK(tiny.losses("two") == tiny.losses("one"));
  CHECK(tiny.weights("two") == tiny.weights("one"));
  // There is nothing left to do, and both are told.
  for (Command& command : both("train.steps=8")) {
    const CommandEnd end = command.wait(kPatience);
    CHECK_MESSAGE(end.code == 0, end.err);
    CHECK_MESSAGE(has(end.err, "is complete: 8 steps are done"), end.err);
  }
  // Ctrl-C at the second machine is as good as at the first.
  auto typed = both("train.steps=100000");
  REQUIRE_MESSAGE(tiny.reached("two", 12), typed[0].err());
  typed[1].signal(SIGINT);
  for (Command& command : typed) {
    const CommandEnd end = command.wait(kPatience);
    CHECK_MESSAGE(end.code == 75, end.err);
    CHECK(!has(end.err, "error["));
  }
  CHECK_NOTHING_LEFT(cluster);
}
