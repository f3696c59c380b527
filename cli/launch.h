// What the two kinds of launch share: a run of mtl's own trainer, and any other program.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "cli/run_request.h"
#include "launcher/agent.h"
#include "launcher/worker_env.h"

namespace mtl {

struct LaunchOptions {
  RunOptions run;
  bool cpu = false;
  bool dry_run = false;
  bool module = false;
  bool no_python = false;
  int64_t grace_s = 30;
};

// Whether `program` is a train.yaml rather than a program to start.
bool is_train_yaml(const LaunchOptions& options, const std::string& program, bool after_separator);

// Trains: checks everything, opens the run directory, starts the workers. Returns the exit
// code of the job.
int launch_run(const LaunchOptions& options, const std::string& train_yaml,
               const std::vector<std::string>& settings);
// Starts any program once per rank, with the environment of torchrun and accelerate.
int launch_program(const LaunchOptions& options, const std::string& program,
                   const std::vector<std::string>& arguments);
// All ranks on this machine, rank 0 reachable at 127.0.0.1:port.
NodeLayout single_node(int world, int port);
// What each rank executes: the interpreter in front of a script or a module.
std::vector<std::string> program_argv(const LaunchOptions& options, const std::string& program,
                                      const std::vector<std::string>& arguments);

}  // namespace mtl
