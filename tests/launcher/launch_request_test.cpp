// The settings of a launch: every one of them by file, environment and flag, the stronger layer
// winning, and all contradictions at once.
#include "launcher/launch_request.h"

#include <algorithm>
#include <set>
#include <sstream>

#include <sys/stat.h>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/commands.h"
#include "launcher/job_messages.h"
#include "launcher/launch_config_keys.h"
#include "launcher/processes.h"
#include "launcher/train_settings.h"
#include "launcher/worker_env.h"

using namespace mtl;
using namespace mtl::test;

namespace {

using Values = std::vector<std::pair<std::string, std::string>>;

FlagValues values(const Values& given, const std::string& before = "--") {
  FlagValues all;
  for (const auto& [name, text] : given) {
    const LaunchFlag* flag = find_launch_flag(name);
    REQUIRE_MESSAGE(flag != nullptr, name);
    FlagValue& value = all[flag->name];
    value.origin = before + name;
    value.texts.push_back(text);
  }
  return all;
}

struct Outcome {
  LaunchRequest request;
  std::vector<std::string> codes;
  std::string words;
};

Outcome resolved(const Values& flags, const LaunchConfig& file = {}, bool train_yaml = false,
                 const FlagValues& environment = {}) {
  Diagnostics diagnostics;
  Outcome outcome;
  outcome.request = resolve_launch(file, {.environment = environment, .flags = values(flags)},
                                   train_yaml, diagnostics);
  for (const Diagnostic& diagnostic : diagnostics.all()) {
    outcome.codes.push_back(diagnostic.code);
    outcome.words += diagnostic.what + " / " + diagnostic.help + "\n";
  }
  return outcome;
}

LaunchConfig file_of(const std::string& text) {
  Diagnostics diagnostics;
  LaunchConfig config = parse_launch_config(text, "c.yaml", diagnostics);
  for (const Diagnostic& diagnostic : diagnostics.all()) CAPTURE(diagnostic.what);
  CHECK_FALSE(diagnostics.has_errors());
  return config;
}

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

TEST_CASE("a stop for a scheduler's warning has most of the time that is left") {
  using std::chrono::seconds;
  const auto grace_in = [](Launcher launcher, const FlagValues& flags) {
    LaunchGiven given;
    given.around.launcher = launcher;
    given.flags = flags;
    Diagnostics diagnostics;
    return resolve_launch({}, given, true, diagnostics).warning_grace;
  };
  CHECK(grace_in(Launcher::none, {}) == seconds(30));
  CHECK(grace_in(Launcher::slurm, {}) == seconds(150));
  CHECK(grace_in(Launcher::slurm, values({{"grace", "200"}})) == seconds(200));
  CHECK(grace_in(Launcher::slurm, values({{"slurm_signal_s", "600"}})) == seconds(570));
  CHECK(grace_in(Launcher::slurm, values({{"slurm_time", "1:00"}})) == seconds(30));
}

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

TEST_CASE("truth values are what they say") {
  for (const char* no : {"false", "0", "no", "off", "False"}) CHECK(truth_of(no) == false);
  for (const char* yes : {"true", "1", "yes", "on", "True"}) CHECK(truth_of(yes) == true);
  CHECK_FALSE(truth_of("maybe").has_value());
  const auto env = worker_environment(
      resolved({{"use_megatron_lm", "true"}, {"megatron_lm_no_load_optim", "false"}})
          .request.config,
      {}, 0);
  CHECK(env.at("MEGATRON_LM_NO_LOAD_OPTIM") == "False");
}

TEST_CASE("variables of the environment: MTL_ and torchrun's PET_") {
  const char* const environment[] = {"MTL_NUM_PROCESSES=4", "PET_NNODES=2",     "PET_NODE_RANK=1",
                                     "MTL_GRACE=soon",      "MTL_CPU_ISA=avx2", "HOME=/",
                                     "MTL_TRAIN__STEPS=3",  "MTL_TEE=",         nullptr};
  Diagnostics diagnostics;
  const FlagValues found = flags_in_environment(environment, diagnostics);
  CHECK(found.size() == 3);
  CHECK(found.at("num_processes").texts == std::vector<std::string>{"4"});
  CHECK(found.at("nnodes").origin == "PET_NNODES");
  CHECK(found.at("machine_rank").texts[0] == "1");
  REQUIRE(diagnostics.all().size() == 1);
  CHECK(diagnostics.all()[0].code == "config.environment");
  CHECK(diagnostics.all()[0].what.find("MTL_GRACE") != std::string::npos);
}

TEST_CASE("how many ranks and where") {
  using Mode = LaunchRequest::Mode;
  const int cores = inspect_hardware(false).cores;
  struct Case {
    std::vector<std::pair<std::string, std::string>> flags;
    Mode mode;
    int ranks, local, min, max;
  };
  const std::vector<Case> table = {
      {{{"cpu", "true"}}, Mode::local, 1, 1, 1, 1},
      {{{"num_processes", "6"}}, Mode::local, 6, 6, 1, 1},
      // torchrun's word: without GPUs one per core.
      {{{"cpu", "true"}, {"nproc_per_node", "auto"}}, Mode::local, cores, cores, 1, 1},
      {{{"nproc_per_node", "3"}}, Mode::local, 3, 3, 1, 1},
      {{{"nproc_per_node", "3"}, {"rdzv_backend", "c10d"}, {"rdzv_endpoint", "localhost:0"}},
       Mode::local,
       3,
       3,
       1,
       1},
      {{{"num_processes", "6"},
        {"num_machines", "2"},
        {"machine_rank", "1"},
        {"main_process_ip", "10.0.0.1"}},
       Mode::member,
       6,
       3,
       2,
       2},
      {{{"nproc_per_node", "4"},
        {"nnodes", "2:3"},
        {"rdzv_backend", "c10d"},
        {"rdzv_endpoint", "n0:29400"}},
       Mode::member,
       0,
       4,
       2,
       3},
      {{{"hosts", "a:2,b:3"}}, Mode::hosts, 5, 0, 2, 2},
      {{{"hosts", "a,b"}, {"num_processes", "8"}}, Mode::hosts, 8, 4, 2, 2},
      {{{"hosts", "a:4,b:4"}, {"num_processes", "6"}}, Mode::hosts, 6, 0, 2, 2},
      {{{"hosts", "a:4,b:4"}, {"num_processes", "4"}}, Mode::hosts, 4, 0, 1, 1},
  };
  for (const Case& c : table) {
    std::string words;
    for (const auto& [name, text] : c.flags) words += name + "=" + text + " ";
    CAPTURE(words);
    const Outcome outcome = resolved(c.flags);
    CAPTURE(outcome.words);
    CHECK(outcome.codes.empty());
    CHECK(outcome.request.mode == c.mode);
    CHECK(outcome.request.ranks == c.ranks);
    CHECK(outcome.request.local_ranks == c.local);
    CHECK(outcome.request.min_nodes == c.min);
    CHECK(outcome.request.max_nodes == c.max);
  }
}

TEST_CASE("what a node without a word or with one runs, by what it has") {
  NodeHardware hardware;
  hardware.cores = 6;
  Diagnostics none;
  const auto ranks = [&](int word, bool use_cpu) {
    return ranks_of_node(word, hardware, use_cpu, none);
  };
  CHECK(ranks(LaunchRequest::kAuto, false) == 1);
  CHECK(ranks(LaunchRequest::kPerCore, false) == 6);
  CHECK(ranks(LaunchRequest::kPerDevice, false) == 6);
  hardware.gpus.resize(2);
  CHECK(ranks(LaunchRequest::kAuto, false) == 2);
  CHECK(ranks(LaunchRequest::kPerDevice, false) == 2);
  CHECK(ranks(LaunchRequest::kPerDevice, true) == 6);
  CHECK(!none.has_errors());
}

TEST_CASE("a hostfile without a name in accelerate's file is none") {
  const Outcome outcome =
      resolved({}, file_of("distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n"
                           "mpirun_config: {mpirun_hostfile: '', mpirun_ccl: '1'}\n"));
  CHECK(outcome.words == "");
  CHECK(outcome.request.mode == LaunchRequest::Mode::local);
}

TEST_CASE("contradictions are errors, all of them at once") {
  using Flags = std::vector<std::pair<std::string, std::string>>;
  struct Case {
    Flags flags;
    std::vector<std::string> codes;
    const char* words;
  };
  const std::vector<Case> table = {
      {{{"cpu", "true"}, {"multi_gpu", "true"}}, {"launch.conflict"}, "--cpu and --multi_gpu"},
      {{{"hosts", "a,b"}, {"machine_rank", "1"}}, {"launch.conflict"}, "--machine_rank"},
      {{{"hosts", "a,b"}, {"num_processes", "3"}}, {"launch.processes"}, "evenly by 2"},
      {{{"nnodes", "4:3"}}, {"launch.nodes"}, "3:4"},
      {{{"nnodes", "2"}, {"num_machines", "3"}, {"main_process_ip", "a"}, {"machine_rank", "0"}},
       {"launch.conflict"},
       "different numbers"},
      {{{"num_machines", "2"}, {"machine_rank", "2"}, {"main_process_ip", "a"}},
       {"launch.machine_rank"},
       "does not exist"},
      {{{"num_machines", "2"}, {"machine_rank", "0"}}, {"launch.address"}, "--main_process_ip"},
      {{{"num_machines", "2"}, {"main_process_ip", "a"}},
       {"launch.machine_rank"},
       "--machine_rank"},
      {{{"nnodes", "2:3"}, {"rdzv_backend", "tcp"}}, {"launch.address"}, "--rdzv_endpoint"},
      {{{"nnodes", "2:3"}, {"rdzv_endpoint", "a"}, {"machine_rank", "0"}},
       {"launch.conflict"},
       "--rdzv_backend tcp"},
      {{{"main_process_port", "70000"}}, {"launch.port"}, "65535"},
      {{{"num_machines", "2"},
        {"machine_rank", "0"},
        {"main_process_ip", "a"},
        {"main_process_port", "0"}},
       {"launch.port"},
       "would not know"},
      {{{"use_fsdp", "true"}, {"use_megatron_lm", "true"}}, {"launch.conflict"}, "one engine"},
      {{{"use_fsdp", "true"}, {"use_deepspeed", "true"}}, {"launch.conflict"}, "one engine"},
      {{{"num_processes", "4"}, {"nproc_per_node", "3"}}, {"launch.conflict"}, "do not agree"},
      {{{"rdzv_endpoint", "a:b:c]"}, {"env", "X"}}, {"launch.value"}, "--forward_env X"},
      {{{"rdzv_endpoint", "[::1"}}, {"launch.endpoint"}, "[fd00::1]:29400"},
      {{{"rdzv_conf", "join_timeot=3"}}, {"launch.rdzv_conf"}, "did you mean join_timeout?"},
      {{{"tee", "0:7"}}, {"launch.value"}, "pairs"},
      {{{"standalone", "true"}, {"hosts", "a"}}, {"launch.conflict"}, "--standalone"},
      {{{"cpu", "true"}, {"nproc_per_node", "gpu"}},
       {"launch.conflict", "placement.gpu_count"},
       "gpu with --cpu"},
      {{{"hosts", "a:1"}, {"num_processes", "9"}}, {"launch.processes"}, "1 slots"},
      {{{"cpu", "true"},
        {"multi_gpu", "true"},
        {"main_process_port", "99999"},
        {"num_machines", "2"},
        {"use_fsdp", "true"},
        {"use_deepspeed", "true"}},
       {"launch.conflict", "launch.port", "launch.conflict", "launch.address",
        "launch.machine_rank"},
       "one engine"},
  };
  for (const Case& c : table) {
    std::string words;
    for (const auto& [name, text] : c.flags) words += name + "=" + text + " ";
    CAPTURE(words);
    Outcome outcome = resolved(c.flags);
    CAPTURE(outcome.words);
    auto codes = c.codes;
    std::sort(codes.begin(), codes.end());
    std::sort(outcome.codes.begin(), outcome.codes.end());
    CHECK(outcome.codes == codes);
    CHECK(outcome.words.find(c.words) != std::string::npos);
  }
}

TEST_CASE("endpoints with names and addresses of both families") {
  const auto text = [](const std::string& given) {
    const auto endpoint = parse_endpoint(given);
    return endpoint ? fmt::format("{} {}", endpoint->host, endpoint->port) : "none";
  };
  CHECK(text("node0") == "node0 -1");
  CHECK(text("node0:29400") == "node0 29400");
  CHECK(text("10.0.0.1:0") == "10.0.0.1 0");
  CHECK(text("[fd00::1]:29400") == "fd00::1 29400");
  CHECK(text("[fd00::1]") == "fd00::1 -1");
  CHECK(text("fd00::1") == "fd00::1 -1");
  for (const char* bad : {"", ":1", "a:", "a:x", "a:70000", "[::1", "[::1]x", "a b"}) {
    CAPTURE(bad);
    CHECK(text(bad) == "none");
  }
}

TEST_CASE("the secret is read from its file and its readers are looked at") {
  TempDir dir;
  const std::string path = dir.file("token", "0123456789abcdef\n");
  chmod(path.c_str(), 0600);
  Outcome outcome = resolved({{"token_file", path}});
  CHECK(outcome.codes.empty());
  CHECK(outcome.request.token == "0123456789abcdef");
  chmod(path.c_str(), 0644);
  CHECK(resolved({{"token_file", path}}).codes == std::vector<std::string>{"launch.token_mode"});
  CHECK(resolved({{"token_file", path + "x"}}).codes == std::vector<std::string>{"file.missing"});
  CHECK(resolved({{"token_file", dir.file("empty", "\n")}}).codes ==
        std::vector<std::string>{"launch.token_file"});
}

TEST_CASE("what decides of a train.yaml and what it does not know") {
  const auto settings = train_settings(values({{"megatron_lm_tp_degree", "2"},
                                               {"megatron_lm_sequence_parallelism", "no"},
                                               {"mixed_precision", "bf16"}}));
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"precision.dtype", "bf16"}, {"parallel.tp", "2"}, {"parallel.sp", "false"}};
  CHECK(settings == expected);
  // A flag that says one is an answer too: the file of the run may have more.
  using One = std::pair<std::string, std::string>;
  CHECK(train_settings(values({{"megatron_lm_expert_model_parallel_size", "1"},
                               {"megatron_lm_context_parallel_size", "1"}})) ==
        std::vector{One{"parallel.cp", "1"}, One{"parallel.ep", "1"}});
  // An engine means something by itself, unless the file has more to say of it.
  using Settings = std::vector<std::pair<std::string, std::string>>;
  const FlagValues fsdp = values({{"use_fsdp", "true"}});
  CHECK(train_settings(fsdp, "FSDP", file_of("distributed_type: MULTI_GPU\n")) ==
        Settings{{"parallel.zero", "3"}});
  CHECK(train_settings(fsdp, "FSDP", file_of("distributed_type: FSDP\n")).empty());
  const FlagValues stage = values({{"use_deepspeed", "true"}, {"zero_stage", "1"}});
  CHECK(train_settings(stage, "DEEPSPEED", file_of("distributed_type: DEEPSPEED\n")) ==
        Settings{{"parallel.zero", "1"}});
  // How many ranks a machine has may stand elsewhere.
  const std::string two = "distributed_type: FSDP\nnum_machines: 2\nnum_processes: 8\n";
  CHECK(
      train_settings(values({{"fsdp_sharding_strategy", "HYBRID_SHARD"}}), "FSDP", file_of(two)) ==
      Settings{{"parallel.zero", "3"}, {"parallel.zero_ranks", "4"}});
  // What is said of it anew takes back what the file says of copies.
  const std::string hybrid =
      two + "fsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD\n  fsdp_offload_params: false\n";
  CHECK(
      train_settings(values({{"fsdp_sharding_strategy", "FULL_SHARD"}}), "FSDP", file_of(hybrid)) ==
      Settings{{"parallel.zero", "3"}, {"parallel.zero_ranks", "auto"}});
  CHECK(train_settings(values({{"fsdp_sharding_strategy", "FULL_SHARD"}}), "FSDP", file_of(two)) ==
        Settings{{"parallel.zero", "3"}});
  CHECK(train_settings(values({{"fsdp_activation_checkpointing", "true"}}), "FSDP",
                       file_of(hybrid)) == Settings{{"recompute.mode", "full"}});
  // A flag takes back what the file offloads.
  CHECK(train_settings(values({{"fsdp_offload_params", "false"}}), "FSDP",
                       file_of("distributed_type: FSDP\nfsdp_config:\n"
                               "  fsdp_offload_params: true\n")) ==
        Settings{{"optimizer.offload", "none"}});
  CHECK(train_settings(values({{"offload_optimizer_device", "none"}}), "DEEPSPEED",
                       file_of("distributed_type: DEEPSPEED\ndeepspeed_config:\n"
                               "  offload_optimizer_device: cpu\n")) ==
        Settings{{"optimizer.offload", "none"}});
  CHECK(resolved({{"megatron_lm_tp_degree", "2"}}, {}, true).codes.empty());
  const Outcome vain = resolved({{"fsdp_version", "2"}, {"tpu", "true"}}, {}, true);
  CHECK(vain.codes == std::vector<std::string>{"launch.ignored_flag"});
  CHECK(vain.words.find("--fsdp_version") != std::string::npos);
  CHECK(vain.words.find("--tpu") != std::string::npos);
  CHECK(vain.words.find("a train.yaml does not know it") != std::string::npos);
  for (const char* name : {"zero_stage", "parallelism_config_tp_size"}) {
    const std::string words = resolved({{name, "2"}}, {}, true).words;
    CHECK(words.find(std::string("--") + name + " (its engine is not used") != std::string::npos);
  }
  // For a program the flags of an engine that is not used change nothing.
  CHECK(resolved({{"megatron_lm_tp_degree", "2"}}).codes ==
        std::vector<std::string>{"launch.ignored_flag"});
}

