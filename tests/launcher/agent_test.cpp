// run_agent with real processes: how they end, what of it is reported, and how they are started.
#include "launcher/agent/agent.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>

#include "launcher/agent_refusal.h"
#include "launcher/processes.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;

namespace {

std::vector<int> exit_codes(const AgentResult& result) {
  std::vector<int> codes(result.ends.size(), -1);
  for (const WorkerEnd& end : result.ends) codes[static_cast<size_t>(end.rank)] = end.exit_code;
  return codes;
}

}  // namespace

TEST_CASE("workers that all end well give 0") {
  const AgentResult result = run_agent(shells({"exit 0", "true", ":"}));
  CHECK(result.exit_code == 0);
  CHECK(!result.first_failure);
  CHECK(!result.interrupted);
  CHECK(exit_codes(result) == std::vector<int>{0, 0, 0});
  for (const WorkerEnd& end : result.ends) {
    CHECK(end.pid > 0);
    CHECK(!end.stopped_by_us);
    CHECK(end.when >= result.started);
  }
}

TEST_CASE("no workers is nothing to do") {
  CHECK(run_agent(AgentOptions{}).exit_code == 0);
}

TEST_CASE("the exit code is the failing rank's") {
  for (int code : {1, 2, 42, 126, 255}) {
    const AgentResult result = run_agent(shells({"sleep 1000", "exit " + std::to_string(code)}));
    CHECK(result.exit_code == code);
    REQUIRE(result.first_failure);
    CHECK(result.first_failure->rank == 1);
    CHECK(result.first_failure->exit_code == code);
    CHECK(result.first_failure->signal == 0);
    CHECK(!result.first_failure->stopped_by_us);
    CHECK(exit_codes(result) == std::vector<int>{128 + SIGTERM, code});
    CHECK(result.ends[1].stopped_by_us);
  }
}

TEST_CASE("a signal gives 128 + n") {
  for (int signal : {SIGSEGV, SIGKILL, SIGABRT, SIGTERM, SIGUSR2}) {
    const AgentResult result =
        run_agent(shells({"ulimit -c 0; kill -" + std::to_string(signal) + " $$; sleep 1000"}));
    CHECK(result.exit_code == 128 + signal);
    REQUIRE(result.first_failure);
    CHECK(result.first_failure->signal == signal);
    CHECK(result.first_failure->exit_code == 128 + signal);
  }
}

TEST_CASE("the first failure is the headline, the others' noise is not") {
  TempDir folder;
  const std::string up = folder / "up";
  const std::string late = "trap 'exit 9' TERM; : > " + up + "$RANK; while :; do sleep 0.01; done";
  const std::string first = "until [ -e " + up + "0 ] && [ -e " + up + "1 ] && [ -e " + up +
                            "3 ]; do sleep 0.01; done; exit 5";
  const AgentResult result = run_agent(shells({late, late, first, late}));
  CHECK(result.exit_code == 5);
  REQUIRE(result.first_failure);
  CHECK(result.first_failure->rank == 2);
  CHECK(exit_codes(result) == std::vector<int>{9, 9, 5, 9});
  CHECK(result.ends.front().rank == 2);
  CHECK(std::count_if(result.ends.begin(), result.ends.end(),
                      [](const WorkerEnd& end) { return end.stopped_by_us; }) == 3);
}

TEST_CASE("of deaths seen together the one by a signal is the cause") {
  // Both are dead before the keeper can look: the second stops the keeper until it is so.
  TempDir folder;
  const std::string first = folder / "first", go = folder / "go";
  const AgentOptions options = shells(
      {"echo $$ > " + first + "; while [ ! -e " + go + " ]; do sleep 0.01; done; exit 3",
       "dead() { case \"$(cat /proc/$1/stat)\" in *') Z '*) ;; *) false ;; esac; }; K=$PPID; "
       "while [ ! -s " +
           first +
           " ]; do sleep 0.01; done; "
           "(until dead $(cat " +
           first +
           ") && dead $$; do sleep 0.02; done; kill -CONT $K) & "
           "kill -STOP $K; echo > " +
           go + "; kill -KILL $$"});
  const AgentResult result = run_agent(options);
  REQUIRE(result.first_failure);
  CHECK(result.first_failure->rank == 1);
  CHECK(result.exit_code == 128 + SIGKILL);
}

