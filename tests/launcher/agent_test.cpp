// run_agent with real processes: how they end, what of it is reported, and that nothing is left.
#include "launcher/agent.h"

#include <algorithm>
#include <fcntl.h>

#include <sys/resource.h>

#include <doctest/doctest.h>

#include "launcher/processes.h"

using namespace mtl;
using namespace mtl::test;

namespace {

std::vector<int> exit_codes(const AgentResult& result) {
  std::vector<int> codes(result.ends.size(), -1);
  for (const WorkerEnd& end : result.ends) codes[static_cast<size_t>(end.rank)] = end.exit_code;
  return codes;
}

Diagnostic refusal(const AgentOptions& options, int& code) {
  try {
    run_agent(options);
  } catch (const Error& error) {
    code = static_cast<int>(error.exit());
    return error.diagnostics().front();
  }
  code = 0;
  return {};
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
  const std::string late = "trap 'exit 9' TERM; while :; do sleep 0.01; done";
  const AgentResult result = run_agent(shells({late, late, "sleep 0.1; exit 5", late}));
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
  const std::string pid_file = folder / "pid";
  const AgentOptions options =
      shells({"while [ ! -e " + pid_file + " ]; do sleep 0.01; done; exit 3",
              "K=$PPID; (sleep 0.6; kill -CONT $K) & kill -STOP $K; echo $$ > " + pid_file +
                  "; sleep 0.2; kill -KILL $$"});
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
  AgentOptions options = shells({"exit 75", "trap 'exit 6' TERM; while :; do sleep 0.01; done"});
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
  CHECK(content(folder / "rank-00000.log") == "a b||*|0|x=y \n'\"|\n");
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
    const std::string pid = content(folder / "pid");
    if (!pid.empty()) CHECK(!alive(std::stoi(pid)));
  }
}

TEST_CASE("INT, TERM and HUP ask the workers to stop") {
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    for (bool obedient : {true, false}) {
      TempDir folder;
      const std::string ready = folder / "ready";
      // Python makes a KeyboardInterrupt of INT; the others ask as a scheduler does.
      const std::string trap = signal == SIGINT ? "trap 'exit 75' INT; " : "trap 'exit 75' TERM; ";
      Child agent([&] {
        const std::string wait = "echo $$ > " + ready + "; while :; do sleep 0.02; done";
        AgentOptions options = shells({obedient ? trap + wait : wait, obedient ? "" : "exit 0"});
        if (obedient) options.workers.pop_back();
        const AgentResult result = run_agent(options);
        return result.interrupted && !result.first_failure ? result.exit_code : 99;
      });
      REQUIRE(pid_in(ready) > 0);
      kill(agent.pid(), signal);
      CHECK(agent.wait() == (obedient ? 75 : 128 + signal));
    }
  }
}

TEST_CASE("an INT ends a shell together with the program that it waits for") {
  TempDir folder;
  const std::string ready = folder / "ready";
  Child agent([&] {
    // The program says itself that it runs: between its vfork and its exec, dash loses an INT.
    AgentOptions options = shells({"sh -c 'echo $$ > " + ready + "; exec sleep 1000'; echo > " +
                                   (folder / "after").string() + "; sleep 1000"});
    options.grace = std::chrono::seconds(600);
    return run_agent(options).exit_code;
  });
  REQUIRE(pid_in(ready) > 0);
  kill(agent.pid(), SIGINT);
  CHECK(agent.wait() == 130);  // its patience is shorter than the grace
  CHECK_FALSE(std::filesystem::exists(folder / "after"));
}

TEST_CASE("an INT that comes while Python still starts is obeyed") {
  TempDir folder;
  const std::string ready = folder / "ready";
  write(folder / "sitecustomize.py", "import os, time\nwith open('" + ready +
                                         "', 'w') as file: file.write(f'{os.getpid()}\\n')\n"
                                         "time.sleep(1000)\n");
  Child agent([&] {
    const AgentResult result = run_agent(
        shells({"PYTHONPATH=" + folder.path().string() + " exec python3 -c pass", "sleep 1000"}));
    return result.interrupted && !result.first_failure ? result.exit_code : 99;
  });
  REQUIRE(pid_in(ready) > 0);
  kill(agent.pid(), SIGINT);
  CHECK(agent.wait() == 130);
}

TEST_CASE("USR2 asks once and a TERM after it is no second wish") {
  TempDir folder;
  const std::string ready = folder / "ready";
  const std::string termed = folder / "termed";
  Child agent([&] {
    AgentOptions options = shells({"trap 'echo $$ >> " + termed + "' TERM; echo $$ > " + ready +
                                   "; while :; do sleep 0.02; [ -e " + (folder / "end").string() +
                                   " ] && exit 75; done"});
    options.grace = std::chrono::hours(1);
    const AgentResult result = run_agent(options);
    return result.interrupt_signal == SIGTERM ? result.exit_code : 99;
  });
  const pid_t worker = pid_in(ready);
  REQUIRE(worker > 0);
  kill(agent.pid(), SIGUSR2);
  CHECK(pid_in(termed) == worker);
  for (const int signal : {SIGUSR2, SIGUSR2, SIGTERM}) {
    kill(agent.pid(), signal);
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    CHECK(alive(worker));
  }
  write(folder / "end", "");
  CHECK(agent.wait() == 75);
  CHECK(content(termed) == std::to_string(worker) + "\n");  // asked once
}

