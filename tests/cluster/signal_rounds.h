// Jobs that a person stops, in every way of starting: Ctrl-C, TERM, HUP, a window that is closed.
// For the test and, longer, for the benchmark program.
#pragma once

#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "cluster/terminal.h"

namespace mtl::test {

// How it is started, and where it is stopped. An elastic job is stopped as a whole where its
// rendezvous is; elsewhere a node only leaves it.
inline const std::vector<std::string> kStopWays = {"local", "hosts", "static, node 0",
                                                   "static, node 1", "elastic, node 0"};
inline const std::vector<std::string> kStopSignals = {"Ctrl-C", "TERM", "HUP", "closed window"};

struct StopRounds {
  int runs = 0;
  std::map<std::pair<std::string, std::string>, int> done, failed;  // by way and signal
  std::vector<std::string> wrong;                                   // one line and what was shown
};

// One job of four ranks that need a moment to end in order, and say so.
class StoppedJob {
 public:
  StoppedJob(const Cluster& cluster, int number, std::string way, std::string signal)
      : cluster_(cluster),
        way_(std::move(way)),
        signal_(std::move(signal)),
        id_(std::to_string(number)),
        machine_(way_ == "local" || way_ == "hosts" ? 0
                 : way_ == "static, node 1"         ? 2
                                                    : 1),
        modes_(terminal_.modes()) {
    script_ = cluster.script(
        "careful-" + id_ + ".sh",
        "trap 'sleep 0.1; echo > graced-" + id_ + "-$RANK; trap - TERM; kill -TERM $$' TERM INT\n" +
            "echo > ready-" + id_ + "-$RANK\nwhile :; do echo working; sleep 0.1; done\n");
    const std::string port = std::to_string(29600 + number % 200);
    for (const int node : {0, 1}) {
      std::vector<std::string> args = {"--grace", "20"};
      const auto add = [&](const std::vector<std::string>& more) {
        args.insert(args.end(), more.begin(), more.end());
      };
      if (way_ == "local") {
        add({"--num_processes", "4"});
      } else if (way_ == "hosts") {
        add({"--hosts", "m1:2,m2:2"});
      } else if (way_.starts_with("static")) {
        add({"--num_machines", "2", "--machine_rank", std::to_string(node), "--main_process_ip",
             "m1", "--main_process_port", port, "--num_processes", "4"});
      } else {
        add({"--nnodes", "1:2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "m1:" + port,
             "--rdzv_conf", "last_call_timeout=60", "--nproc_per_node", "2"});
      }
      add({"--", script_});
      const bool typed_here = machine_ == 0 ? node == 0 : machine_ == node + 1;
      if (typed_here) {
        commands_.push_back(terminal_.start(cluster_, machine_, args));
        here_ = commands_.size() - 1;
      } else if (machine_ != 0) {
        commands_.push_back(cluster_.launch(args, node + 1));
      }
    }
  }

  bool ready() {
    terminal_.text();
    return cluster_.files("ready-" + id_ + "-").size() == 4;
  }
  void stop() {
    if (signal_ == "Ctrl-C") return terminal_.type("\x03");
    if (signal_ == "closed window") return terminal_.close_window();
    // The session's leader is the launcher; the local agent's keeper bears the same name.
    for (const Lab::Process& process : cluster_.processes(machine_)) {
      const bool launcher = has(process.command, MTL_PROGRAM " launch") &&
                            has(process.command, script_) && getsid(process.pid) == process.pid;
      if (launcher) ::kill(process.pid, signal_ == "TERM" ? SIGTERM : SIGHUP);
    }
  }
  bool ended() {
    terminal_.text();
    return std::none_of(commands_.begin(), commands_.end(),
                        [](Command& command) { return command.running(); });
  }
  // What was not as it should be; "" = nothing. After ended().
  std::string verdict() {
    const int code = 128 + (signal_ == "Ctrl-C" ? SIGINT : signal_ == "TERM" ? SIGTERM : SIGHUP);
    std::string wrong;
    for (size_t i = 0; i < commands_.size(); ++i) {
      const CommandEnd end = commands_[i].wait(Milliseconds(1));
      if (end.code == code) continue;
      wrong +=
          (i == here_ ? " code " : " code elsewhere ") + std::to_string(end.code) + "\n" + end.err;
    }
    const size_t graced = cluster_.files("graced-" + id_ + "-").size();
    if (graced != 4) wrong += " graced " + std::to_string(graced);
    if (signal_ != "closed window" && terminal_.modes() != modes_) wrong += " modes changed";
    return wrong.empty() ? "" : wrong + "\n" + terminal_.text();
  }
  const std::string& way() const { return way_; }
  const std::string& signal() const { return signal_; }

 private:
  const Cluster& cluster_;
  const std::string way_, signal_, id_;
  const int machine_;  // where the signal comes
  Terminal terminal_;
  const std::string modes_;
  std::string script_;
  std::vector<Command> commands_;
  size_t here_ = 0;
};

// A job of every way, side by side, each stopped by another signal; `turn` 0 to 3 makes all pairs.
// Needs a lab of two machines at least.
inline void stop_round(StopRounds& rounds, const Cluster& cluster, size_t turn) {
  std::vector<std::unique_ptr<StoppedJob>> jobs;
  for (size_t i = 0; i < kStopWays.size(); ++i) {
    jobs.push_back(std::make_unique<StoppedJob>(cluster, rounds.runs++, kStopWays[i],
                                                kStopSignals[(turn + i) % kStopSignals.size()]));
  }
  std::vector<std::string> wrong(jobs.size());
  const auto all = [&](bool (StoppedJob::*happened)(), const std::string& otherwise) {
    wait_until([&] {
      return std::count_if(jobs.begin(), jobs.end(), [&](const auto& job) {
               return ((*job).*happened)();
             }) == std::ssize(jobs);
    });
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (!((*jobs[i]).*happened)()) wrong[i] += otherwise;
    }
  };
  all(&StoppedJob::ready, " no start");
  for (const auto& job : jobs) job->stop();
  all(&StoppedJob::ended, " no end");
  for (size_t i = 0; i < jobs.size(); ++i) wrong[i] += jobs[i]->verdict();
  // Of whom it is cannot be said: the round's.
  const std::string left = cluster.left();
  if (!left.empty()) wrong[0] += " left by one of the round: " + left;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const auto what = std::make_pair(jobs[i]->way(), jobs[i]->signal());
    ++rounds.done[what];
    if (wrong[i].empty()) continue;
    ++rounds.failed[what];
    rounds.wrong.push_back(what.first + ", " + what.second + ":" + wrong[i]);
  }
}

}  // namespace mtl::test
