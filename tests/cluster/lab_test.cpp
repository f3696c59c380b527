// The lab itself: everything that lab.h claims, so that a test on it can believe what it sees.
#include "cluster/lab/lab.h"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <unistd.h>

#include <sys/wait.h>

#include <doctest/doctest.h>

#include "cluster/machines.h"
#include "support/processes.h"
#include "support/text.h"

using namespace mtl::test;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

std::vector<std::string> shell(const std::string& script) {
  return {"/bin/sh", "-c", script};
}

// Two programs over one TCP connection from `from` to `to`: a line a tick one way, answered. Python
// because nothing smaller that is always there can listen.
const char* const kEcho = R"(
import socket, sys
listener = socket.create_server(("0.0.0.0", 7000), reuse_port=True)
peer, _ = listener.accept()
while True:
    data = peer.recv(100)
    if not data: sys.exit(3)
    peer.sendall(data)
)";
const char* const kTalk = R"(
import socket, sys, time
while True:
    try: peer = socket.create_connection((sys.argv[1], 7000), 20)
    except ConnectionRefusedError: time.sleep(0.01)
    else: break
peer.settimeout(float(sys.argv[2]))
said = 0
while True:
    peer.sendall(b"x")
    try:
        if not peer.recv(100): print("closed", flush=True); sys.exit(3)
    except TimeoutError:
        print("silence after", said, flush=True); peer.settimeout(None)
        try: peer.recv(100)
        except OSError as error: print("broken", error, flush=True); sys.exit(4)
        print("heard again", flush=True); peer.settimeout(float(sys.argv[2]))
    said += 1
    if said == 3: print("talking", flush=True)
    time.sleep(0.01)
)";

struct Talk {
  Talk(const Lab& lab, int from, int to, const std::string& patience)
      : listener(lab.start(to, {"/usr/bin/python3", "-c", kEcho})),
        speaker(lab.start(from, {"/usr/bin/python3", "-c", kTalk, Lab::address(to), patience})) {
    REQUIRE(speaker.says("talking", kPatience));
  }
  Command listener;
  Command speaker;
};

// The cgroups of the lab in this folder; tests of other programs have labs at the same time.
std::set<std::string> cgroups_of(const fs::path& lab) {
  std::set<std::string> found;
  std::error_code ignored;
  for (auto it = fs::recursive_directory_iterator(
           "/sys/fs/cgroup", fs::directory_options::skip_permission_denied, ignored);
       it != fs::recursive_directory_iterator(); it.increment(ignored)) {
    if (it->path().filename() == lab.filename()) found.insert(it->path());
    if (it.depth() >= 2) it.disable_recursion_pending();
  }
  return found;
}

// Where something is mounted here, but for what tests of other programs have in their folders.
std::multiset<std::string> mounts() {
  std::multiset<std::string> found;
  std::istringstream in(file_text("/proc/self/mountinfo"));
  const std::string others = (fs::temp_directory_path() / "mtl-test-").string();
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string id, parent, device, root, where;
    words >> id >> parent >> device >> root >> where;
    if (!where.starts_with(others)) found.insert(root + " " + where);
  }
  return found;
}

// Processes and network namespaces that have to do with the lab in `dir`.
std::vector<std::string> processes_of(const fs::path& dir) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    if (pid == std::to_string(getpid())) continue;
    // sshd names its config on the command line, everything on a machine has the lab's hosts
    // mounted.
    if (file_text(entry.path() / "cmdline").find(dir) != std::string::npos ||
        file_text(entry.path() / "mountinfo").find(dir.filename().string() + "/") !=
            std::string::npos) {
      found.push_back(pid + " " + file_text(entry.path() / "cmdline"));
    }
  }
  return found;
}

}  // namespace

