// Watches a job of SLURM until it ends: its state while it waits, its log while it runs, through
// requeues. For --wait.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "launcher/slurm/queue.h"

namespace mtl {

struct FollowEars {
  std::function<void(std::string_view bytes)> on_log;      // of the job's log (JobLogs)
  std::function<void(const std::string& line)> on_notice;  // "job 12 waits: ..."
  std::function<bool()> stop;  // asked all the time: true ends the watching, not the job
};

struct FollowEnd {
  bool detached = false;  // `stop` said so
  SlurmJobState job;      // as it was last
  int exit_code = 1;      // the job's; of an array, the first that is not 0
};

// `log`: of the job, as JobLogs takes it; "" = nothing is read.
FollowEnd follow_slurm_job(const std::string& id, const std::string& log, const FollowEars& ears);

// What a person is told about a job that has ended: "job 12 failed with exit code 3".
std::string slurm_verdict(const SlurmJobState& job);

}  // namespace mtl
