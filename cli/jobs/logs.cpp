// mtl logs: what a run has shown and its ranks have printed, together or one of them.
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>
#include <unistd.h>

#include <fmt/format.h>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "common/error.h"
#include "common/terminal.h"
#include "launcher/job/jobs.h"
#include "launcher/output/console_lines.h"
#include "launcher/output/log_reader.h"
#include "launcher/slurm/follow.h"
#include "launcher/slurm/job_logs.h"
#include "runtime/find_run.h"

namespace mtl {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kFollowLines = 10;  // shown of what was there before
constexpr timespec kPause{0, 100'000'000};
constexpr int kPausesPerScan = 10;  // for ranks that are new

struct LogsRequest {
  fs::path dir;
  std::optional<int64_t> rank, node, lines;
  bool follow = false;
};

// A log that is shown, with its prefix unless it is the only one.
struct Shown {
  LogReader reader;
  bool raw;
  ConsoleLines lines;
};

constexpr int kLauncher = -1;  // among the numbers of ranks

// What the console of a run has shown; programs of others have none.
fs::path launcher_log(const fs::path& dir) {
  return dir / "launcher.log";
}

fs::file_time_type last_written(const fs::path& dir) {
  std::error_code ignored;
  const fs::file_time_type console = fs::last_write_time(launcher_log(dir), ignored);
  fs::file_time_type newest = ignored ? fs::file_time_type::min() : console;
  for (const auto& [rank, path] : numbered_logs(dir, "rank")) {
    newest = std::max(newest, fs::last_write_time(path, ignored));
  }
  return newest;
}

bool has_logs(const fs::path& dir) {
  return !numbered_logs(dir, "rank").empty() || !numbered_logs(dir, "node").empty();
}

// Of all runs under runs/ the one that was written to last.
fs::path newest_run() {
  fs::path newest;
  std::error_code ignored;
  for (const auto& name : fs::directory_iterator("runs", ignored)) {
    for (const auto& run : fs::directory_iterator(name.path(), ignored)) {
      const fs::path dir = run.path() / "logs";
      if (has_logs(dir) && (newest.empty() || last_written(dir) > last_written(newest))) {
        newest = dir;
      }
    }
  }
  if (!newest.empty()) return newest;
  throw Error(Exit::data, Diagnostic{.code = "logs.missing",
                                     .what = "there are no logs under runs/",
                                     .help = "name the run or the directory: mtl logs RUN"});
}

fs::path logs_of(const std::string& run) {
  if (run.empty()) return newest_run();
  for (const fs::path& dir : {fs::path(run), fs::path(run) / "logs"}) {
    if (has_logs(dir)) return dir;
  }
  const fs::path dir = find_run(run) / "logs";
  if (has_logs(dir)) return dir;
  throw Error(Exit::data, Diagnostic{.code = "logs.missing",
                                     .what = fmt::format("no rank has a log in {}", dir.string()),
                                     .help = "give a run, or the directory that --log_dir named"});
}

// "0-3, 7"
std::string numbers(const std::map<int, fs::path>& logs) {
  std::string text;
  for (auto it = logs.begin(); it != logs.end();) {
    const int first = it->first;
    int last = first;
    while (++it != logs.end() && it->first == last + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", first);
    if (last > first) text += fmt::format("-{}", last);
  }
  return text;
}

class LogsView {
 public:
  explicit LogsView(const LogsRequest& request)
      : request_(request), color_(inspect_terminal(STDOUT_FILENO).color) {}

  void run() {
    scan();
    if (shown_.empty()) refuse();
    while (show()) {
    }
    for (int pause = 1; request_.follow && write_ok(); ++pause) {
      nanosleep(&kPause, nullptr);
      if (pause % kPausesPerScan == 0 && !single()) scan();
      while (show()) {
      }
    }
    for (auto& [number, shown] : shown_) put(shown.lines.finish());
  }

 private:
  bool single() const { return request_.rank || request_.node; }
  const char* kind() const { return request_.node ? "node" : "rank"; }

  void scan() {
    const bool first = shown_.empty();
    const std::optional<int64_t> wanted = request_.node ? request_.node : request_.rank;
    std::map<int, fs::path> logs = numbered_logs(request_.dir, kind());
    std::error_code ignored;
    if (!single() && fs::exists(launcher_log(request_.dir), ignored)) {
      logs.emplace(kLauncher, launcher_log(request_.dir));
    }
    for (const auto& [number, path] : logs) {
      if ((wanted && *wanted != number) || shown_.contains(number)) continue;
      std::string prefix = fmt::format("{} {}| ", kind(), number);
      if (color_) prefix = fmt::format("\x1b[3{}m{}\x1b[0m", 1 + number % 6, prefix);
      Shown shown{LogReader(path), single() || number == kLauncher, ConsoleLines(prefix)};
      const int64_t lines = request_.lines.value_or(kFollowLines);
      if (first && (request_.lines || request_.follow)) shown.reader.skip_to_last(lines);
      shown_.emplace(number, std::move(shown));
    }
  }

  [[noreturn]] void refuse() const {
    const auto ranks = numbered_logs(request_.dir, "rank");
    const auto nodes = numbered_logs(request_.dir, "node");
    std::vector<std::string> notes;
    if (!ranks.empty()) notes.push_back("ranks: " + numbers(ranks));
    if (!nodes.empty()) notes.push_back("nodes: " + numbers(nodes));
    throw Error(Exit::data,
                Diagnostic{.code = "logs.missing",
                           .what = fmt::format("{} {} has no log in {}", kind(),
                                               request_.node.value_or(request_.rank.value_or(0)),
                                               request_.dir.string()),
                           .notes = notes,
                           .help = "choose one that has"});
  }

  // One piece of every log; false if there was nothing new. A rank's whole log comes before the
  // next rank's when nothing is being written: its lines belong together.
  bool show() {
    bool any = false;
    for (auto& [number, shown] : shown_) {
      for (std::string text; write_ok() && shown.reader.read(text); text.clear()) {
        any = true;
        put(shown.raw ? text : shown.lines.add(text, ConsoleLines::Clock::now()));
      }
    }
    if (any) std::fflush(stdout);
    return any && request_.follow && write_ok();
  }

  void put(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }
  bool write_ok() const { return std::ferror(stdout) == 0; }

  const LogsRequest& request_;
  bool color_;
  std::map<int, Shown> shown_;
};

// What a person may mean beside a run: an ID of mtl ps, or a name there. Nothing if it is none.
std::optional<JobView> job_of(const std::string& text) {
  std::error_code ignored;
  if (text.empty() || fs::exists(text, ignored) || fs::exists(fs::path("runs") / text, ignored)) {
    return std::nullopt;
  }
  const std::vector<JobView> jobs = job_views(true);
  const bool numbered = is_slurm_id(text);
  std::vector<JobView> found = matching_jobs(jobs, text);
  if (found.empty() && !numbered) return std::nullopt;
  // A task that SLURM has forgotten with its array, of which the record is left.
  const size_t line = text.find('_');
  if (found.empty() && line != std::string::npos) {
    found = matching_jobs(jobs, text.substr(0, line));
    if (!found.empty()) {
      JobView task{.id = text, .name = found.front().name, .where = "slurm", .state = "ENDED"};
      task.log = log_of_task(log_of_array(found.front().log, found.front().id), text);
      return task;
    }
  }
  if (numbered && (found.empty() || found.front().log.empty())) {
    // One that was given in without us, or on another machine.
    const std::string run = found.empty() ? "" : found.front().run;
    found.clear();
    for (const SlurmJobState& job : slurm_job_states(text)) {
      found.push_back(view_of(job));
      found.back().run = run;
    }
  }
  if (!found.empty()) {
    JobView job = found.front();
    if (!numbered || job.id == text) return job;
    // An array: its tasks together.
    job.log = log_of_array(job.log, job.id);
    job.id = text;
    job.live = std::any_of(found.begin(), found.end(), [](const JobView& one) { return one.live; });
    return job;
  }
  throw Error(Exit::data, Diagnostic{.code = "logs.missing",
                                     .what = fmt::format("there is no job {}", text),
                                     .help = "see: mtl ps --all"});
}

// The log of a job of SLURM: what the launch in it printed, with the progress of the run.
int show_job(const JobView& job, const LogsRequest& request) {
  FollowEars ears;
  ears.on_log = [](std::string_view bytes) {
    std::fwrite(bytes.data(), 1, bytes.size(), stdout);
    std::fflush(stdout);
  };
  ears.on_notice = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  ears.stop = [] { return std::ferror(stdout) != 0; };
  if (request.follow && job.live) {
    const FollowEnd end = follow_slurm_job(job.id, job.log, ears);
    if (!end.detached) fmt::print(stderr, "{}\n", slurm_verdict(end.job));
    return 0;
  }
  JobLogs logs(job.log, request.lines.value_or(0));
  if (!logs.finish(ears.on_log)) {
    fmt::print(stderr, "job {} has printed nothing yet{}\n", job.id,
               job.state == "PENDING"
                   ? fmt::format(": it waits ({})", slurm_reason_words(job.reason))
                   : fmt::format(" to {}", job.log));
  }
  return 0;
}

}  // namespace

int command_logs(const Arguments& args) {
  LogsRequest request;
  std::vector<std::string> runs;
  CommandLine line({"logs [options] [RUN]"},
                   "Prints what a run has shown on its console and what its ranks have printed: "
                   "all of them with their rank in front of each line, or one as it is.");
  line.example("mtl logs", "the run that was written to last, under runs/");
  line.example("mtl logs -f runs/shakespeare", "follow it until Ctrl-C: steps, losses, ranks");
  line.example("mtl logs --rank 3 --lines 50 RUN", "the end of one rank");
  line.example("mtl logs -f 1234", "a job of SLURM: while it waits, runs, and until it ends");
  line.rest("RUN", runs,
            "a run directory, runs/NAME (its newest run), the directory that --log_dir named, or "
            "an ID of mtl ps");
  line.option("rank", "R", request.rank, 0, "only this rank, byte for byte");
  line.option("node", "N", request.node, 0, "the log of this node's agent instead of ranks");
  line.flag("follow,f", request.follow, "go on with what is added, also when logs rotate");
  line.option("lines", "N", request.lines, 1, "of each log only the last N lines",
              "all; with --follow 10");
  if (!line.parse(args)) return 0;
  if (runs.size() > 1) {
    throw Error(Exit::usage, Diagnostic{.code = "usage.extra",
                                        .what = "mtl logs does not take '" + runs[1] + "'",
                                        .help = "it shows one run at a time"});
  }
  if (request.rank && request.node) {
    throw Error(Exit::usage, Diagnostic{.code = "usage.option",
                                        .what = "--rank and --node exclude each other",
                                        .help = "leave one out"});
  }
  std::string wanted = runs.empty() ? "" : runs[0];
  if (const auto job = job_of(wanted)) {
    // Its ranks, where they are asked for; else all that the job has printed.
    const bool ranks = request.rank || request.node || job->log.empty();
    if (!ranks) return show_job(*job, request);
    wanted = job->run;
  }
  request.dir = logs_of(wanted);
  LogsView(request).run();
  return 0;
}

}  // namespace mtl
