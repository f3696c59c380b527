#include "launcher/ranks/worker_env.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sched.h>
#include <vector>

#include "common/text.h"
#include "launcher/ranks/worker_env_table.h"
#include "launcher/settings/launch_config_keys.h"

namespace mtl {

namespace {

using Environment = std::map<std::string, std::string>;

// accelerate writes Python's spelling.
std::string python_bool(bool flag) {
  return flag ? "True" : "False";
}

void add_torchrun(Environment& env, const NodeLayout& layout, const std::string& role,
                  int local_rank) {
  const std::string rank = std::to_string(layout.first_rank + local_rank);
  const std::string world = std::to_string(layout.world);
  env["RANK"] = rank;
  env["LOCAL_RANK"] = std::to_string(local_rank);
  env["WORLD_SIZE"] = world;
  env["LOCAL_WORLD_SIZE"] = std::to_string(layout.local_ranks);
  env["GROUP_RANK"] = std::to_string(layout.node_rank);
  env["GROUP_WORLD_SIZE"] = std::to_string(layout.num_nodes);
  env["ROLE_NAME"] = role;
  env["ROLE_RANK"] = rank;
  env["ROLE_WORLD_SIZE"] = world;
  env["MASTER_ADDR"] = layout.master_addr;
  env["MASTER_PORT"] = std::to_string(layout.master_port);
  env["TORCHELASTIC_RUN_ID"] = layout.run_id;
  env["TORCHELASTIC_RESTART_COUNT"] = std::to_string(layout.restart_count);
  env["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(layout.max_restarts);
  env["TORCHELASTIC_USE_AGENT_STORE"] = "False";  // rank 0 of a PyTorch job hosts its own store
  // Torchrun's default, for who has said nothing else.
  if (std::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING") == nullptr) {
    env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = std::string("1");
  }
  // Horovod's and Lightning's names for the same places.
  env["NODE_RANK"] = std::to_string(layout.node_rank);
  env["CROSS_RANK"] = std::to_string(layout.node_rank);
  env["CROSS_SIZE"] = std::to_string(layout.num_nodes);
  env["LOCAL_SIZE"] = std::to_string(layout.local_ranks);
}

// As Python's YAML reader and accelerate's own parser take it; also flags' 1 and 0.
bool is_true(const std::string& text) {
  const std::string word = lower(text);
  return word == "true" || word == "yes" || word == "on" || word == "1" || word == "y" ||
         word == "t";
}

std::string spelled(const std::string& text, WorkerVariable::Spelling spelling) {
  switch (spelling) {
    case WorkerVariable::Spelling::as_given:
      break;
    case WorkerVariable::Spelling::lower: {
      const std::string word = lower(text);
      if (word == "yes" || word == "on") return "true";
      return word == "off" ? "false" : word == "no" ? "false" : word;
    }
    case WorkerVariable::Spelling::upper:
      return upper(text);
    case WorkerVariable::Spelling::python_truth:
      return python_bool(is_true(text));
  }
  return text;
}

void add(Environment& env, const std::vector<WorkerVariable>& table,
         const std::map<std::string, std::string>& settings) {
  for (const WorkerVariable& row : table) {
    const auto given = settings.find(row.setting);
    if (given != settings.end()) {
      env[row.variable] = spelled(given->second, row.spelling);
    } else if (row.fallback != nullptr) {
      env[row.variable] = row.fallback;
    }
  }
}

void add_fp8(Environment& env, const LaunchConfig& config) {
  add(env, fp8_variables(), config.plugins);
  const auto given = config.plugins.find("fp8_override_linear_precision");
  const auto truths = linear_precision(given != config.plugins.end() ? given->second : "");
  size_t next = 0;
  for (const char* pass : {"FPROP", "DGRAD", "WGRAD"}) {
    const bool higher = truths && (*truths)[next++];
    env[std::string("ACCELERATE_FP8_OVERRIDE_") + pass] = python_bool(higher);
  }
}

bool more_than_one(const LaunchConfig& config, const char* setting) {
  const auto given = config.plugins.find(setting);
  return given != config.plugins.end() && std::atoi(given->second.c_str()) > 1;
}

void add_parallelism(Environment& env, const LaunchConfig& config) {
  env["ACCELERATE_USE_PARALLELISM_CONFIG"] = "true";
  add(env, parallelism_variables(), config.plugins);
  if (more_than_one(config, "parallelism_config_cp_size")) {
    add(env, parallelism_cp_variables(), config.plugins);
  }
  if (more_than_one(config, "parallelism_config_sp_size")) {
    add(env, parallelism_sp_variables(), config.plugins);
  }
}

void add_accelerate(Environment& env, const LaunchConfig& config, int local_ranks) {
  const std::string& type = config.distributed_type;
  env["ACCELERATE_MIXED_PRECISION"] = config.mixed_precision;
  env["ACCELERATE_USE_CPU"] = python_bool(config.use_cpu);
  if (config.debug) env["ACCELERATE_DEBUG_MODE"] = "true";
  if (config.enable_cpu_affinity) env["ACCELERATE_CPU_AFFINITY"] = std::string("1");
  if (config.mixed_precision == "fp8") add_fp8(env, config);
  if (config.use_cpu && local_ranks == 1) {
    // Intel's OpenMP binds its threads compactly: with several unbound ranks, all to one place.
    env["KMP_AFFINITY"] = "granularity=fine,compact,1,0";
    env["KMP_BLOCKTIME"] = std::string("1");
  }
  if (type == "DEEPSPEED") {
    env["ACCELERATE_USE_DEEPSPEED"] = "true";
    env["ACCELERATE_CONFIG_DS_FIELDS"] = lower(config.deepspeed_fields);
    add(env, deepspeed_variables(), config.plugins);
  } else {
    add(env, dynamo_variables(), config.plugins);
  }
  if (type == "FSDP") {
    env["ACCELERATE_USE_FSDP"] = "true";
    add(env, fsdp_variables(), config.plugins);
  }
  if (type == "MEGATRON_LM") {
    env["ACCELERATE_USE_MEGATRON_LM"] = "true";
    add(env, megatron_variables(), config.megatron_lm_config);
  }
  const bool alone = type == "NO" || type == "MULTI_CPU" || type == "XLA";
  if (config.use_parallelism_config && !alone) add_parallelism(env, config);
}

}  // namespace

std::map<std::string, std::string> worker_environment(const LaunchConfig& config,
                                                      const NodeLayout& layout, int local_rank,
                                                      bool numbered) {
  Environment env;
  if (numbered) add_torchrun(env, layout, config.role, local_rank);
  // torchrun says 1 here, which leaves the other cores idle.
  const int threads = layout.omp_threads > 0
                          ? layout.omp_threads
                          : std::max(1, layout.cores / std::max(1, layout.local_ranks));
  env["OMP_NUM_THREADS"] = std::to_string(threads);
  add_accelerate(env, config, layout.local_ranks);
  if (config.gpu_ids != "all" && !config.gpu_ids.empty() && !config.use_cpu) {
    env["CUDA_VISIBLE_DEVICES"] = config.gpu_ids;
  }
  return env;
}

double cpu_quota() {
  double quota = -1, period = 0;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 && v2 >> quota >> period) {
    return period > 0 ? quota / period : 0;  // "max 100000" fails to read: no quota
  }
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (v1_quota >> quota && v1_period >> period && quota > 0 && period > 0) return quota / period;
  return 0;
}

int allowed_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  // Fails on machines with more cores than the mask holds; their quota or user decides then.
  const int cores = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : CPU_SETSIZE;
  const double quota = cpu_quota();
  const int whole = quota > 0 ? static_cast<int>(std::min(std::ceil(quota), 1e6)) : cores;
  return std::max(1, std::min(cores, whole));
}

}  // namespace mtl