TEST_CASE_FIXTURE(Machines, "machines have names addresses and a network that ends at the bridge") {
  Lab lab(3);
  for (int i = 0; i <= 3; ++i) {
    const CommandEnd name = lab.run(i, {"hostname"});
    CHECK(name.code == 0);
    CHECK(name.out == Lab::name(i) + "\n");
    // Everyone reaches everyone by every kind of name.
    for (int j = 1; j <= 3; ++j) {
      for (const std::string& to : {Lab::address(j), Lab::address(j, 1), Lab::address(j, 0, true),
                                    Lab::name(j), Lab::name(j) + "-6", Lab::name(j) + "-eth1"}) {
        const CommandEnd there =
            lab.run(i, {"/bin/bash", "-c", "exec 3<>/dev/tcp/" + to + "/22 && head -c 4 <&3"});
        CHECK_MESSAGE(there.out == "SSH-", i << " to " << to << ": " << there.err);
      }
    }
    const CommandEnd out = lab.run(i, {"/bin/bash", "-c", "exec 3<>/dev/tcp/192.0.2.1/22"});
    CHECK_MESSAGE(out.err.find("Network is unreachable") != std::string::npos, out.err);
    const CommandEnd devices = lab.run(i, shell("ls /sys/class/net"));
    if (i > 0) CHECK(devices.out == "eth0\neth1\nlo\n");
  }
  CHECK(lab.head({"ip", "route", "get", Lab::address(1)}).out.find("dev eth0") !=
        std::string::npos);
  CHECK(lab.head({"ip", "route", "get", Lab::address(1, 1)}).out.find("dev eth1") !=
        std::string::npos);
}

TEST_CASE_FIXTURE(Machines, "ssh goes from the head to every machine and between machines") {
  Lab lab(3);
  for (int i = 1; i <= 3; ++i) {
    for (const std::string& to : {Lab::name(i), Lab::name(i) + "-6", Lab::address(i)}) {
      const CommandEnd there = lab.head({"ssh", to, "hostname; echo $HOME; exit 42"});
      CHECK_MESSAGE(there.code == 42, there.err);
      CHECK(there.out == Lab::name(i) + "\n" + lab.home(i).string() + "\n");
    }
    const CommandEnd next = lab.run(i, {"ssh", Lab::name(i % 3 + 1), "hostname"});
    CHECK_MESSAGE(next.out == Lab::name(i % 3 + 1) + "\n", next.err);
  }
  CHECK(file_text(lab.host_key(1)) != file_text(lab.host_key(2)));
  // A name whose key is another's is refused: the machines do not look alike.
  std::ofstream(lab.home(0) / ".ssh" / "known_hosts")
      << "m1 " << file_text(lab.host_key(2).string() + ".pub");
  const CommandEnd wrong = lab.head({"ssh", "m1", "true"});
  CHECK(wrong.code == 255);
  CHECK(wrong.err.find("HOST IDENTIFICATION HAS CHANGED") != std::string::npos);
}

TEST_CASE_FIXTURE(Machines,
                  "machines share files but neither pids nor memory nor their own folders") {
  Lab lab(2);
  const std::string file = lab.dir() / "work" / "shared";
  CHECK(lab.run(1, shell("echo from m1 > " + file)).code == 0);
  CHECK(lab.run(2, {"cat", file}).out == "from m1\n");
  CHECK(lab.run(0, {"cat", "shared"}).out == "from m1\n");
  for (const std::string own : {"/mnt/local", "/dev/shm", "/run"}) {
    CHECK(lab.run(1, shell("echo mine > " + own + "/of-m1")).code == 0);
    CHECK(lab.run(1, {"cat", own + "/of-m1"}).out == "mine\n");
    CHECK(lab.run(2, {"test", "-e", own + "/of-m1"}).code == 1);
    CHECK(!fs::exists(own + "/of-m1"));
  }
  Command sleeper = lab.start(1, shell("echo $$; exec sleep 1000"));
  REQUIRE(sleeper.says("\n", kPatience));
  const int inside = std::stoi(sleeper.out());
  CHECK(inside != sleeper.pid());
  CHECK(inside < 1000);  // its own numbers
  CHECK(lab.run(2, shell("for p in /proc/[0-9]*; do cat $p/cmdline; done")).out.find("sleep") ==
        std::string::npos);
  REQUIRE(lab.processes(1).size() == 1);
  CHECK(lab.processes(1)[0].pid == sleeper.pid());
  CHECK(lab.processes(2).empty());
  sleeper.signal(SIGTERM);
  CHECK(sleeper.wait(kPatience).code == 128 + SIGTERM);
  CHECK(wait_until([&] { return lab.processes(1).empty(); }));
}

