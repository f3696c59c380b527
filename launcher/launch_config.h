// accelerate's default_config.yaml: where to run. Reads files that accelerate wrote and writes
// files that accelerate reads, key for key.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/yaml.h"

namespace mtl {

struct LaunchConfig {
  std::string path;  // the file it came from; empty = none
  std::string compute_environment = "LOCAL_MACHINE";
  std::string distributed_type = "NO";
  std::string mixed_precision = "no";  // no | fp16 | bf16 | fp8
  int num_processes = -1;              // total; -1 = not given
  int num_machines = 1;
  int machine_rank = 0;
  bool use_cpu = false;
  bool debug = false;
  std::string gpu_ids = "all";
  std::string main_process_ip;
  int main_process_port = 0;
  std::string rdzv_backend = "static";
  bool same_network = true;
  bool enable_cpu_affinity = false;
  std::string downcast_bf16 = "no";
  std::string main_training_function = "main";
  std::map<std::string, std::string> megatron_lm_config;  // scalar values as written
  std::vector<std::string>
      ignored;  // sections present that mean nothing to mtl's own runtime (fsdp_config, tpu_*, ...)
};

// $HF_HOME or $XDG_CACHE_HOME/huggingface or ~/.cache/huggingface, +
// /accelerate/default_config.yaml.
std::string default_launch_config_path();
// Unknown keys at any level are errors with a suggestion (accelerate ignores nested ones silently).
LaunchConfig read_launch_config(const std::string& path, Diagnostics& diagnostics);
// As `accelerate config default` would: distributed_type by device count, sorted keys, valid YAML.
LaunchConfig detect_launch_config(const std::string& mixed_precision);
std::string launch_config_yaml(const LaunchConfig& config);
// The keys of train.yaml that this file decides: mixed_precision -> precision.dtype,
// megatron_lm_tp_degree -> parallel.tp, ...
std::vector<std::pair<std::string, std::string>> train_settings(const LaunchConfig& config);

}  // namespace mtl
