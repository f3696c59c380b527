// mtl test: does a set-up work? Starts what `mtl launch` would start, with the self-check of
// runtime/selftest.h as the program, and says what passed and the first thing that is wrong.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <optional>
#include <unistd.h>

#include <sys/statvfs.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/checks/check_job.h"
#include "cli/checks/test_report.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/launch/launch_slurm.h"
#include "cli/launch_flags.h"
#include "cli/run_request.h"
#include "common/error.h"
#include "common/files.h"
#include "common/terminal.h"
#include "common/version.h"
#include "launcher/job/job.h"
#include "runtime/selftest.h"

namespace mtl {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Behind the stages of the ranks, and of this machine alone.
constexpr const char* kDiskStage = "disk";

std::vector<std::string> test_stages() {
  std::vector<std::string> stages = {std::begin(kSelftestStages), std::end(kSelftestStages)};
  stages.emplace_back(kDiskStage);
  return stages;
}

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Where runs would be written: the folder, or the nearest one above it that exists.
std::string check_disk(const fs::path& run_dir) {
  std::error_code ignored;
  fs::path folder = fs::absolute(run_dir);
  while (!fs::exists(folder, ignored) && folder.has_relative_path()) folder = folder.parent_path();
  const fs::path probe = folder / fmt::format(".mtl-test-{}", getpid());
  const auto refuse = [&](int error) {
    return Error(Exit::environment,
                 {.code = "selftest.disk",
                  .what = fmt::format("disk: cannot write in {}, where {} would be: {}",
                                      folder.string(), run_dir.string(), std::strerror(error)),
                  .help = "start from a folder that is yours, or set run.dir (here: MTL_RUN__DIR) "
                          "to one"});
  };
  const Fd file(open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) throw refuse(errno);
  const bool written = write(file.get(), "mtl", 3) == 3 && fsync(file.get()) == 0;
  const int error = errno;
  fs::remove(probe, ignored);
  if (!written) throw refuse(error);
  struct statvfs space {};
  const bool known = statvfs(folder.c_str(), &space) == 0;
  return fmt::format(
      "{} {}{}", run_dir.string(), fs::exists(run_dir, ignored) ? "is writable" : "can be made",
      known ? fmt::format(", {:.3g} GiB free", static_cast<double>(space.f_bavail) *
                                                   static_cast<double>(space.f_frsize) / (1 << 30))
            : "");
}

class Test {
 public:
  Test(bool json, bool quiet, const std::optional<std::string>& until)
      : json_(json), quiet_(quiet), until_(until), color_(inspect_terminal(STDOUT_FILENO).color) {}

  int run(JobOptions job) {
    begin_ = last_ = Clock::now();
    job.ears.on_line = [&](std::string_view line) { record(line); };
    job.ears.on_output = [&](int, bool, std::string_view line) { said_.emplace_back(line); };
    job.ears.on_notice = [&](std::string_view line) {
      if (stages_.empty() && !json_ && !quiet_) fmt::print(stderr, "{}\n", line);
    };
    JobOutcome outcome;
    try {
      outcome = run_job(job);
    } catch (const Error& error) {
      outcome.exit_code = static_cast<int>(error.exit());
      outcome.report = error.diagnostics();
    }
    judge(job, outcome);
    if (!failed_ && exit_code_ == 0 && !hosts_.empty() && !until_) disk();
    return conclude();
  }

 private:
  void record(std::string_view line) {
    TestRecord record = TestRecord::parse(line, nullptr, false);
    if (!record.is_object() || failed_) return;
    const std::string stage = record["stage"];
    if (!record["ok"]) {
      failed_ = true;
      exit_code_ = record["exit"];
      errors_ = {{.code = record["code"],
                  .what = record["what"],
                  .notes = record["notes"],
                  .help = record["help"]}};
      return row(std::move(record), "");
    }
    if (stage == "spawn") {
      hosts_ = hosts_of(record);
      record["seconds"] = since(begin_);  // also what it took to get there
    }
    const std::string text = stage_words(record, hosts_, warnings_);
    row(std::move(record), text);
  }

  void row(TestRecord record, const std::string& text) {
    const bool ok = record["ok"];
    const std::string stage = record["stage"];
    const double seconds = record["seconds"];
    if (ok) record["text"] = text;
    stages_.push_back(std::move(record));
    last_ = Clock::now();
    if (json_ || (quiet_ && ok)) return;
    const std::string mark =
        ok ? (color_ ? "\x1b[32mok\x1b[0m  " : "ok  ") : (color_ ? "\x1b[31mBAD\x1b[0m " : "BAD ");
    std::fflush(stderr);
    fmt::print("{}", stage_row(mark, stage, ok ? text : "see below; the stages behind it: not run",
                               seconds, terminal_columns(STDOUT_FILENO)));
    std::fflush(stdout);
  }

