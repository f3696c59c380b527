// Every setting of a launch by file, environment and flag, the stronger layer winning.
#include <algorithm>
#include <set>
#include <sstream>

#include <sys/stat.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/launch_request_cases.h"
#include "launcher/processes.h"
#include "launcher/ranks/worker_env.h"
#include "launcher/settings/launch_config_keys.h"
#include "launcher/settings/train_settings.h"

using namespace mtl;
using namespace mtl::test;

namespace {

// Everything that a request decides, as text: two settings that give the same text are the same.
std::string everything(const LaunchRequest& r) {
  std::string text = fmt::format(
      "mode {} ranks {} local {} need_gpu {} nodes {}:{} elastic {} machine {} at {}:{} master {} "
      "id {} token {} interface {} restarts {} dead {} join {} last {} grace {} binding {} omp {} "
      "ssh {} {} remote {} port {}\n",
      static_cast<int>(r.mode), r.ranks, r.local_ranks, r.need_gpu, r.min_nodes, r.max_nodes,
      r.elastic, r.machine_rank, r.address, r.port, r.master_port, r.run_id, r.token, r.interface,
      r.max_restarts, r.dead_after.count(), r.join_timeout.count(), r.last_call.count(),
      r.grace.count(), static_cast<int>(r.binding), r.omp_threads, r.ssh_command, r.ssh_config,
      r.remote_program, r.config.main_process_port);
  for (const Host& host : r.hosts) text += fmt::format("host {}:{}\n", host.name, host.slots);
  for (const auto& [name, value] : r.env) text += fmt::format("env {}={}\n", name, value);
  for (const std::string& name : r.forward) text += "forward " + name + "\n";
  text += fmt::format("logs {} {} {} rotate {}\n", r.logs.dir.string(), r.logs.console_default,
                      r.logs.prefix, r.logs.rotate_bytes);
  for (const auto& [rank, bits] : r.logs.console) text += fmt::format("tee {}:{}\n", rank, bits);
  for (const auto& [rank, bits] : r.logs.redirected) {
    text += fmt::format("redirect {}:{}\n", rank, bits);
  }
  for (int rank : r.logs.only_local_ranks) text += fmt::format("only {}\n", rank);
  text += fmt::format("gpus {}\nvia {} templates {}\n", r.config.gpu_ids, r.via, r.templates_dir);
  for (const auto* asked : {&r.slurm, &r.kubernetes}) {
    for (const auto& [name, values] : *asked) {
      text += fmt::format("{} {}\n", name, fmt::join(values, " "));
    }
  }
  for (const auto& [name, value] : worker_environment(r.config, {}, 0)) {
    if (name == "ACCELERATE_CONFIG_DS_FIELDS") continue;  // names the keys of the file as such
    text += fmt::format("{}={}\n", name, value);
  }
  for (const auto& [key, value] : train_settings(r.config)) text += key + "=" + value + "\n";
  return text;
}

// What the first has and the second has not, so that a failure can be read.
std::string difference(const std::string& one, const std::string& other) {
  std::string text;
  size_t start = 0;
  while (start < one.size()) {
    const size_t end = std::min(one.find('\n', start), one.size());
    const std::string line = one.substr(start, end - start);
    if (("\n" + other).find("\n" + line + "\n") == std::string::npos) text += line + "\n";
    start = end + 1;
  }
  return one == other ? "" : "differs: " + text;
}

// Three values that a setting can have, in the order file, environment, flag; the last differs from
// the first two.
std::vector<std::string> samples(const LaunchFlag& flag, const std::string& token_a,
                                 const std::string& token_b) {
  static const std::map<std::string, std::vector<std::string>> special = {
      {"nproc_per_node", {"2", "3", "4"}},
      {"nnodes", {"2", "3", "4"}},
      {"num_machines", {"2", "3", "4"}},
      {"main_process_port", {"1001", "1002", "1003"}},
      {"rdzv_endpoint", {"a:1001", "b:1002", "c:1003"}},
      {"rdzv_conf", {"join_timeout=1", "join_timeout=2", "join_timeout=3"}},
      {"tee", {"1", "2", "3"}},
      {"redirects", {"1", "2", "3"}},
      {"local_ranks_filter", {"0", "1", "2"}},
      {"env", {"A=1", "A=2", "A=3"}},
      {"numa_binding", {"numa", "numa", "core"}},
      {"main_process_ip", {"10.0.0.1", "10.0.0.2", "10.0.0.3"}},
      {"machine_rank", {"0", "2", "1"}},
      {"mixed_precision", {"fp16", "fp16", "bf16"}},
      {"rdzv_backend", {"static", "static", "tcp"}},
      {"zero_stage", {"1", "2", "3"}},
      {"dynamo_backend", {"eager", "EAGER", "inductor"}},
      {"fp8_override_linear_precision",
       {"true,false,false", "false,true,false", "false,false,true"}},
      {"fsdp_reshard_after_forward", {"true", "FULL_SHARD", "false"}}};
  if (flag.name == "token_file") return {token_a, token_a, token_b};
  const auto found = special.find(flag.name);
  if (found != special.end()) return found->second;
  switch (flag.kind) {
    case FlagKind::truth: {
      return flag.built_in == "true" ? std::vector<std::string>{"true", "true", "false"}
                                     : std::vector<std::string>{"false", "false", "true"};
    }
    case FlagKind::choice: {
      const size_t bar = flag.value.find('|');
      const std::string first = flag.value.substr(0, bar);
      const std::string second =
          flag.value.substr(bar + 1, flag.value.find('|', bar + 1) - bar - 1);
      const bool usual = second == flag.built_in;  // the last one is to change something
      return usual ? std::vector<std::string>{second, second, first}
                   : std::vector<std::string>{first, first, second};
    }
    case FlagKind::whole:
    case FlagKind::number:
    case FlagKind::seconds:
    case FlagKind::size:
      return {"3", "4", "6"};
    case FlagKind::text:
    case FlagKind::list:
      return {"aaa", "bbb", "ccc"};
  }
  return {};
}

// What has to be there for a setting to matter at all.
std::vector<std::pair<std::string, std::string>> stage_for(const LaunchFlag& flag) {
  std::vector<std::pair<std::string, std::string>> stage = {{"use_cpu", "true"}};
  const auto more = [&](const char* name, const char* text) { stage.emplace_back(name, text); };
  switch (flag.group) {
    case FlagGroup::megatron:
      more("use_megatron_lm", "true");
      break;
    case FlagGroup::fsdp:
      more("use_fsdp", "true");
      break;
    case FlagGroup::deepspeed:
      more("use_deepspeed", "true");
      break;
    case FlagGroup::fp8:
      more("mixed_precision", "fp8");
      break;
    case FlagGroup::parallelism:
      more("use_fsdp", "true");
      more("use_parallelism_config", "true");
      if (flag.name.find("_cp_") != std::string::npos &&
          flag.name.find("size") == std::string::npos) {
        more("parallelism_config_cp_size", "2");
      }
      if (flag.name.find("_sp_") != std::string::npos &&
          flag.name.find("size") == std::string::npos) {
        more("parallelism_config_sp_size", "2");
      }
      break;
    default:
      break;
  }
  if (flag.name == "use_parallelism_config") more("use_fsdp", "true");
  if (flag.name == "cpu" || flag.name == "multi_gpu") stage.clear();
  const bool member = flag.name == "machine_rank" || flag.name == "rdzv_backend" ||
                      flag.name == "rdzv_endpoint" || flag.name == "main_process_port" ||
                      flag.name == "main_process_ip" || flag.name == "rdzv_conf";
  if (member) {
    more("num_machines", "3");
    more("nproc_per_node", "1");
  }
  return stage;
}

}  // namespace

