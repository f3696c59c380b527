// Gives a script to sbatch, and says in words of ours what SLURM has against it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "common/error.h"
#include "launcher/request/launch_request.h"

namespace mtl {

// The job's id. Throws Error: slurm.missing (Exit::environment) without sbatch; slurm.unreachable
// (Exit::environment) if no controller answers, or none is known; slurm.refused (Exit::config) for
// what SLURM does not accept, with its own words as a note and what there is instead.
std::string submit_to_slurm(const std::filesystem::path& script, const LaunchRequest& request);

// A warning slurm.nodes for a job that SLURM takes and lets wait for more nodes than each partition
// that it may run in has, or lets a job have. `partitions`: what slurm_partitions() says; nothing
// where it does not know one of them.
std::optional<Diagnostic> slurm_shortage(const LaunchRequest& request,
                                         const std::string& partitions);
// A line for each, with its fields; "" if SLURM does not say.
std::string slurm_partitions();

// slurm.unreachable, where SLURM's words (or that they came too late) are not about the job.
std::optional<Diagnostic> slurm_unreachable(const std::string& words, bool late,
                                            const std::filesystem::path& script);
// What SLURM's words mean. `ask`: looks up what there is instead (partitions); "" = nothing.
Diagnostic slurm_refusal(const std::string& words, const LaunchRequest& request,
                         const std::string& partitions);

}  // namespace mtl