TEST_CASE_FIXTURE(Machines, "commands keep their pid code signal and output") {
  Lab lab(1);
  for (int i = 0; i <= 1; ++i) {
    const CommandEnd end = lab.run(i, shell("echo out; echo err >&2; exit 7"));
    CHECK(end.code == 7);
    CHECK(end.out == "out\n");
    CHECK(end.err == "err\n");
    CHECK(lab.run(i, shell("kill -SEGV $$")).code == 128 + SIGSEGV);
    CHECK(lab.run(i, shell("echo $HOME $COLOR"), {{"COLOR", "blue"}}).out ==
          lab.home(i).string() + " blue\n");
    CHECK(lab.run(i, {"no-such-program"}).code == 127);
    CHECK(lab.run(i, {"sleep", "1000"}, {}, 0s).code == -1);
  }
  Command head = lab.start(0, shell("echo $$; exec sleep 1000"));
  REQUIRE(head.says("\n", kPatience));
  CHECK(std::stoi(head.out()) == head.pid());  // so that signals reach what was asked for
}

TEST_CASE_FIXTURE(Machines, "a cut cable is silence and a healed one goes on") {
  Lab lab(3);
  Talk talk(lab, 1, 3, "0.5");
  Talk others(lab, 2, 1, "20");
  lab.cut(3);
  CHECK(talk.speaker.says("silence", kPatience));
  CHECK(talk.speaker.out().find("closed") == std::string::npos);
  CHECK(talk.listener.running());
  CHECK(lab.head({"ssh", "-o", "ConnectTimeout=1", "m3", "true"}).code == 255);
  CHECK(lab.head({"ssh", "-o", "ConnectTimeout=1", Lab::address(3, 1), "true"}).code == 255);
  CHECK(lab.head({"ssh", "m2", "true"}).code == 0);
  CHECK(lab.run(3, {"hostname"}).out == "m3\n");  // it lives, alone
  CHECK(others.speaker.running());
  CHECK(others.speaker.out().find("silence") == std::string::npos);
  lab.heal(3);
  CHECK(talk.speaker.says("heard again", kPatience));
  CHECK(lab.head({"ssh", "m3", "true"}).code == 0);
  lab.cut(3, 1);
  CHECK(lab.head({"ssh", "m3", "true"}).code == 0);
  CHECK(lab.head({"ssh", "-o", "ConnectTimeout=1", Lab::address(3, 1), "true"}).code == 255);
}