TEST_CASE("every setting has an effect by flag or says that it has none") {
  TempDir dir;
  const std::string token_a = dir.file("a", "secret-a\n"), token_b = dir.file("b", "secret-b\n");
  chmod(token_a.c_str(), 0600);
  chmod(token_b.c_str(), 0600);
  const std::string hostfile = dir.file("hosts", "m1 slots=2\nm2 slots=2\n");
  for (const LaunchFlag& flag : launch_flags()) {
    CAPTURE(flag.name);
    if (flag.file_key == "-" && flag.meaningless.empty()) continue;  // the command line's own
    auto stage = stage_for(flag);
    const std::string without = everything(resolved(stage).request);
    std::string text = samples(flag, token_a, token_b)[2];
    if (flag.name.find("hostfile") != std::string::npos) text = hostfile;
    if (flag.name == "standalone") stage.emplace_back("num_machines", "2");
    stage.emplace_back(flag.name, text);
    Outcome with;
    if (flag.name == "standalone") {
      with = resolved({{"standalone", "true"}}, file_of("distributed_type: NO\nnum_machines: 2\n"));
      CHECK(with.request.mode == LaunchRequest::Mode::local);
      continue;
    }
    with = resolved(stage);
    if (!flag.meaningless.empty()) {
      CHECK(std::count(with.codes.begin(), with.codes.end(), "launch.ignored_flag") == 1);
      CHECK(with.words.find(flag.name) != std::string::npos);
      continue;
    }
    CHECK(difference(everything(with.request), without) != "");
    CHECK(std::count(with.codes.begin(), with.codes.end(), "launch.ignored_flag") == 0);
  }
}

