// What of this user's runs and waits, wherever it was started: the registry of this machine, joined
// with SLURM's queue and with what the runs report themselves.
#pragma once

#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/job_registry.h"
#include "launcher/slurm/queue.h"

namespace mtl {

// A rank that the others wait for, as the run has found (health.straggler_factor).
struct SlowRank {
  int rank = 0;
  std::string host = {}, device = {};
  std::string phase = {};  // where most of the time goes: "forward and backward"
  double factor = NAN;     // of its peers' time
  double job_speed = NAN;  // about, of what the job would have without it
};

struct JobView {
  std::string id = {};
  std::string name = {};
  std::string where = {};  // local, ssh, slurm, kubernetes
  // RUNNING, PENDING ...: SLURM's word, or for others RUNNING, DONE, STOPPED, FAILED, LOST (its
  // process is gone without a word), UNKNOWN (the process is on another machine, and its run is
  // not seen here, or says nothing).
  std::string state = {};
  std::string reason = {};  // why it waits, or on which other machine it was started
  int nodes = 0;            // 0 = not known
  long run_s = -1;          // -1 = not known
  std::string run = {};     // run directory, or where it will be
  std::string log = {};     // of the job
  std::string host = {};
  pid_t pid = 0;  // of the launcher, where it lives on this machine
  bool live = false;
  int starts = 1;  // of its run, this one and those that are left out for it (newest_starts)
  // Of the run, as far as it has come.
  int64_t step = -1, steps = -1;
  double loss = NAN, tokens_per_s = NAN, eta_s = NAN;
  std::vector<SlowRank> slow = {};  // now; the slowest first
};

// Whether the record is of this job of SLURM; of a submitted array it is of all its tasks.
bool is_record_of(const JobRecord& record, const SlurmJobState& job);
// What SLURM says of a job; of its run, nothing.
JobView view_of(const SlurmJobState& job);

// Newest first. `ended`: also what has ended. `warning`: why SLURM's queue could not be read, where
// there is a SLURM.
std::vector<JobView> job_views(bool ended, std::string* warning = nullptr);
// Pure: the same from what was read.
std::vector<JobView> join_jobs(const std::vector<JobRecord>& records,
                               const std::optional<std::vector<SlurmJobState>>& queue, bool ended);
// Of each run its newest start, and any other that still goes on or waits: one that was stopped and
// went on is one thing to whoever looks. Programs have no run, and all their starts stay.
std::vector<JobView> newest_starts(const std::vector<JobView>& newest_first);
// How many of what was started on other machines that share this registry is not known to have
// ended: without `ended` join_jobs leaves them out.
int unended_elsewhere(const std::vector<JobRecord>& records);
// Those that a person means by an ID, a RUN directory, or a NAME; an array's ID means all its
// tasks.
std::vector<JobView> matching_jobs(const std::vector<JobView>& jobs, const std::string& text);

// Whether a script was written for `mtl submit` (or by hand after it).
bool is_job_script(const std::filesystem::path& script);
// "1234", "1230_4".
bool is_slurm_id(const std::string& text);

}  // namespace mtl
