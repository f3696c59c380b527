// A person at a terminal: Ctrl-C, TERM, HUP, a window that is closed. The ranks get their grace,
// the exit code is as documented, the terminal is as it was, nothing is left.
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include "cluster/tiny_run.h"

using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

// A terminal whose window is this test.
class Terminal {
 public:
  Terminal() {
    char name[100];
    REQUIRE(openpty(&master_, &slave_, name, nullptr, nullptr) == 0);
    name_ = name;
    fcntl(master_, F_SETFL, O_NONBLOCK);
  }
  ~Terminal() {
    close_window();
    if (slave_ >= 0) close(slave_);
  }
  // In a session of its own, with this as its terminal, as a login shell has.
  Command start(const Cluster& cluster, int machine, const std::vector<std::string>& args) const {
    std::string line = "exec setsid --wait --ctty " MTL_PROGRAM " launch";
    for (const std::string& arg : args) line += " '" + arg + "'";
    line += " < " + name_ + " > " + name_ + " 2>&1";
    return cluster.start(machine, {"/bin/sh", "-c", line}, {{"TERM", "xterm"}});
  }
  void type(const char* keys) const {
    if (::write(master_, keys, strlen(keys)) < 0) FAIL("the terminal takes no keys");
  }
  // What has been shown so far.
  const std::string& text() {
    char buffer[4096];
    ssize_t got = 0;
    while (master_ >= 0 && (got = read(master_, buffer, sizeof buffer)) > 0) {
      text_.append(buffer, static_cast<size_t>(got));
    }
    return text_;
  }
  bool shows(const std::string& part, Milliseconds within = kPatience) {
    return wait_until([&] { return has(text(), part); }, within);
  }
  std::string modes() const {
    termios modes{};
    if (tcgetattr(slave_, &modes) != 0) return "?";
    return std::to_string(modes.c_iflag) + " " + std::to_string(modes.c_oflag) + " " +
           std::to_string(modes.c_cflag) + " " + std::to_string(modes.c_lflag);
  }
  // The hang-up that a closed window is. Our own end of the slave goes first, else it is no
  // hang-up.
  void close_window() {
    if (master_ >= 0) close(master_);
    master_ = -1;
  }

 private:
  int master_ = -1, slave_ = -1;
  std::string name_, text_;
};

// Four ranks that need a moment to end in order, and say so.
std::vector<std::string> careful(const Cluster& cluster, const std::string& way) {
  const std::string script =
      cluster.script("careful",
                     "trap 'sleep 0.1; echo > graced-$RANK; trap - TERM; kill -TERM $$' TERM\n"
                     "echo > ready-$RANK\nwhile :; do echo working; sleep 0.05; done\n");
  std::vector<std::string> args = {"--grace", "20"};
  if (way == "here") {
    args.insert(args.end(), {"--num_processes", "4"});
  } else {
    args.insert(args.end(), {"--hosts", "m1:2,m2:2"});
  }
  args.insert(args.end(), {"--", script});
  return args;
}

}  // namespace

TEST_CASE_FIXTURE(Machines, "Ctrl-C TERM HUP and a closed terminal give the ranks their grace") {
  Cluster cluster(2);
  int wrong = 0;
  // Every way of stopping 25 times, half of them on one machine and half on two.
  for (int round = 0; round < 100; ++round) {
    const std::string how = std::vector<std::string>{"key", "TERM", "HUP", "window"}[round % 4];
    const std::string way = round / 4 % 2 == 0 ? "here" : "there";
    for (const std::string part : {"ready-", "graced-"}) {
      for (const auto& [name, text] : cluster.files(part)) fs::remove(cluster.work() / name);
    }
    Terminal terminal;
    const std::string modes = terminal.modes();
    Command job = terminal.start(cluster, 0, careful(cluster, way));
    const bool started = wait_until([&] {
      terminal.text();
      return cluster.files("ready-").size() == 4;
    });
    const auto launchers = cluster.pids(0, MTL_PROGRAM " launch");
    int code = 0;
    if (how == "key") {
      terminal.type("\x03");
      code = 128 + SIGINT;
    } else if (how == "window") {
      terminal.close_window();
      code = 128 + SIGHUP;
    } else {
      // The session's leader is the launcher, and the local agent's keeper bears the same name.
      code = 128 + (how == "TERM" ? SIGTERM : SIGHUP);
      for (const pid_t pid : launchers) {
        if (getsid(pid) == pid) kill(pid, code - 128);
      }
    }
    bool ended = wait_until([&] {
      terminal.text();
      return !job.running();
    });
    const CommandEnd end = job.wait(1s);
    const std::string left = cluster.left();
    const size_t graced = cluster.files("graced-").size();
    const bool restored = how == "window" || terminal.modes() == modes;
    if (!started || !ended || end.code != code || graced != 4 || !left.empty() || !restored) {
      ++wrong;
      const std::string text = "round " + std::to_string(round) + ", " + how + " " + way +
                               ": code " + std::to_string(end.code) + ", graced " +
                               std::to_string(graced) + ", left " + left +
                               (restored ? "" : ", modes changed") + (started ? "" : ", no start") +
                               "\n" + terminal.text();
      MESSAGE(text);
      if (wrong > 5) break;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE_FIXTURE(Machines, "a second Ctrl-C does not wait for the grace") {
  Cluster cluster(2);
  const std::string script =
      cluster.script("deaf", "trap '' TERM\necho > ready-$RANK\nwhile :; do sleep 0.05; done\n");
  Terminal terminal;
  Command job = terminal.start(cluster, 0, {"--hosts", "m1,m2", "--grace", "600", "--", script});
  REQUIRE(wait_until([&] { return cluster.files("ready-").size() == 2; }));
  terminal.type("\x03");
  REQUIRE_MESSAGE(terminal.shows("SIGINT: asked the job to stop"), terminal.text());
  terminal.type("\x03");
  const CommandEnd end = job.wait(20s);
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
  CHECK(wait_until([&] { return cluster.pids(1, "loud").empty(); }, 20s));
  CHECK(wait_until([&] {
    terminal.text();
    return !job.running();
  }));
  CHECK(job.wait(1s).code == 130);
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
