#include "launcher/worker_env.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sched.h>

namespace mtl {

namespace {

using Environment = std::map<std::string, std::string>;

void set(Environment& env, const std::string& name, std::string value) {
  env[name] = std::move(value);
}

// accelerate writes Python's spelling.
std::string python_bool(bool flag) {
  return flag ? "True" : "False";
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return text;
}

void add_torchrun(Environment& env, const NodeLayout& layout, int local_rank) {
  const std::string rank = std::to_string(layout.first_rank + local_rank);
  const std::string world = std::to_string(layout.world);
  env["RANK"] = rank;
  env["LOCAL_RANK"] = std::to_string(local_rank);
  env["WORLD_SIZE"] = world;
  env["LOCAL_WORLD_SIZE"] = std::to_string(layout.local_ranks);
  env["GROUP_RANK"] = std::to_string(layout.node_rank);
  env["GROUP_WORLD_SIZE"] = std::to_string(layout.num_nodes);
  set(env, "ROLE_NAME", "default");
  env["ROLE_RANK"] = rank;
  env["ROLE_WORLD_SIZE"] = world;
  env["MASTER_ADDR"] = layout.master_addr;
  env["MASTER_PORT"] = std::to_string(layout.master_port);
  env["TORCHELASTIC_RUN_ID"] = layout.run_id;
  env["TORCHELASTIC_RESTART_COUNT"] = std::to_string(layout.restart_count);
  env["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(layout.max_restarts);
  set(env, "TORCHELASTIC_USE_AGENT_STORE", "False");  // rank 0 of a PyTorch job hosts its own store
  set(env, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  // torchrun says 1 here, which leaves the other cores idle.
  const int threads = layout.omp_threads > 0
                          ? layout.omp_threads
                          : std::max(1, layout.cores / std::max(1, layout.local_ranks));
  env["OMP_NUM_THREADS"] = std::to_string(threads);
}

void add_dynamo(Environment& env, const LaunchConfig& config) {
  set(env, "ACCELERATE_DYNAMO_BACKEND", "NO");
  set(env, "ACCELERATE_DYNAMO_MODE", "default");
  for (const char* flag : {"USE_FULLGRAPH", "USE_DYNAMIC", "USE_REGIONAL_COMPILATION"}) {
    set(env, std::string("ACCELERATE_DYNAMO_") + flag, "False");
  }
  const auto take = [&](std::string key, const YamlValue& value) {
    if (value.kind != YamlValue::Kind::scalar) return;
    if (key.starts_with("dynamo_")) key = key.substr(7);
    const bool flag = key.starts_with("use_");
    const bool on = upper(value.text) == "TRUE" || upper(value.text) == "YES";
    env["ACCELERATE_DYNAMO_" + upper(key)] = flag               ? python_bool(on)
                                             : key == "backend" ? upper(value.text)
                                                                : value.text;
  };
  for (const IgnoredKey& ignored : config.ignored) {
    if (ignored.key == "dynamo_backend") take(ignored.key, ignored.value);
    if (ignored.key != "dynamo_config") continue;
    for (const YamlValue::Entry& entry : ignored.value.entries) take(entry.key, entry.value);
  }
}

void add_megatron(Environment& env, const LaunchConfig& config) {
  set(env, "ACCELERATE_USE_MEGATRON_LM", "true");
  set(env, "MEGATRON_LM_TP_DEGREE", "1");
  set(env, "MEGATRON_LM_PP_DEGREE", "1");
  set(env, "MEGATRON_LM_GRADIENT_CLIPPING", "1.0");
  for (const auto& [key, value] : config.megatron_lm_config) env[upper(key)] = value;
}

// The CPU quota in cores; infinity if there is none.
double cpu_quota() {
  double quota = -1, period = 0;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 && v2 >> quota >> period) {
    return period > 0 ? quota / period : INFINITY;  // "max 100000" fails to read: no quota
  }
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (v1_quota >> quota && v1_period >> period && quota > 0 && period > 0) return quota / period;
  return INFINITY;
}

}  // namespace

std::map<std::string, std::string> worker_environment(const LaunchConfig& config,
                                                      const NodeLayout& layout, int local_rank) {
  Environment env;
  add_torchrun(env, layout, local_rank);
  env["ACCELERATE_MIXED_PRECISION"] = config.mixed_precision;
  env["ACCELERATE_USE_CPU"] = python_bool(config.use_cpu);
  if (config.debug) set(env, "ACCELERATE_DEBUG_MODE", "true");
  if (config.enable_cpu_affinity) set(env, "ACCELERATE_CPU_AFFINITY", "1");
  if (config.gpu_ids != "all" && !config.gpu_ids.empty() && !config.use_cpu) {
    env["CUDA_VISIBLE_DEVICES"] = config.gpu_ids;
  }
  add_dynamo(env, config);
  if (config.distributed_type == "MEGATRON_LM") add_megatron(env, config);
  return env;
}

int allowed_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  // Fails on machines with more cores than the mask holds; their quota or user decides then.
  const int cores = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : CPU_SETSIZE;
  return std::max(1, static_cast<int>(std::min<double>(cores, std::ceil(cpu_quota()))));
}

}  // namespace mtl
