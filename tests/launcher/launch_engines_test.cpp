// What engines (Megatron-LM, FSDP, DeepSpeed) of a file and of flags mean for a train.yaml and for
// programs.

#include <fmt/format.h>

#include "launcher/launch_request_cases.h"
#include "launcher/node/job_messages.h"
#include "launcher/settings/train_settings.h"

using namespace mtl;
using namespace mtl::test;

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
  // Of a job that a scheduler starts, who is where is not ours to say.
  for (const char* via : {"slurm", "kubernetes"}) {
    const Outcome job = resolved(
        {{"via", via}, {"num_machines", "2"}, {"machine_rank", "1"}, {"main_process_ip", "node0"}});
    CHECK(job.codes == std::vector<std::string>{"launch.ignored_flag"});
    CHECK(job.words.find("--main_process_ip, --machine_rank (the nodes of the job are told where "
                         "they meet)") != std::string::npos);
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
