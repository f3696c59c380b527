// The script of a job, as text: what sbatch is asked for, the modules and commands that come first,
// and one `mtl launch`, which is the batch process itself (exec), so that SLURM's signals reach it.
// Inside the job it sees the allocation and starts an agent on every node.
//
// The launch in the script says no --via: what the files and the environment say of it is left
// aside inside a job (LaunchResolver::finish_via).
#pragma once

#include <string>
#include <vector>

#include "launcher/job_template.h"
#include "launcher/slurm/job_options.h"

namespace mtl {

struct SlurmJob {
  SlurmOptions options;
  std::string version;
  std::string when;                  // for people
  std::vector<std::string> command;  // that wrote it, for people
  std::string script;                // where it will be, absolute
  std::string working_directory;
  std::vector<std::string> launch;  // what it executes: mtl, launch, ...
};

// The values of the template: job_name, options, modules, setup, nodes, gpus_per_node, version,
// when, command, script, folder, launch; launch_words is the same as a list. For templates of
// one's own also each setting by its name (partition, time ...), null where it is not given.
nlohmann::ordered_json slurm_values(const SlurmJob& job, const LaunchRequest& request);
// Throws Error as render_job_template() does.
std::string slurm_script(const SlurmJob& job, const LaunchRequest& request,
                         const JobTemplate& job_template);

// Words of a command for a shell, over several lines where they are many.
std::string shell_lines(const std::vector<std::string>& words, const std::string& indent);

}  // namespace mtl
