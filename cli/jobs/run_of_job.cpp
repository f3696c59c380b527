#include "cli/jobs/run_of_job.h"

#include <filesystem>

#include "launcher/job/jobs.h"

namespace mtl {

std::string run_of_job(const std::string& text) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (text.empty() || fs::exists(text, ignored) || fs::exists(fs::path("runs") / text, ignored)) {
    return text;
  }
  for (const JobView& job : matching_jobs(job_views(true), text)) {
    if (!job.run.empty() && fs::exists(job.run, ignored)) return job.run;
  }
  return text;
}

}  // namespace mtl