TEST_CASE_FIXTURE(Machines, "a frozen machine acknowledges and does nothing") {
  Lab lab(2);
  Talk talk(lab, 1, 2, "0.5");
  Command counter = lab.start(2, shell("while :; do echo x; sleep 0.01; done"));
  REQUIRE(counter.says("x\nx\n", kPatience));
  lab.freeze(2);
  CHECK(talk.speaker.says("silence", kPatience));
  const std::string before = counter.out();
  // TCP is the kernel's, and that one runs: connections are made and stay, nobody answers.
  const CommandEnd connect = lab.head({"/usr/bin/python3", "-c", R"(
import socket
peer = socket.create_connection(("m2", 22), 20)
peer.settimeout(0.3)
try: print(peer.recv(10))
except TimeoutError: print("silent")
)"});
  CHECK_MESSAGE(connect.out == "silent\n", connect.err);
  CHECK(counter.out() == before);
  CHECK(talk.speaker.running());
  CHECK(talk.speaker.out().find("broken") == std::string::npos);
  lab.thaw(2);
  CHECK(talk.speaker.says("heard again", kPatience));
  CHECK(wait_until([&] { return counter.out().size() > before.size(); }));
  CHECK(lab.head({"ssh", "m2", "true"}).code == 0);
}

TEST_CASE_FIXTURE(Machines, "power loss ends everything there and says goodbye to nobody") {
  Lab lab(3);
  Talk talk(lab, 1, 3, "0.5");
  Command here = lab.start(3, {"sleep", "1000"});
  const std::string local = "/mnt/local/x";
  lab.run(3, {"touch", local});
  lab.kill(3);
  CHECK(here.wait(kPatience).code == 128 + SIGKILL);
  CHECK(talk.listener.wait(kPatience).code == 128 + SIGKILL);
  CHECK(talk.speaker.says("silence", kPatience));
  CHECK(talk.speaker.out().find("closed") == std::string::npos);
  CHECK(lab.head({"ssh", "-o", "ConnectTimeout=1", "m3", "true"}).code == 255);
  CHECK_THROWS(lab.run(3, {"true"}));
  CHECK_THROWS(lab.kill(3));
  lab.boot(3);
  CHECK(lab.head({"ssh", "m3", "hostname"}).out == "m3\n");  // the same keys
  CHECK(lab.run(3, {"test", "-e", local}).code == 1);
  const CommandEnd speaker = talk.speaker.wait(kPatience);
  CHECK_MESSAGE(speaker.out.find("broken") != std::string::npos, speaker.out, speaker.err);
}

TEST_CASE_FIXTURE(Machines, "a stopped sshd refuses and its sessions go on") {
  Lab lab(1);
  Command session = lab.start(0, {"ssh", "m1", "echo in; sleep 1; echo still"});
  REQUIRE(session.says("in", kPatience));
  lab.stop_sshd(1);
  const CommandEnd refused = lab.head({"ssh", "m1", "true"});
  CHECK(refused.code == 255);
  CHECK(refused.err.find("refused") != std::string::npos);
  CHECK(session.wait(kPatience).out == "in\nstill\n");
  std::ofstream(lab.sshd_config(1), std::ios::app)
      << "PubkeyAuthentication no\nPasswordAuthentication yes\n";
  // The first value of a setting counts, so the file is written anew.
  std::string config = file_text(lab.sshd_config(1));
  const std::string off = "PasswordAuthentication no\n";
  config.erase(config.find(off), off.size());
  std::ofstream(lab.sshd_config(1)) << config;
  lab.start_sshd(1);
  const CommandEnd denied = lab.head({"ssh", "m1", "true"});
  CHECK(denied.code == 255);
  CHECK_MESSAGE(denied.err.find("Permission denied (password)") != std::string::npos, denied.err);
}

TEST_CASE_FIXTURE(Machines, "delay and loss are of one machine and as large as asked") {
  Lab lab(2);
  // UDP, so that every loss is seen: how many of 400 came back, and the quickest round trip.
  const char* const echo = R"(
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("", 7001)); print("up", flush=True)
while True:
    data, peer = s.recvfrom(2000); s.sendto(data, peer)
)";
  const char* const probe = R"(
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((sys.argv[1], 7001))
s.setblocking(False)
sent, times = {}, []
for i in range(400):
    sent[i] = time.monotonic(); s.send(b"%d" % i); time.sleep(0.001)
    while True:
        try: number = int(s.recv(2000))
        except BlockingIOError: break
        times.append(time.monotonic() - sent[number])
s.settimeout(1.0)
try:
    while len(times) < 400:
        number = int(s.recv(2000))
        times.append(time.monotonic() - sent[number])