TEST_CASE("a worker that ignores TERM is killed after the grace") {
  TempDir folder;
  const std::string ready = folder / "ready";
  AgentOptions options = shells({"trap '' TERM; : > " + ready + "; while :; do sleep 0.05; done",
                                 "while [ ! -e " + ready + " ]; do sleep 0.01; done; exit 7"});
  options.grace = std::chrono::milliseconds(200);
  const AgentResult result = run_agent(options);
  CHECK(result.exit_code == 7);
  CHECK(exit_codes(result) == std::vector<int>{128 + SIGKILL, 7});
  const auto waited = result.ends[1].when - result.ends[0].when;
  CHECK(waited >= std::chrono::milliseconds(150));
}

TEST_CASE("75 from every rank is 75 and no failure") {
  const AgentResult result = run_agent(shells({"exit 75", "sleep 0.05; exit 75"}));
  CHECK(result.exit_code == 75);
  CHECK(!result.first_failure);
}

TEST_CASE("after an unasked 75 the others get the grace to follow, then they are stopped") {
  TempDir folder;
  const std::string ready = folder / "ready";
  AgentOptions options =
      shells({"while [ ! -e " + ready + " ]; do sleep 0.01; done; exit 75",
              "trap 'exit 6' TERM; : > " + ready + "; while :; do sleep 0.01; done"});
  options.grace = std::chrono::milliseconds(300);
  const AgentResult result = run_agent(options);
  CHECK(exit_codes(result) == std::vector<int>{75, 6});
  CHECK(result.exit_code == 6);
  REQUIRE(result.first_failure);
  CHECK(result.first_failure->rank == 1);
  CHECK(result.ends[1].when - result.ends[0].when >= std::chrono::milliseconds(250));
}

TEST_CASE("environment and arguments arrive as given") {
  TempDir folder;
  AgentOptions options = shells({""});
  options.workers[0].argv = {"sh",  "-c", "printf '%s|' \"$0\" \"$@\" \"$RANK\" \"$ODD\"",
                             "a b", "",   "*"};
  options.workers[0].env["ODD"] = "x=y \n'\"";
  options.logs.dir = folder.path();
  CHECK(run_agent(options).exit_code == 0);
  CHECK(file_text(folder / "rank-00000.log") == "a b||*|0|x=y \n'\"|\n");
}

TEST_CASE("a request to stop waits for a worker that takes signals, from its first moment on") {
  const auto blocked = [](bool takes_signals) {
    const TempDir folder;
    AgentOptions options = shells({""});
    options.workers[0].argv = {"grep", "SigBlk", "/proc/self/status"};  // a shell begins with none
    options.workers[0].takes_signals = takes_signals;
    options.logs.dir = folder.path();
    CHECK(run_agent(options).exit_code == 0);
    return std::stoull(file_text(folder / "rank-00000.log").substr(7), nullptr, 16);
  };
  CHECK(blocked(false) == 0);
  uint64_t wanted = 0;
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) wanted |= 1ULL << (signal - 1);
  CHECK(blocked(true) == wanted);
}

TEST_CASE("a worker's PATH finds its program") {
  TempDir folder;
  write(folder / "only-here", "#!/bin/sh\nexit 17\n");
  std::filesystem::permissions(folder / "only-here", std::filesystem::perms::owner_all);
  AgentOptions options = shells({""});
  options.workers[0].argv = {"only-here"};
  options.workers[0].env["PATH"] = "/nowhere:" + folder.path().string();
  CHECK(run_agent(options).exit_code == 17);
}

