// Rounds of: start a job, SIGKILL one of its processes (a worker, the keeper, the agent) at a
// random moment from its very start on, and see what is said and what is left. Shared by the test
// and by the benchmark program that does it for longer.
#pragma once

#include <chrono>
#include <csignal>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "common/error.h"
#include "launcher/agent/agent.h"
#include "launcher/processes.h"
#include "support/text.h"

namespace mtl::test {

struct Storm {
  int rounds = 0;
  int of_worker = 0, of_keeper = 0, of_agent = 0;  // whom it hit
  std::vector<std::string> wrong;                  // what went wrong, one line each
  double longest_ms = 0;                           // from the kill until nothing was left
};

inline std::vector<pid_t> children_of(pid_t pid) {
  const std::string number = std::to_string(pid);
  std::istringstream in(file_text("/proc/" + number + "/task/" + number + "/children"));
  return {std::istream_iterator<pid_t>(in), {}};
}

// The worker of a rank among the keeper's children, 0 if it does not run yet. What workers left
// behind and the keeper has adopted is not meant: a worker leads its group, and a helper that leads
// one has another command line.
inline pid_t worker_of(pid_t keeper, size_t rank) {
  const std::string mark = std::string(1, '\0') + "RANK=" + std::to_string(rank) + '\0';
  for (const pid_t pid : children_of(keeper)) {
    const std::string place = "/proc/" + std::to_string(pid);
    if (getpgid(pid) == pid && file_text(place + "/cmdline").starts_with("/bin/sh") &&
        ('\0' + file_text(place + "/environ")).find(mark) != std::string::npos) {
      return pid;
    }
  }
  return 0;
}

// Everything that runs with this in its environment.
inline std::vector<pid_t> tagged(const std::string& tag) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || !alive(pid)) continue;
    if (file_text(entry.path() / "environ").find(tag) != std::string::npos) found.push_back(pid);
  }
  return found;
}

inline AgentOptions storm_job(const std::string& tag) {
  // Helpers: in the worker's group, in a session of its own, orphaned in a session of its own.
  const std::string script =
      "sleep 1000 & setsid sh -c 'trap \"\" TERM; sleep 1000; :' & "
      "(setsid sh -c 'trap \"\" TERM HUP; sleep 1000; :' &); while :; do sleep 1000; done";
  AgentOptions options = shells({script, script, script, script});
  for (WorkerCommand& worker : options.workers) worker.env["MTL_STORM"] = tag;
  options.grace = std::chrono::milliseconds(100);
  return options;
}

inline void storm_round(Storm& storm, std::mt19937& random) {
  TempDir folder;
  const std::string tag = folder.path().filename().string();
  const std::string said = folder / "said";
  Child agent([&] {
    try {
      const AgentResult result = run_agent(storm_job(tag));
      write(said, failure_report(result).what);
      return result.exit_code;
    } catch (const Error& error) {
      write(said, error.diagnostics().front().code);
      return static_cast<int>(error.exit());
    }
  });
  const int agent_pid = agent.pid();
  const int whom = static_cast<int>(random() % 4);  // workers twice as often
  const size_t which = random() % 4;
  const auto delay = std::chrono::microseconds(random() % (random() % 2 ? 3'000 : 60'000));
  pid_t keeper = 0;
  pid_t victim = agent_pid;
  if (whom != 0) {
    const bool there = wait_until([&] {
      const auto of_agent = children_of(agent_pid);
      keeper = of_agent.empty() ? 0 : of_agent[0];
      if (whom == 1) return keeper > 0;
      victim = keeper > 0 ? worker_of(keeper, which) : 0;
      return victim > 0;
    });
    if (whom == 1) victim = keeper;
    if (!there) storm.wrong.push_back("a round did not start");
  }
  std::this_thread::sleep_for(delay);
  if (keeper == 0) {
    const auto of_agent = children_of(agent_pid);
    if (!of_agent.empty()) keeper = of_agent[0];
  }
  kill(victim, SIGKILL);
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed_ms = [&] {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  };
  const std::string name = whom == 0   ? "agent"
                           : whom == 1 ? "keeper"
                                       : "worker " + std::to_string(which);
  const int code = agent.wait();
  wait_until([&] { return tagged(tag).empty() && (keeper <= 0 || !alive(keeper)); });
  storm.longest_ms = std::max(storm.longest_ms, elapsed_ms());
  const auto wrong = [&](const std::string& what) {
    storm.wrong.push_back("round " + std::to_string(storm.rounds) + ", " + name + " after " +
                          std::to_string(delay.count()) + " us: " + what);
  };
  for (pid_t pid : tagged(tag)) {
    wrong("process " + std::to_string(pid) + " was left");
    kill(pid, SIGKILL);
  }
  if (keeper > 0 && alive(keeper)) wrong("the keeper was left");
  const std::string text = file_text(said);
  if (whom == 0) {
    ++storm.of_agent;
    if (code != 128 + SIGKILL) wrong("the agent gave " + std::to_string(code));
  } else if (whom == 1) {
    ++storm.of_keeper;
    if (code != 4 || text != "launch.keeper_died") {
      wrong("gave " + std::to_string(code) + " and said " + text);
    }
  } else {
    ++storm.of_worker;
    const std::string headline = "rank " + std::to_string(which) + " (pid " +
                                 std::to_string(victim) + ") was killed by SIGKILL";
    if (code != 128 + SIGKILL || text != headline) {
      wrong("gave " + std::to_string(code) + " and said " + text);
    }
  }
  ++storm.rounds;
}

}  // namespace mtl::test
