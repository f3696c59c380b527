// mtl launch train.yaml: a run of mtl's own trainer on this machine.
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include <sys/mman.h>

#include <fmt/format.h>

#include "cli/launch.h"
#include "cli/plan_text.h"
#include "common/error.h"
#include "common/files.h"
#include "common/terminal.h"
#include "rendezvous/store.h"
#include "runtime/metrics/reporter.h"

namespace mtl {

namespace {

[[noreturn]] void no_descriptor(const char* what) {
  throw Error(Exit::environment,
              Diagnostic{.code = "launch.descriptor",
                         .what = fmt::format("cannot make {}: {}", what, std::strerror(errno)),
                         .help = "raise the limit of open files: ulimit -n 65536"});
}

// A file without a name that holds the token. Each rank has its own, since ranks that share one
// would share its read position.
Fd token_file(const std::string& token) {
  Fd fd(memfd_create("mtl-token", MFD_CLOEXEC));
  if (!fd || write(fd.get(), token.data(), token.size()) != static_cast<ssize_t>(token.size()) ||
      lseek(fd.get(), 0, SEEK_SET) != 0) {
    no_descriptor("a memory file for the run's token");
  }
  return fd;
}

// A single rank is the same either way: the one thread of one process.
bool runs_in_threads(const PreparedRun& run) {
  return run.checked.resolved.spec.launch.spawn == "threads" && run.world > 1;
}

JobProgram worker_program(const PreparedRun& run, const std::string& dir) {
  JobProgram program;
  program.argv = {"/proc/self/exe", "worker", dir};
  program.env = run.request.env;
  program.is_ours = true;
  program.threads = runs_in_threads(run);
  // Threads that wait for each other spin before they sleep. gomp's default of 300,000 turns costs
  // a whole time slice whenever somebody else wants the core: 94 s instead of 17 for 300 small
  // steps beside one busy process, against 5 % on a quiet machine.
  if (!std::getenv("OMP_WAIT_POLICY") && !std::getenv("GOMP_SPINCOUNT")) {
    program.env.emplace("GOMP_SPINCOUNT", "2000");
  }
  return program;
}

int dry_run(const PreparedRun& run) {
  const std::vector<RankPlacement> placement = place_here(run.request);
  auto commands = node_commands(worker_program(run, "RUN_DIR"), run.request.config,
                                layout_here(run.request, 0), placement, "");
  for (WorkerCommand& command : commands) command.argv[0] = "mtl";
  fmt::print("{}\nstarts  {}\n\n{}\nsettings, each with the layer that gave it\n\n{}",
             plan_text(run.checked.plan, terminal_columns(STDOUT_FILENO)),
             runs_in_threads(run) ? fmt::format("1 process with {} ranks as threads", run.world)
             : run.world == 1     ? "1 process"
                                  : fmt::format("{} processes, one per rank", run.world),
             rank_table(commands, placement, "here"), resolved_yaml(run.checked.resolved));
  return 0;
}

int already_complete(const RunDirectory& run, const TrainSpec& spec) {
  fmt::print(stderr,
             "{} is complete: {} steps are done, and train.steps is {}\n"
             "  to go on:        the same command with train.steps={}\n"
             "  to start again:  the same command with --fresh\n",
             run.dir.string(), run.resume_step, spec.train.steps, 2 * run.resume_step);
  return 0;
}

struct WorkerSet {
  std::vector<WorkerCommand> commands;
  std::vector<Fd> tokens;
};

// One worker per rank, or with threads one for all ranks; `token` is empty then, for nobody joins.
WorkerSet make_workers(const PreparedRun& run, const RunDirectory& directory,
                       const std::vector<RankPlacement>& placement, const std::string& token,
                       uint16_t port, int progress_fd) {
  WorkerSet set;
  NodeLayout layout = layout_here(run.request, port);
  if (!run.request.run_id_given) layout.run_id = directory.dir.filename().string();
  set.commands = node_commands(worker_program(run, directory.dir.string()), run.request.config,
                               layout, placement, "");
  for (WorkerCommand& command : set.commands) {
    if (!token.empty()) {
      set.tokens.push_back(token_file(token));
      command.inherit[kTokenFd] = set.tokens.back().get();
    }
    if (command.rank == 0) command.inherit[kProgressFd] = progress_fd;
  }
  return set;
}

// The last words of the launcher, below everything that the run printed.
int conclude(const AgentResult& result, const RunDirectory& directory, bool fresh,
             const Terminal& terminal) {
  for (const std::string& warning : result.warnings) fmt::print(stderr, "warning: {}\n", warning);
  if (result.exit_code == static_cast<int>(Exit::done)) return result.exit_code;
  if (result.exit_code == static_cast<int>(Exit::requeue)) {
    fmt::print(stderr,
               "stopped with a complete checkpoint in {}; the same command{} goes on from it\n",
               directory.dir.string(), fresh ? " without --fresh" : "");
    return result.exit_code;
  }
  const Diagnostic report = failure_report(result);
  record_failure(directory.dir, result.exit_code, report.what);
  fmt::print(stderr, "{}", render(report, terminal.color));
  return result.exit_code;
}

}  // namespace

int launch_run(const LaunchOptions& options, const std::string& train_yaml,
               const std::vector<std::string>& settings) {
  PreparedRun run = prepare_run(options.run, train_yaml, settings);
  print_warnings(run.warnings);
  if (options.dry_run) return dry_run(run);
  if (run.request.mode != LaunchRequest::Mode::local) refuse_machines(run.request);
  const std::vector<RankPlacement> placement = place_here(run.request);

  const Terminal terminal = inspect_terminal(STDERR_FILENO);
  const RunDirectory directory = open_run(run.checked);
  print_warnings(directory.warnings);
  if (directory.complete) {
    return already_complete(directory, run.checked.resolved.spec);
  }
  // The workers read the corpus themselves; here it would only be a second copy of it.
  run.checked.corpus = {};

  // Threads of one process need nobody to introduce them to each other.
  const bool threads = runs_in_threads(run);
  const std::string token = threads ? "" : make_token();
  const std::unique_ptr<StoreServer> store = threads ? nullptr : serve_store({.token = token});
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) no_descriptor("the progress pipe");
  const Fd progress_read(ends[0]);
  const Fd progress_write(ends[1]);
  const WorkerSet workers =
      make_workers(run, directory, placement, token, store ? store->port() : 0, progress_write.get());

  ProgressView view({.out = stderr,
                     .terminal = terminal.redraw,
                     .color = terminal.color,
                     .utf8 = terminal.utf8,
                     .columns = 0});
  AgentOptions agent;
  agent.workers = workers.commands;
  agent.logs = run.request.logs;
  agent.logs.dir = directory.dir / "logs";
  agent.grace = run.request.grace;
  agent.on_output = [&](int, bool, std::string_view line) { view.text(std::string(line)); };
  agent.on_notice = [&](std::string_view line) { view.text(std::string(line)); };
  agent.line_sources.push_back({.fd = progress_read.get(), .on_line = [&](std::string_view line) {
                                  view.record(std::string(line));
                                }});
  const AgentResult result = run_agent(agent);
  view.close();
  return conclude(result, directory, options.run.fresh, terminal);
}

}  // namespace mtl
