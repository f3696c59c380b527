// run_agent under somebody above it: commands, what is told upwards, and which ends count as
// failures then. Also the grace after a failure, and workers that somebody has stopped.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <deque>
#include <fcntl.h>
#include <functional>
#include <mutex>
#include <thread>

#include <sys/eventfd.h>

#include <doctest/doctest.h>

#include "common/files.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/stopped_watch.h"
#include "launcher/processes.h"
#include "support/fitting_limit.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;

namespace {

using std::chrono::milliseconds;
using Command = AgentControl::Command;

class TestControl : public AgentControl {
 public:
  TestControl() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  void order(Command command) {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
    eventfd_write(fd_.get(), 1);
  }

  int fd() const override { return fd_.get(); }
  Command read() override {
    const std::lock_guard lock(mutex_);
    eventfd_t ignored;
    eventfd_read(fd_.get(), &ignored);
    if (commands_.empty()) return {};
    Command command = commands_.front();
    commands_.pop_front();
    return command;
  }
  void started(const WorkerCommand& worker, int pid) override {
    pids.push_back(pid);
    if (on_started) on_started(worker.rank, pid);
  }
  void ended(const WorkerEnd& end) override {
    ends.push_back(end);
    if (on_ended) on_ended(end);
  }
  void interrupted(int signal) override {
    signals.push_back(signal);
    if (on_interrupted) on_interrupted();
  }
  std::optional<std::chrono::nanoseconds> lease_end() const override {
    return has_lease ? std::optional(lease.load()) : std::nullopt;
  }
  void lease_over() override { leases_over += 1; }

  std::vector<int> pids, signals;
  std::vector<WorkerEnd> ends;
  std::function<void(int rank, int pid)> on_started;
  std::function<void(const WorkerEnd&)> on_ended;
  std::function<void()> on_interrupted;
  std::atomic<std::chrono::nanoseconds> lease{};
  bool has_lease = false;
  int leases_over = 0;

