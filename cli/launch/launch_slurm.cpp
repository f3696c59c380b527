#include "cli/launch/launch_slurm.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include <fmt/format.h>

#include "cli/launch/launch.h"
#include "common/shell_word.h"
#include "common/terminal.h"
#include "launcher/agent/signals.h"
#include "launcher/request/launch_surroundings.h"
#include "launcher/slurm/chain.h"
#include "launcher/slurm/step.h"
#include "runtime/checkpoint/step_dirs.h"

namespace mtl {

namespace {

int count_listed(const char* list) {
  if (list == nullptr || *list == '\0') return 0;
  return 1 + static_cast<int>(std::count(list, list + std::string_view(list).size(), ','));
}

int number_in(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : 0;
}

// Where the run would go on; 0 = from its beginning.
int64_t last_step(const std::filesystem::path& run_dir) {
  try {
    for (const StepDir& saved : step_dirs(run_dir / kCheckpoints)) {
      if (saved.name.is_checkpoint() && std::filesystem::exists(saved.path / "COMMITTED")) {
        return saved.name.step;
      }
    }
  } catch (const std::filesystem::filesystem_error&) {
    // no checkpoint yet
  }
  return 0;
}

}  // namespace

StepShare share_step(const LaunchGiven& given) {
  StepShare share;
  if (!shares_node(given)) return share;
  const Surroundings::Task& task = *given.around.task;
  if (task.local_rank > 0) {
    stand_by(given.around);
    share.stands_by = true;
    return share;
  }
  share.lead.emplace(given.around);
  const int gpus = given.around.shares.front().gpus_per_node;
  const int seen = count_listed(std::getenv("CUDA_VISIBLE_DEVICES"));
  if (!is_on(given, "cpu") && seen > 0 && seen < task.local_world && gpus >= task.local_world) {
    throw Error(
        Exit::config,
        {.code = "slurm.tasks",
         .what = fmt::format("{}: srun has started {} tasks on this node and given the first one "
                             "{} of its {} GPUs, so it cannot start the ranks of all",
                             given.around.words, task.local_world, seen, gpus),
         .help = fmt::format("one task per node: #SBATCH --ntasks-per-node=1 --gpus-per-node={0}, "
                             "then srun mtl launch ... (or srun --ntasks-per-node=1 "
                             "--gpus-per-node={0})",
                             gpus)});
  }
  return share;
}

std::string unused_nodes_notice(const Surroundings& around) {
  if (around.launcher != Launcher::slurm || !around.task || around.task->world != 1) return {};
  const int components = number_in("SLURM_HET_SIZE");
  int nodes = components > 1 ? 0 : number_in("SLURM_JOB_NUM_NODES");
  for (int i = 0; components > 1 && i < components; ++i) {
    nodes += number_in(fmt::format("SLURM_JOB_NUM_NODES_HET_GROUP_{}", i).c_str());
  }
  if (nodes <= 1) return {};
  return fmt::format(
      "note: this is the only task of {}, so the run stays on this node; the job has {}: without "
      "srun in front, or with srun {}--ntasks-per-node=1, it takes them all\n",
      around.words, nodes, components > 1 ? fmt::format("--het-group=0-{} ", components - 1) : "");
}

std::vector<std::string> array_settings(const std::vector<std::string>& settings,
                                        const Surroundings& around, bool& used) {
  used = false;
  const std::string task = array_task(around);
  if (task.empty()) return settings;
  std::vector<std::string> all = settings;
  for (std::string& setting : all) {
    for (size_t at = setting.find('='); (at = setting.find("%a", at)) != std::string::npos;) {
      setting.replace(at, 2, task);
      at += task.size();
      used |= setting.starts_with("run.name=") || setting.starts_with("run.dir=");
    }
  }
  return all;
}

int continue_in_slurm(const LaunchRequest& request, const JobOutcome& outcome,
                      const std::filesystem::path& run_dir) {
  const Surroundings& around = request.allocation;
  const int code = outcome.exit_code;
  if (around.launcher != Launcher::slurm || !around.batch || around.task) return code;
  // SLURM queues a job again that has lost a node, but only one that still runs when it notices,
  // minutes after us. So this end of a run of ours is followed by the same.
  const bool node_lost = !run_dir.empty() && !outcome.interrupted && !outcome.report.empty() &&
                         outcome.report.front().code == "launch.node_lost";
  if (code != static_cast<int>(Exit::requeue) && !node_lost) return code;
  const auto chosen = request.slurm.find("chain");
  const std::string kind =
      chosen != request.slurm.end() && !chosen->second.empty() ? chosen->second.back() : "requeue";
  if (kind == "none" || (node_lost && kind != "requeue")) return code;
  if (outcome.signal != 0 && outcome.signal != SIGUSR2) {
    say(stderr, fmt::format("{}: the job is not continued by mtl (SIGUSR2 would have done that)\n",
                            signal_name(outcome.signal)));
    return code;
  }
  const bool color = inspect_terminal(STDERR_FILENO).color;
  if (!run_dir.empty()) {
    const int64_t step = last_step(run_dir);
    // Beside the runs of that name: one that has no checkpoint yet is not gone on with.
    const int jobs = jobs_at_step(run_dir.parent_path() / "chain.jsonl", around.job_id, step);
    if (jobs >= kIdleJobs) {
      say(stderr,
          render({.code = "slurm.no_progress",
                  .what = fmt::format("{} jobs in a row have ended at step {} of {}: nothing is "
                                      "continued any more",
                                      jobs, step, run_dir.string()),
                  .help = "a job has to be long enough for a start and some steps: more time, or "
                          "a later signal (#SBATCH --signal=B:USR2@SECONDS); submitting it again "
                          "goes on"},
                 color));
      return static_cast<int>(Exit::run_failed);
    }
  }
  const char* script = std::getenv("MTL_JOB_SCRIPT");
  const ChainLink link = continue_job(around, kind, script != nullptr ? script : "");
  if (!link.words.empty()) say(stderr, link.words + "\n");
  if (link.trouble) say(stderr, render(*link.trouble, color));
  return code;
}

std::string step_words(const LaunchRequest& request) {
  if (request.mode != LaunchRequest::Mode::allocation) return {};
  std::string text;
  for (const AgentStep& step : agent_steps(request)) {
    if (!text.empty()) text += "\n  ";
    for (const std::string& word : step.argv) {
      if (&word != &step.argv.front()) text += ' ';
      text += shell_word(word);
    }
  }
  return text;
}

}  // namespace mtl
