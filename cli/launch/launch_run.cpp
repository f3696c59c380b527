// mtl launch train.yaml: a run of mtl's own trainer, here or on many machines.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/launch/launch.h"
#include "cli/launch/launch_slurm.h"
#include "cli/launch/submit.h"
#include "cli/plan/plan_text.h"
#include "common/error.h"
#include "common/files.h"
#include "common/terminal.h"
#include "common/version.h"
#include "launcher/agent/signals.h"
#include "launcher/controller/verdict.h"
#include "launcher/job/job.h"
#include "launcher/job/job_registry.h"
#include "launcher/node/generation.h"
#include "launcher/slurm/chain.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/step_dirs.h"
#include "runtime/metrics/reporter.h"
#include "runtime/plan/micro_batch.h"
#include "runtime/report/report.h"
#include "runtime/run_directory.h"

namespace mtl {

namespace {

// A single rank is the same either way: the one thread of one process.
bool runs_in_threads(const PreparedRun& run) {
  return run.checked.resolved.spec.launch.spawn == "threads" && run.world > 1;
}

JobProgram worker_program(const PreparedRun& run, const std::string& dir) {
  JobProgram program;
  program.argv = {"/proc/self/exe", "worker", dir};
  program.is_ours = true;
  program.takes_signals = true;
  program.log_dir = dir + "/logs";
  program.needed_files = {dir};
  program.threads = runs_in_threads(run);
  if (run.request.starts_agents()) {
    program.inherited = forwarded_environment(run.request);
    program.working_directory = std::filesystem::current_path();
  }
  // Threads that wait for each other spin before they sleep. gomp's default of 300,000 turns costs
  // a whole time slice whenever somebody else wants the core: 94 s instead of 17 for 300 small
  // steps beside one busy process, against 5 % on a quiet machine.
  if (!std::getenv("OMP_WAIT_POLICY") && !std::getenv("GOMP_SPINCOUNT")) {
    program.env.emplace("GOMP_SPINCOUNT", "2000");
  }
  return program;
}

std::string agents_text(const LaunchRequest& request) {
  const std::string step = step_words(request);
  if (step.empty()) return {};
  return fmt::format("{}, by\n  {}\n", request.allocation.words, step);
}

int dry_run(const PreparedRun& run, bool json) {
  if (json) {
    auto document = launch_json(run.request, worker_program(run, "RUN_DIR"), run.config_file);
    document["plan"] = to_json(run.checked.plan);
    fmt::print("{}\n", document.dump(2));
    return document.value("exit_code", 0);
  }
  const bool here = !run.request.starts_agents();
  const std::vector<RankPlacement> placement =
      here ? place_here(run.request) : std::vector<RankPlacement>();
  const LaunchConfig& config = run.request.config;
  auto commands = node_commands(worker_program(run, "RUN_DIR"), here ? config_here(config) : config,
                                layout_here(run.request, 0), placement, "");
  for (WorkerCommand& command : commands) command.argv[0] = "mtl";
  fmt::print(
      "{}\nstarts  {}\n\n{}\nsettings, each with the layer that gave it\n\n{}",
      plan_text(run.checked.plan, terminal_columns(STDOUT_FILENO), beside_steps(run.checked)),
      runs_in_threads(run) ? fmt::format("1 process with {} ranks as threads", run.world)
      : run.world == 1     ? "1 process"
                           : fmt::format("{} processes, one per rank", run.world),
      here ? rank_table(commands, placement, "here") : agents_text(run.request),
      resolved_text(run.checked));
  return 0;
}

// logs/launcher.log of a run: what its console shows, in plain lines, for whoever comes later or
// from elsewhere (mtl logs). Without what ranks print, which their own logs have.
class LaunchLog {
 public:
  explicit LaunchLog(const std::filesystem::path& run) : run_(run) {}

  void record(const std::string& json_line) {
    if (open()) view_->record(json_line);
  }
  void text(const std::string& line) {
    if (open()) view_->text(line);
  }
  void text(const Diagnostic& line) {
    std::string words = render(line);
    words.erase(words.find_last_not_of('\n') + 1);
    text(words);
  }