TEST_CASE("how much of a model an engine divides is a word that it knows, for programs too") {
  const LaunchConfig deepspeed = file_of("distributed_type: DEEPSPEED\nnum_processes: 2\n");
  const LaunchConfig fsdp = file_of("distributed_type: FSDP\nnum_processes: 2\n");
  for (const bool train_yaml : {false, true}) {
    const Outcome stage = resolved({{"zero_stage", "9"}}, deepspeed, train_yaml);
    CAPTURE(stage.words);
    CHECK(stage.codes == std::vector<std::string>{"launch.value"});
    CHECK(stage.words.starts_with("--zero_stage wants 0, 1, 2 or 3, got '9'"));
    CHECK(resolved({{"fsdp_sharding_strategy", "SOME"}}, fsdp, train_yaml).codes ==
          std::vector<std::string>{"launch.value"});
    CHECK(resolved({{"fsdp_sharding_strategy", "hybrid_shard"}}, fsdp, train_yaml).codes.empty());
    // Of a section that only the flag's engine gives a meaning.
    const LaunchConfig none =
        file_of("distributed_type: 'NO'\nnum_processes: 2\ndeepspeed_config: {zero_stage: 7}\n");
    const Outcome engine = resolved({{"use_deepspeed", "true"}}, none, train_yaml);
    CHECK(engine.codes == std::vector<std::string>{"config.bad_value"});
    CHECK(engine.words.starts_with("zero_stage cannot be '7' / it is 0, 1, 2 or 3"));
  }
}

