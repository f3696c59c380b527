#include "launcher/slurm/follow.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include <fmt/format.h>

#include "launcher/slurm/job_logs.h"

namespace mtl {

namespace {

using Clock = std::chrono::steady_clock;
constexpr timespec kBetweenLooks{0, 100'000'000};
constexpr auto kAskAgain = std::chrono::seconds(1);
// While nobody answers (a controller that restarts): so long, then it counts as gone.
constexpr int kSilences = 120;

// SLURM's own words where no program could have said it.
int exit_code_of(const SlurmJobState& job) {
  if (job.exit_code != 0 || job.state == "COMPLETED") return job.exit_code;
  if (job.state == "CANCELLED") return 143;
  if (job.state == "OUT_OF_MEMORY") return 5;
  if (job.state == "TIMEOUT" || job.state == "DEADLINE") return 7;
  return 1;
}

}  // namespace

std::string slurm_verdict(const SlurmJobState& job) {
  const int code = exit_code_of(job);
  const std::string words = slurm_end_words(job);
  std::string text = fmt::format("job {}: ", job.id);
  if (!words.empty()) {
    text += fmt::format("{} ({})", words, job.state);
  } else if (code == 0) {
    text += "done";
  } else if (code == 75) {
    text += "stopped with a complete checkpoint";
  } else if (code > 128) {
    text += fmt::format("ended by signal {}", code - 128);
  } else {
    text += "failed";
  }
  return text + fmt::format(", exit code {}", code);
}

FollowEnd follow_slurm_job(const std::string& id, const std::string& log, const FollowEars& ears) {
  FollowEnd end;
  JobLogs logs(log);
  const auto read_log = [&] { logs.read(ears.on_log); };
  std::string said;
  int restarts = 0, silences = 0;
  Clock::time_point next_question{};
  for (;;) {
    read_log();
    if (ears.stop && ears.stop()) {
      end.detached = true;
      return end;
    }
    if (Clock::now() < next_question) {
      nanosleep(&kBetweenLooks, nullptr);
      continue;
    }
    next_question = Clock::now() + kAskAgain;
    std::string error;
    const std::vector<SlurmJobState> jobs = slurm_job_states(id, &error);
    if (jobs.empty()) {
      if (++silences < kSilences && error.find("Invalid job id") == std::string::npos) continue;
      if (end.job.id.empty()) end.job.id = id;
      logs.finish(ears.on_log);
      ears.on_notice(fmt::format("SLURM knows nothing of job {} any more{}", id,
                                 error.empty() ? "" : ": " + error));
      return end;
    }
    silences = 0;
    // Of an array: the one that tells most, a running one before those that wait.
    const auto waits = [](const SlurmJobState& job) { return job.pending(); };
    const auto runs = [](const SlurmJobState& job) { return job.running(); };
    const auto shown = std::find_if(jobs.begin(), jobs.end(), runs);
    const auto waiting = std::find_if(jobs.begin(), jobs.end(), waits);
    end.job = shown != jobs.end() ? *shown : waiting != jobs.end() ? *waiting : jobs.front();
    if (end.job.restarts > restarts) {
      restarts = end.job.restarts;
      ears.on_notice(fmt::format("job {} was put back into the queue", end.job.id));
      said.clear();
    }
    std::string words;
    if (end.job.pending()) {
      // Without a reason it is about to start.
      if (!end.job.reason.empty()) {
        words = fmt::format("job {} waits: {} ({})", end.job.id, slurm_reason_words(end.job.reason),
                            end.job.reason);
      }
    } else if (end.job.state == "RUNNING") {
      words = fmt::format(
          "job {} runs on {}", end.job.id,
          end.job.node_list.empty() ? fmt::format("{} nodes", end.job.nodes) : end.job.node_list);
    }
    if (!words.empty() && words != said) {
      said = words;
      ears.on_notice(words);
    }
    if (shown != jobs.end() || waiting != jobs.end()) continue;
    // A log on a shared file system may come a moment later.
    for (int i = 0; i < 3; ++i) {
      read_log();
      nanosleep(&kBetweenLooks, nullptr);
    }
    logs.finish(ears.on_log);
    end.exit_code = 0;
    for (const SlurmJobState& job : jobs) {
      if (exit_code_of(job) == 0) continue;
      end.exit_code = exit_code_of(job);
      end.job = job;
      break;
    }
    return end;
  }
}

}  // namespace mtl
