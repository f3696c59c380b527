// The agent: one per node. Spawns the local workers, watches them, keeps their logs, ends them
// together, and says which one failed first and why. A worker is just a program here.
//
// Processes: agent -> keeper -> workers. The keeper is a small fork of the agent that is the
// workers' parent and nothing else; whichever of the two is killed, the other ends the workers and
// everything that they started, so that no orphan survives a SIGKILL of the agent either.
#pragma once

#include <chrono>
#include <csignal>
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
  std::vector<int> cpus;                   // that it may run on; empty = those of the agent
  int numa = -1;                           // whose memory it prefers; -1 = no preference
  std::filesystem::path error_file;        // TORCHELASTIC_ERROR_FILE: read when it fails
  int ranks = 1;                           // that this one process runs (as threads)
  std::vector<std::string> argv;           // argv[0] is looked up in PATH
  bool takes_signals = false;              // as of JobProgram
  std::map<std::string, std::string> env;  // added to the agent's own environment
  std::vector<std::string> unset;          // names taken out of it first; "SLURM_STEP_*" = a prefix
  // Descriptor in the worker <- descriptor here (the token, the progress pipe).
  std::map<int, int> inherit;
};

struct WorkerEnd {
  int rank = 0;  // the first of its ranks
  int ranks = 1;
  int local_rank = 0;
  std::string host;  // empty = this one
  int pid = 0;
  // Of the program; 128 + n when killed by signal n; 7 with signal SIGSTOP: it was stopped by
  // somebody for AgentOptions::stopped_after, given up and killed.
  int exit_code = 0;
  int signal = 0;
  bool stopped_by_us = false;  // ended after we asked it to
  // Of its death; earlier if it wrote an error file before (to the second), or was stopped.
  std::chrono::system_clock::time_point when;
  std::vector<std::string> last_lines;  // of its stderr, at most 20
  std::filesystem::path log;
  bool shown = true;               // its output was on the console
  std::vector<std::string> notes;  // what the agent saw around this end (out of memory, ...)
};

// A descriptor here (a pipe or socket, still owned by the caller) from which the agent also reads
// lines while the workers run, e.g. the progress pipe whose other end a worker inherited.
struct LineSource {
  int fd = -1;
  std::function<void(std::string_view line)> on_line;
};

// Somebody above the agent (the job's controller) who may end its workers and wants to know at once
// what becomes of them. Called by the agent's thread only; must not block.
// A stop or kill that finds the workers running is the cause of how they end after it: all of them
// are stopped_by_us, none is a first_failure whatever its exit code (only if its error file says
// that it failed before), and run_agent gives 0, or 75 if every rank said 0 or 75. Of a stop that
// comes when they are being stopped already (a failure, a signal) only the deadline counts, if it
// is nearer. The first signal that arrives here after a stop by control does not kill yet:
// schedulers signal every node.
class AgentControl {
 public:
  virtual ~AgentControl() = default;
  struct Command {
    enum Kind {
      none,
      stop,     // `signal` (TERM or INT), `grace`, KILL
      kill,     // KILL at once
      pass_on,  // `signal`, to the workers
    };
    Kind kind = none;
    int signal = SIGTERM;
    std::chrono::milliseconds grace{0};
    std::string why = {};  // for people: "m3 was lost"; in a notice unless empty
  };
  virtual int fd() const = 0;  // readable: read() until it says none
  virtual Command read() = 0;
  virtual void started(const WorkerCommand& worker, int pid) = 0;
  // In order of death. Also of workers that could not be started (run_agent throws then).
  virtual void ended(const WorkerEnd& end) = 0;
  // INT, TERM or HUP arrived here, for the first or a further time; the agent does what run_agent
  // says all the same. Or USR2: that is left to who is told here.
  virtual void interrupted(int signal) = 0;
  // When the workers have to be dead unless this moves before (CLOCK_BOOTTIME): whoever is above
  // goes on without them soon after. The keeper sees to it, even if the agent itself is stopped.
  // Nothing = no lease. It only moves forward; asked for again and again.
  virtual std::optional<std::chrono::nanoseconds> lease_end() const { return {}; }
  // ... and it has come to that: they were killed; their ends follow, stopped_by_us.
  virtual void lease_over() {}
};

