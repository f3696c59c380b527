// accelerate's default_config.yaml: where to run. Reads files that accelerate wrote and writes
// files that accelerate reads, key for key.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/yaml.h"

namespace mtl {

// A key of the file that changes nothing in mtl's own runtime. It is kept, so that writing the
// configuration again loses nothing.
struct IgnoredKey {
  std::string key;  // "fsdp_config", "megatron_lm_config.megatron_lm_num_micro_batches"
  Place place;
  YamlValue value;
  bool neutral = false;  // null, false, 'no', [] or {}: written by accelerate's wizard, asks for
                         // nothing, not worth a word
};

struct LaunchConfig {
  std::string path;  // the file it came from; empty = none
  std::string compute_environment = "LOCAL_MACHINE";
  std::string distributed_type = "NO";
  std::string mixed_precision = "no";  // no | fp16 | bf16 | fp8
  bool mixed_precision_given = false;  // "no" was said, not assumed
  int num_processes = -1;              // total; -1 = not given
  int num_machines = 1;
  int machine_rank = 0;
  bool machine_rank_given = false;
  bool use_cpu = false;
  bool debug = false;
  std::string gpu_ids = "all";
  bool gpu_ids_given = false;
  std::string main_process_ip;
  int main_process_port = 0;  // 0 = a free one
  bool main_process_port_given = false;
  std::string rdzv_backend = "static";  // static | c10d | tcp
  bool same_network = false;
  bool enable_cpu_affinity = false;
  std::string downcast_bf16 = "false";
  std::string main_training_function = "main";
  std::map<std::string, std::string> megatron_lm_config;  // scalar values as written
  // What only launched programs read: the settings of FSDP, DeepSpeed, FP8, dynamo and
  // ParallelismConfig, by the names of accelerate's flags ("fsdp_version"), values as written.
  std::map<std::string, std::string> plugins;
  bool use_parallelism_config = false;
  // What the file itself says of DeepSpeed: "zero_stage,...,mixed_precision". accelerate's library
  // refuses most of it beside DeepSpeed's own file; what flags say it does not.
  std::string deepspeed_fields;
  std::string role = "default";  // torchrun's --role
  // Settings that accelerate does not know, by the names of our flags ("hosts"). In the file they
  // stand as mtl_hosts in megatron_lm_config.
  std::map<std::string, std::string> own;
  // Present but without meaning to mtl's own runtime (fsdp_config, tpu_*, ...), in file order.
  std::vector<IgnoredKey> ignored;
};

// Unknown keys at any level are errors with a suggestion (accelerate ignores nested ones silently).
// Codes: config.unknown_key, config.bad_value, config.missing_key, config.empty, config.sagemaker,
// those of read_yaml; warnings config.address, launch.ignored_key.
LaunchConfig read_launch_config(const std::string& path, Diagnostics& diagnostics);
// The same of a text, with `path` for the places.
LaunchConfig parse_launch_config(const std::string& text, const std::string& path,
                                 Diagnostics& diagnostics);
// The same of a tree that is there already.
LaunchConfig interpret_launch_config(const YamlValue& root, const std::string& path,
                                     Diagnostics& diagnostics);
// The entry of the file that says a setting of a section, by the name of its flag; null: it does
// not.
const YamlValue::Entry* find_setting(const LaunchConfig& config, const std::string& setting);
// As `accelerate config default` would: distributed_type by device count (/dev/nvidia0..., less
// what CUDA_VISIBLE_DEVICES hides). `devices` is the folder to look in.
LaunchConfig detect_launch_config(const std::string& mixed_precision,
                                  const std::string& devices = "/dev");
// Sorted keys, as accelerate's own writer.
std::string launch_config_yaml(const LaunchConfig& config);
// JSON Schema (draft 7) of the file.
std::string launch_config_json_schema();

}  // namespace mtl
