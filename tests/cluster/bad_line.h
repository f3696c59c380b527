// Two machines, of which the second is behind a bad line: how long a job takes to start there, and
// whether the machine is taken for dead. For the test and, longer, for the benchmark program.
#pragma once

#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "cluster/jobs.h"

namespace mtl::test {

struct BadLine {
  Milliseconds round_trip{0};
  int lost_percent = 0;  // each way
  bool typed = true;     // the same command on both (static), else by ssh from the head
  std::string dead_after = "5";

  std::string text() const {
    const std::string line = round_trip.count() > 0 ? std::to_string(round_trip.count()) + " ms"
                                                    : std::to_string(lost_percent) + " % lost";
    return line + ", " + (typed ? "static" : "hosts") + ", --dead_after " + dead_after;
  }
};

class BadLineJob {
 public:
  // Four ranks, two on each of m1 and m2.
  BadLineJob(const Cluster& cluster, const BadLine& line) : cluster_(cluster) {
    for (const auto& [name, text] : cluster.files("up-")) fs::remove(cluster.work() / name);
    const std::string script = cluster.script("stay", "echo > up-$RANK\nexec sleep 100000\n");
    for (const int rank : {0, 1}) {
      std::vector<std::string> args = {"--dead_after", line.dead_after};
      if (line.typed) {
        args.insert(args.end(), {"--num_machines", "2", "--machine_rank", std::to_string(rank),
                                 "--main_process_ip", "m1", "--num_processes", "4"});
      } else {
        args.insert(args.end(), {"--hosts", "m1:2,m2:2"});
      }
      args.insert(args.end(), {"--", script});
      if (line.typed || rank == 0) {
        commands_.push_back(cluster.launch(args, line.typed ? rank + 1 : 0));
      }
    }
  }
  // Seconds from the command until all ranks run; negative: they do not.
  double joined() {
    if (!wait_until([&] { return cluster_.files("up-").size() == 4 || over(); }) || over()) {
      return -1;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start_;
    return took.count();
  }
  // True if nothing ended for so long.
  bool lives(Milliseconds time) {
    return !wait_until([&] { return over(); }, time);
  }
  // Ctrl-C; what was said, if it did not end as it should.
  std::string end() {
    if (!over()) commands_[0].signal(SIGINT);
    std::string wrong;
    for (Command& command : commands_) {
      const CommandEnd end = command.wait(kPatience);
      if (end.code != 128 + SIGINT) wrong += std::to_string(end.code) + ": " + end.err;
    }
    return wrong;
  }

 private:
  bool over() {
    for (Command& command : commands_) {
      if (!command.running()) return true;
    }
    return false;
  }

  const Cluster& cluster_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<Command> commands_;
};

inline void shape(Cluster& cluster, const BadLine& line) {
  if (line.round_trip.count() > 0) cluster.delay(2, line.round_trip);
  if (line.lost_percent > 0) cluster.loss(2, line.lost_percent);
}

}  // namespace mtl::test