TEST_CASE("a second signal kills at once, whatever it is") {
  TempDir folder;
  const std::string ready = folder / "ready";
  const std::string termed = folder / "termed";
  Child agent([&] {
    AgentOptions options = shells({"trap 'echo $$ > " + termed + "' TERM; echo $$ > " + ready +
                                   "; while :; do sleep 0.02; done"});
    options.grace = std::chrono::hours(1);
    return run_agent(options).exit_code;
  });
  const pid_t worker = pid_in(ready);
  REQUIRE(worker > 0);
  kill(agent.pid(), SIGTERM);
  CHECK(pid_in(termed) == worker);  // the first one was only asked for
  CHECK(alive(worker));
  kill(agent.pid(), SIGINT);
  CHECK(agent.wait() == 128 + SIGTERM);
  CHECK(!alive(worker));
}

TEST_CASE("a failure after the request to stop is a failure") {
  TempDir folder;
  const std::string ready = folder / "ready";
  Child agent([&] {
    const AgentResult result = run_agent(
        shells({"trap 'exit 6' TERM; echo $$ > " + ready + "; while :; do sleep 0.02; done"}));
    return result.first_failure && result.first_failure->stopped_by_us ? result.exit_code : 99;
  });
  REQUIRE(pid_in(ready) > 0);
  kill(agent.pid(), SIGTERM);
  CHECK(agent.wait() == 6);
}

TEST_CASE("USR1 and QUIT are passed on and nothing else happens") {
  for (const char* name : {"USR1", "QUIT"}) {
    TempDir folder;
    const std::string ready = folder / "ready";
    Child agent([&] {
      const AgentResult result =
          run_agent(shells({"trap 'exit 0' " + std::string(name) + "; echo $$ > " + ready +
                            "; while :; do sleep 0.02; done"}));
      return result.interrupted ? 99 : result.exit_code;
    });
    REQUIRE(pid_in(ready) > 0);
    kill(agent.pid(), std::string(name) == "USR1" ? SIGUSR1 : SIGQUIT);
    CHECK(agent.wait() == 0);
  }
}

TEST_CASE("signals that were ignored stay ignored, handlers and mask come back") {
  TempDir folder;
  const std::string ready = folder / "ready";
  Child agent([&] {
    signal(SIGHUP, SIG_IGN);  // as nohup does
    signal(SIGUSR1, SIG_DFL);
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigprocmask(SIG_SETMASK, &mask, nullptr);
    const std::string go = folder / "go";
    const AgentResult result = run_agent(
        shells({"echo $$ > " + ready + "; while [ ! -e " + go + " ]; do sleep 0.02; done"}));
    struct sigaction hup {
    }, usr1{};
    sigaction(SIGHUP, nullptr, &hup);
    sigaction(SIGUSR1, nullptr, &usr1);
    sigset_t after;
    sigprocmask(SIG_SETMASK, nullptr, &after);
    const bool restored = hup.sa_handler == SIG_IGN && usr1.sa_handler == SIG_DFL &&
                          sigismember(&after, SIGTERM) == 1 && sigismember(&after, SIGINT) == 0;
    return restored && !result.interrupted ? result.exit_code : 99;
  });
  REQUIRE(pid_in(ready) > 0);
  kill(agent.pid(), SIGHUP);
  write(folder / "go", "");
  CHECK(agent.wait() == 0);
}

TEST_CASE("workers start with default signals and an empty mask") {
  TempDir folder;
  Child agent([&] {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);  // as mtl does at its start
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, nullptr);
    AgentOptions options = shells({"grep -E '^Sig(Blk|Ign)' /proc/self/status"});
    options.logs.dir = folder.path();
    return run_agent(options).exit_code;
  });
  CHECK(agent.wait() == 0);
  CHECK(content(folder / "rank-00000.log") ==
        "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

TEST_CASE("a Ctrl-C at the terminal reaches the agent only") {
  TempDir folder;
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(terminal >= 0);
  REQUIRE(grantpt(terminal) == 0);
  REQUIRE(unlockpt(terminal) == 0);
  const std::string name = ptsname(terminal);
  Child agent([&] {
    setsid();
    const int tty = open(name.c_str(), O_RDWR);  // the first one opened becomes the terminal
    for (int fd = 0; fd <= 2; ++fd) dup2(tty, fd);
    return run_agent(
               shells({"trap 'echo $$ >> " + (folder / "asked").string() +
                       "' INT TERM; echo $$ > " + (folder / "ready").string() + "; until [ -e " +
                       (folder / "end").string() + " ]; do sleep 0.02; done; exit 75"}))
        .exit_code;
  });
  const pid_t worker = pid_in(folder / "ready");
  REQUIRE(worker > 0);
  CHECK(getpgid(worker) == worker);
  CHECK(getsid(worker) == worker);
  CHECK(::write(terminal, "\x03", 1) == 1);
  // Which asks the worker once: that it has heard of it twice would be the terminal's doing.
  CHECK(pid_in(folder / "asked") == worker);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  folder.file("end", "");
  CHECK(agent.wait() == 75);
  CHECK(content(folder / "asked") == std::to_string(worker) + "\n");
  close(terminal);
}

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
  for (pid_t pid : pids) CHECK(wait_for([&] { return !alive(pid); }));
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
  CHECK(content(folder / "saved") == "saved\n");
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
  const std::string log = content(folder / "rank-00000.log");
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
  const std::string log = content(folder / "rank-00000.log");
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
