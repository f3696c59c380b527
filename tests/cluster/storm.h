// Rounds of: start a job in one of the four ways, SIGKILL one of its processes at a random moment,
// and see what is said, what it gives, and what is left. For the test and, longer, for the
// benchmark program.
#pragma once

#include <chrono>
#include <csignal>
#include <fstream>
#include <random>
#include <thread>
#include <unistd.h>

#include "cluster/jobs.h"

namespace mtl::test {

struct ClusterStorm {
  int rounds = 0;
  std::map<std::string, int> hit;  // "hosts agent": how often
  std::vector<std::string> wrong;  // one line each
  double longest_ms = 0;           // from the kill until nothing was left
};

inline pid_t parent_of(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/status");
  std::string word;
  while (in >> word) {
    if (word == "PPid:" && in >> word) return std::stoi(word);
  }
  return 0;
}

// Children of a process, youngest last.
inline std::vector<pid_t> child_pids(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children");
  std::vector<pid_t> found;
  for (pid_t child = 0; in >> child;) found.push_back(child);
  return found;
}

inline std::string command_of(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
  std::string command(4096, '\0');
  in.read(command.data(), static_cast<std::streamsize>(command.size()));
  return command.substr(0, static_cast<size_t>(in.gcount()));
}

// A lab of two machines at least; the job has 4 ranks, two on each of m1 and m2 (local: on the
// head).
inline void storm_round(ClusterStorm& storm, const Cluster& cluster, std::mt19937& random) {
  const std::string way =
      std::vector<std::string>{"local", "hosts", "static", "elastic"}[random() % 4];
  const bool typed = way == "static" || way == "elastic";
  std::vector<std::string> targets = {"worker", "worker", "keeper", "launcher"};
  if (way == "hosts") targets.push_back("agent");
  if (typed) targets.push_back("node 0");
  const std::string target = targets[random() % targets.size()];
  const size_t which = random() % 2;
  // Also in the middle of the start.
  const bool early = random() % 3 == 0;
  const auto delay = std::chrono::microseconds(random() % (early ? 100'000 : 30'000));
  const std::string name = "round " + std::to_string(storm.rounds) + ", " + way + " " + target +
                           (early ? " early" : "") + " after " + std::to_string(delay.count()) +
                           " us";
  const auto wrong = [&](const std::string& what) { storm.wrong.push_back(name + ": " + what); };
  ++storm.rounds;
  ++storm.hit[way + " " + target];

  for (const auto& [file, text] : cluster.files("up-")) fs::remove(cluster.work() / file);
  // Helpers: in the worker's group, in a session of its own, orphaned in one.
  const std::string script =
      cluster.script("stormy",
                     "sleep 1000 & setsid sh -c 'trap \"\" TERM; sleep 1000; :' &\n"
                     "(setsid sh -c 'trap \"\" TERM HUP; sleep 1000; :' &)\n"
                     "echo $$ > up-$RANK\nwhile :; do sleep 1000; done\n");
  std::vector<std::string> args = {"--grace", "0.1"};
  std::vector<Command> commands;
  const auto type = [&](int machine, std::vector<std::string> own) {
    own.insert(own.end(), args.begin(), args.end());
    own.insert(own.end(), {"--", script});
    commands.push_back(cluster.launch(own, machine));
  };
  if (way == "local") type(0, {"--num_processes", "4", "--main_process_port", "29600"});
  if (way == "hosts") type(0, {"--hosts", "m1:2,m2:2"});
  if (way == "static") {
    for (const int rank : {0, 1}) {
      type(rank + 1,
           {"--num_machines", "2", "--machine_rank", std::to_string(rank), "--main_process_ip",
            "m1", "--main_process_port", "29600", "--num_processes", "4"});
    }
  }
  if (way == "elastic") {
    for (const int rank : {0, 1}) {
      type(rank + 1, {"--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "m1:29600",
                      "--nproc_per_node", "2"});
    }
  }

  // The agent of the node that is hit.
  const int machine = way == "local" ? 0 : static_cast<int>(which) + 1;
  const size_t typed_at = typed ? which : 0;
  const auto agent_of = [&]() -> pid_t {
    if (way != "hosts") return commands[typed_at].pid();
    const auto found = cluster.pids(machine, "agent --stdio");
    for (const pid_t pid : found) {
      if (std::find(found.begin(), found.end(), parent_of(pid)) == found.end()) return pid;
    }
    return 0;
  };
  const auto keeper_of = [&]() -> pid_t {
    const auto of_agent = child_pids(agent_of());
    return of_agent.empty() ? 0 : of_agent[0];
  };
  const auto worker_of = [&]() -> pid_t {
    // What workers left behind and the keeper has adopted is not meant: a worker leads its group,
    // and a helper that leads one has another command line.
    const pid_t keeper = keeper_of();
    std::vector<pid_t> workers;
    for (const pid_t pid : keeper > 0 ? child_pids(keeper) : workers) {
      if (getpgid(pid) == pid && has(command_of(pid), "stormy")) workers.push_back(pid);
    }
    return workers.size() > 1 ? workers[random() % 2] : 0;
  };
  pid_t victim = 0;
  size_t killed_command = commands.size();  // none
  if (!early) {
    const bool up = wait_until([&] { return cluster.files("up-").size() == 4; });
    if (!up) wrong("did not start: " + commands[0].err());
  }
  if (target == "launcher" || target == "node 0") {
    killed_command = target == "launcher" ? typed_at : 0;
    std::this_thread::sleep_for(delay);
    victim = commands[killed_command].pid();
  } else {
    // There from some moment of the start on; then at once or a little later.
    wait_until([&] {
      victim = target == "worker" ? worker_of() : target == "keeper" ? keeper_of() : agent_of();
      return victim > 0;
    });
    std::this_thread::sleep_for(delay);
  }
  if (victim <= 0) return wrong("found nothing to kill");
  ::kill(victim, SIGKILL);
  const auto start = std::chrono::steady_clock::now();
  // Of a static start whose node 0 is dead, the others wait for another one.
  const bool waits = early && killed_command < commands.size() && typed;
  if (waits) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    for (size_t i = 0; i < commands.size(); ++i) {
      if (i != killed_command && commands[i].running()) commands[i].signal(SIGINT);
    }
  }
  std::vector<CommandEnd> ends;
  for (Command& command : commands) ends.push_back(command.wait(kPatience));
  const std::string left = cluster.left();
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  storm.longest_ms = std::max(storm.longest_ms, ms);
  if (!left.empty()) {
    wrong("was left: " + left);
    for (int i = 0; i <= cluster.machines(); ++i) {
      for (const auto& process : cluster.processes(i)) ::kill(process.pid, SIGKILL);
    }
  }
  for (size_t i = 0; i < commands.size(); ++i) {
    const CommandEnd& end = ends[i];
    const auto tell = [&](const std::string& what) {
      wrong("command " + std::to_string(i) + " " + what + ", code " + std::to_string(end.code) +
            ": " + end.err);
    };
    const int errors = count_of(end.err, "error[");
    if (i == killed_command) {
      if (end.code != 128 + SIGKILL) tell("should have been killed");
      continue;
    }
    if (waits && (end.code == 130 || end.code == 143)) continue;
    // Killed before its agent has spoken, a host is one that cannot be used.
    if (early && way == "hosts" && end.code == 4 && has(end.err, "error[launch.nodes]")) {
      if (!has(end.err, Lab::name(machine))) tell("should name the machine");
      continue;
    }
    if (errors != 1) tell("should say one error");
    if (target == "worker") {
      if (end.code != 128 + SIGKILL) tell("should give 137");
      if (!has(end.err, "was killed by SIGKILL")) tell("should name the rank");
      if (way != "local" && !has(end.err, "on " + Lab::name(machine))) {
        tell("should name the machine");
      }
    } else if (target == "keeper") {
      if (end.code != 4 || !has(end.err, "error[launch.keeper_died]"))
        tell("should name the keeper");
    } else {
      const bool lost = has(end.err, "was lost") || has(end.err, "error[launch.controller_lost]");
      if (end.code != 1 && end.code != 4) tell("should give 1");
      if (!lost) tell("should name what was lost");
    }
  }
}

}  // namespace mtl::test
