#include "launcher/ranks/commands.h"

#include <cstdlib>

#include <fmt/format.h>

#include "launcher/ranks/worker_env_table.h"

namespace mtl {

namespace {

WorkerCommand worker(const JobProgram& program, const LaunchConfig& config,
                     const NodeLayout& layout, const RankPlacement* place, int local_rank,
                     const std::string& error_dir) {
  WorkerCommand command;
  command.rank = layout.first_rank + local_rank;
  command.local_rank = local_rank;
  command.ranks = program.threads ? layout.local_ranks : 1;
  command.argv = program.argv;
  command.takes_signals = program.takes_signals;
  command.unset = foreign_rank_variables();
  const bool numbered = program.numbered || layout.world > 1;
  command.env = worker_environment(config, layout, local_rank, numbered);
  if (program.is_ours) {
    if (program.threads) {
      command.env["MTL_RANK_THREADS"] = std::to_string(layout.local_ranks);
    } else {
      command.env["MTL_TOKEN_FD"] = std::to_string(kTokenFd);
    }
    command.env["MTL_NODE_ADDRESS"] = layout.node_address;
    if (command.rank == 0) command.env["MTL_PROGRESS_FD"] = std::to_string(kProgressFd);
  }
  if (place != nullptr) {
    if (!program.threads) {
      command.cpus = place->cpus;
      command.numa = place->numa;
    }
    command.env["OMP_NUM_THREADS"] = std::to_string(place->omp_threads);
    if (!place->visible_gpus.empty()) {
      command.env["CUDA_VISIBLE_DEVICES"] = fmt::format("{}", fmt::join(place->visible_gpus, ","));
    }
    for (const char* way : {"NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"}) {
      // For who has said nothing else, here or where the job was started.
      const bool said = std::getenv(way) != nullptr || program.inherited.contains(way);
      if (place->no_peer_access && !said) command.env[way] = std::string("1");
    }
    if (config.use_cpu && !place->cpus.empty()) {
      command.env["KMP_AFFINITY"] = "granularity=fine,compact,1,0";
      command.env["KMP_BLOCKTIME"] = std::string("1");
    }
  }
  if (!error_dir.empty()) {
    command.error_file = fmt::format("{}/rank-{:05}.error.json", error_dir, command.rank);
    command.env["TORCHELASTIC_ERROR_FILE"] = command.error_file.string();
  }
  for (const auto& [name, value] : program.env) command.env[name] = value;
  command.env.insert(program.inherited.begin(), program.inherited.end());
  return command;
}

}  // namespace

std::vector<WorkerCommand> node_commands(const JobProgram& program, const LaunchConfig& config,
                                         const NodeLayout& layout,
                                         const std::vector<RankPlacement>& placement,
                                         const std::string& error_dir) {
  std::vector<WorkerCommand> commands;
  const int step = program.threads ? layout.local_ranks : 1;
  for (int local = 0; local < layout.local_ranks; local += step) {
    const size_t index = static_cast<size_t>(local);
    const RankPlacement* place = index < placement.size() ? &placement[index] : nullptr;
    commands.push_back(worker(program, config, layout, place, local, error_dir));
  }
  return commands;
}

}  // namespace mtl