TEST_CASE("a missing program is 127, one that is none 126, and named") {
  TempDir folder;
  AgentOptions options = shells({"sleep 1000", ""});
  int code = 0;
  SUBCASE("not in PATH") {
    options.workers[1].argv = {"no-such-program-anywhere"};
    const Diagnostic diagnostic = refusal(options, code);
    CHECK(code == 127);
    CHECK(diagnostic.code == "launch.program_missing");
    CHECK(diagnostic.what.find("no-such-program-anywhere") != std::string::npos);
    CHECK(diagnostic.help.find("PATH") != std::string::npos);
  }
  SUBCASE("no such file") {
    options.workers[1].argv = {(folder / "gone").string()};
    CHECK(refusal(options, code).what.find("gone") != std::string::npos);
    CHECK(code == 127);
  }
  SUBCASE("no argv") {
    options.workers[1].argv.clear();
    refusal(options, code);
    CHECK(code == 127);
  }
  SUBCASE("not executable") {
    write(folder / "plain.py", "print(1)\n");
    options.workers[1].argv = {(folder / "plain.py").string()};
    const Diagnostic diagnostic = refusal(options, code);
    CHECK(code == 126);
    CHECK(diagnostic.help.find("python3") != std::string::npos);
  }
  SUBCASE("a directory") {
    options.workers[1].argv = {folder.path().string()};
    CHECK(refusal(options, code).help.find("directory") != std::string::npos);
    CHECK(code == 126);
  }
  SUBCASE("not executable in PATH") {
    write(folder / "tool", "");
    options.workers[1].argv = {"tool"};
    options.workers[1].env["PATH"] = folder.path();
    refusal(options, code);
    CHECK(code == 126);
  }
  SUBCASE("in a folder that may not be entered") {
    write(folder / "tool", "");
    options.workers[1].argv = {(folder / "tool").string()};
    std::filesystem::permissions(folder.path(), std::filesystem::perms::none);
    const uid_t user = geteuid();
    if (user == 0) REQUIRE(seteuid(65534) == 0);  // root may enter any
    const std::string help = refusal(options, code).help;
    if (user == 0) REQUIRE(seteuid(user) == 0);
    std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
    CHECK(help.find("enter a folder") != std::string::npos);
    CHECK(code == 126);
  }
  // These are found by execve only, when the first worker runs already: it has to go.
  SUBCASE("interpreter missing") {
    write(folder / "script", "#!/no/such/interpreter\n");
    std::filesystem::permissions(folder / "script", std::filesystem::perms::owner_all);
    options.workers[1].argv = {(folder / "script").string()};
    CHECK(refusal(options, code).help.find("interpreter") != std::string::npos);
    CHECK(code == 127);
  }
  SUBCASE("no format that the kernel knows") {
    write(folder / "noise", "neither ELF nor #!\n");
    std::filesystem::permissions(folder / "noise", std::filesystem::perms::owner_all);
    options.workers[0].argv[2] = "echo $$ > " + (folder / "pid").string() + "; sleep 1000";
    options.workers[1].argv = {(folder / "noise").string()};
    CHECK(refusal(options, code).help.find("#!") != std::string::npos);
    CHECK(code == 126);
    const std::string pid = file_text(folder / "pid");
    if (!pid.empty()) CHECK(!alive(std::stoi(pid)));
  }
}

TEST_CASE("only one agent at a time in a process") {
  int code = 0;
  AgentOptions options = shells({"echo x"});
  options.logs.console_default = -1;
  std::string nested;
  options.on_output = [&](int, bool, std::string_view) {
    int ignored = 0;
    nested = refusal(shells({"exit 0"}), ignored).code;
    code = ignored;
  };
  options.workers[0].argv[2] = "echo x; sleep 0.3";
  CHECK(run_agent(options).exit_code == 0);
  CHECK(nested == "launch.busy");
  CHECK(code == 4);
}

TEST_CASE("many short jobs in a row") {
  // The keeper ends while the agent is still telling it things; that is no failure.
  AgentOptions options = shells({"", ""});
  for (WorkerCommand& worker : options.workers) worker.argv = {"true"};
  for (int i = 0; i < 200; ++i) REQUIRE(run_agent(options).exit_code == 0);
}

TEST_CASE("many workers") {
  std::vector<std::string> scripts(64, "exit 0");
  scripts[37] = "sleep 0.1; exit 21";
  const AgentResult result = run_agent(shells(scripts));
  CHECK(result.exit_code == 21);
  CHECK(result.ends.size() == 64);
}
