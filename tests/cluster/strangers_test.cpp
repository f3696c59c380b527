// Those who have no business on a job's ports: a run goes on undisturbed, and its secret is seen
// nowhere.
#include <chrono>
#include <csignal>
#include <fstream>
#include <set>
#include <sstream>

#include "cluster/tiny_run.h"
#include "support/text.h"

using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

const std::string kSecret = "the-secret-of-this-job-4711";

// On every port that listens on m1: garbage, greetings cut short, connections left open. Again and
// again until it is ended.
const char* const kStranger = R"(
import os, random, socket, sys, time
open_ones = []
rounds = 0
while True:
    for port in map(int, sys.argv[2:]):
        for what in ("garbage", "half", "length", "silent"):
            s = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
            s.settimeout(1)
            try:
                s.connect((sys.argv[1], port))
                if what == "garbage": s.sendall(os.urandom(2000))
                if what == "half": s.sendall(b"\x30\0\0\0" + os.urandom(5))
                if what == "length": s.sendall(b"\xff\xff\xff\x7f" + os.urandom(100))
            except OSError: pass
            if what in ("half", "silent") and len(open_ones) < 200: open_ones.append(s)
            else: s.close()
    rounds += 1
    if rounds == 20: print("enough", flush=True)
)";

std::set<std::string> listening(const Cluster& cluster, int machine) {
  std::set<std::string> ports;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::istringstream in(cluster.run(machine, {"cat", table}).out);
    std::string line, word;
    std::getline(in, line);
    while (std::getline(in, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state;
      fields >> number >> local >> remote >> state;
      const int port = std::stoi(local.substr(local.rfind(':') + 1), nullptr, 16);
      if (state == "0A" && port != 22) ports.insert(std::to_string(port));
    }
  }
  return ports;
}

std::string proc_file(pid_t pid, const char* name) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/" + name, std::ios::binary);
  std::string text(1 << 16, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  return text.substr(0, static_cast<size_t>(in.gcount()));
}

}  // namespace

TEST_CASE_FIXTURE(Machines,
                  "strangers on its ports do not disturb a run and its token is nowhere") {
  Cluster cluster(3);
  const std::string token = cluster.write("token", kSecret);
  fs::permissions(token, fs::perms(0600));
  TinyRun tiny(cluster, 100'000, 100'000);
  const auto node = [&](int rank, const std::string& secret) {
    return std::vector<std::string>{
        "--num_machines",    "2",  "--machine_rank",      std::to_string(rank),
        "--main_process_ip", "m1", "--main_process_port", "29500",
        "--num_processes",   "4",  "--token_file",        secret,
        "--dead_after",      "120"};
  };
  Command first = tiny.train("run", node(0, token), {"parallel.tp=2"}, 1);
  Command second = tiny.train("run", node(1, token), {"parallel.tp=2"}, 2);
  REQUIRE_MESSAGE(tiny.reached("run", 3), first.err());

  // The rendezvous, the store of the ranks, their own connections, on both machines.
  std::vector<Command> strangers;
  for (const int machine : {1, 2}) {
    const auto ports = listening(cluster, machine);
    CHECK(ports.size() >= (machine == 1 ? 2 : 1));
    std::vector<std::string> argv = {"/usr/bin/python3", "-c", kStranger, Lab::address(machine)};
    argv.insert(argv.end(), ports.begin(), ports.end());
    strangers.push_back(cluster.start(3, argv));
  }
  const std::string other = cluster.write("other", "a guess");
  fs::permissions(other, fs::perms(0600));
  for (int i = 0; i < 5; ++i) {
    const CommandEnd guess = tiny.train("run", node(1, other), {}, 3).wait(kPatience);
    CHECK_MESSAGE(guess.code == 4, guess.err);
  }
  for (Command& stranger : strangers)
    CHECK_MESSAGE(stranger.says("enough", kPatience), stranger.err());
  const int then = tiny.last_step("run");
  CHECK(tiny.reached("run", then + 3));

  int seen = 0;
  for (const int machine : {1, 2}) {
    for (const auto& process : cluster.processes(machine)) {
      ++seen;
      for (const char* name : {"cmdline", "environ"}) {
        CHECK_MESSAGE(!has(proc_file(process.pid, name), kSecret), process.command);
      }
    }
  }
  CHECK(seen >= 8);  // on each machine the launcher, its keeper and two ranks
  first.signal(SIGINT);
  for (Command* command : {&first, &second}) {
    const CommandEnd end = command->wait(kPatience);
    CHECK_MESSAGE(end.code == 75, end.err);
    CHECK(!has(end.err, kSecret));
    CHECK(!has(end.err, "error["));
  }
  for (const auto& entry : fs::recursive_directory_iterator(cluster.work() / "run")) {
    if (entry.is_regular_file()) {
      CHECK_MESSAGE(!has(file_text(entry.path()), kSecret), entry.path().string());
    }
  }
  strangers.clear();
  CHECK_NOTHING_LEFT(cluster);
}
