#include "cli/checks/check_job.h"

#include <cstdlib>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/launch/launch.h"
#include "common/error.h"
#include "common/version.h"

namespace mtl {

JobOptions check_job(const LaunchGiven& given, const std::vector<std::string>& arguments) {
  Diagnostics diagnostics;
  const LaunchConfig file = load_launch_config(given, diagnostics);
  JobOptions job;
  job.request = resolve_launch(file, given, true, diagnostics);
  diagnostics.throw_if_errors();
  if (job.request.via == "slurm" || job.request.via == "kubernetes") {
    const bool slurm = job.request.via == "slurm";
    throw Error(Exit::usage,
                {.code = "usage.option",
                 .what = fmt::format("mtl test starts ranks now, and --via {} makes a job of them",
                                     job.request.via),
                 .help = slurm ? "run it within a job: salloc --nodes=2 mtl test"
                               : "run it in the job: mtl launch --via kubernetes ... mtl test, or "
                                 "mtl test in a pod"});
  }
  const std::vector<Error> wrong = wrong_words_of_ranks(job.request);
  for (const Error& error : wrong) {
    for (const Diagnostic& diagnostic : error.diagnostics()) diagnostics.add(diagnostic);
  }
  if (!wrong.empty()) diagnostics.throw_if_errors(wrong.front().exit());
  print_warnings(diagnostics.all());
  job.request.max_restarts = 0;  // what fails is to be seen
  job.version = version();
  job.program.argv = {"/proc/self/exe", "selftest"};
  job.program.argv.insert(job.program.argv.end(), arguments.begin(), arguments.end());
  if (job.request.starts_agents()) {
    std::vector<std::string> names;
    for (const Host& host : job.request.hosts) names.push_back(host.name);
    job.program.argv.insert(job.program.argv.end(),
                            {"--hosts", fmt::format("{}", fmt::join(names, ","))});
    job.program.inherited = forwarded_environment(job.request);
  }
  job.program.is_ours = true;
  // As launch_run.cpp: waiting threads must not take the cores of others.
  if (!std::getenv("OMP_WAIT_POLICY") && !std::getenv("GOMP_SPINCOUNT")) {
    job.program.env.emplace("GOMP_SPINCOUNT", "2000");
  }
  // A token of the job's own is made only for a program that is asked for.
  job.prepare = [program = job.program](int, int64_t) { return program; };
  return job;
}

}  // namespace mtl
