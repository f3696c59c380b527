// run_agent with real processes: that nothing is left behind, neither processes nor descriptors,
// and which descriptors its workers get.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>

#include <doctest/doctest.h>

#include "launcher/agent/agent.h"
#include "launcher/agent_refusal.h"
#include "launcher/processes.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("SIGKILL of the agent leaves nothing, not even what changed its session") {
  TempDir folder;
  const std::string f = folder.path();
  Child agent([&] {
    return run_agent(
               shells({"trap '' TERM HUP; setsid sh -c 'echo $$ > " + f +
                           "/d0; exec sleep 1000' & echo $$ > " + f + "/w0; sleep 1000",
                       "(setsid sh -c 'trap \"\" TERM; echo $$ > " + f +
                           "/d1; sleep 1000; :' &) ; echo $$ > " + f + "/w1; exec sleep 1000"}))
        .exit_code;
  });
  std::vector<pid_t> pids;
  for (const char* name : {"d0", "w0", "d1", "w1"}) pids.push_back(pid_in(folder / name));
  for (pid_t pid : pids) REQUIRE(alive(pid));
  kill(agent.pid(), SIGKILL);
  CHECK(agent.wait() == 128 + SIGKILL);
  for (pid_t pid : pids) CHECK(wait_until([&] { return !alive(pid); }));
}

TEST_CASE("SIGKILL of the keeper ends the workers and is reported") {
  TempDir folder;
  const std::string f = folder.path();
  Child agent([&] {
    int code = 0;
    const Diagnostic diagnostic =
        refusal(shells({"echo $PPID > " + f + "/keeper; setsid sh -c 'echo $$ > " + f +
                        "/d; exec sleep 1000' & echo $$ > " + f + "/w; sleep 1000"}),
                code);
    return diagnostic.code == "launch.keeper_died" && code == 4 && waitpid(-1, nullptr, 0) < 0 ? 0
                                                                                               : 99;
  });
  const pid_t keeper = pid_in(folder / "keeper");
  const pid_t descendant = pid_in(folder / "d");
  const pid_t worker = pid_in(folder / "w");
  REQUIRE(keeper > 0);
  kill(keeper, SIGKILL);
  CHECK(agent.wait() == 0);
  CHECK(!alive(worker));
  CHECK(!alive(descendant));
}

TEST_CASE("descendants go with the workers") {
  TempDir folder;
  const std::string f = folder.path();
  const std::string spawn = "(setsid sh -c 'trap \"\" TERM; echo $$ > " + f +
                            "/d; while :; do sleep 0.05; done' &); while [ ! -s " + f +
                            "/d ]; do sleep 0.01; done; ";
  AgentOptions options = shells({""});
  options.grace = std::chrono::milliseconds(100);
  SUBCASE("after success") {
    options.workers[0].argv[2] = spawn + "exit 0";
    CHECK(run_agent(options).exit_code == 0);
  }
  SUBCASE("after a failure") {
    options.workers[0].argv[2] = spawn + "exit 4";
    CHECK(run_agent(options).exit_code == 4);
  }
  SUBCASE("when the grace is over") {
    options.workers[0].argv[2] = spawn + "trap '' TERM; : > " + f + "/up; sleep 1000; sleep 1000";
    options.workers.push_back(shell(1, "while [ ! -e " + f + "/up ]; do sleep 0.01; done; exit 3"));
    CHECK(run_agent(options).exit_code == 3);
  }
  const pid_t descendant = pid_in(folder / "d");
  CHECK(descendant > 0);
  CHECK(!alive(descendant));
  CHECK(waitpid(-1, nullptr, WNOHANG) < 0);  // and no zombie is left to us
}

TEST_CASE("what a stopped wrapper leaves behind gets TERM and the grace, not KILL") {
  TempDir folder;
  const std::string f = folder.path();
  AgentOptions options =
      shells({"sh -c 'trap \"echo saved > " + f + "/saved; exit 0\" TERM; echo $$ > " + f +
                  "/ready; while :; do sleep 0.02; done'; exit 0",
              "while [ ! -s " + f + "/ready ]; do sleep 0.01; done; exit 3"});
  CHECK(run_agent(options).exit_code == 3);
  CHECK(file_text(folder / "saved") == "saved\n");
}