 private:
  Fd fd_;
  std::mutex mutex_;
  std::deque<Command> commands_;
};

// Gives `command` once all of `ready` hold a pid.
std::thread order_when(TestControl& control, std::vector<std::filesystem::path> ready,
                       Command command) {
  return std::thread([&control, ready = std::move(ready), command = std::move(command)] {
    for (const auto& path : ready) pid_in(path);
    control.order(command);
  });
}

std::string loop(const std::filesystem::path& ready, const std::string& traps = "") {
  return traps + "echo $$ > " + ready.string() + "; while :; do sleep 0.02; done";
}

// Long enough for a busy machine; one that stands still for longer lets it end, which is right.
constexpr milliseconds kLease{5'000};

std::chrono::nanoseconds boot_time() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

const WorkerEnd& end_of(const AgentResult& result, int rank) {
  return *std::find_if(result.ends.begin(), result.ends.end(),
                       [&](const WorkerEnd& end) { return end.rank == rank; });
}

}  // namespace

TEST_CASE("a stop by control is no failure whatever the workers make of it") {
  TempDir folder;
  TestControl control;
  AgentOptions options = shells({loop(folder / "0"), loop(folder / "1", "trap 'exit 9' TERM; "),
                                 loop(folder / "2", "trap 'exit 0' TERM; ")});
  options.control = &control;
  std::string notices;
  options.on_notice = [&](std::string_view line) { notices += std::string(line) + "\n"; };
  std::thread above =
      order_when(control, {folder / "0", folder / "1", folder / "2"},
                 {.kind = Command::stop, .grace = std::chrono::seconds(50), .why = "m3 was lost"});
  const AgentResult result = run_agent(options);
  above.join();
  CHECK(result.exit_code == 0);
  CHECK(!result.first_failure);
  CHECK(!result.interrupted);
  CHECK(end_of(result, 0).exit_code == 128 + SIGTERM);
  CHECK(end_of(result, 1).exit_code == 9);
  for (const WorkerEnd& end : result.ends) CHECK(end.stopped_by_us);
  CHECK(notices.find("m3 was lost: asked 3 ranks to stop") != std::string::npos);
  CHECK(control.pids.size() == 3);
  REQUIRE(control.ends.size() == 3);
  for (size_t i = 0; i < 3; ++i) CHECK(control.ends[i].pid == result.ends[i].pid);
}

TEST_CASE("75 from all after a stop by control is 75") {
  TempDir folder;
  TestControl control;
  AgentOptions options = shells({loop(folder / "0", "trap 'exit 75' TERM; ")});
  options.control = &control;
  std::thread above = order_when(control, {folder / "0"},
                                 {.kind = Command::stop, .grace = std::chrono::seconds(50)});
  CHECK(run_agent(options).exit_code == 75);
  above.join();
}

TEST_CASE("the grace of a stop by control ends in KILL and a nearer one counts") {
  TempDir folder;
  TestControl control;
  const std::string stubborn = "trap ': > " + (folder / "asked").string() + "' TERM; ";
  AgentOptions options = shells({loop(folder / "0", stubborn)});
  options.control = &control;
  std::thread above([&] {
    pid_in(folder / "0");
    control.order({.kind = Command::stop, .grace = std::chrono::hours(1)});
    wait_until([&] { return std::filesystem::exists(folder / "asked"); });
    control.order({.kind = Command::stop, .grace = milliseconds(50)});
  });
  const AgentResult result = run_agent(options);
  above.join();
  CHECK(std::filesystem::exists(folder / "asked"));
  CHECK(result.exit_code == 0);
  CHECK(end_of(result, 0).signal == SIGKILL);
}

TEST_CASE("kill by control leaves no time") {
  TempDir folder;
  TestControl control;
  AgentOptions options =
      shells({loop(folder / "0", "trap 'echo $$ > " + (folder / "termed").string() + "' TERM; ")});
  options.control = &control;
  std::thread above = order_when(control, {folder / "0"}, {.kind = Command::kill});
  const AgentResult result = run_agent(options);
  above.join();
  CHECK(result.exit_code == 0);
  CHECK(end_of(result, 0).signal == SIGKILL);
  CHECK(end_of(result, 0).stopped_by_us);
  CHECK(!std::filesystem::exists(folder / "termed"));
}

TEST_CASE("signals are passed on by control") {
  TempDir folder;
  TestControl control;
  AgentOptions options = shells({loop(folder / "0", "trap 'exit 0' USR2; ")});
  options.control = &control;
  std::string notices;
  options.on_notice = [&](std::string_view line) { notices += line; };
  std::thread above =
      order_when(control, {folder / "0"},
                 {.kind = Command::pass_on, .signal = SIGUSR2, .why = "a checkpoint is wanted"});
  const AgentResult result = run_agent(options);
  above.join();
  CHECK(result.exit_code == 0);
  CHECK(!result.ends[0].stopped_by_us);
  CHECK(notices == "a checkpoint is wanted: sent SIGUSR2 to 1 rank");
}

TEST_CASE("a failure before the stop stays one and is told at once") {
  TempDir folder;
  TestControl control;
  // The survivor lasts until control has heard of the failure and says kill.
  AgentOptions options =
      shells({loop(folder / "0", "trap '' TERM; "),
              "while [ ! -s " + (folder / "0").string() + " ]; do sleep 0.01; done; exit 6"});
  options.control = &control;
  control.on_ended = [&](const WorkerEnd& end) {
    if (end.rank == 1) control.order({.kind = Command::kill});
  };
  const AgentResult result = run_agent(options);
  CHECK(result.exit_code == 6);
  REQUIRE(result.first_failure);
  CHECK(result.first_failure->rank == 1);
  CHECK(end_of(result, 0).signal == SIGKILL);
}

TEST_CASE("the first signal after a stop by control does not kill and the second does") {
  TempDir folder;
  const std::string f = folder.path();
  Child agent([&] {
    TestControl control;
    AgentOptions options = shells({loop(folder / "0", "trap 'echo $$ > " + f + "/termed' TERM; ")});
    options.control = &control;
    std::thread above = order_when(control, {folder / "0"},
                                   {.kind = Command::stop, .grace = std::chrono::hours(1)});
    control.on_interrupted = [&] {
      write(folder / ("heard" + std::to_string(control.signals.size())), "");
    };
    const AgentResult result = run_agent(options);
    above.join();
    return result.interrupted && control.signals == std::vector<int>{SIGTERM, SIGINT}
               ? result.exit_code
               : 99;
  });
  const pid_t worker = pid_in(folder / "termed");
  REQUIRE(worker > 0);
  kill(agent.pid(), SIGTERM);
  CHECK(wait_until([&] { return std::filesystem::exists(folder / "heard1"); }));
  CHECK(alive(worker));
  kill(agent.pid(), SIGINT);
  CHECK(agent.wait() == 128 + SIGTERM);
  CHECK(!alive(worker));
}

TEST_CASE("a control that has gone does not keep the agent busy") {
  TempDir folder;
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  struct Closed : TestControl {
    int end = -1;
    int reads = 0;
    int fd() const override { return end; }
    Command read() override {
      ++reads;
      return {};
    }
  } control;
  control.end = ends[0];
  close(ends[1]);
  AgentOptions options = shells({"sleep 0.2"});
  options.control = &control;
  CHECK(run_agent(options).exit_code == 0);
  CHECK(control.reads == 1);
  close(ends[0]);
}

TEST_CASE("after a failure its own grace counts") {
  TempDir folder;
  const std::string f = folder.path();
  AgentOptions options = shells({loop(folder / "0", "trap 'echo $$ > " + f + "/termed' TERM; "),
                                 "while [ ! -s " + f + "/0 ]; do sleep 0.01; done; exit 3"});
  options.grace = std::chrono::hours(1);
  bool asked = true;
  SUBCASE("short") {}
  SUBCASE("none: killed at once") {
    asked = false;
  }
  std::string notices;
  options.on_notice = [&](std::string_view line) { notices += line; };
  AgentResult result;
  // Within a short grace a worker that has no time on its CPU may not come to say so.
  with_fitting_limit(milliseconds(200), [&](auto grace) {
    for (const char* name : {"0", "termed"}) std::filesystem::remove(folder / name);
    notices.clear();
    options.failure_grace = asked ? grace : milliseconds(0);
    result = run_agent(options);
    return !asked || std::filesystem::exists(folder / "termed");
  });
  CHECK(result.exit_code == 3);
  CHECK(end_of(result, 0).signal == SIGKILL);
  CHECK(end_of(result, 0).stopped_by_us);
  CHECK(std::filesystem::exists(folder / "termed") == asked);
  CHECK(notices.starts_with(asked ? "rank 1 exited with code 3: asked 1 rank to stop"
                                  : "rank 1 exited with code 3: killed 1 rank"));
}

TEST_CASE("a stopped worker has failed and is named") {
  TempDir folder;
  TestControl control;
  AgentOptions options = shells({"sleep 1000", "kill -STOP $$; sleep 1000"});
  options.stopped_after = milliseconds(200);
  options.control = &control;
  const AgentResult result = run_agent(options);
  CHECK(result.exit_code == 7);
  REQUIRE(result.first_failure);
  CHECK(result.first_failure->rank == 1);
  CHECK(!result.first_failure->stopped_by_us);
  CHECK(result.ends.size() == 2);
  CHECK(end_of(result, 0).stopped_by_us);
  CHECK(control.ends.front().rank == 1);
  CHECK(control.ends.size() == 2);
  const Diagnostic report = failure_report(result);
  CHECK(report.what.find("rank 1 (pid ") == 0);
  CHECK(report.what.find("was stopped by SIGSTOP") != std::string::npos);
  CHECK(render(report).find("SIGSTOP, or it read from a terminal") != std::string::npos);
  CHECK(!alive(result.first_failure->pid));
}

TEST_CASE("who is woken in time has not failed and 0 watches nobody") {
  AgentOptions options =
      shells({"(until grep -q '^State:.T' /proc/$$/status; do sleep 0.05; done; sleep 0.3; "
              "kill -CONT $$) & kill -STOP $$; exit 0"});
  SUBCASE("woken") {
    options.stopped_after = kPatience;
  }
  SUBCASE("not watched") {
    options.stopped_after = milliseconds(0);
  }
  CHECK(run_agent(options).exit_code == 0);
}

TEST_CASE("samples far apart start the count of stopped workers anew") {
  using Clock = StoppedWatch::Clock;
  bool stopped = true;
  StoppedWatch watch(std::chrono::seconds(5), [&](pid_t) { return stopped; });
  const Clock::time_point start = Clock::now();
  const auto at = [&](int ms) { return watch.sample({0, 77}, start + milliseconds(ms)).size(); };
  REQUIRE(watch.next());
  for (int ms = 0; ms < 5'000; ms += 250) CHECK(at(ms) == 0);
  SUBCASE("seen all the time") {
    CHECK(at(5'000) == 1);
    CHECK(at(5'250) == 0);  // told once
  }
  SUBCASE("nobody looked meanwhile") {
    CHECK(at(9'000) == 0);
    for (int ms = 9'250; ms < 14'000; ms += 250) CHECK(at(ms) == 0);
    CHECK(at(14'000) == 1);
  }
  SUBCASE("it ran once") {
    stopped = false;
    CHECK(at(4'900) == 0);
    stopped = true;
    CHECK(at(5'000) == 0);
    CHECK(at(6'000) == 0);
  }
  CHECK(!StoppedWatch(milliseconds(0)).next());
}

TEST_CASE("a lease that is extended keeps the workers and one that ends kills them") {
  TempDir folder;
  TestControl control;
  control.has_lease = true;
  control.lease = boot_time() + kLease;
  AgentOptions options = shells({loop(folder / "0", "trap '' TERM; "), loop(folder / "1")});
  options.control = &control;
  std::string notices;
  options.on_notice = [&](std::string_view line) { notices += std::string(line) + "\n"; };
  std::chrono::nanoseconds last{};
  bool in_time = true;
  std::thread above([&] {
    const auto first = control.lease.load();
    const auto ready = [&] {
      return !file_text(folder / "0").empty() && !file_text(folder / "1").empty();
    };
    do {
      const std::chrono::nanoseconds now = boot_time();
      in_time = now < control.lease.load();
      control.lease = now + kLease;
      std::this_thread::sleep_for(milliseconds(20));
      // Longer than the first one.
    } while (in_time && (!ready() || boot_time() < first + milliseconds(100)));
    last = control.lease;
  });
  const AgentResult result = run_agent(options);
  const std::chrono::nanoseconds end = boot_time();
  above.join();
  CHECK((end >= last || !in_time));
  CHECK(result.exit_code == 0);
  CHECK(!result.first_failure);
  CHECK(control.leases_over == 1);
  REQUIRE(result.ends.size() == 2);
  for (const WorkerEnd& worker : result.ends) {
    CHECK(worker.stopped_by_us);
    CHECK(worker.signal == SIGKILL);
  }
  CHECK(notices.find("could not be reached in time: killed 2 ranks") != std::string::npos);
}

TEST_CASE("the keeper ends a lease also of an agent that is stopped and of what workers started") {
  TempDir folder;
  Child agent([&] {
    TestControl control;
    control.has_lease = true;
    control.lease = boot_time() + kLease;
    AgentOptions options = shells({"setsid sh -c 'echo $$ > " + (folder / "helper").string() +
                                   "; while :; do sleep 0.02; done' & " + loop(folder / "0")});
    options.control = &control;
    std::atomic<bool> over = false;
    std::thread above([&] {
      while (!over) {
        control.lease = std::max(control.lease.load(), boot_time() + kLease);
        std::this_thread::sleep_for(milliseconds(20));
      }
    });
    const AgentResult result = run_agent(options);
    over = true;
    above.join();
    return control.leases_over == 1 && !result.first_failure ? 0 : 1;
  });
  const pid_t worker = pid_in(folder / "0");
  const pid_t helper = pid_in(folder / "helper");
  kill(agent.pid(), SIGSTOP);
  CHECK(wait_until([&] { return !alive(worker) && !alive(helper); }));
  kill(agent.pid(), SIGCONT);
  CHECK(agent.wait() == 0);
}

TEST_CASE("Ctrl-Z does not stop an agent that others count on and it says so once") {
  TempDir folder;
  Child agent([&] {
    TestControl control;
    AgentOptions options = shells({loop(folder / "0")});
    options.control = &control;
    int said = 0;
    options.on_notice = [&](std::string_view line) {
      said += line.find("SIGTSTP") != std::string_view::npos ? 1 : 0;
    };
    control.on_started = [&](int, int) {
      raise(SIGTSTP);
      raise(SIGTSTP);
      control.order({.kind = Command::kill, .why = {}});
    };
    run_agent(options);
    return said == 1 ? 0 : 1;
  });
  CHECK(agent.wait() == 0);
}