except TimeoutError: pass
print(len(times), int(min(times) * 1e6))
)";
  std::vector<Command> echoes;
  for (int i = 1; i <= 2; ++i) {
    echoes.push_back(lab.start(i, {"/usr/bin/python3", "-c", echo}));
    REQUIRE(echoes.back().says("up", kPatience));
  }
  struct Seen {
    int back = 0;
    int quickest_us = 0;
  };
  const auto measure = [&](int machine) {
    const CommandEnd end = lab.head({"/usr/bin/python3", "-c", probe, Lab::address(machine)});
    Seen seen;
    std::istringstream(end.out) >> seen.back >> seen.quickest_us;
    MESSAGE(Lab::name(machine) << ": " << seen.back << " of 400, " << seen.quickest_us << " us");
    return seen;
  };
  // A machine that stands still for a moment loses some of its own: again then. What is not as
  // asked is so each time.
  const auto measure_until = [&](int machine, const std::function<bool(int)>& as_asked) {
    Seen seen = measure(machine);
    for (int i = 0; i < 5 && !as_asked(seen.back); ++i) seen = measure(machine);
    CHECK(as_asked(seen.back));
    return seen;
  };
  const auto all = [](int back) { return back == 400; };
  CHECK(measure_until(2, all).quickest_us < 40'000);
  lab.delay(2, 40ms);
  const Seen delayed = measure_until(2, all);
  CHECK(delayed.quickest_us >= 40'000);
  CHECK(delayed.quickest_us < 80'000);
  CHECK(measure(1).quickest_us < 40'000);
  lab.loss(2, 30);
  // 0.7 * 0.7 = 0.49 of round trips, six deviations either way.
  const auto half = [](int back) { return back > 400 * 0.35 && back < 400 * 0.65; };
  CHECK(measure_until(2, half).quickest_us >= 40'000);
  // TCP lives with it, with a loss that it can live with: at 30 % half of all round trips are lost,
  // its pauses double each time, and one connection in fifty took longer than a minute.
  lab.loss(2, 10);
  // Even so one in some thousand does not come about in half a minute.
  CHECK(wait_until([&] {
    return lab.head({"ssh", "-o", "ConnectTimeout=30", "m2", "hostname"}).out == "m2\n";
  }));
  lab.loss(2, 0);
  lab.delay(2, 0ms);
  CHECK(measure_until(2, all).quickest_us < 40'000);
}

TEST_CASE_FIXTURE(Machines, "after the lab nothing is left of it") {
  const auto before = mounts();
  fs::path dir;
  {
    Lab lab(2);
    dir = lab.dir();
    CHECK(!processes_of(dir).empty());
    CHECK(!cgroups_of(dir).empty());
    lab.head(shell("setsid sleep 1000 & echo"));  // an orphan on the head
    lab.run(1, shell("setsid sleep 1000 & echo"));
    CHECK(wait_until([&] { return lab.processes(0).size() == 1; }));
    CHECK(wait_until([&] { return lab.processes(1).size() == 1; }));
    lab.delay(1, 2ms);
    lab.freeze(1);
    lab.kill(2);
  }
  CHECK(!fs::exists(dir));
  CHECK(cgroups_of(dir).empty());
  CHECK((mounts() == before));
  CHECK(processes_of(dir).empty());
}

TEST_CASE_FIXTURE(Machines, "a test that is killed takes its lab along") {
  int report[2];
  REQUIRE(pipe(report) == 0);
  const pid_t child = fork();
  if (child == 0) {
    Lab lab(2);
    const std::string dir = lab.dir();
    Command orphan = lab.start(1, {"sleep", "1000"});
    lab.freeze(1);
    [[maybe_unused]] const ssize_t sent = write(report[1], dir.data(), dir.size());
    pause();
  }
  close(report[1]);
  char text[100];
  const ssize_t size = read(report[0], text, sizeof text);
  close(report[0]);
  REQUIRE(size > 0);
  const fs::path dir = std::string(text, static_cast<size_t>(size));
  CHECK(!processes_of(dir).empty());
  CHECK(!cgroups_of(dir).empty());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(wait_until([&] { return !fs::exists(dir) && processes_of(dir).empty(); }));
  CHECK(cgroups_of(dir).empty());
}

TEST_CASE_FIXTURE(Machines, "labs run beside each other and a killed warden is swept up") {
  fs::path dead;
  {
    Lab first(1);
    dead = first.dir();
    Lab second(1);
    CHECK(first.dir() != second.dir());
    CHECK(first.head({"ssh", "m1", "hostname"}).out == "m1\n");
    first.run(1, {"touch", "/mnt/local/first"});
    CHECK(second.run(1, {"test", "-e", "/mnt/local/first"}).code == 1);
    CHECK(first.head({"/bin/bash", "-c", "exec 3<>/dev/tcp/m1/22"}).code == 0);
    second.stop_sshd(1);
    CHECK(first.head({"ssh", "m1", "true"}).code == 0);
    CHECK(second.head({"ssh", "m1", "true"}).code == 255);
    // The warden of the first is the one whose working files are in its folder.
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string pid = entry.path().filename();
      if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
      std::error_code ignored;
      if (fs::read_symlink(entry.path() / "fd" / "2", ignored) == dead / "warden.log" &&
          fs::read_symlink(entry.path() / "exe", ignored) == fs::read_symlink("/proc/self/exe") &&
          file_text(entry.path() / "status").find("PPid:\t" + std::to_string(getpid())) !=
              std::string::npos) {
        kill(std::stoi(pid), SIGKILL);
      }
    }
    // With it go its machines.
    CHECK(wait_until([&] {
      for (const std::string& process : processes_of(dead)) {
        if (process.find("sshd") != std::string::npos) return false;
      }
      return true;
    }));
    CHECK_THROWS(first.cut(1));
  }
  // By now, if not before by a lab of another program.
  Lab third(1);
  CHECK(!fs::exists(dead));
}
