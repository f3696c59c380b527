// The agent: one per node. Spawns the local workers, watches them, keeps their logs, ends them
// together, and says which one failed first and why. A worker is just a program here.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"

namespace mtl {

struct WorkerCommand {
  int rank = 0;
  int local_rank = 0;
  std::vector<std::string> argv;           // argv[0] is looked up in PATH
  std::map<std::string, std::string> env;  // added to the agent's own environment
  std::map<int, int>
      inherit;  // descriptor in the worker <- descriptor here (the token, the progress pipe)
};

struct WorkerEnd {
  int rank = 0;
  int pid = 0;
  int exit_code = 0;  // of the program; 128 + n when killed by signal n
  int signal = 0;
  bool stopped_by_us = false;  // ended after we asked it to
  std::chrono::system_clock::time_point when;
  std::vector<std::string> last_lines;  // of its stderr
  std::filesystem::path log;
};

struct AgentOptions {
  std::vector<WorkerCommand> workers;
  std::filesystem::path log_dir;  // rank-00000.log ...; empty = no files
  bool show_rank0 = true;         // rank 0's output also goes to this process's stdout / stderr
  std::chrono::milliseconds grace{30'000};  // from TERM to KILL
};

struct AgentResult {
  int exit_code =
      0;  // that of the first failing rank; 75 when every rank said so; 0 when all are done
  std::optional<WorkerEnd> first_failure;
  std::vector<WorkerEnd> ends;  // in order of death
  bool interrupted = false;     // INT or TERM arrived
};

// Runs all workers to their end. While it runs, the first SIGINT / SIGTERM is passed to the workers
// as SIGTERM (finish the step, checkpoint, stop), a second one kills them at once; SIGUSR1 is
// passed on. When one worker fails, the others get TERM, the grace, KILL. No worker outlives the
// agent.
AgentResult run_agent(const AgentOptions& options);

// The headline after a failure: which rank, where, why, since when, its last lines, its log.
Diagnostic failure_report(const AgentResult& result);

}  // namespace mtl