TEST_CASE("inherited descriptors arrive, no others do") {
  TempDir folder;
  int token[2], other[2];
  REQUIRE(pipe2(token, 0) == 0);  // without O_CLOEXEC: it must be closed all the same
  REQUIRE(pipe2(other, O_CLOEXEC) == 0);
  REQUIRE(::write(token[1], "secret\n", 7) == 7);
  AgentOptions options = shells({""});
  options.workers[0].argv[2] = "cat <&3; echo out >&7; exec ls -l /proc/self/fd";
  // Crossed on purpose: each target is where a source may be.
  options.workers[0].inherit = {{3, token[0]}, {7, other[1]}, {other[0], token[0]}};
  close(token[1]);
  options.logs.dir = folder.path();
  CHECK(run_agent(options).exit_code == 0);
  char text[8] = {};
  CHECK(read(other[0], text, sizeof text) == 4);
  CHECK(std::string(text) == "out\n");
  const std::string log = file_text(folder / "rank-00000.log");
  CHECK(log.starts_with("secret\n"));
  // 0, 1, 2, 3, 7, other[0] and ls's own
  std::vector<int> numbers;
  for (size_t at = 0; (at = log.find(" -> ", at)) != std::string::npos; ++at) {
    const size_t start = log.rfind(' ', at - 1) + 1;
    numbers.push_back(std::stoi(log.substr(start, at - start)));
  }
  CHECK(numbers.size() == 7);
  CHECK(std::count(numbers.begin(), numbers.end(), 7) == 1);
  CHECK(log.find("0 -> /dev/null") != std::string::npos);
  for (int fd : {token[0], other[0], other[1]}) close(fd);
}

TEST_CASE("a descriptor that is not open is refused") {
  AgentOptions options = shells({"exit 0"});
  options.workers[0].inherit[3] = 9'999;
  int code = 0;
  CHECK(refusal(options, code).code == "launch.descriptor");
  CHECK(code == 4);
}

TEST_CASE("no descriptor leaks") {
  AgentOptions options = shells({"exit 0", "exit 1", "sleep 1000"});
  run_agent(options);
  const int before = open_descriptors();
  for (int i = 0; i < 5; ++i) run_agent(options);
  options.workers[0].argv = {"/no/such/program"};
  int code = 0;
  for (int i = 0; i < 5; ++i) refusal(options, code);
  CHECK(open_descriptors() == before);
}

TEST_CASE("works with 0, 1 and 2 closed") {
  TempDir folder;
  Child agent([&] {
    for (int fd = 0; fd <= 2; ++fd) close(fd);
    AgentOptions options = shells({"cat; echo out; echo err >&2; exit 8"});
    options.logs.console_default = -1;
    options.logs.dir = folder.path();
    const AgentResult result = run_agent(options);
    const bool closed = fcntl(0, F_GETFD) < 0 && fcntl(1, F_GETFD) < 0 && fcntl(2, F_GETFD) < 0;
    return closed && result.ends[0].last_lines == std::vector<std::string>{"err"} ? result.exit_code
                                                                                  : 99;
  });
  CHECK(agent.wait() == 8);
  const std::string log = file_text(folder / "rank-00000.log");
  CHECK(log.size() == 8);
  CHECK(log.find("out\n") != std::string::npos);
}

TEST_CASE("running out of descriptors or processes is an error that says so") {
  Child agent([] {
    AgentOptions options = shells(std::vector<std::string>(40, "sleep 1000"));
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 64;
    setrlimit(RLIMIT_NOFILE, &limit);
    int code = 0;
    const Diagnostic diagnostic = refusal(options, code);
    return diagnostic.code == "launch.process" && waitpid(-1, nullptr, 0) < 0 ? code : 99;
  });
  CHECK(agent.wait() == 4);
}
