// mtl ps: what of this user's runs and waits, here and in SLURM.
#include <cstdio>
#include <unistd.h>

#include <fmt/format.h>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/jobs/jobs_table.h"
#include "common/error.h"
#include "common/terminal.h"

namespace mtl {

int command_ps(const Arguments& args) {
  bool all = false, json = false;
  CommandLine line({"ps [options]"},
                   "Lists the runs of yours that go on or wait: those that mtl launch started on "
                   "this machine, and jobs of SLURM. To follow one: mtl logs -f ID; to end one "
                   "with a checkpoint: mtl stop ID.");
  line.example("mtl ps", "what goes on");
  line.example("mtl ps --all", "also what has ended");
  line.flag("all,a", all,
            "also those that have ended, of the last 60 days, each with its newest start");
  line.flag("json", json, "one JSON document, schema mtl.ps/1");
  if (!line.parse(args)) return 0;
  std::string warning;
  const std::vector<JobView> jobs = newest_starts(job_views(all, &warning));
  if (!warning.empty()) fmt::print(stderr, "SLURM's queue cannot be read: {}\n", warning);
  if (json) {
    fmt::print("{}", jobs_json(jobs));
    return 0;
  }
  if (jobs.empty()) {
    fmt::print(stderr, "nothing of yours runs{}\n",
               all ? " or has run" : " (--all: what has ended)");
  } else {
    const Terminal terminal = inspect_terminal(STDOUT_FILENO);
    fmt::print("{}",
               jobs_table(jobs, terminal.is_tty ? terminal.columns : 0, terminal.utf8, false));
  }
  if (const int hidden = all ? 0 : unended_elsewhere(recorded_jobs()); hidden > 0) {
    std::fflush(stdout);
    fmt::print(stderr, "{} of other machines that may still run {} hidden (mtl ps --all)\n",
               hidden == 1 ? "1 job" : fmt::format("{} jobs", hidden), hidden == 1 ? "is" : "are");
  }
  return 0;
}

}  // namespace mtl