TEST_CASE("a program on the CPU has no engine, and a train.yaml keeps its layout") {
  const LaunchConfig file = file_of("distributed_type: FSDP\nnum_processes: 2\n");
  CHECK(resolved({{"cpu", "true"}}, file).request.config.distributed_type == "NO");
  CHECK(resolved({{"cpu", "true"}}, file, true).request.config.distributed_type == "FSDP");
  CHECK(resolved({{"cpu", "false"}}, file).request.config.distributed_type == "FSDP");
  // An engine that is asked for beside it is meant.
  CHECK(resolved({{"cpu", "true"}, {"use_fsdp", "true"}}, file).request.config.distributed_type ==
        "FSDP");
}

TEST_CASE("one process of a file without a distributed type is told no number") {
  const LaunchConfig none = file_of("distributed_type: 'NO'\nnum_processes: 1\n");
  const LaunchConfig cpus = file_of("distributed_type: MULTI_CPU\nnum_processes: 1\n");
  CHECK_FALSE(resolved({}, none).request.numbered);
  CHECK(resolved({}, cpus).request.numbered);
  CHECK(resolved({}).request.numbered);
  CHECK(resolved({}, none, true).request.numbered);
  for (const auto& [flag, value] :
       {std::pair{"nproc_per_node", "1"}, {"standalone", "true"}, {"nnodes", "1"}}) {
    CHECK(resolved({{flag, value}}, none).request.numbered);
  }
  const auto env = worker_environment(none, {}, 0, false);
  for (const char* name :
       {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"}) {
    CHECK(env.count(name) == 0);
  }
  CHECK(env.at("ACCELERATE_MIXED_PRECISION") == "no");
  CHECK(env.count("OMP_NUM_THREADS") == 1);
}

TEST_CASE("what tee shows of every rank is shown though it is redirected") {
  for (const auto& [tee, shown] : {std::pair{"3", 3}, {"1", 1}}) {
    const LogOptions logs =
        resolved({{"nproc_per_node", "2"}, {"tee", tee}, {"redirects", "3"}}).request.logs;
    CHECK(logs.console == std::map<int, int>{{0, shown}, {1, shown}});
    CHECK(logs.redirected == std::map<int, int>{{0, 3}, {1, 3}});
    CHECK(logs.prefix);
  }
}

TEST_CASE("a flag changes one size of the file's parallelism_config, and the others stay") {
  using Settings = std::vector<std::pair<std::string, std::string>>;
  const LaunchConfig file = file_of(
      "distributed_type: FSDP\nparallelism_config:\n  parallelism_config_cp_size: 2\n"
      "  parallelism_config_tp_size: 2\n");
  const auto size = [](const std::string& axis, const std::string& text) {
    return values({{"parallelism_config_" + axis + "_size", text}});
  };
  CHECK(train_settings(size("sp", "3"), "FSDP", file) == Settings{{"parallel.cp", "6"}});
  CHECK(train_settings(size("cp", "1"), "FSDP", file) == Settings{{"parallel.cp", "1"}});
  CHECK(train_settings(size("tp", "1"), "FSDP", file) == Settings{{"parallel.tp", "1"}});
  CHECK(train_settings(size("tp", "4"), "DEEPSPEED", file) == Settings{{"parallel.tp", "4"}});
  CHECK(train_settings(size("dp_shard", "4"), "FSDP", file).empty());
  const LaunchConfig copies = file_of(
      "distributed_type: FSDP\nparallelism_config:\n  parallelism_config_dp_replicate_size: 2\n"
      "  parallelism_config_dp_shard_size: 4\n  parallelism_config_tp_size: 2\n");
  CHECK(train_settings(size("tp", "4"), "FSDP", copies) ==
        Settings{{"parallel.tp", "4"}, {"parallel.zero_ranks", "16"}});
  CHECK(train_settings(size("dp_shard", "8"), "FSDP", copies) ==
        Settings{{"parallel.zero_ranks", "16"}});
  CHECK(train_settings(size("dp_replicate", "1"), "FSDP", copies) ==
        Settings{{"parallel.zero_ranks", "auto"}});
  CHECK(train_settings(size("sp", "3"), "MULTI_GPU", file).empty());
  CHECK(train_settings(size("sp", "3"), "FSDP", with_parallelism(file, size("cp", "4"))) ==
        Settings{{"parallel.cp", "12"}});
}

TEST_CASE("sizes of a parallelism_config are those of the ranks, but for DeepSpeed's sequences") {
  const auto codes = [](const std::string& type, const std::string& sizes) {
    return resolved({}, file_of("distributed_type: " + type +
                                "\nnum_processes: 4\nparallelism_config:\n" + sizes))
        .codes;
  };
  const std::vector<std::string> unequal = {"launch.processes"};
  CHECK(codes("FSDP", "  parallelism_config_tp_size: 2\n") == unequal);
  CHECK(codes("DEEPSPEED", "  parallelism_config_tp_size: 2\n") == unequal);
  CHECK(codes("DEEPSPEED", "  parallelism_config_sp_size: 2\n").empty());
  CHECK(codes("FSDP",
              "  parallelism_config_sp_size: 2\n"
              "  parallelism_config_sp_backend: other\n") == unequal);
}

TEST_CASE("only rank 0 loads: refused where accelerate's launcher refuses it") {
  const auto codes = [](const std::string& section, const Values& flags) {
    const std::string file = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n";
    return resolved(flags, file_of(file + section)).codes;
  };
  const Values no = {{"fsdp_sync_module_states", "false"}};
  const std::string unsynced = "  fsdp_sync_module_states: false\n";
  const std::vector<std::string> conflict = {"launch.conflict"};
  // Of the file. A flag's `false` is a text to it, which is not empty.
  CHECK(codes(unsynced, {}) == conflict);
  CHECK(codes("  sync_module_states: no\n  fsdp_version: 2\n", {}) == conflict);
  CHECK(codes("  fsdp_sync_module_states: 'false'\n", {}).empty());
  CHECK(codes(unsynced, no).empty());
  CHECK(codes(unsynced, {{"fsdp_sync_module_states", "true"}}).empty());
  CHECK(codes(unsynced + "  fsdp_cpu_ram_efficient_loading: false\n", {}).empty());
  CHECK(codes(unsynced, {{"fsdp_cpu_ram_efficient_loading", "false"}}).empty());
  CHECK(codes("  fsdp_version: 1\n", no).empty());
  const Outcome flags = resolved({{"use_fsdp", "true"}, {"fsdp_sync_module_states", "false"}});
  CHECK(flags.codes.empty());
  CHECK(worker_environment(flags.request.config, {}, 0).at("FSDP_SYNC_MODULE_STATES") == "false");
}

TEST_CASE("what the file itself says of DeepSpeed, also for agents elsewhere") {
  const auto fields = [](const std::string& lines, const Values& flags) {
    const LaunchConfig file = file_of("num_processes: 2\n" + lines);
    const LaunchRequest request = resolved(flags, file).request;
    NodeJob job;
    job.config = request.config;
    const auto sent = decode_node_job(encode(job));
    REQUIRE(sent);
    const auto env = worker_environment(request.config, {}, 0);
    CHECK(worker_environment(sent->config, {}, 0) == env);
    return env.at("ACCELERATE_CONFIG_DS_FIELDS");
  };
  const std::string file =
      "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n";
  const Values bf16 = {{"mixed_precision", "bf16"}};
  CHECK(fields(file, {}) == "deepspeed_config_file");
  CHECK(fields(file + "mixed_precision: fp16\n", {}) == "deepspeed_config_file,mixed_precision");
  CHECK(fields(file, bf16) == "deepspeed_config_file");
  CHECK(fields(file + "mixed_precision: fp16\n", bf16) == "deepspeed_config_file");
  CHECK(fields(file, {{"zero_stage", "2"}}) == "deepspeed_config_file");
  CHECK(fields("distributed_type: DEEPSPEED\nmixed_precision: bf16\n", {}) == "mixed_precision");
  CHECK(fields("distributed_type: DEEPSPEED\nmixed_precision: bf16\n", bf16).empty());
}

TEST_CASE("machines that DeepSpeed would leave out are named, for a program and for a train.yaml") {
  const std::string file =
      "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  zero_stage: 2\n";
  for (const char* key : {"deepspeed_exclusion_filter", "deepspeed_inclusion_filter"}) {
    for (const bool train_yaml : {false, true}) {
      const Outcome outcome =
          resolved({}, file_of(fmt::format("{}  {}: m1@m2\n", file, key)), train_yaml);
      CHECK(outcome.codes == std::vector<std::string>{"launch.ignored_key"});
      CHECK(outcome.words.find(key) != std::string::npos);
    }
    CHECK(resolved({}, file_of(fmt::format("{}  {}: null\n", file, key))).codes.empty());
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
