#include "launcher/settings/launch_config_keys.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/settings/launch_flags.h"

namespace mtl {

bool among(const std::vector<std::string>& keys, const std::string& key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

const std::vector<LaunchSection>& launch_sections() {
  static const std::vector<LaunchSection> sections = {
      {"dynamo_config",
       "dynamo_",
       true,
       {"dynamo_backend", "dynamo_mode", "dynamo_use_fullgraph", "dynamo_use_dynamic",
        "dynamo_use_regional_compilation"}},
      {"deepspeed_config",
       "",
       false,
       {"deepspeed_config_file", "zero_stage", "offload_optimizer_device", "offload_param_device",
        "offload_param_nvme_path", "offload_optimizer_nvme_path", "gradient_accumulation_steps",
        "gradient_clipping", "zero3_save_16bit_model", "zero3_init_flag",
        "deepspeed_moe_layer_cls_names", "deepspeed_multinode_launcher", "deepspeed_hostfile",
        "deepspeed_exclusion_filter", "deepspeed_inclusion_filter"}},
      {"fsdp_config",
       "fsdp_",
       true,
       {"fsdp_version", "fsdp_reshard_after_forward", "fsdp_offload_params",
        "fsdp_auto_wrap_policy", "fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params",
        "fsdp_backward_prefetch", "fsdp_backward_prefetch_policy", "fsdp_state_dict_type",
        "fsdp_forward_prefetch", "fsdp_use_orig_params", "fsdp_cpu_ram_efficient_loading",
        "fsdp_sync_module_states", "fsdp_activation_checkpointing",
        "fsdp_activation_checkpointing_offload", "fsdp_sharding_strategy", "fsdp_ignored_modules"}},
      {"parallelism_config",
       "parallelism_config_",
       false,
       {"parallelism_config_dp_replicate_size", "parallelism_config_dp_shard_size",
        "parallelism_config_tp_size", "parallelism_config_cp_size",
        "parallelism_config_cp_comm_strategy", "parallelism_config_cp_backend",
        "parallelism_config_sp_size", "parallelism_config_sp_backend",
        "parallelism_config_sp_seq_length", "parallelism_config_sp_seq_length_is_variable",
        "parallelism_config_sp_attn_implementation"}},
      {"megatron_lm_config",
       "megatron_lm_",
       false,
       {"megatron_lm_tp_degree",
        "megatron_lm_pp_degree",
        "megatron_lm_num_micro_batches",
        "megatron_lm_sequence_parallelism",
        "megatron_lm_recompute_activations",
        "megatron_lm_use_distributed_optimizer",
        "megatron_lm_gradient_clipping",
        "megatron_lm_recompute_granularity",
        "megatron_lm_recompute_method",
        "megatron_lm_recompute_num_layers",
        "megatron_lm_attention_backend",
        "megatron_lm_expert_model_parallel_size",
        "megatron_lm_expert_tensor_parallel_size",
        "megatron_lm_context_parallel_size",
        "megatron_lm_attention_dropout",
        "megatron_lm_hidden_dropout",
        "megatron_lm_attention_softmax_in_fp32",
        "megatron_lm_calculate_per_token_loss",
        "megatron_lm_use_rotary_position_embeddings",
        "megatron_lm_decoder_last_pipeline_num_layers",
        "megatron_lm_use_custom_fsdp",
        "megatron_lm_no_load_optim",
        "megatron_lm_eod_mask_loss",
        "megatron_lm_overlap_cpu_optimizer_d2h_h2d",
        "megatron_lm_no_save_optim",
        "megatron_lm_optimizer_cpu_offload",
        "megatron_lm_use_precision_aware_optimizer"}},
      {"mpirun_config", "mpirun_", false, {"mpirun_hostfile", "mpirun_ccl"}},
      {"fp8_config",
       "fp8_",
       true,
       // The wizard's names, and those of the launcher's flags, which it reads as well.
       {"backend", "use_autocast_during_eval", "margin", "interval", "fp8_format",
        "amax_history_length", "amax_compute_algorithm", "override_linear_precision",
        "optimization_level", "enable_fsdp_float8_all_gather", "pad_inner_dim", "format",
        "amax_history_len", "amax_compute_algo", "opt_level"}},
      // Of older versions; still in people's files.
      {"ipex_config", "", false, {"ipex", "use_xpu"}},
      {"tp_config", "tp_", false, {"tp_size"}},
  };
  return sections;
}

const LaunchSection* find_launch_section(const std::string& name) {
  for (const LaunchSection& section : launch_sections()) {
    if (section.name == name) return &section;
  }
  return nullptr;
}

bool is_key_of(const LaunchSection& section, const std::string& key) {
  if (among(section.keys, key)) return true;
  if (!section.prefix_optional) return false;
  return among(section.keys, section.prefix + key) ||
         (key.starts_with(section.prefix) &&
          among(section.keys, key.substr(section.prefix.size())));
}

std::string plugin_key(const std::string& section, const std::string& key) {
  // The wizard's names, and older ones.
  static const std::map<std::string, std::string> others = {
      {"fsdp_backward_prefetch_policy", "fsdp_backward_prefetch"},
      {"fp8_amax_history_length", "fp8_amax_history_len"},
      {"fp8_amax_compute_algorithm", "fp8_amax_compute_algo"},
      {"fp8_optimization_level", "fp8_opt_level"}};
  const LaunchSection* found = find_launch_section(section);
  std::string name = key;
  if (found != nullptr && found->prefix_optional && !key.starts_with(found->prefix)) {
    name = found->prefix + key;
  }
  const auto other = others.find(name);
  return other != others.end() ? other->second : name;
}

bool is_word_list(const std::string& setting) {
  return setting == "fp8_override_linear_precision" ||
         setting == "fsdp_transformer_layer_cls_to_wrap" ||
         setting == "deepspeed_moe_layer_cls_names";
}

std::optional<std::array<bool, 3>> linear_precision(const std::string& text) {
  std::vector<std::string> words(1);
  for (char c : text) {
    if (c == ',') {
      words.emplace_back();
    } else if (std::string_view("()[] ").find(c) == std::string_view::npos) {
      words.back() += c;
    }
  }
  if (words.size() != 3) return std::nullopt;
  std::array<bool, 3> truths{};
  for (size_t i = 0; i < words.size(); ++i) {
    const auto truth = truth_of(words[i]);
    if (!truth) return std::nullopt;
    truths[i] = *truth;
  }
  return truths;
}

const std::vector<std::string>& dynamo_backends() {
  static const std::vector<std::string> backends = {"no",
                                                    "eager",
                                                    "aot_eager",
                                                    "inductor",
                                                    "aot_ts_nvfuser",
                                                    "nvprims_nvfuser",
                                                    "cudagraphs",
                                                    "ofi",
                                                    "fx2trt",
                                                    "onnxrt",
                                                    "tensorrt",
                                                    "aot_torchxla_trace_once",
                                                    "torchxla_trace_once",
                                                    "ipex",
                                                    "tvm",
                                                    "hpu_backend",
                                                    "neuron"};
  return backends;
}

const std::vector<std::string>& launch_keys() {
  static const std::vector<std::string> keys = {"compute_environment",
                                                "distributed_type",
                                                "mixed_precision",
                                                "num_processes",
                                                "num_machines",
                                                "machine_rank",
                                                "use_cpu",
                                                "debug",
                                                "gpu_ids",
                                                "main_process_ip",
                                                "main_process_port",
                                                "rdzv_backend",
                                                "same_network",
                                                "enable_cpu_affinity",
                                                "downcast_bf16",
                                                "main_training_function",
                                                "fp16"};
  return keys;
}

const std::vector<std::string>& launch_keys_without_meaning() {
  static const std::vector<std::string> keys = {
      "tpu_name",     "tpu_zone",     "tpu_vm",   "tpu_env",       "tpu_use_cluster",
      "tpu_use_sudo", "command_file", "commands", "dynamo_backend"};
  return keys;
}

Diagnostic unknown_launch_key(const YamlValue::Entry& entry) {
  Diagnostic unknown{.code = "config.unknown_key",
                     .what = fmt::format("unknown key '{}'", entry.key),
                     .place = entry.key_place};
  std::vector<std::string> candidates = launch_keys();
  for (const std::string& key : launch_keys_without_meaning()) candidates.push_back(key);
  for (const LaunchSection& section : launch_sections()) {
    if (among(section.keys, entry.key)) {
      unknown.help = fmt::format("it belongs under {}:", section.name);
      return unknown;
    }
    candidates.push_back(section.name);
  }
  const auto near = did_you_mean(entry.key, candidates);
  unknown.help = near ? fmt::format("did you mean '{}'?", *near)
                      : "remove it; what to train stands in train.yaml";
  return unknown;
}

Diagnostic unknown_key_of(const LaunchSection& section, const YamlValue::Entry& entry) {
  auto near = did_you_mean(entry.key, section.keys);
  if (!section.prefix.empty() && !entry.key.starts_with(section.prefix)) {
    // `tp_degree` for `megatron_lm_tp_degree` is far by distance and near in mind.
    if (auto prefixed = did_you_mean(section.prefix + entry.key, section.keys)) near = prefixed;
  }
  return {.code = "config.unknown_key",
          .what = fmt::format("unknown key '{}' in {}", entry.key, section.name),
          .place = entry.key_place,
          .help = near ? fmt::format("did you mean '{}'?", *near)
                       : fmt::format("its keys are {}", fmt::join(section.keys, ", "))};
}

const std::vector<std::string>& distributed_types() {
  static const std::vector<std::string> types = {
      "NO",         "MULTI_CPU",  "MULTI_GPU", "MULTI_NPU",  "MULTI_MLU",
      "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU", "MULTI_HPU",  "MULTI_NEURON",
      "DEEPSPEED",  "FSDP",       "XLA",       "MEGATRON_LM"};
  return types;
}

const std::vector<MegatronKey>& megatron_train_keys() {
  // Sequence parallelism is asked for together with a degree that train.yaml may change, so yes
  // means: where it can be.
  static const std::vector<MegatronKey> keys = {
      {"megatron_lm_tp_degree", "parallel.tp"},
      {"megatron_lm_pp_degree", "parallel.pp"},
      {"megatron_lm_sequence_parallelism", "parallel.sp", true, "auto", "false"},
      {"megatron_lm_use_distributed_optimizer", "parallel.zero", true, "1", "0"},
      {"megatron_lm_optimizer_cpu_offload", "optimizer.offload", true, "cpu", "none"},
      {"megatron_lm_recompute_activations", "recompute.mode", true, "selective", ""},
      {"megatron_lm_recompute_granularity", "recompute.mode"},
      {"megatron_lm_recompute_method", "recompute.method"},
      {"megatron_lm_recompute_num_layers", "recompute.layers"},
      {"megatron_lm_gradient_clipping", "optimizer.clip"},
      {"megatron_lm_context_parallel_size", "parallel.cp"},
      {"megatron_lm_expert_model_parallel_size", "parallel.ep"}};
  return keys;
}

}  // namespace mtl
