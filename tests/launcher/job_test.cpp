// Jobs with real processes: all ranks here, an agent per host (as children of this test), and the
// same command on several "nodes" (processes that meet on the loopback).
#include "launcher/job/job.h"

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>
#include <unistd.h>

#include <netinet/in.h>
#include <sys/socket.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/version.h"
#include "launcher/processes.h"
#include "launcher/system/reserved_port.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

JobOptions shell_job(const std::string& script) {
  JobOptions job;
  job.version = version();
  job.program.argv = {"/bin/sh", "-c", script};
  job.request.grace = 5s;
  job.request.dead_after = 120s;  // nobody is lost for being slow
  job.request.remote_program = MTL_PROGRAM;
  return job;
}

JobOptions on_hosts(const std::string& script, int hosts, int slots) {
  JobOptions job = shell_job(script);
  job.request.mode = LaunchRequest::Mode::hosts;
  job.request.config.use_cpu = true;  // the GPUs of a machine are for one agent
  // Two names of this machine, and more by numbers: each gets an agent of its own.
  for (const char* name : {"localhost", "127.0.0.1", "::1"}) {
    if (static_cast<int>(job.request.hosts.size()) == hosts) break;
    Host& host = job.request.hosts.emplace_back();
    host.name = name;
    host.slots = slots;
  }
  job.request.min_nodes = job.request.max_nodes = hosts;
  return job;
}

