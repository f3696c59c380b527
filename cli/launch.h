// What the two kinds of launch share: a run of mtl's own trainer, and any other program.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/run_request.h"
#include "launcher/agent.h"
#include "launcher/commands.h"
#include "launcher/launch_request.h"

namespace mtl {

// To a terminal that may be gone: the job must not end because nobody hears of it.
inline void say(std::FILE* out, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), out);
}

struct LaunchOptions {
  RunOptions run;
  bool dry_run = false;
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  bool quiet = false;
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
// Where this machine's ranks stand in the job, as far as that is known before a rendezvous: all
// ranks here, or those that follow from machine_rank. Rank 0 is reachable at master_port.
NodeLayout layout_here(const LaunchRequest& request, int master_port);
// Their places on this machine. Throws Error with all that does not fit; warnings are printed.
std::vector<RankPlacement> place_here(const LaunchRequest& request);
// "OMP_NUM_THREADS=4 ...": said once, where nobody chose it; empty if somebody did.
std::string threads_notice(const LaunchRequest& request, const std::vector<RankPlacement>& ranks);
// Of our environment, what ranks on other hosts get.
std::map<std::string, std::string> forwarded_environment(const LaunchRequest& request);

// The block of --dry-run for each rank: where it runs, its environment, the command to copy.
std::string rank_blocks(const std::vector<WorkerCommand>& commands,
                        const std::vector<RankPlacement>& placement, const std::string& host);
// The same in a line per rank.
std::string rank_table(const std::vector<WorkerCommand>& commands,
                       const std::vector<RankPlacement>& placement, const std::string& host);
// What each rank executes: the interpreter in front of a script or a module.
std::vector<std::string> program_argv(const LaunchOptions& options, const std::string& program,
                                      const std::vector<std::string>& arguments);

}  // namespace mtl
