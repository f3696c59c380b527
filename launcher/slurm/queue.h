// What SLURM knows of jobs, by its own commands. The reading of their answers is pure.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace mtl {

struct SlurmJobState {
  std::string id = {};      // "1234", of an array's task "1230_4"
  std::string raw_id = {};  // JobId, also of an array's task
  std::string name = {};
  std::string state = {};   // "PENDING", "RUNNING", "FAILED" ...
  std::string reason = {};  // "Resources"; "" = none
  int exit_code = 0;        // of an ended job, as a shell says it: 128+n for signal n
  int restarts = 0;
  int nodes = 0;
  std::string node_list = {};
  long run_s = 0;
  std::string output = {};  // its log, with %j and its like filled in
  std::string script = {};  // the file that was submitted
  bool pending() const;
  bool running() const;  // or about to be, or ending
  bool ended() const { return !pending() && !running(); }
};

// Lines of `scontrol -o show job`. What is no job is left out.
std::vector<SlurmJobState> read_scontrol_jobs(const std::string& text);
// Lines of `squeue -h -o` with kSqueueFormat.
extern const char* const kSqueueFormat;
std::vector<SlurmJobState> read_squeue_jobs(const std::string& text);

// A job, or all tasks of an array; empty if SLURM does not know it (any more). Asks sacct where
// scontrol has forgotten it. `error`: what the command said where none could answer.
std::vector<SlurmJobState> slurm_job_states(const std::string& id, std::string* error = nullptr);
// Of this user: those that wait and run, with `ended` also what SLURM still remembers. Nothing if
// there is no SLURM here, or it does not answer in time (`error` says so).
std::optional<std::vector<SlurmJobState>> my_slurm_jobs(
    bool ended, std::string* error = nullptr,
    std::chrono::milliseconds within = std::chrono::seconds(20));

// Why a job waits, in words: "Resources" -> "waiting for free nodes". The reason itself if there
// are none.
std::string slurm_reason_words(const std::string& reason);
// How it ended, in words: "the time limit was reached"; "" for COMPLETED and FAILED, whose exit
// code says it.
std::string slurm_end_words(const SlurmJobState& job);

}  // namespace mtl
