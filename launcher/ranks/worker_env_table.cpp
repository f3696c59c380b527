#include "launcher/ranks/worker_env_table.h"

namespace mtl {

namespace {

using Spelling = WorkerVariable::Spelling;
using Table = std::vector<WorkerVariable>;

}  // namespace

const Table& dynamo_variables() {
  static const Table table = {
      {"dynamo_backend", "ACCELERATE_DYNAMO_BACKEND", "NO", Spelling::upper},
      {"dynamo_mode", "ACCELERATE_DYNAMO_MODE", "default"},
      {"dynamo_use_fullgraph", "ACCELERATE_DYNAMO_USE_FULLGRAPH", "False", Spelling::python_truth},
      {"dynamo_use_dynamic", "ACCELERATE_DYNAMO_USE_DYNAMIC", "False", Spelling::python_truth},
      {"dynamo_use_regional_compilation", "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "False",
       Spelling::python_truth},
  };
  return table;
}

const Table& fsdp_variables() {
  static const Table table = {
      {"fsdp_version", "FSDP_VERSION", "1"},
      {"fsdp_sharding_strategy", "FSDP_SHARDING_STRATEGY", "FULL_SHARD"},
      {"fsdp_reshard_after_forward", "FSDP_RESHARD_AFTER_FORWARD", "true", Spelling::lower},
      {"fsdp_offload_params", "FSDP_OFFLOAD_PARAMS", "false", Spelling::lower},
      {"fsdp_min_num_params", "FSDP_MIN_NUM_PARAMS", "100000000"},
      {"fsdp_auto_wrap_policy", "FSDP_AUTO_WRAP_POLICY", nullptr},
      {"fsdp_transformer_layer_cls_to_wrap", "FSDP_TRANSFORMER_CLS_TO_WRAP", nullptr},
      {"fsdp_backward_prefetch", "FSDP_BACKWARD_PREFETCH", nullptr},
      {"fsdp_state_dict_type", "FSDP_STATE_DICT_TYPE", nullptr},
      {"fsdp_forward_prefetch", "FSDP_FORWARD_PREFETCH", "false", Spelling::lower},
      {"fsdp_use_orig_params", "FSDP_USE_ORIG_PARAMS", "true", Spelling::lower},
      {"fsdp_cpu_ram_efficient_loading", "FSDP_CPU_RAM_EFFICIENT_LOADING", "true", Spelling::lower},
      {"fsdp_sync_module_states", "FSDP_SYNC_MODULE_STATES", "true", Spelling::lower},
      {"fsdp_activation_checkpointing", "FSDP_ACTIVATION_CHECKPOINTING", "false", Spelling::lower},
      {"fsdp_activation_checkpointing_offload", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false",
       Spelling::lower},
      {"fsdp_ignored_modules", "FSDP_IGNORED_MODULES", nullptr},
  };
  return table;
}

const Table& megatron_variables() {
  static const Table table = {
      {"megatron_lm_tp_degree", "MEGATRON_LM_TP_DEGREE", "1"},
      {"megatron_lm_pp_degree", "MEGATRON_LM_PP_DEGREE", "1"},
      {"megatron_lm_gradient_clipping", "MEGATRON_LM_GRADIENT_CLIPPING", "1.0"},
      {"megatron_lm_use_custom_fsdp", "MEGATRON_LM_USE_CUSTOM_FSDP", "False",
       Spelling::python_truth},
      {"megatron_lm_no_load_optim", "MEGATRON_LM_NO_LOAD_OPTIM", "False", Spelling::python_truth},
      {"megatron_lm_eod_mask_loss", "MEGATRON_LM_EOD_MASK_LOSS", "False", Spelling::python_truth},
      {"megatron_lm_no_save_optim", "MEGATRON_LM_NO_SAVE_OPTIM", "False", Spelling::python_truth},
      {"megatron_lm_optimizer_cpu_offload", "MEGATRON_LM_OPTIMIZER_CPU_OFFLOAD", "False",
       Spelling::python_truth},
      {"megatron_lm_use_precision_aware_optimizer", "MEGATRON_LM_USE_PRECISION_AWARE_OPTIMIZER",
       "False", Spelling::python_truth},
      {"megatron_lm_overlap_cpu_optimizer_d2h_h2d", "MEGATRON_LM_OVERLAP_CPU_OPTIMIZER_D2H_H2D",
       "False", Spelling::python_truth},
      {"megatron_lm_num_micro_batches", "MEGATRON_LM_NUM_MICRO_BATCHES", nullptr},
      {"megatron_lm_sequence_parallelism", "MEGATRON_LM_SEQUENCE_PARALLELISM", nullptr},
      {"megatron_lm_recompute_activations", "MEGATRON_LM_RECOMPUTE_ACTIVATIONS", nullptr},
      {"megatron_lm_use_distributed_optimizer", "MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER", nullptr},
      {"megatron_lm_recompute_granularity", "MEGATRON_LM_RECOMPUTE_GRANULARITY", nullptr},
      {"megatron_lm_recompute_method", "MEGATRON_LM_RECOMPUTE_METHOD", nullptr},
      {"megatron_lm_recompute_num_layers", "MEGATRON_LM_RECOMPUTE_NUM_LAYERS", nullptr},
      {"megatron_lm_attention_backend", "MEGATRON_LM_ATTENTION_BACKEND", nullptr},
      {"megatron_lm_expert_model_parallel_size", "MEGATRON_LM_EXPERT_MODEL_PARALLEL_SIZE", nullptr},
      {"megatron_lm_expert_tensor_parallel_size", "MEGATRON_LM_EXPERT_TENSOR_PARALLEL_SIZE",
       nullptr},
      {"megatron_lm_context_parallel_size", "MEGATRON_LM_CONTEXT_PARALLEL_SIZE", nullptr},
      {"megatron_lm_attention_dropout", "MEGATRON_LM_ATTENTION_DROPOUT", nullptr},
      {"megatron_lm_hidden_dropout", "MEGATRON_LM_HIDDEN_DROPOUT", nullptr},
      {"megatron_lm_attention_softmax_in_fp32", "MEGATRON_LM_ATTENTION_SOFTMAX_IN_FP32", nullptr},
      {"megatron_lm_calculate_per_token_loss", "MEGATRON_LM_CALCULATE_PER_TOKEN_LOSS", nullptr},
      {"megatron_lm_use_rotary_position_embeddings", "MEGATRON_LM_USE_ROTARY_POSITION_EMBEDDINGS",
       nullptr},
      {"megatron_lm_decoder_last_pipeline_num_layers",
       "MEGATRON_LM_DECODER_LAST_PIPELINE_NUM_LAYERS", nullptr},
  };
  return table;
}

const Table& deepspeed_variables() {
  static const Table table = {
      {"zero_stage", "ACCELERATE_DEEPSPEED_ZERO_STAGE", nullptr},
      {"gradient_accumulation_steps", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", nullptr},
      {"gradient_clipping", "ACCELERATE_GRADIENT_CLIPPING", nullptr, Spelling::lower},
      {"offload_optimizer_device", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", nullptr,
       Spelling::lower},
      {"offload_param_device", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", nullptr,
       Spelling::lower},
      // Read by accelerate's library, and forgotten by its launcher.
      {"offload_optimizer_nvme_path", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", nullptr},
      {"offload_param_nvme_path", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", nullptr},
      {"zero3_init_flag", "ACCELERATE_DEEPSPEED_ZERO3_INIT", nullptr, Spelling::lower},
      {"zero3_save_16bit_model", "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", nullptr,
       Spelling::lower},
      {"deepspeed_config_file", "ACCELERATE_DEEPSPEED_CONFIG_FILE", nullptr},
      {"deepspeed_moe_layer_cls_names", "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", nullptr},
  };
  return table;
}

// fp8_override_linear_precision is three variables; the code has it.
const Table& fp8_variables() {
  static const Table table = {
      {"fp8_backend", "ACCELERATE_FP8_BACKEND", nullptr},
      {"fp8_use_autocast_during_eval", "ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL", "False",
       Spelling::python_truth},
      {"fp8_margin", "ACCELERATE_FP8_MARGIN", "0"},
      {"fp8_interval", "ACCELERATE_FP8_INTERVAL", "1"},
      {"fp8_format", "ACCELERATE_FP8_FORMAT", "HYBRID"},
      {"fp8_amax_history_len", "ACCELERATE_FP8_AMAX_HISTORY_LEN", "1024"},
      {"fp8_amax_compute_algo", "ACCELERATE_FP8_AMAX_COMPUTE_ALGO", "most_recent"},
      {"fp8_opt_level", "ACCELERATE_FP8_OPT_LEVEL", "O2"},
      {"fp8_enable_fsdp_float8_all_gather", "ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", "True",
       Spelling::python_truth},
      {"fp8_pad_inner_dim", "ACCELERATE_FP8_PAD_INNER_DIM", "True", Spelling::python_truth},
  };
  return table;
}

const Table& parallelism_variables() {
  static const Table table = {
      {"parallelism_config_dp_replicate_size", "PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "1"},
      {"parallelism_config_dp_shard_size", "PARALLELISM_CONFIG_DP_SHARD_SIZE", "1"},
      {"parallelism_config_tp_size", "PARALLELISM_CONFIG_TP_SIZE", "1"},
      {"parallelism_config_cp_size", "PARALLELISM_CONFIG_CP_SIZE", "1"},
      {"parallelism_config_cp_backend", "PARALLELISM_CONFIG_CP_BACKEND", "torch"},
      {"parallelism_config_sp_size", "PARALLELISM_CONFIG_SP_SIZE", "1"},
      {"parallelism_config_sp_backend", "PARALLELISM_CONFIG_SP_BACKEND", "deepspeed"},
  };
  return table;
}

const Table& parallelism_cp_variables() {
  static const Table table = {
      {"parallelism_config_cp_comm_strategy", "PARALLELISM_CONFIG_CP_COMM_STRATEGY", "allgather"},
  };
  return table;
}

const Table& parallelism_sp_variables() {
  static const Table table = {
      {"parallelism_config_sp_seq_length", "PARALLELISM_CONFIG_SP_SEQ_LENGTH", "None"},
      {"parallelism_config_sp_seq_length_is_variable",
       "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE", "True", Spelling::python_truth},
      {"parallelism_config_sp_attn_implementation", "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION",
       "sdpa"},
  };
  return table;
}

const std::vector<std::string>& foreign_rank_variables() {
  static const std::vector<std::string> names = {
      "SLURM_PROCID",
      "SLURM_LOCALID",
      "SLURM_NODEID",
      "SLURM_NTASKS",
      "SLURM_NPROCS",
      "SLURM_TASK_PID",
      "SLURM_STEPID",
      "SLURM_STEP_*",
      "SLURM_GTIDS",
      "SLURM_NTASKS_PER_NODE",
      "SLURM_TASKS_PER_NODE",
      "PMI_*",
      "PMIX_*",
      "PMI2_*",
      "OMPI_COMM_WORLD_*",
      "OMPI_UNIVERSE_SIZE",
      "MV2_COMM_WORLD_*",
      "MPI_LOCALRANKID",
      "MPI_LOCALNRANKS",
      "JSM_NAMESPACE_*",
      "ALPS_APP_PE",
  };
  return names;
}

}  // namespace mtl