// Which output goes where. Bits as torchrun's: 1 = stdout, 2 = stderr, 3 = both.
// The only process on the console, without a prefix, is passed byte for byte; of several, whole
// lines. Files get every byte in whole lines (one of more than 8 MiB is cut, an unfinished last one
// gets its newline); with a prefix, of a progress bar (text between carriage returns) a line comes
// every 5 s, and what it ended with.
// A worker is never blocked by a slow disk or terminal: what does not fit into 128 MiB (files) or
// 64 MiB (console) is dropped, and its place and AgentResult::warnings say how much. Only if stdout
// or stderr is a pipe or file that gets one process byte for byte, then that process is held to the
// speed of its reader, unless that stands still for 2 s.
struct LogOptions {
  std::filesystem::path dir;          // rank-00000.log ..., appended to; empty = no files
  int console_default = -1;           // of every rank; -1 = rank 0 both, the others nothing
  std::map<int, int> console;         // --tee 0:3,1:1, by local rank: to the console with a prefix
  std::map<int, int> redirected;      // --redirects: only to the file, unless console says so too
  std::vector<int> only_local_ranks;  // --local_ranks_filter: nobody else on the console, and
                                      // these by default; empty = all
  bool prefix = false;                // "host:rank| " in front of each line of the console
  std::string host;                   // for the prefix; empty = "rank 3| "
  int64_t rotate_bytes = 0;           // a file larger than this becomes .1, .2 ...; 0 = never
  int rotate_keep = 4;
};

// All callbacks are called without the line's newline, from one thread of the agent and never two
// at a time, and none after run_agent has returned. A callback may block (a stopped terminal)
// without harm to the supervision; it must not throw.
struct AgentOptions {
  std::vector<WorkerCommand> workers;
  LogOptions logs;
  std::chrono::milliseconds grace{30'000};  // from TERM to KILL, one deadline for all workers
  std::chrono::milliseconds warning_grace{30'000};  // the same after USR2
  // The same after the failure of a rank: what is left cannot finish a step any more. -1 = grace.
  std::chrono::milliseconds failure_grace{-1};
  // A worker that is stopped (SIGSTOP, state T) for so long has failed, with exit code 7 (timeout).
  // 0 = never. Attached debuggers (state t) do not count.
  std::chrono::milliseconds stopped_after{5'000};
  AgentControl* control = nullptr;  // must live as long as run_agent runs
  // Gets the lines (with their prefixes) that would otherwise go to stdout and stderr.
  std::function<void(int rank, bool is_stderr, std::string_view line)> on_output;
  // What the agent does and a person should know at once: "SIGINT: asked 8 ranks to stop ...".
  std::function<void(std::string_view line)> on_notice;
  std::vector<LineSource> line_sources;
};

struct AgentResult {
  // That of the first failing rank; 75 when every rank said so; 0 when all are done.
  int exit_code = 0;
  std::optional<WorkerEnd> first_failure;
  std::vector<WorkerEnd> ends;  // in order of death
  bool interrupted = false;     // INT, TERM, HUP or USR2 arrived
  int interrupt_signal = 0;     // ... this one; of USR2 and another, the other
  std::chrono::system_clock::time_point started;
  std::vector<std::string> warnings;  // e.g. a log that could not be written
};

// Runs all workers to their end. While it runs, the first SIGINT / SIGTERM / SIGHUP is passed to
// the workers (finish the step, checkpoint, stop): INT as it came and to their process groups, as a
// terminal does, the others as SIGTERM; a second one kills them at once;
// SIGUSR1 and SIGQUIT are passed on. SIGUSR2 is a scheduler's warning that the time is nearly over:
// like a first SIGTERM, but however often it comes, it does not kill, and a SIGTERM that follows is
// a first one. When one worker fails, the others get TERM, the grace, KILL.
// No worker and no descendant of one outlives the agent. Workers stopped on request that died of
// it give 128 + the signal that arrived here.
// Throws Error: exit 127 / 126 "launch.program_missing" / "launch.program_not_executable" if a
// worker's program cannot be started (the others are ended first), Exit::environment if processes
// or pipes cannot be made or the keeper was killed. One call at a time in a process.
AgentResult run_agent(const AgentOptions& options);

// "was killed by SIGSEGV", "exited with code 3", "was stopped by SIGSTOP".
std::string how_it_ended(const WorkerEnd& end);

// "rank 3"; of a process with several ranks "ranks 0-3".
std::string ranks_name(const WorkerEnd& end);

// The headline after a failure: which rank, where, why, since when, its last lines, its log.
// Without a failure (a run stopped on request) it is a warning that says so.
// `is_ours`: exit codes of the ranks mean what mtl's own do.
Diagnostic failure_report(const AgentResult& result, bool is_ours = false);

}  // namespace mtl