TEST_CASE("every flag of accelerate counts or is named - for a program and for a train.yaml") {
  static const char* const kFlags =
      "config_file quiet module no_python debug cpu multi_gpu tpu mixed_precision num_processes "
      "num_machines num_cpu_threads_per_process enable_cpu_affinity dynamo_backend dynamo_mode "
      "dynamo_use_fullgraph dynamo_use_dynamic dynamo_use_regional_compilation use_deepspeed "
      "use_fsdp use_parallelism_config use_megatron_lm gpu_ids same_network machine_rank "
      "main_process_ip main_process_port tee log_dir role rdzv_backend rdzv_conf max_restarts "
      "monitor_interval tpu_cluster no_tpu_cluster tpu_use_sudo vm env main_training_function "
      "downcast_bf16 deepspeed_config_file zero_stage offload_optimizer_device "
      "offload_param_device offload_optimizer_nvme_path offload_param_nvme_path "
      "gradient_accumulation_steps gradient_clipping zero3_init_flag zero3_save_16bit_model "
      "deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter "
      "deepspeed_multinode_launcher deepspeed_moe_layer_cls_names fsdp_version "
      "fsdp_offload_params fsdp_min_num_params fsdp_sharding_strategy "
      "fsdp_reshard_after_forward fsdp_auto_wrap_policy fsdp_transformer_layer_cls_to_wrap "
      "fsdp_backward_prefetch fsdp_state_dict_type fsdp_forward_prefetch fsdp_use_orig_params "
      "fsdp_cpu_ram_efficient_loading fsdp_sync_module_states fsdp_activation_checkpointing "
      "megatron_lm_tp_degree megatron_lm_pp_degree megatron_lm_num_micro_batches "
      "megatron_lm_sequence_parallelism megatron_lm_recompute_activations "
      "megatron_lm_use_distributed_optimizer megatron_lm_gradient_clipping "
      "megatron_lm_recompute_granularity megatron_lm_recompute_method "
      "megatron_lm_recompute_num_layers megatron_lm_attention_backend "
      "megatron_lm_expert_model_parallel_size megatron_lm_expert_tensor_parallel_size "
      "megatron_lm_context_parallel_size megatron_lm_attention_dropout "
      "megatron_lm_hidden_dropout megatron_lm_attention_softmax_in_fp32 "
      "megatron_lm_calculate_per_token_loss megatron_lm_use_rotary_position_embeddings "
      "megatron_lm_decoder_last_pipeline_num_layers megatron_lm_use_custom_fsdp "
      "megatron_lm_no_load_optim megatron_lm_eod_mask_loss "
      "megatron_lm_overlap_cpu_optimizer_d2h_h2d megatron_lm_no_save_optim "
      "megatron_lm_optimizer_cpu_offload megatron_lm_use_precision_aware_optimizer fp8_backend "
      "fp8_use_autocast_during_eval fp8_margin fp8_interval fp8_format fp8_amax_history_len "
      "fp8_amax_compute_algo fp8_override_linear_precision fp8_opt_level "
      "fp8_enable_fsdp_float8_all_gather fp8_pad_inner_dim aws_access_key_id "
      "aws_secret_access_key mpirun_hostfile parallelism_config_dp_replicate_size "
      "parallelism_config_dp_shard_size parallelism_config_tp_size parallelism_config_cp_size "
      "parallelism_config_sp_size parallelism_config_cp_backend "
      "parallelism_config_cp_comm_strategy parallelism_config_sp_backend "
      "parallelism_config_sp_seq_length parallelism_config_sp_seq_length_is_variable "
      "parallelism_config_sp_attn_implementation "
      // Of older ones.
      "mpirun_ccl ipex use_xpu use_tp tp_size fsdp_backward_prefetch_policy ";
  TempDir dir;
  const std::string hostfile = dir.file("hosts", "m1 slots=2\nm2 slots=2\n");
  std::istringstream words(kFlags);
  int count = 0;
  for (std::string name; words >> name; ++count) {
    CAPTURE(name);
    const bool no = name.starts_with("no_tpu");  // --no-x of a truth flag
    const LaunchFlag* flag = find_launch_flag(no ? name.substr(3) : name);
    REQUIRE(flag != nullptr);
    if (flag->file_key == "-" && flag->meaningless.empty()) continue;  // the command line's own
    std::string text = no ? "false" : samples(*flag, "a", "b")[2];
    if (flag->name.find("hostfile") != std::string::npos) text = hostfile;
    for (const bool train_yaml : {false, true}) {
      CAPTURE(train_yaml);
      auto stage = stage_for(*flag);
      const std::string without = everything(resolved(stage, {}, train_yaml).request);
      stage.emplace_back(flag->name, text);
      const Outcome with = resolved(stage, {}, train_yaml);
      const bool named = with.words.find(flag->name) != std::string::npos;
      const std::string engine = flag->group == FlagGroup::deepspeed ? "DEEPSPEED" : "FSDP";
      const auto decided = train_settings(values({{flag->name, text}}), engine);
      const bool counts = train_yaml && flag->group >= FlagGroup::megatron
                              ? !decided.empty()
                              : difference(everything(with.request), without) != "";
      CAPTURE(with.words);
      CHECK((counts || named));
      // What has no meaning is not silently said to have one.
      if (!flag->meaningless.empty()) CHECK(named);
    }
  }
  CHECK(count == 128);
}

