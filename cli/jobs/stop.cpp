// mtl stop: ends a run with a checkpoint, wherever it runs, or takes a job out of the queue.
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include <fmt/format.h>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/launch/launch.h"
#include "common/error.h"
#include "launcher/agent/signals.h"
#include "launcher/job/jobs.h"
#include "launcher/slurm/control.h"
#include "launcher/slurm/follow.h"
#include "rendezvous/network.h"

namespace mtl {

namespace {

constexpr timespec kLookAgain{0, 50'000'000};
constexpr timespec kUntilAnother{0, 2 * std::chrono::nanoseconds(SignalPipe::kOneRequest).count()};

struct StopRequest {
  bool now = false;
  bool wait = true;
};

Error no_such(const std::string& text) {
  return Error(Exit::usage,
               Diagnostic{.code = "job.missing",
                          .what = fmt::format("nothing of yours that runs or waits is '{}'", text),
                          .help = "see: mtl ps"});
}

Error slurm_error(const std::string& what, const std::string& words) {
  Diagnostic diagnostic{.code = "slurm.command", .what = what, .help = "see: mtl ps"};
  if (!words.empty()) diagnostic.notes = {words.substr(0, words.find('\n'))};
  return Error(Exit::environment, diagnostic);
}

// A job of SLURM that the registry need not know.
std::vector<JobView> slurm_job(const std::string& id) {
  std::vector<JobView> found;
  for (const SlurmJobState& job : slurm_job_states(id)) found.push_back(view_of(job));
  return found;
}

bool interrupted(SignalPipe& signals) {
  for (const int signal : signals.take()) {
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) return true;
  }
  return false;
}

int stop_slurm(const JobView& job, const StopRequest& request, SignalPipe& signals) {
  SlurmJobState state{.id = job.id, .state = job.state};
  if (const auto now = slurm_job_states(job.id); !now.empty()) state = now.front();
  if (state.ended()) {
    fmt::print("{}\n", slurm_verdict(state));
    return 0;
  }
  const bool gently = !state.pending() && !request.now;
  if (gently && !state.script.empty() && !is_job_script(state.script)) {
    throw Error(Exit::usage,
                Diagnostic{.code = "job.foreign",
                           .what = fmt::format("job {} was not started by mtl, which cannot ask it "
                                               "for a checkpoint",
                                               job.id),
                           .help = fmt::format("scancel {0}, or mtl stop --now {0}", job.id)});
  }
  std::vector<std::string> argv = {"scancel"};
  // mtl launch is the batch process: it stops the ranks with a checkpoint and ends with 75.
  if (gently) argv.insert(argv.end(), {"--batch", "--signal=TERM"});
  argv.push_back(job.id);
  const CommandAnswer answer = ask_slurm(argv);
  if (!answer.ok()) {
    throw slurm_error(fmt::format("job {} cannot be stopped", job.id), answer.err);
  }
  if (state.pending()) {
    fmt::print("job {}: taken out of the queue\n", job.id);
    return 0;
  }
  fmt::print("job {}: {}\n", job.id,
             gently ? "asked to stop with a checkpoint"
                    : "cancelled; what it did since its last "
                      "checkpoint is lost");
  std::fflush(stdout);
  if (!request.wait) return 0;
  FollowEars ears;
  ears.on_log = [](std::string_view) {};
  ears.on_notice = [](const std::string&) {};
  ears.stop = [&] { return interrupted(signals); };
  const FollowEnd end = follow_slurm_job(job.id, "", ears);
  if (end.detached) {
    fmt::print(stderr, "job {} still stops; see: mtl ps\n", job.id);
    return 130;
  }
  fmt::print("{}\n", slurm_verdict(end.job));
  return 0;
}

int stop_process(const JobView& job, const StopRequest& request, SignalPipe& signals) {
  if (job.pid <= 0) {
    throw Error(Exit::usage,
                Diagnostic{.code = "job.elsewhere",
                           .what = fmt::format("{} does not run on this machine", job.id),
                           .help = job.host.empty() || job.host == host_name()
                                       ? "it has ended; see: mtl ps --all"
                                       : fmt::format("on {}: mtl stop {}", job.host, job.id)});
  }
  const uint64_t started = process_start(job.pid);
  // The second one means at once, if it does not come with the first: a launcher takes those for
  // one (SignalPipe).
  for (int i = 0; i < (request.now ? 2 : 1); ++i) {
    if (i > 0) nanosleep(&kUntilAnother, nullptr);
    if (i > 0 && process_start(job.pid) != started) break;
    if (kill(job.pid, SIGTERM) != 0 && errno != ESRCH) {
      throw Error(Exit::environment, Diagnostic{.code = "job.signal",
                                                .what = fmt::format("{} cannot be signalled: {}",
                                                                    job.id, std::strerror(errno)),
                                                .help = "stop it as the user who started it"});
    }
  }
  fmt::print("{} ({}): {}\n", job.id, job.name,
             request.now ? "stopped at once" : "asked to stop with a checkpoint");
  std::fflush(stdout);
  while (request.wait && started != 0 && process_start(job.pid) == started) {
    if (interrupted(signals)) {
      fmt::print(stderr, "{} still stops; see: mtl ps\n", job.id);
      return 130;
    }
    nanosleep(&kLookAgain, nullptr);
  }
  if (request.wait) fmt::print("{}: ended\n", job.id);
  return 0;
}

}  // namespace

int command_stop(const Arguments& args) {
  StopRequest request;
  std::vector<std::string> names;
  bool no_wait = false;
  CommandLine line({"stop [options] ID | RUN | NAME ..."},
                   "Ends what mtl launch or mtl submit has started: a run finishes its step, "
                   "writes a checkpoint and stops (exit code 75, and no other job follows); a job "
                   "that waits leaves the queue.");
  line.example("mtl stop 1234", "the job 1234 of SLURM");
  line.example("mtl stop runs/shakespeare", "the run that goes on there");
  line.rest("ID | RUN | NAME", names, "as mtl ps shows them");
  line.flag("now", request.now, "at once, without a checkpoint");
  line.flag("no-wait", no_wait, "do not wait until it has ended");
  if (!line.parse(args)) return 0;
  request.wait = !no_wait;
  if (names.empty()) {
    throw Error(Exit::usage, Diagnostic{.code = "usage.missing",
                                        .what = "mtl stop needs to know what",
                                        .help = "an ID of mtl ps, a run directory or a name"});
  }
  std::string warning;
  const std::vector<JobView> jobs = job_views(false, &warning);
  std::vector<JobView> wanted;
  for (const std::string& name : names) {
    std::vector<JobView> found = matching_jobs(jobs, name);
    if (found.empty() && is_slurm_id(name)) found = slurm_job(name);
    if (found.empty() && !warning.empty()) {
      throw slurm_error("SLURM's queue cannot be read", warning);
    }
    if (found.empty()) throw no_such(name);
    if (found.size() > 1 && !is_slurm_id(name)) {
      std::string ids;
      for (const JobView& job : found) ids += (ids.empty() ? "" : ", ") + job.id;
      throw Error(Exit::usage,
                  Diagnostic{.code = "job.ambiguous",
                             .what = fmt::format("'{}' is more than one: {}", name, ids),
                             .help = "name one, or all of them, by ID"});
    }
    wanted.insert(wanted.end(), found.begin(), found.end());
  }
  SignalPipe signals;
  int code = 0;
  for (const JobView& job : wanted) {
    const int one = job.where == "slurm" ? stop_slurm(job, request, signals)
                                         : stop_process(job, request, signals);
    code = code == 0 ? one : code;
  }
  return code;
}

}  // namespace mtl
