#include "launcher/slurm/chain.h"

#include <chrono>
#include <csignal>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "common/shell_word.h"
#include "launcher/slurm/control.h"

namespace mtl {

namespace {

// A controller that is busy or restarts answers a little later.
constexpr int kAttempts = 3;
constexpr std::chrono::seconds kPause{2};

CommandAnswer insist(const std::vector<std::string>& argv) {
  CommandAnswer end;
  for (int attempt = 1;; ++attempt) {
    end = ask_slurm(argv);
    const bool busy = end.err.find("contact") != std::string::npos ||
                      end.err.find("timed out") != std::string::npos ||
                      end.err.find("temporarily") != std::string::npos || end.late;
    if (end.code == 0 || !busy || attempt == kAttempts) return end;
    std::this_thread::sleep_for(kPause * attempt);
  }
}

std::vector<std::string> notes_of(const CommandAnswer& end) {
  if (end.missing) return {"there is no such program in PATH"};
  if (end.err.empty()) return {fmt::format("it ended with code {}", end.code)};
  return {end.err};
}

ChainLink requeue(const Surroundings& around) {
  ChainLink link;
  // SLURM ends the job with SIGTERM as soon as it has heard of this: neither scontrol nor what is
  // to be said of it may be lost to that.
  const auto before = std::signal(SIGTERM, SIG_IGN);
  const CommandAnswer end = insist({"scontrol", "requeue", around.job_id});
  if (end.code == 0) {
    link.words = fmt::format(
        "SLURM job {} is queued again and goes on from the checkpoint (SLURM may hold it back for "
        "two minutes)",
        around.job_id);
    return link;
  }
  std::signal(SIGTERM, before);
  link.trouble = Diagnostic{
      .code = "slurm.requeue",
      .what = fmt::format("SLURM job {} could not be queued again: scontrol requeue failed",
                          around.job_id),
      .notes = notes_of(end),
      .help =
          "submit the same script once more, it goes on from the checkpoint; for the next "
          "time: #SBATCH --requeue, or --slurm_chain dependency"};
  return link;
}

ChainLink successor(const Surroundings& around, const std::string& script) {
  ChainLink link;
  if (script.empty()) {
    link.trouble = Diagnostic{
        .code = "slurm.successor",
        .what = "--slurm_chain dependency, and nobody says which script the next job has",
        .help =
            "export MTL_JOB_SCRIPT=/path/of/this/script in it (mtl submit does), or "
            "--slurm_chain requeue"};
    return link;
  }
  std::vector<std::string> argv = {"sbatch", "--parsable",
                                   "--dependency=afterany:" + around.job_id};
  if (const std::string task = array_task(around); !task.empty()) {
    argv.push_back("--array=" + task);
  }
  argv.push_back(script);
  const CommandAnswer end = insist(argv);
  if (end.code == 0) {
    link.words = fmt::format("SLURM job {} was submitted and goes on from the checkpoint after {}",
                             end.out.substr(0, end.out.find(';')), around.job_id);
    return link;
  }
  link.trouble = Diagnostic{
      .code = "slurm.successor",
      .what = fmt::format("the next job could not be submitted: sbatch {}", shell_word(script)),
      .notes = notes_of(end),
      .help = "submit it by hand, it goes on from the checkpoint"};
  return link;
}

}  // namespace

ChainLink continue_job(const Surroundings& around, const std::string& kind,
                       const std::string& script) {
  if (kind == "none") return {};
  return kind == "dependency" ? successor(around, script) : requeue(around);
}

int jobs_at_step(const std::filesystem::path& file, const std::string& job, int64_t step) {
  int count = 1;
  try {
    std::istringstream lines(std::filesystem::exists(file) ? read_file(file) : "");
    for (std::string line; std::getline(lines, line);) {
      const auto object = nlohmann::json::parse(line, nullptr, false);
      if (!object.is_object()) continue;
      count = object.value("step", int64_t{-1}) == step ? count + 1 : 1;
    }
    append_line(file, nlohmann::json({{"job", job}, {"step", step}}).dump());
  } catch (const Error&) {
    // What guards the chain must not be what ends it.
  }
  return count;
}

std::string array_task(const Surroundings& around) {
  const size_t line = around.job_id.find('_');
  return line == std::string::npos ? "" : around.job_id.substr(line + 1);
}

}  // namespace mtl