TEST_CASE("built in < file < environment < flag for every setting") {
  TempDir dir;
  const std::string token_a = dir.file("a", "secret-a\n"), token_b = dir.file("b", "secret-b\n");
  int in_file = 0;
  for (const LaunchFlag& flag : launch_flags()) {
    CAPTURE(flag.name);
    if (flag.file_key == "-" || !flag.meaningless.empty()) continue;
    if (flag.name.find("hostfile") != std::string::npos || flag.name == "standalone") continue;
    const auto sample = samples(flag, token_a, token_b);
    // The file: a plain key, a key of a section, or one of ours.
    std::string text;
    const size_t dot = flag.file_key.find('.');
    const bool paradigm =
        flag.file_key == "distributed_type" || flag.file_key == "parallelism_config";
    if (paradigm) {
      text = "distributed_type: 'NO'\n";
    } else if (flag.file_key.empty()) {
      text = fmt::format("distributed_type: 'NO'\nmegatron_lm_config:\n  mtl_{}: '{}'\n", flag.name,
                         sample[0]);
    } else if (dot == std::string::npos) {
      text = fmt::format("distributed_type: 'NO'\n{}: {}\n", flag.file_key, sample[0]);
    } else {
      text = fmt::format("distributed_type: 'NO'\n{}:\n  {}: {}\n", flag.file_key.substr(0, dot),
                         flag.file_key.substr(dot + 1), sample[0]);
    }
    const LaunchConfig file = file_of(text);
    const LaunchConfig empty = file_of("distributed_type: 'NO'\n");
    const auto stage = stage_for(flag);
    const auto with = [&](const LaunchConfig& config, const std::string& environment,
                          const std::string& by_flag) {
      auto flags = stage;
      if (!by_flag.empty()) flags.emplace_back(flag.name, by_flag);
      FlagValues variables;
      if (!environment.empty()) variables = values({{flag.name, environment}}, "MTL_");
      return everything(resolved(flags, config, false, variables).request);
    };
    // Truth values of sections are defaults of accelerate when the file has them: compare by layer.
    CHECK(difference(with(file, sample[1], ""), with(empty, sample[1], "")) == "");
    CHECK(difference(with(file, sample[1], sample[2]), with(empty, "", sample[2])) == "");
    CHECK(difference(with(empty, sample[1], sample[2]), with(empty, "", sample[2])) == "");
    if (!paradigm) {
      CHECK(difference(with(file, "", ""), with(empty, "", sample[0])) == "");
      CHECK(difference(with(file, "", sample[2]), with(empty, "", sample[2])) == "");
      ++in_file;
    }
  }
  CHECK(in_file > 100);
}