  // Of a job that has ended without a word from the ranks why.
  void judge(const JobOptions& job, const JobOutcome& outcome) {
    for (const std::string& warning : outcome.warnings) {
      warnings_.push_back(
          {.code = "selftest.job", .what = warning, .severity = Diagnostic::Severity::warning});
    }
    if (failed_ || outcome.exit_code == 0) return;
    failed_ = true;
    errors_ = outcome.report;
    exit_code_ = outcome.exit_code;
    const bool died = !errors_.empty() && errors_.front().code == "rank.died";
    if (!died || outcome.interrupted) return;
    const bool kept = exit_code_ == static_cast<int>(Exit::timeout) ||
                      exit_code_ == static_cast<int>(Exit::environment);
    if (!kept) exit_code_ = static_cast<int>(Exit::run_failed);
    // On a node without rank 0 nobody knows how far they had come.
    if (job.request.mode == LaunchRequest::Mode::member && stages_.empty()) return;
    const char* stage = kSelftestStages[std::min(stages_.size(), std::size(kSelftestStages) - 1)];
    Diagnostic& first = errors_.front();
    first.what = fmt::format("{}: {}", stage, first.what);
    // There is no output above.
    if (first.help == "see its output above") {
      first.help =
          "start it alone there, and look at what mtl env says there; --log_dir DIR keeps "
          "all that the ranks print";
    }
    row({{"stage", stage}, {"ok", false}, {"seconds", since(last_)}}, "");
  }

  void disk() {
    const auto begin = Clock::now();
    const char* given = std::getenv("MTL_RUN__DIR");
    TestRecord record = {{"stage", kDiskStage}, {"ok", true}, {"seconds", 0.0}};
    try {
      const std::string text = check_disk(given != nullptr && *given ? given : "runs");
      record["seconds"] = since(begin);
      row(record, text);
    } catch (const Error& error) {
      failed_ = true;
      exit_code_ = static_cast<int>(error.exit());
      errors_ = error.diagnostics();
      record["ok"] = false;
      row(record, "");
    }
  }

  int conclude() {
    const std::string verdict =
        hosts_.empty()
            ? "all is well here; the machine with rank 0 says the rest"
            : fmt::format("all is well{}{}: {} in {:.1f} s", until_ ? " until " + *until_ : "",
                          warnings_.empty()
                              ? ""
                              : fmt::format(", with {} to think about",
                                            warnings_.size() == 1
                                                ? std::string("a warning")
                                                : fmt::format("{} warnings", warnings_.size())),
                          ranks_words(hosts_), since(begin_));
    if (json_) {
      print_json(verdict);
      return exit_code_;
    }
    const bool color = inspect_terminal(STDERR_FILENO).color;
    if (!failed_) {
      for (const std::string& line : said_) fmt::print(stderr, "{}\n", line);
    }
    for (const Diagnostic& warning : warnings_) fmt::print(stderr, "{}", render(warning, color));
    for (const Diagnostic& error : errors_) fmt::print(stderr, "{}", render(error, color));
    std::fflush(stderr);
    if (!failed_) fmt::print("{}\n", verdict);
    return exit_code_;
  }

  void print_json(const std::string& verdict) const {
    const auto words = [](const std::vector<Diagnostic>& all) {
      TestRecord list = TestRecord::array();
      for (const Diagnostic& one : all) {
        list.push_back(
            {{"code", one.code}, {"what", one.what}, {"notes", one.notes}, {"help", one.help}});
      }
      return list;
    };
    const TestRecord all = {{"ok", !failed_},
                            {"exit_code", exit_code_},
                            {"mtl", version()},
                            {"seconds", since(begin_)},
                            {"verdict", failed_ ? "" : verdict},
                            {"errors", words(errors_)},
                            {"warnings", words(warnings_)},
                            {"stages", stages_}};
    fmt::print("{}\n", all.dump(2, ' ', false, TestRecord::error_handler_t::replace));
  }

  const bool json_, quiet_;
  const std::optional<std::string> until_;
  const bool color_;
  Clock::time_point begin_, last_;  // last_: a stage ended
  std::vector<TestHost> hosts_;
  TestRecord stages_ = TestRecord::array();
  std::vector<Diagnostic> warnings_, errors_;
  std::vector<std::string> said_;  // by ranks
  bool failed_ = false;
  int exit_code_ = 0;
};

}  // namespace

int command_test(const Arguments& args) {
  bool json = false;
  double timeout_s = 15;
  std::optional<std::string> until;
  LaunchGiven given;
  CommandLine line(
      {"test [the flags of mtl launch]"},
      "Checks a set-up in a few seconds: starts ranks as mtl launch with the same flags would, has "
      "them meet, verifies and measures their network, trains a tiny model in several layouts, "
      "compares the clocks, and names the first thing that is wrong. Nothing is written.");
  line.example("mtl test", "this machine, by its default_config.yaml");
  line.example("mtl test --num_processes 4", "4 ranks here");
  line.example("mtl test --hosts a:4,b:4", "two machines, by ssh");
  line.example("mtl test --hosts a,b --json | jq .errors", "for programs");
  line.group("The test");
  line.flag("json", json, "one JSON object, with what every rank found");
  line.option("stage_timeout", "SECONDS", timeout_s, 0.1, "until a stage counts as hanging", "15");
  line.choice("until", test_stages(), until, "what comes behind it is not tested", kDiskStage);
  declare_check_flags(line, given.flags);
  line.footnote("Exit code: 0 all is well, 4 the environment, 7 a rank hangs, 1 anything else.");
  if (!line.parse(args)) return 0;
  read_launch_environment(given);
  // Where srun has started a task for each rank, one on each node starts them all.
  const StepShare share = share_step(given);
  if (share.stands_by) return 0;
  refuse_launch_only_flags(given, "test");
  if (until == kDiskStage) until.reset();  // all of them
  std::vector<std::string> arguments = {"--timeout", fmt::format("{}", timeout_s)};
  if (until) arguments.insert(arguments.end(), {"--until", *until});
  return Test(json, is_on(given, "quiet"), until).run(check_job(given, arguments));
}

}  // namespace mtl
