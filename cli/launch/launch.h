// What the two kinds of launch share: a run of mtl's own trainer, and any other program.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cli/run_request.h"
#include "launcher/agent/agent.h"
#include "launcher/ranks/commands.h"
#include "launcher/request/launch_request.h"

namespace mtl {

// To a terminal that may be gone: the job must not end because nobody hears of it.
inline void say(std::FILE* out, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), out);
}

struct LaunchOptions {
  RunOptions run;
  bool dry_run = false;
  bool json = false;  // of the dry run
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  bool quiet = false;
  bool after_separator = false;    // the program follows `--`
  std::vector<std::string> words;  // of the command, as typed: mtl, launch, ...
};

// Whether `program` is a train.yaml rather than a program to start.
bool is_train_yaml(const LaunchOptions& options, const std::string& program, bool after_separator);

// In a job that mtl has submitted: the file that says that it has once begun its run, so that
// --fresh makes one new run and not one for every time that the job is continued; "" = in no such
// job.
std::string begun_mark();

// Trains: checks everything, opens the run directory, starts the workers. Returns the exit
// code of the job.
int launch_run(const LaunchOptions& options, const std::string& train_yaml,
               const std::vector<std::string>& settings);
// Starts any program once per rank, with the environment of torchrun and accelerate.
int launch_program(const LaunchOptions& options, const std::string& program,
                   const std::vector<std::string>& arguments);
// Whether flags, variables or the train.yaml (if it is one) say so; a pod that finds the setting
// which has made it does not make another.
bool goes_to_kubernetes(const LaunchOptions& options, const std::string& train_yaml,
                        const std::vector<std::string>& settings);
// Writes the launch of either as a manifest for Kubernetes, or applies it.
int launch_kubernetes(const LaunchOptions& options, const std::string& program,
                      const std::vector<std::string>& arguments, bool after_separator);
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
// The dry run for programs, schema mtl.launch/1: the merged settings by accelerate's names, what
// they decide of a train.yaml, and each rank's environment and command. Places of ranks are left
// out where this machine does not have what they need; `problems` says why.
nlohmann::ordered_json launch_json(const LaunchRequest& request, const JobProgram& program,
                                   const std::string& config_file);
// The same document where there is nothing to start: the errors, and the exit code that follows.
nlohmann::ordered_json problems_json(const Error& error);
// What each rank executes: the interpreter in front of a script or a module.
std::vector<std::string> program_argv(const LaunchOptions& options, const std::string& program,
                                      const std::vector<std::string>& arguments);

}  // namespace mtl