TEST_CASE("every key of accelerate's file belongs to a setting") {
  std::set<std::string> keys;
  for (const LaunchFlag& flag : launch_flags()) keys.insert(flag.file_key);
  for (const LaunchSection& section : launch_sections()) {
    if (section.name == "ipex_config" || section.name == "tp_config") continue;  // of old versions
    for (const std::string& key : section.keys) {
      CAPTURE(section.name);
      CAPTURE(key);
      CHECK(keys.count(section.name + '.' + plugin_key(section.name, key)) == 1);
    }
  }
  for (const std::string& key : launch_keys()) {
    if (key == "compute_environment" || key == "fp16") continue;
    CAPTURE(key);
    CHECK(keys.count(key) == 1);
  }
  for (const std::string& key : launch_keys_without_meaning()) {
    CAPTURE(key);
    CHECK((keys.count(key) == 1 || key == "dynamo_backend"));
  }
}

TEST_CASE("names are unique and kinds take what their defaults say") {
  std::set<std::string> names;
  std::set<char> shorts = {'h'};
  for (const LaunchFlag& flag : launch_flags()) {
    CAPTURE(flag.name);
    CHECK(names.insert(flag.name).second);
    for (const std::string& alias : flag.aliases) CHECK(names.insert(alias).second);
    if (flag.short_name != '\0') CHECK(shorts.insert(flag.short_name).second);
    CHECK_FALSE(flag.help.empty());
    CHECK(find_launch_flag(flag.name) == &flag);
  }
  // What accelerate's own parser and torchrun's have, but for what ends the program.
  for (const char* name :
       {"quiet", "tpu_cluster", "vm", "downcast_bf16", "fp8_opt_level", "monitor_interval",
        "node_rank", "master_addr", "master_port", "nproc_per_node", "local_addr", "rdzv_id",
        "redirects", "local_ranks_filter", "start_method", "numa_binding", "aws_access_key_id"}) {
    CAPTURE(name);
    CHECK(names.count(name) == 1);
  }
}

TEST_CASE("merged settings written as a file give the same environment") {
  const LaunchConfig file = file_of(
      "distributed_type: FSDP\nmixed_precision: fp8\nnum_processes: 2\nfsdp_config:\n"
      "  version: 2\n  fsdp_ignored_modules: null\nparallelism_config:\n"
      "  parallelism_config_cp_size: 2\nfp8_config:\n  amax_history_length: 7\n"
      "  override_linear_precision: (false, true, false)\n");
  const LaunchRequest request =
      resolved(
          {{"fsdp_offload_params", "true"}, {"role", "trainer"}, {"dynamo_backend", "inductor"}},
          file)
          .request;
  const auto env = worker_environment(request.config, {}, 0);
  CHECK(env.at("FSDP_VERSION") == "2");
  CHECK(env.at("FSDP_OFFLOAD_PARAMS") == "true");
  CHECK(env.at("ACCELERATE_FP8_AMAX_HISTORY_LEN") == "7");
  CHECK(env.at("ACCELERATE_FP8_OVERRIDE_DGRAD") == "True");
  CHECK(env.at("PARALLELISM_CONFIG_CP_COMM_STRATEGY") == "allgather");
  CHECK(env.at("ROLE_NAME") == "trainer");
  CHECK(worker_environment(file_of(launch_config_yaml(request.config)), {}, 0) == env);
}
