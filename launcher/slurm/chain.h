// Jobs that follow each other until a run is complete: what the batch process of a SLURM job does
// when its run has stopped with a complete checkpoint before its end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "common/error.h"
#include "rendezvous/surroundings.h"

namespace mtl {

// How a job asks for its continuation, and what came of it.
struct ChainLink {
  std::string words;                  // for people; "" = nothing was to be done
  std::optional<Diagnostic> trouble;  // why nothing follows although it should: slurm.requeue,
                                      // slurm.successor
};

// `kind`: --slurm_chain. requeue: the same job once more, by scontrol. SLURM ends this process soon
// after: by a SIGTERM, ignored from here on, and KillWait later for good. dependency: a next job
// after this one, from the script that this one was made by (the variable MTL_JOB_SCRIPT, which
// scripts of mtl submit set). A task of an array is continued alone.
ChainLink continue_job(const Surroundings& around, const std::string& kind,
                       const std::string& script);

// Notes in `file` that a job of the chain ended at this step, and returns how many in a row have
// ended there, this one counted. A file that cannot be read or written counts as empty.
int jobs_at_step(const std::filesystem::path& file, const std::string& job, int64_t step);
// So many in a row mean that the chain makes no progress.
inline constexpr int kIdleJobs = 3;

// "4" of an array's task "1230_4"; "" for any other job.
std::string array_task(const Surroundings& around);

}  // namespace mtl