 private:
  // With the first line: an elastic job has no directory before.
  bool open() {
    if (!view_ && !run_.empty()) {
      file_.reset(std::fopen((run_ / "logs" / "launcher.log").c_str(), "ae"));
      if (file_) view_.emplace(ViewOptions{.out = file_.get()});
    }
    return view_.has_value();
  }

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  const std::filesystem::path& run_;
  std::unique_ptr<std::FILE, Close> file_;
  std::optional<ProgressView> view_;
};

// The length of a run, as it was given.
struct Length {
  const char *key, *unit;
  int64_t done, asked;
};

// What a job of ours needs of the run: its directory, and a program for each generation. Lives in
// the controller's process.
class Run {
 public:
  Run(const LaunchOptions& options, const std::string& train_yaml,
      const std::vector<std::string>& settings)
      : options_(options.run),
        train_yaml_(train_yaml),
        settings_(settings),
        prepared_(prepare_run(options_, train_yaml, settings)) {}

  const PreparedRun& prepared() const { return prepared_; }
  const std::filesystem::path& dir() const { return directory_.dir; }
  bool begins() const { return directory_.checkpoint.empty(); }

  // Where this process is the controller: before the first generation. Throws Error (Exit::done) if
  // the run is complete. `before_writing` as of open_run.
  void open(const std::function<void()>& before_writing = {}) {
    if (directory_.dir.empty()) {
      const LaunchRequest& request = prepared_.request;
      const int nodes = std::max(1, request.max_nodes);
      std::optional<bool> on_host;
      if (!ranks_are_elsewhere(request)) {
        on_host = arenas_on_host(std::max(1, prepared_.world / nodes), request.config.use_cpu);
      }
      directory_ = open_run(prepared_.checked, on_host, nodes, before_writing);
      if (prepared_.request.mode != LaunchRequest::Mode::local) {
        directory_.dir = std::filesystem::absolute(directory_.dir);  // also for the other machines
      }
      print_warnings(directory_.warnings);
    }
    if (!directory_.complete) return;
    const TrainSpec::Train& train = prepared_.checked.resolved.spec.train;
    const auto [key, unit, done, asked] =
        train.steps > 0 ? Length{"train.steps", "steps", directory_.resume_step, train.steps}
        : train.samples > 0
            ? Length{"train.samples", "samples", directory_.resume_samples, train.samples}
            : Length{"train.tokens", "tokens", directory_.resume_samples * train.seq_len,
                     train.tokens};
    throw Error(
        Exit::done,
        {.code = "run.complete",
         .what = fmt::format("{} is complete: {} {} are done, and {} is {}",
                             directory_.dir.string(), done, unit, key, asked),
         .help = fmt::format("the same command with {}={} goes on, with --fresh it starts again",
                             key, 2 * done),
         .severity = Diagnostic::Severity::warning});
  }

  // A rank did not get the memory that the plan asks for: the next smaller micro-batch, where that
  // is left to us (train.micro_batch auto). False if there is none.
  bool take_smaller_micro_batch() {
    const CheckedRun& checked = prepared_.checked;
    if (checked.resolved.spec.train.micro_batch > 0 && checked.micro_batch_words.empty()) {
      return false;
    }
    const int64_t before = checked.plan.micro_batch;
    options_.too_many_bytes = bytes_of_rank(checked.plan, true);
    prepared_ = prepare_run(options_, train_yaml_, settings_, prepared_.world);
    return checked.plan.micro_batch < before;
  }

  JobProgram generation(int world) {
    if (world != prepared_.world) {
      prepared_ = prepare_run(options_, train_yaml_, settings_, world);
    }
    open();
    const int64_t fence = begin_generation(directory_.dir, prepared_.checked);
    // The workers read the corpus themselves; here it would only be a second copy of it.
    prepared_.checked.corpus = {};
    JobProgram program = worker_program(prepared_, directory_.dir.string());
    program.env["MTL_RUN_FENCE"] = std::to_string(fence);
    // Not the time of day, which another machine may see otherwise.
    const auto age = std::chrono::steady_clock::now() - began_;
    program.env["MTL_JOB_AGE_S"] =
        std::to_string(std::chrono::ceil<std::chrono::seconds>(age).count());
    return program;
  }