std::vector<std::string> lines_of(const fs::path& folder) {
  std::vector<std::string> lines;
  for (const auto& entry : fs::directory_iterator(folder)) {
    lines.push_back(file_text(entry.path()));
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace

TEST_CASE("a local job is started again as often as was allowed") {
  const TempDir dir;
  JobOptions job = shell_job("echo $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS >> " +
                             (dir.path() / "r$RANK").string() + "; exit 9");
  job.request.ranks = job.request.local_ranks = 1;
  job.request.max_restarts = 2;
  std::vector<std::string> notices;
  job.ears.on_notice = [&](std::string_view line) { notices.emplace_back(line); };
  const JobOutcome outcome = run_job(job);
  CHECK(outcome.exit_code == 9);
  CHECK(file_text(dir.path() / "r0") == "0 2\n1 2\n2 2\n");
  REQUIRE(notices.size() == 2);
  CHECK(notices[1] == "restart 2 of 2: rank 0 exited with code 9");
}

TEST_CASE("a local job whose port somebody has takes a free one and says so") {
  const TempDir dir;
  const Fd other(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  REQUIRE(bind(other.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(listen(other.get(), 1) == 0);
  REQUIRE(getsockname(other.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  JobOptions job = shell_job("echo $MASTER_PORT > " + (dir.path() / "port").string());
  job.request.ranks = job.request.local_ranks = 1;
  job.request.master_port = ntohs(address.sin_port);
  std::vector<std::string> notices;
  job.ears.on_notice = [&](std::string_view line) { notices.emplace_back(line); };
  CHECK(run_job(job).exit_code == 0);
  const int port = std::stoi(file_text(dir.path() / "port"));
  CHECK(port != job.request.master_port);
  REQUIRE(notices.size() == 1);
  CHECK(notices[0].starts_with(
      fmt::format("warning: port {} is taken by process {}", job.request.master_port, getpid())));
  CHECK(notices[0].ends_with(fmt::format("the ranks meet at port {} instead", port)));
}

TEST_CASE("hosts: every rank has its place and rank 0's output comes here") {
  const TempDir dir;
  JobOptions job = on_hosts("echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK > " +
                                (dir.path() / "r$RANK").string() + "; echo out $RANK; echo err >&2",
                            3, 2);
  std::string out;
  job.ears.on_output = [&](int rank, bool is_stderr, std::string_view line) {
    CHECK(rank == 0);
    out += (is_stderr ? "E " : "O ") + std::string(line) + "\n";
  };
  const JobOutcome outcome = run_job(job);
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.report.empty());
  CHECK(lines_of(dir.path()) == std::vector<std::string>{"0 0 6 2 0\n", "1 1 6 2 0\n",
                                                         "2 0 6 2 1\n", "3 1 6 2 1\n",
                                                         "4 0 6 2 2\n", "5 1 6 2 2\n"});
  CHECK(out.find("O out 0\n") != std::string::npos);
  CHECK(out.find("E err\n") != std::string::npos);
}

TEST_CASE("hosts: a rank's failure ends all others, and names rank, place and last lines") {
  JobOptions job = on_hosts(
      "if [ $RANK = 3 ]; then sleep 0.2; echo because >&2; exit 42; fi; exec sleep 1000", 2, 2);
  const JobOutcome outcome = run_job(job);
  CHECK(outcome.exit_code == 42);
  REQUIRE(outcome.report.size() == 1);
  const std::string text = render(outcome.report[0]);
  CHECK(text.find("rank 3") != std::string::npos);
  CHECK(text.find("127.0.0.1") != std::string::npos);
  CHECK(text.find("because") != std::string::npos);
}

TEST_CASE("hosts: all are started again after a crash on one") {
  const TempDir dir;
  JobOptions job =
      on_hosts("echo $TORCHELASTIC_RESTART_COUNT >> " + (dir.path() / "r$RANK").string() +
                   "; if [ $RANK = 3 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then "
                   "while [ $(ls " +
                   dir.path().string() +
                   " | wc -l) -lt 4 ]; do sleep 0.01; done; kill -SEGV $$; fi; [ "
                   "$TORCHELASTIC_RESTART_COUNT = 1 ] || exec "
                   "sleep 1000",
               2, 2);
  job.request.max_restarts = 1;
  const JobOutcome outcome = run_job(job);
  CHECK(outcome.exit_code == 0);
  CHECK(lines_of(dir.path()) == std::vector<std::string>(4, "0\n1\n"));
}

TEST_CASE("hosts: what is missing is said before anything starts") {
  const TempDir dir;
  JobOptions job = on_hosts("true", 2, 1);
  SUBCASE("the program") {
    job.program.argv = {"/no/such/program"};
    const JobOutcome outcome = run_job(job);
    CHECK(outcome.exit_code == 127);
    REQUIRE(outcome.report.size() == 2);  // of both hosts at once, and that they are too few
    CHECK(outcome.report[0].what.find("/no/such/program") != std::string::npos);
    CHECK(outcome.report[0].what.starts_with("localhost, 127.0.0.1: "));
  }
  SUBCASE("the folder") {
    job.program.working_directory = "/no/such/folder";
    CHECK(run_job(job).report[0].what.find("/no/such/folder") != std::string::npos);
  }
  SUBCASE("a file") {
    job.program.needed_files = {(dir.path() / "script.py").string()};
    CHECK(run_job(job).report[0].what.find("script.py") != std::string::npos);
  }
  SUBCASE("the interface") {
    job.request.interface = "nic77";
    CHECK(run_job(job).report[0].what.find("nic77") != std::string::npos);
  }
}

TEST_CASE("hosts: an agent that is killed takes its ranks with it and is named") {
  const TempDir dir;
  const fs::path pid_file = dir.path() / "pid";
  JobOptions job = on_hosts(
      "if [ $RANK = 1 ]; then echo $$ > " + pid_file.string() + "; fi; exec sleep 1000", 2, 1);
  JobOutcome outcome;
  std::thread killer([&] {
    const pid_t worker = pid_in(pid_file);
    // worker -> keeper -> agent
    const auto parent = [](pid_t pid) {
      const std::string text = file_text("/proc/" + std::to_string(pid) + "/stat");
      return std::stoi(text.substr(text.rfind(')') + 4));
    };
    kill(parent(parent(worker)), SIGKILL);
    wait_until([&] { return !alive(worker); });
    CHECK(!alive(worker));
  });
  outcome = run_job(job);
  killer.join();
  CHECK(outcome.exit_code == 1);
  REQUIRE(!outcome.report.empty());
  CHECK(outcome.report[0].code == "launch.node_lost");
  CHECK(outcome.report[0].what.find("127.0.0.1") != std::string::npos);
}

TEST_CASE("hosts: a launcher that is killed takes everything with it") {
  const TempDir dir;
  JobOptions job =
      on_hosts("echo $$ > " + (dir.path() / "r$RANK").string() + "; exec sleep 1000", 2, 2);
  Child launcher([&] { return run_job(job).exit_code; });
  std::vector<pid_t> workers;
  for (int rank = 0; rank < 4; ++rank) {
    workers.push_back(pid_in(dir.path() / ("r" + std::to_string(rank))));
  }
  kill(launcher.pid(), SIGKILL);
  launcher.wait();
  CHECK(wait_until([&] {
    return std::none_of(workers.begin(), workers.end(), [](pid_t pid) { return alive(pid); });
  }));
}

TEST_CASE("hosts: a request to stop reaches every rank and a second one kills") {
  const TempDir dir;
  const std::string ready = (dir.path() / "r$RANK").string();
  SUBCASE("ranks that obey with a checkpoint") {
    JobOptions job =
        on_hosts("trap 'exit 75' INT; echo $$ > " + ready + "; while :; do sleep 0.05; done", 2, 2);
    Child launcher([&] { return run_job(job).exit_code; });
    for (int rank = 0; rank < 4; ++rank) pid_in(dir.path() / ("r" + std::to_string(rank)));
    kill(launcher.pid(), SIGINT);
    CHECK(launcher.wait() == 75);
  }
  SUBCASE("ranks that die of it have obeyed") {
    JobOptions job = on_hosts("echo $$ > " + ready + "; while :; do sleep 0.05; done", 2, 2);
    Child launcher([&] {
      const JobOutcome outcome = run_job(job);
      return outcome.first_failure ? 99 : outcome.exit_code;
    });
    for (int rank = 0; rank < 4; ++rank) pid_in(dir.path() / ("r" + std::to_string(rank)));
    kill(launcher.pid(), SIGINT);
    CHECK(launcher.wait() == 130);
  }
  SUBCASE("ranks that do not listen") {
    const std::string heard = (dir.path() / "t$RANK").string();
    JobOptions job = on_hosts("trap 'echo $$ > " + heard + "' TERM; echo $$ > " + ready +
                                  "; while :; do sleep 0.05; done",
                              2, 2);
    job.request.grace = 1000s;
    Child launcher([&] { return run_job(job).exit_code; });
    for (int rank = 0; rank < 4; ++rank) pid_in(dir.path() / ("r" + std::to_string(rank)));
    kill(launcher.pid(), SIGTERM);
    // Two that come together are one.
    for (int rank = 0; rank < 4; ++rank) pid_in(dir.path() / ("t" + std::to_string(rank)));
    kill(launcher.pid(), SIGINT);
    CHECK(launcher.wait() == 143);
  }
}

TEST_CASE("hosts: 50 MB of output arrive to the last line") {
  JobOptions job = on_hosts("yes $(printf '%099d' 0) | head -c 50000000", 1, 1);
  int64_t lines = 0, others = 0;
  job.ears.on_output = [&](int, bool, std::string_view line) {
    ++(line.size() == 99 ? lines : others);
  };
  CHECK(run_job(job).exit_code == 0);
  CHECK(lines == 500'000);
  CHECK(others == 0);
}

TEST_CASE("hosts: a rank that prints without end is stopped on request") {
  const TempDir dir;
  JobOptions job = on_hosts("echo $$ > " + (dir.path() / "r").string() + "; exec yes", 1, 1);
  job.ears.on_output = [](int, bool, std::string_view) {};
  Child launcher([&] { return run_job(job).exit_code; });
  REQUIRE(pid_in(dir.path() / "r") > 0);
  std::this_thread::sleep_for(300ms);  // so that there is a backlog
  kill(launcher.pid(), SIGINT);
  CHECK(launcher.wait() == 130);
}

// --- typed on every node

namespace {

JobOptions member(const std::string& script, int rank, int nodes, int local_ranks, uint16_t port) {
  JobOptions job = shell_job(script);
  job.request.mode = LaunchRequest::Mode::member;
  job.request.machine_rank = rank;
  job.request.min_nodes = job.request.max_nodes = nodes;
  job.request.local_ranks = local_ranks;
  job.request.address = "127.0.0.1";
  job.request.port = port;
  job.request.join_timeout = kPatience;
  return job;
}

}  // namespace

TEST_CASE("hosts: Ctrl-C ends the wait for an agent of this host that says nothing") {
  const TempDir dir;
  const fs::path silent = dir.path() / "silent";
  std::ofstream(silent) << "#!/bin/sh\nkill -INT $PPID; exec cat > " +
                               (dir.path() / "null").string() + "\n";
  fs::permissions(silent, fs::perms::owner_all);
  Child job([&] {
    JobOptions options = on_hosts("echo never", 2, 1);
    options.request.remote_program = silent;
    return run_job(options).exit_code;
  });
  CHECK(job.wait() == 128 + SIGINT);
}

TEST_CASE("hosts: a signal that is for the ranks leaves no host out") {
  const TempDir dir;
  const fs::path slow = dir.path() / "slow";
  std::ofstream(slow) << "#!/bin/sh\nkill -USR1 $PPID; exec " MTL_PROGRAM " \"$@\"\n";
  fs::permissions(slow, fs::perms::owner_all);
  Child job([&] {
    JobOptions options = on_hosts("exit 0", 2, 1);
    options.request.remote_program = slow;
    options.request.join_timeout = kPatience;
    return run_job(options).exit_code;
  });
  CHECK(job.wait() == 0);
}

TEST_CASE("members: another version of mtl ends the job on both machines") {
  const ReservedPort kept(0);  // nobody else gets it
  const uint16_t port = kept.port();
  Child zero([&] {
    const JobOutcome outcome = run_job(member("true", 0, 2, 1, port));
    const bool named = !outcome.report.empty() && outcome.report.front().code == "launch.version" &&
                       outcome.report.front().what.find("has mtl 0.0.0") != std::string::npos;
    return named ? outcome.exit_code : 99;
  });
  Child one([&] {
    JobOptions options = member("true", 1, 2, 1, port);
    options.version = "0.0.0";
    try {
      return run_job(options).exit_code;
    } catch (const Error& error) {
      return error.diagnostics().front().code == "launch.version" ? static_cast<int>(error.exit())
                                                                  : 99;
    }
  });
  CHECK(zero.wait() == 4);
  CHECK(one.wait() == 4);
}

TEST_CASE("members: three nodes with different numbers of ranks") {
  const TempDir dir;
  const ReservedPort kept(0);  // nobody else gets it
  const uint16_t port = kept.port();
  const std::string script =
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK "
      "$MASTER_ADDR > " +
      (dir.path() / "r$RANK").string();
  // Node 0 comes last: the others wait for it.
  Child two([&] { return run_job(member(script, 2, 3, 1, port)).exit_code; });
  Child one([&] { return run_job(member(script, 1, 3, 2, port)).exit_code; });
  Child zero([&] { return run_job(member(script, 0, 3, 1, port)).exit_code; });
  CHECK(zero.wait() == 0);
  CHECK(one.wait() == 0);
  CHECK(two.wait() == 0);
  CHECK(lines_of(dir.path()) ==
        std::vector<std::string>{"0 0 4 1 0 127.0.0.1\n", "1 0 4 2 1 127.0.0.1\n",
                                 "2 1 4 2 1 127.0.0.1\n", "3 0 4 1 2 127.0.0.1\n"});
}

TEST_CASE("members: a command for another number of ranks in all is refused and the job waits on") {
  const ReservedPort kept(0);  // nobody else gets it
  const uint16_t port = kept.port();
  const auto of_all = [&](int rank, int ranks) {
    JobOptions options = member("true", rank, 2, ranks / 2, port);
    options.request.ranks = ranks;
    options.request.total_said = true;
    return options;
  };
  Child zero([&] { return run_job(of_all(0, 4)).exit_code; });
  Child wrong([&] {
    const JobOutcome outcome = run_job(of_all(1, 6));
    const bool said = outcome.report.size() == 1 &&
                      has(outcome.report.front().what, "for 6 ranks in all and this job for 4");
    return said ? outcome.exit_code : 99;
  });
  CHECK(wrong.wait() == 4);
  Child right([&] { return run_job(of_all(1, 4)).exit_code; });
  CHECK(right.wait() == 0);
  CHECK(zero.wait() == 0);
}

TEST_CASE("members: a failure on one node is the exit code of all") {
  const ReservedPort kept(0);  // nobody else gets it
  const uint16_t port = kept.port();
  const std::string script = "if [ $RANK = 1 ]; then exit 42; fi; exec sleep 1000";
  Child one([&] { return run_job(member(script, 1, 2, 1, port)).exit_code; });
  Child zero([&] { return run_job(member(script, 0, 2, 1, port)).exit_code; });
  CHECK(zero.wait() == 42);
  CHECK(one.wait() == 42);
}

TEST_CASE("members: another token does not get in") {
  const ReservedPort kept(0);  // nobody else gets it
  const uint16_t port = kept.port();
  JobOptions right = member("true", 0, 2, 1, port);
  right.request.token = "secret";
  JobOptions wrong = member("true", 1, 2, 1, port);
  wrong.request.token = "guess";
  Child zero([&] { return run_job(right).exit_code; });
  CHECK_THROWS_WITH_AS(run_job(wrong), doctest::Contains("token"), Error);
  JobOptions good = member("true", 1, 2, 1, port);
  good.request.token = "secret";
  CHECK(run_job(good).exit_code == 0);
  CHECK(zero.wait() == 0);
}

TEST_CASE("members: the ranks of a stopped agent are dead before the others go on without it") {
  const TempDir dir;
  const ReservedPort kept(0);  // nobody else gets it
  const uint16_t port = kept.port();
  const auto in = [&](const char* name) { return (dir.path() / name).string(); };
  // Generation 1 looks at the worker of the node that was lost before it does anything else.
  const std::string script = "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then echo $$ > " +
                             in("n$GROUP_RANK") + "; while :; do echo x >> " +
                             in("beat$GROUP_RANK") +
                             "; sleep 0.01; done; fi; "
                             "case \"$(cat /proc/$(cat " +
                             in("n1") +
                             ")/stat 2> /dev/null)\" in "
                             "''|*') Z '*|*') X '*) echo dead > " +
                             in("seen") + ";; *) echo alive > " + in("seen") + ";; esac";
  const auto node = [&] {
    JobOptions job = member(script, -1, 2, 1, port);
    job.request.elastic = true;
    job.request.min_nodes = 1;
    job.request.last_call = kPatience;  // both are there before that
    job.request.dead_after = 10s;
    return job;
  };
  Child a([&] { return run_job(node()).exit_code; });
  wait_until([&] { return !port_owner(port).empty(); });
  Child b([&] {
    const JobOutcome outcome = run_job(node());
    write(dir.path() / "report", outcome.report.empty() ? "" : render(outcome.report[0]));
    return outcome.exit_code;
  });
  pid_in(dir.path() / "n0");
  const pid_t lost = pid_in(dir.path() / "n1");
  kill(b.pid(), SIGSTOP);
  CHECK(a.wait() == 0);
  CHECK(file_text(dir.path() / "seen") == "dead\n");
  CHECK(!alive(lost));
  CHECK(fs::last_write_time(dir.path() / "beat1") < fs::last_write_time(dir.path() / "seen"));
  // Continued, it says what has happened, and ends.
  kill(b.pid(), SIGCONT);
  CHECK(b.wait() == 1);
  const std::string report = file_text(dir.path() / "report");
  CHECK(report.find("launch.controller_lost") != std::string::npos);
  CHECK(report.find("could not be reached in time") != std::string::npos);
}

TEST_CASE("members: elastic, the first one there leads and a lost one is not waited for") {
  const TempDir dir;
  const ReservedPort kept(0);  // nobody else gets it
  const uint16_t port = kept.port();
  const std::string script =
      "echo $$ > " + (dir.path() / "n$GROUP_RANK").string() +
      ".$TORCHELASTIC_RESTART_COUNT; "
      "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 1000; echo $WORLD_SIZE > " +
      (dir.path() / "world").string();
  const auto node = [&] {
    JobOptions job = member(script, -1, 3, 1, port);
    job.request.elastic = true;
    job.request.min_nodes = 2;
    job.request.last_call = kPatience;
    return job;
  };
  Child a([&] { return run_job(node()).exit_code; });
  wait_until([&] { return !port_owner(port).empty(); });
  Child b([&] { return run_job(node()).exit_code; });
  Child c([&] { return run_job(node()).exit_code; });
  for (int n = 0; n < 3; ++n) pid_in(dir.path() / ("n" + std::to_string(n) + ".0"));
  kill(c.pid(), SIGKILL);
  CHECK(a.wait() == 0);
  CHECK(b.wait() == 0);
  CHECK(file_text(dir.path() / "world") == "2\n");
}
