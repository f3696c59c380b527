// The agent: one per node. Spawns the local workers, watches them, keeps their logs, ends them
// together, and says which one failed first and why. A worker is just a program here.
//
// Processes: agent -> keeper -> workers. The keeper is a small fork of the agent that is the
// workers' parent and nothing else; whichever of the two is killed, the other ends the workers and
// everything that they started, so that no orphan survives a SIGKILL of the agent either.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace mtl {

struct WorkerCommand {
  int rank = 0;  // the first of its ranks
  int local_rank = 0;
  int ranks = 1;                           // that this one process runs (as threads)
  std::vector<std::string> argv;           // argv[0] is looked up in PATH
  std::map<std::string, std::string> env;  // added to the agent's own environment
  std::map<int, int>
      inherit;  // descriptor in the worker <- descriptor here (the token, the progress pipe)
};

struct WorkerEnd {
  int rank = 0;  // the first of its ranks
  int ranks = 1;
  int pid = 0;
  int exit_code = 0;  // of the program; 128 + n when killed by signal n
  int signal = 0;
  bool stopped_by_us = false;  // ended after we asked it to
  std::chrono::system_clock::time_point when;
  std::vector<std::string> last_lines;  // of its stderr, at most 20
  std::filesystem::path log;
  std::vector<std::string> notes;  // what the agent saw around this end (out of memory, ...)
};

// A descriptor here (a pipe or socket, still owned by the caller) from which the agent also reads
// lines while the workers run, e.g. the progress pipe whose other end a worker inherited.
struct LineSource {
  int fd = -1;
  std::function<void(std::string_view line)> on_line;
};

// All callbacks are called without the line's newline, from one thread of the agent and never two
// at a time, and none after run_agent has returned. A callback may block (a stopped terminal)
// without harm to the supervision; it must not throw.
struct AgentOptions {
  std::vector<WorkerCommand> workers;
  std::filesystem::path log_dir;  // rank-00000.log ..., appended to; empty = no files
  bool show_rank0 = true;         // rank 0's output also goes to this process's stdout / stderr,
                                  // byte for byte, or to on_output if that is set
  std::chrono::milliseconds grace{30'000};  // from TERM to KILL, one deadline for all workers
  std::function<void(int rank, bool is_stderr, std::string_view line)> on_output;  // of rank 0
  // What the agent does and a person should know at once: "SIGINT: asked 8 ranks to stop ...".
  std::function<void(std::string_view line)> on_notice;
  std::vector<LineSource> line_sources;
};

struct AgentResult {
  int exit_code =
      0;  // that of the first failing rank; 75 when every rank said so; 0 when all are done
  std::optional<WorkerEnd> first_failure;
  std::vector<WorkerEnd> ends;  // in order of death
  bool interrupted = false;     // INT, TERM or HUP arrived
  std::chrono::system_clock::time_point started;
  std::vector<std::string> warnings;  // e.g. a log that could not be written
};

// Runs all workers to their end. While it runs, the first SIGINT / SIGTERM / SIGHUP is passed to
// the workers as SIGTERM (finish the step, checkpoint, stop), a second one kills them at once;
// SIGUSR1 and SIGQUIT are passed on. When one worker fails, the others get TERM, the grace, KILL.
// No worker and no descendant of one outlives the agent. Workers stopped on request that died of
// it give 128 + the signal that arrived here.
// Throws Error: exit 127 / 126 "launch.program_missing" / "launch.program_not_executable" if a
// worker's program cannot be started (the others are ended first), Exit::environment if processes
// or pipes cannot be made or the keeper was killed. One call at a time in a process.
AgentResult run_agent(const AgentOptions& options);

// "rank 3"; of a process with several ranks "ranks 0-3".
std::string ranks_name(const WorkerEnd& end);

// The headline after a failure: which rank, where, why, since when, its last lines, its log.
// Without a failure (a run stopped on request) it is a warning that says so.
Diagnostic failure_report(const AgentResult& result);

}  // namespace mtl