 private:
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  RunOptions options_;
  const std::string train_yaml_;
  const std::vector<std::string> settings_;
  PreparedRun prepared_;
  RunDirectory directory_;
};

// For mtl ps and its like, which find it by this.
void record(const Run& run, const Surroundings& around) {
  const LaunchRequest& request = run.prepared().request;
  const std::string& name = run.prepared().checked.resolved.spec.run.name;
  const bool hosts = request.mode == LaunchRequest::Mode::hosts;
  JobRecord record = record_of_this_process(hosts ? "ssh" : "local", name);
  // In a shell of salloc, too: SLURM shows it under the job.
  if (around.launcher == Launcher::slurm) {
    record.kind = "slurm";
    record.id = around.job_id;
  }
  std::error_code ignored;
  record.run = std::filesystem::absolute(run.dir(), ignored).string();
  record.nodes = std::max(request.max_nodes, 1);
  record_job(record);
  if (const std::string mark = begun_mark(); !mark.empty()) {
    const std::string before = first_line(mark);
    if (!before.empty() && before != record.run && run.begins() &&
        !std::filesystem::exists(before, ignored)) {
      print_warnings({{.code = "run.moved",
                       .what = fmt::format("the job has worked in {}, which was moved or removed "
                                           "since: it begins anew in {}",
                                           before, record.run),
                       .help = "to go on from its checkpoints: stop this one, put the folder back, "
                               "and submit the same script once more",
                       .severity = Diagnostic::Severity::warning}});
    }
    std::ofstream(mark) << record.run << "\n";
  }
}

// Ended otherwise than was asked: with a failure, or with 75 because of a lost node.
bool has_failed(const JobOutcome& outcome) {
  if (outcome.exit_code == static_cast<int>(Exit::requeue)) {
    return !outcome.interrupted && !outcome.report.empty();
  }
  return outcome.exit_code != 0 && !outcome.report.empty();
}

// By a second request, or mtl stop --now: nobody waited for a checkpoint.
bool was_killed(const JobOutcome& outcome) {
  return has_failed(outcome) && outcome.report.front().code == "run.stopped";
}

// With the words of the rank that failed, if they are among its last ones.
std::string reason_of(const Diagnostic& headline) {
  for (const std::string& note : headline.notes) {
    if (note.starts_with("| error[")) return fmt::format("{}: {}", headline.what, note.substr(2));
  }
  return headline.what;
}

// The last words of the launcher, below everything that the run printed. `dir`: "" if another
// process is the controller.
void conclude(JobOutcome outcome, const std::filesystem::path& dir, bool fresh) {
  bool has_page = false;
  if (!dir.empty()) {
    if (was_killed(outcome)) {
      record_stop(dir);
    } else if (has_failed(outcome)) {
      record_failure(dir, outcome.exit_code, reason_of(outcome.report.front()));
    } else if (outcome.exit_code == static_cast<int>(Exit::requeue)) {
      record_stop(dir);
    }
    const std::string wrong = write_report_of(dir);
    has_page = wrong.empty();
    if (!has_page) outcome.warnings.push_back(wrong);
  }
  const bool color = inspect_terminal(STDERR_FILENO).color;
  for (const std::string& warning : outcome.warnings) say(stderr, "warning: " + warning + "\n");
  if (outcome.exit_code == static_cast<int>(Exit::requeue) && !has_failed(outcome)) {
    Diagnostics ignored;
    const bool saved = dir.empty() || !newest_checkpoint(dir / kCheckpoints, ignored).empty();
    if (saved && !dir.empty() && !std::filesystem::exists(dir / "resolved.yaml")) {
      say(stderr, fmt::format("stopped with a complete checkpoint in {0}, whose other files were "
                              "moved or removed meanwhile: move its checkpoints to these, or begin "
                              "a run with init.from={0}; the same command begins anew\n",
                              dir.string()));
      return;
    }
    say(stderr, saved ? fmt::format("stopped with a complete checkpoint{}; the same command{} goes "
                                    "on from it\n",
                                    dir.empty() ? "" : " in " + dir.string(),
                                    fresh ? " without --fresh" : "")
                      : "stopped before the first step; the same command begins anew\n");
    return;
  }
  for (const Diagnostic& line : outcome.report) say(stderr, render(line, color));
  if (was_killed(outcome) && !dir.empty()) {
    Diagnostics ignored;
    const std::filesystem::path saved = newest_checkpoint(dir / kCheckpoints, ignored);
    say(stderr, saved.empty()
                    ? "killed before its first checkpoint; the same command begins anew\n"
                    : fmt::format("killed: what came after {} is lost; the same command{} goes on "
                                  "from there\n",
                                  saved.string(), fresh ? " without --fresh" : ""));
  }
  // Below a failure it would be in the way.
  if (outcome.exit_code == 0 && has_page) {
    say(stderr, fmt::format("report   {}\n", (dir / "report.html").string()));
  }
}

// Tasks of an array are runs of their own, also where no setting tells them apart.
std::vector<std::string> settings_of_task(const LaunchOptions& options,
                                          const std::string& train_yaml,
                                          const std::vector<std::string>& given) {
  bool used = false;
  const Surroundings& around = options.run.given.around;
  std::vector<std::string> settings = array_settings(given, around, used);
  const std::string task = array_task(around);
  if (task.empty() || used) return settings;
  const PreparedRun run = prepare_run(options.run, train_yaml, settings);
  std::erase_if(settings, [](const std::string& one) { return one.starts_with("run.name="); });
  settings.push_back(fmt::format("run.name={}-{}", run.checked.resolved.spec.run.name, task));
  return settings;
}

}  // namespace

int launch_run(const LaunchOptions& options, const std::string& train_yaml,
               const std::vector<std::string>& given_settings) {
  Run run(options, train_yaml, settings_of_task(options, train_yaml, given_settings));
  if (!options.quiet) say(stderr, run.prepared().config_notice);
  print_warnings(run.prepared().warnings);
  if (const std::string& words = run.prepared().checked.micro_batch_words; !words.empty()) {
    say(stderr, "train.micro_batch " + words + "\n");
  }
  if (run.prepared().request.via == "slurm") {
    return submit_run(options, run.prepared(), train_yaml, given_settings);
  }
  if (options.dry_run) return dry_run(run.prepared(), options.json);

  JobOptions job;
  job.request = run.prepared().request;
  job.version = version();
  const bool elastic = job.request.mode == LaunchRequest::Mode::member && job.request.elastic;
  const bool leads =
      job.request.mode != LaunchRequest::Mode::member || job.request.machine_rank == 0;
  // From the run directory on, a request to stop is one, also before somebody takes it.
  std::optional<SignalsHeld> held;
  if (leads && !elastic) {
    try {
      run.open([&] { held.emplace(); });
    } catch (const Error& error) {
      if (error.exit() != Exit::done) throw;
      // Nodes that wait for this one hear it from the controller.
      if (job.request.mode != LaunchRequest::Mode::member) {
        print_warnings(error.diagnostics());
        return 0;
      }
    }
    // Where the command is typed on every node, the others cannot know this run's name.
    if (!job.request.run_id_given && job.request.mode != LaunchRequest::Mode::member) {
      job.request.run_id = run.dir().filename().string();
    }
    job.program = worker_program(run.prepared(), run.dir().string());
    record(run, options.run.given.around);
  }
  job.prepare = [&](int world, int64_t) { return run.generation(world); };

  const Terminal terminal = inspect_terminal(STDERR_FILENO);
  ProgressView view({.out = stderr,
                     .terminal = terminal.redraw,
                     .color = terminal.color,
                     .utf8 = terminal.utf8,
                     .columns = 0});
  job.ears.on_output = [&](int, bool, std::string_view line) { view.text(std::string(line)); };
  LaunchLog log(run.dir());
  job.ears.on_notice = [&](std::string_view line) {
    view.text(std::string(line));
    log.text(std::string(line));
  };
  bool stepped = false;
  job.ears.on_line = [&](std::string_view line) {
    stepped |= line.find("\"kind\":\"step\"") != std::string_view::npos;
    view.record(std::string(line));
    log.record(std::string(line));
  };
  const auto start = [&] {
    try {
      return run_job(job);
    } catch (const Error& error) {
      // Nothing else would be known of the run but that its process is gone.
      if (!run.dir().empty() && error.exit() != Exit::done) {
        record_failure(run.dir(), static_cast<int>(error.exit()), error.diagnostics().front().what);
        for (const Diagnostic& line : error.diagnostics()) log.text(line);
      }
      throw;
    }
  };
  JobOutcome outcome = start();
  // A micro-batch that was left to us is tried by the first step.
  const bool mine = job.request.mode != LaunchRequest::Mode::member;
  while (mine && !stepped && ran_out_of_memory(outcome) && run.take_smaller_micro_batch()) {
    view.text("the first step ran out of memory; again with train.micro_batch " +
              run.prepared().checked.micro_batch_words);
    outcome = start();
  }
  // The run is what it is, whether or not somebody still reads what is said of it.
  std::signal(SIGPIPE, SIG_IGN);
  view.close();
  for (const Diagnostic& line : outcome.report) log.text(line);
  conclude(outcome, run.dir(), options.run.fresh);
  // Until here: the exit code is what the run has come to, whatever is asked of it by then.
  held.reset();
  return continue_in_slurm(job.request, outcome, run.dir());
}

}  // namespace mtl
