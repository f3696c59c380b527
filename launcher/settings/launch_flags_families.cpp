// What is passed on to a program through its environment, and what has no meaning here.
#include "launcher/settings/launch_flags_table.h"

namespace mtl {

namespace {

using K = FlagKind;
using G = FlagGroup;

struct Row {
  const char* name;
  FlagKind kind;
  const char* value;
  const char* help;
  const char* built_in = "";
};

void add(std::vector<LaunchFlag>& flags, G group, const std::string& section,
         const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    flags.push_back({.name = row.name,
                     .kind = row.kind,
                     .group = group,
                     .value = row.value,
                     .help = row.help,
                     .built_in = row.built_in,
                     .file_key = section + '.' + row.name,
                     .aliases = {},
                     .meaningless = {}});
  }
}

void add_megatron(std::vector<LaunchFlag>& flags) {
  add(flags, G::megatron, "megatron_lm_config",
      {{"megatron_lm_tp_degree", K::whole, "N", "tensor-parallel size: parallel.tp", "1"},
       {"megatron_lm_pp_degree", K::whole, "N", "pipeline stages: parallel.pp", "1"},
       {"megatron_lm_num_micro_batches", K::whole, "N", "micro-batches of a step"},
       {"megatron_lm_sequence_parallelism", K::truth, "", "sequence parallelism: parallel.sp"},
       {"megatron_lm_recompute_activations", K::truth, "", "recompute.mode=selective"},
       {"megatron_lm_use_distributed_optimizer", K::truth, "", "parallel.zero=1"},
       {"megatron_lm_gradient_clipping", K::number, "X", "largest gradient norm: optimizer.clip",
        "1.0"},
       {"megatron_lm_recompute_granularity", K::choice, "full|selective", "recompute.mode"},
       {"megatron_lm_recompute_method", K::choice, "uniform|block", "recompute.method"},
       {"megatron_lm_recompute_num_layers", K::whole, "N", "recompute.layers"},
       {"megatron_lm_attention_backend", K::text, "X", "attention kernel"},
       {"megatron_lm_expert_model_parallel_size", K::whole, "N",
        "expert-parallel size: parallel.ep"},
       {"megatron_lm_expert_tensor_parallel_size", K::whole, "N", "tensor parallelism of experts"},
       {"megatron_lm_context_parallel_size", K::whole, "N", "context-parallel size: parallel.cp"},
       {"megatron_lm_attention_dropout", K::number, "X", "dropout in attention"},
       {"megatron_lm_hidden_dropout", K::number, "X", "dropout in the layers"},
       {"megatron_lm_attention_softmax_in_fp32", K::truth, "", "softmax in fp32"},
       {"megatron_lm_calculate_per_token_loss", K::truth, "", "loss per token"},
       {"megatron_lm_use_rotary_position_embeddings", K::truth, "", "rotary positions"},
       {"megatron_lm_decoder_last_pipeline_num_layers", K::whole, "N", "layers of the last stage"},
       {"megatron_lm_use_custom_fsdp", K::truth, "", "Megatron's FSDP", "false"},
       {"megatron_lm_no_load_optim", K::truth, "", "resume without the optimizer", "false"},
       {"megatron_lm_eod_mask_loss", K::truth, "", "no loss on end-of-document tokens", "false"},
       {"megatron_lm_overlap_cpu_optimizer_d2h_h2d", K::truth, "", "overlap offload copies",
        "false"},
       {"megatron_lm_no_save_optim", K::truth, "", "checkpoints without the optimizer", "false"},
       {"megatron_lm_optimizer_cpu_offload", K::truth, "", "optimizer.offload=cpu", "false"},
       {"megatron_lm_use_precision_aware_optimizer", K::truth, "", "low-precision moments",
        "false"}});
}

void add_fsdp(std::vector<LaunchFlag>& flags) {
  add(flags, G::fsdp, "fsdp_config",
      {{"fsdp_version", K::choice, "1|2", "which FSDP", "1"},
       {"fsdp_sharding_strategy", K::text, "X", "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, ...",
        "FULL_SHARD"},
       {"fsdp_reshard_after_forward", K::text, "X", "true or false; version 1: a strategy", "true"},
       {"fsdp_offload_params", K::truth, "", "offload to the CPU: optimizer.offload=cpu", "false"},
       {"fsdp_auto_wrap_policy", K::text, "X",
        "TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP"},
       {"fsdp_transformer_layer_cls_to_wrap", K::text, "NAMES", "classes that are wrapped"},
       {"fsdp_min_num_params", K::whole, "N", "of SIZE_BASED_WRAP", "100000000"},
       {"fsdp_backward_prefetch", K::text, "X", "BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH"},
       {"fsdp_state_dict_type", K::text, "X", "FULL_, SHARDED_ or LOCAL_STATE_DICT"},
       {"fsdp_forward_prefetch", K::truth, "", "prefetch in the forward pass", "false"},
       {"fsdp_use_orig_params", K::truth, "", "keep the original parameters", "true"},
       {"fsdp_cpu_ram_efficient_loading", K::truth, "", "only rank 0 loads the model", "true"},
       {"fsdp_sync_module_states", K::truth, "", "broadcast rank 0's parameters", "true"},
       {"fsdp_activation_checkpointing", K::truth, "", "recompute activations", "false"},
       {"fsdp_activation_checkpointing_offload", K::truth, "", "keep them on the CPU", "false"},
       {"fsdp_ignored_modules", K::text, "X", "modules that are not wrapped"}});
  for (LaunchFlag& flag : flags) {
    if (flag.name == "fsdp_backward_prefetch") flag.aliases = {"fsdp_backward_prefetch_policy"};
  }
}

void add_deepspeed(std::vector<LaunchFlag>& flags) {
  add(flags, G::deepspeed, "deepspeed_config",
      {{"deepspeed_config_file", K::text, "FILE", "DeepSpeed's own JSON"},
       {"zero_stage", K::whole, "N", "0 to 3"},
       {"offload_optimizer_device", K::choice, "none|cpu|nvme", "where the optimizer is"},
       {"offload_param_device", K::choice, "none|cpu|nvme", "where the parameters are"},
       {"offload_optimizer_nvme_path", K::text, "DIR", "for nvme"},
       {"offload_param_nvme_path", K::text, "DIR", "for nvme"},
       {"gradient_accumulation_steps", K::text, "N", "micro-batches of a step, or auto"},
       {"gradient_clipping", K::text, "X", "largest gradient norm, or auto"},
       {"zero3_init_flag", K::truth, "", "deepspeed.zero.Init"},
       {"zero3_save_16bit_model", K::truth, "", "save gathered 16-bit weights"},
       {"deepspeed_moe_layer_cls_names", K::text, "NAMES", "classes of experts"},
       {"deepspeed_hostfile", K::text, "FILE", "the same as --hostfile, with --use_deepspeed"}});
}

void add_fp8(std::vector<LaunchFlag>& flags) {
  add(flags, G::fp8, "fp8_config",
      {{"fp8_backend", K::choice, "ao|te|msamp|AO|TE|MSAMP", "the library"},
       {"fp8_use_autocast_during_eval", K::truth, "", "also in evaluation", "false"},
       {"fp8_margin", K::whole, "N", "of the scaling factor", "0"},
       {"fp8_interval", K::whole, "N", "steps between new factors", "1"},
       {"fp8_format", K::choice, "HYBRID|E4M3|E5M2", "the type", "HYBRID"},
       {"fp8_amax_history_len", K::whole, "N", "length of the history", "1024"},
       {"fp8_amax_compute_algo", K::choice, "most_recent|max", "what it gives", "most_recent"},
       {"fp8_override_linear_precision", K::text, "F,D,W",
        "three truth values: fprop, dgrad, wgrad in higher precision", "false,false,false"},
       {"fp8_opt_level", K::choice, "O1|O2", "of MS-AMP", "O2"},
       {"fp8_enable_fsdp_float8_all_gather", K::truth, "", "gather in fp8 (torchao)", "true"},
       {"fp8_pad_inner_dim", K::truth, "", "pad (torchao)", "true"}});
}

void add_parallelism(std::vector<LaunchFlag>& flags) {
  add(flags, G::parallelism, "parallelism_config",
      {{"parallelism_config_dp_replicate_size", K::whole, "N", "replicas", "1"},
       {"parallelism_config_dp_shard_size", K::whole, "N", "shards", "1"},
       {"parallelism_config_tp_size", K::whole, "N", "tensor-parallel size", "1"},
       {"parallelism_config_cp_size", K::whole, "N", "context-parallel size", "1"},
       {"parallelism_config_sp_size", K::whole, "N", "sequence-parallel size (Ulysses)", "1"},
       {"parallelism_config_cp_backend", K::text, "X", "who does it", "torch"},
       {"parallelism_config_cp_comm_strategy", K::choice, "allgather|alltoall", "how", "allgather"},
       {"parallelism_config_sp_backend", K::text, "X", "who does it", "deepspeed"},
       {"parallelism_config_sp_seq_length", K::whole, "N", "length of the sequences"},
       {"parallelism_config_sp_seq_length_is_variable", K::truth, "", "they differ", "true"},
       {"parallelism_config_sp_attn_implementation", K::text, "X", "attention kernel", "sdpa"}});
}

void add_dynamo(std::vector<LaunchFlag>& flags) {
  add(flags, G::dynamo, "dynamo_config",
      {{"dynamo_backend", K::text, "X", "compiler of a PyTorch program", "no"},
       {"dynamo_mode", K::choice, "default|reduce-overhead|max-autotune", "how hard it tries",
        "default"},
       {"dynamo_use_fullgraph", K::truth, "", "one graph or an error", "false"},
       {"dynamo_use_dynamic", K::truth, "", "shapes may change", "false"},
       {"dynamo_use_regional_compilation", K::truth, "", "repeated blocks once", "false"}});
}

void add_meaningless(std::vector<LaunchFlag>& flags) {
  struct Nothing {
    const char* name;
    FlagKind kind;
    const char* why;
    const char* file_key = "-";
    const char* alias = "";
  };
  const auto add_all = [&](G group, const std::vector<Nothing>& rows) {
    for (const Nothing& row : rows) {
      LaunchFlag flag{.name = row.name,
                      .kind = row.kind,
                      .group = group,
                      .value = row.kind == K::truth ? "" : "X",
                      .help = row.why,
                      .built_in = {},
                      .file_key = row.file_key,
                      .aliases = {},
                      .meaningless = row.why};
      if (*row.alias != '\0') flag.aliases.emplace_back(row.alias);
      flags.push_back(std::move(flag));
    }
  };
  add_all(G::torchrun,
          {{"monitor_interval", K::number, "the end of a rank is seen at once, nothing polls"},
           {"start_method", K::text, "ranks are started with fork and exec"},
           {"signals_to_handle", K::text, "INT, TERM, HUP, QUIT and USR1 always reach the ranks"},
           {"event_log_handler", K::text, "there are no events to log"},
           {"logs_specs", K::text, "logs are the launcher's own"},
           {"virtual_local_rank", K::truth, "LOCAL_RANK counts the ranks of the machine"},
           {"duplicate_stdout_filters", K::text, "lines are not filtered"},
           {"duplicate_stderr_filters", K::text, "lines are not filtered"},
           {"use_agent_store", K::truth, "rank 0 of a PyTorch program hosts its own store"}});
  add_all(
      G::elsewhere,
      {{"same_network", K::truth, "only names torchrun's fields differently", "same_network"},
       {"tpu", K::truth, "mtl does not run on TPUs"},
       {"tpu_cluster", K::truth, "mtl does not run on TPUs", "tpu_use_cluster", "tpu_use_cluster"},
       {"tpu_use_sudo", K::truth, "mtl does not run on TPUs", "tpu_use_sudo"},
       {"tpu_name", K::text, "mtl does not run on TPUs", "tpu_name"},
       {"tpu_zone", K::text, "mtl does not run on TPUs", "tpu_zone"},
       {"vm", K::list, "mtl does not run on TPUs", "tpu_vm"},
       {"tpu_env", K::list, "mtl does not run on TPUs", "tpu_env"},
       {"command_file", K::text, "of accelerate tpu-config", "command_file"},
       {"commands", K::list, "of accelerate tpu-config", "commands", "command"},
       {"main_training_function", K::text, "for TPUs and notebooks only", "main_training_function"},
       {"downcast_bf16", K::truth, "for TPUs only", "downcast_bf16"},
       {"mpirun_ccl", K::whole, "threads of oneCCL: --env CCL_WORKER_COUNT=N does it",
        "mpirun_config.mpirun_ccl"},
       {"ipex", K::truth, "accelerate has Intel's extension no more", "ipex_config.ipex"},
       {"use_xpu", K::truth, "accelerate has Intel's extension no more", "ipex_config.use_xpu"},
       {"use_tp", K::truth, "accelerate has it as --parallelism_config_tp_size now"},
       {"tp_size", K::whole, "accelerate has it as --parallelism_config_tp_size now",
        "tp_config.tp_size"},
       {"aws_access_key_id", K::text, "mtl does not launch on Amazon SageMaker"},
       {"aws_secret_access_key", K::text, "mtl does not launch on Amazon SageMaker"},
       {"deepspeed_multinode_launcher", K::text, "machines are reached by --hosts or --hostfile",
        "deepspeed_config.deepspeed_multinode_launcher"},
       {"deepspeed_exclusion_filter", K::text, "name the machines with --hosts",
        "deepspeed_config.deepspeed_exclusion_filter"},
       {"deepspeed_inclusion_filter", K::text, "name the machines with --hosts",
        "deepspeed_config.deepspeed_inclusion_filter"}});
}

}  // namespace

std::vector<LaunchFlag> launch_family_flags() {
  std::vector<LaunchFlag> flags;
  add_megatron(flags);
  add_fsdp(flags);
  add_deepspeed(flags);
  add_fp8(flags);
  add_parallelism(flags);
  add_dynamo(flags);
  flags.push_back({.name = "mpirun_hostfile",
                   .kind = K::text,
                   .group = G::machines,
                   .value = "FILE",
                   .help = "accelerate's name for --hostfile",
                   .built_in = {},
                   .file_key = "mpirun_config.mpirun_hostfile",
                   .aliases = {},
                   .meaningless = {}});
  add_meaningless(flags);
  return flags;
}

}  // namespace mtl
