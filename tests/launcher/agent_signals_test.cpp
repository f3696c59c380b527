// run_agent with real processes: what signals ask of it, and what it and its workers make of them.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>

#include <doctest/doctest.h>

#include "launcher/agent/agent.h"
#include "launcher/new_terminal.h"
#include "launcher/processes.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;

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
    options.on_notice = [&](std::string_view line) {
      if (line.starts_with("SIGTERM: ")) write(folder / "heard", "");
    };
    const AgentResult result = run_agent(options);
    return result.interrupt_signal == SIGTERM ? result.exit_code : 99;
  });
  const pid_t worker = pid_in(ready);
  REQUIRE(worker > 0);
  kill(agent.pid(), SIGUSR2);
  CHECK(pid_in(termed) == worker);
  for (int i = 0; i < 2; ++i) {
    kill(agent.pid(), SIGUSR2);
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    CHECK(alive(worker));
  }
  kill(agent.pid(), SIGTERM);
  CHECK(wait_until([&] { return std::filesystem::exists(folder / "heard"); }));
  CHECK(alive(worker));
  write(folder / "end", "");
  CHECK(agent.wait() == 75);
  CHECK(file_text(termed) == std::to_string(worker) + "\n");  // asked once
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

TEST_CASE("a signal that is sent twice at once, or a HUP behind another, is no second wish") {
  for (const auto& [first, second] : {std::pair{SIGTERM, SIGTERM},
                                      {SIGINT, SIGINT},
                                      {SIGHUP, SIGHUP},
                                      {SIGTERM, SIGHUP},
                                      {SIGHUP, SIGTERM}}) {
    CAPTURE(first);
    CAPTURE(second);
    TempDir folder;
    const std::string ready = folder / "ready";
    const std::string asked = folder / "asked";
    Child agent([&] {
      const std::string wait =
          "; while :; do sleep 0.02; [ -e " + (folder / "end").string() + " ] && exit 75; done";
      AgentOptions options =
          shells({"trap 'echo $$ > " + asked + "' TERM INT; echo $$ > " + ready + wait});
      options.grace = std::chrono::hours(1);
      return run_agent(options).exit_code;
    });
    const pid_t worker = pid_in(ready);
    REQUIRE(worker > 0);
    kill(agent.pid(), first);
    // A HUP may come long after, of a shell that had to write its history.
    if (second == SIGHUP) CHECK(pid_in(asked) == worker);
    kill(agent.pid(), second);
    CHECK(pid_in(asked) == worker);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    CHECK(alive(worker));
    write(folder / "end", "");
    CHECK(agent.wait() == 75);
  }
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
  CHECK(file_text(folder / "rank-00000.log") ==
        "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

TEST_CASE("a Ctrl-C at the terminal reaches the agent only") {
  TempDir folder;
  const NewTerminal terminal;
  Child agent([&] {
    setsid();
    const int tty =
        open(terminal.name.c_str(), O_RDWR);  // the first one opened becomes the terminal
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
  CHECK(::write(terminal.master.get(), "\x03", 1) == 1);
  // Which asks the worker once: that it has heard of it twice would be the terminal's doing.
  CHECK(pid_in(folder / "asked") == worker);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  folder.file("end", "");
  CHECK(agent.wait() == 75);
  CHECK(file_text(folder / "asked") == std::to_string(worker) + "\n");
}
