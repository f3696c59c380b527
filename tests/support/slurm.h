// A real SLURM on this machine: slurmctld and several slurmd on loopback, without munge, ready in a
// fraction of a second. Each "node" n1 .. nN is a slurmd with 8 CPUs and 8 pretended GPUs
// (character devices, so that CUDA_VISIBLE_DEVICES is set). Partitions: debug (the default), and
// low, which debug preempts. Nodes share this machine's host name and addresses; SLURMD_NODENAME
// tells them apart.
//
// Stopped by its own pids, with everything that its steps have left, when the object goes.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

#include "cluster/lab/command.h"
#include "common/files.h"

namespace mtl::test {

class Slurm {
 public:
  // Up and idle when it returns. `lines`: more for slurm.conf. Throws std::runtime_error.
  explicit Slurm(int nodes = 4, const std::string& lines = "");
  ~Slurm();
  Slurm(const Slurm&) = delete;
  Slurm& operator=(const Slurm&) = delete;
  // Why none can be made here, in one line; empty if it can.
  static std::string missing();

  int nodes() const { return nodes_; }
  const std::filesystem::path& dir() const { return dir_; }     // removed with it
  std::filesystem::path work() const { return dir_ / "work"; }  // where commands run
  std::map<std::string, std::string> environment() const;       // SLURM_CONF, HOME, PATH ...
  // Ids of jobs decide ports: several SLURMs at a time have ids of their own.
  int first_job() const { return first_job_; }

  // A command in work(), as typed on a login node.
  Command start(const std::vector<std::string>& argv,
                const std::map<std::string, std::string>& env = {}) const;
  CommandEnd run(const std::vector<std::string>& argv,
                 const std::map<std::string, std::string>& env = {},
                 std::chrono::seconds within = std::chrono::seconds(60)) const;
  // Its stdout without the last newline; throws std::runtime_error if it fails.
  std::string ask(const std::vector<std::string>& argv) const;

  // "PENDING", "RUNNING", "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "PREEMPTED" ...; "" =
  // gone.
  std::string state(const std::string& job) const;
  // "0:0", "75:0": ExitCode of scontrol.
  std::string exit_code(const std::string& job) const;
  // False if it is in none of these states in time.
  bool reaches(const std::string& job, const std::vector<std::string>& states,
               std::chrono::seconds within = std::chrono::seconds(180)) const;
  // Starts a job at once that was queued again: SLURM would hold it for two minutes. False if it
  // does not start. It may be over, or queued once more, when this returns.
  bool start_again(const std::string& job) const;

  // kill -9 of the slurmd of node i (1 ..) and of all that runs there: a node that is gone.
  void kill_node(int node);
  void start_node(int node);
  // What the steps and jobs of this SLURM have running now: command lines.
  std::vector<std::string> processes() const;

 private:
  void stop();

  int nodes_ = 0;
  int first_job_ = 0;
  Fd ports_;                              // as long as it is open they are ours
  std::map<std::string, pid_t> daemons_;  // "slurmctld", "n1" ...
  std::filesystem::path dir_;
  mutable int commands_ = 0;
};

}  // namespace mtl::test
