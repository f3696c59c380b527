// What a file of accelerate's decides of a train.yaml, and what of it means nothing here.
#include <doctest/doctest.h>

#include "launcher/launch_config_files.h"
#include "launcher/settings/train_settings.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("FSDP and DeepSpeed become what a train.yaml calls them") {
  using Settings = std::vector<std::pair<std::string, std::string>>;
  const auto decided = [](const std::string& text) { return train_settings(good(text)); };
  CHECK(decided("distributed_type: FSDP\n") == Settings{{"parallel.zero", "3"}});
  CHECK(decided("distributed_type: FSDP\nfsdp_config:\n  sharding_strategy: NO_SHARD\n"
                "  activation_checkpointing: true\n") ==
        Settings{{"parallel.zero", "0"}, {"recompute.mode", "full"}});
  CHECK(decided("distributed_type: FSDP\nparallelism_config:\n  parallelism_config_tp_size: 2\n"
                "  parallelism_config_cp_size: 1\n") ==
        Settings{{"parallel.zero", "3"}, {"parallel.tp", "2"}});
  CHECK(decided("distributed_type: FSDP\nparallelism_config:\n  parallelism_config_cp_size: 2\n"
                "  parallelism_config_sp_size: 3\n") ==
        Settings{{"parallel.zero", "3"}, {"parallel.cp", "6"}});
  for (const char* way : {"cp", "sp"}) {
    CHECK(
        decided(std::string("distributed_type: FSDP\nparallelism_config:\n  parallelism_config_") +
                way + "_size: 4\n") == Settings{{"parallel.zero", "3"}, {"parallel.cp", "4"}});
  }
  CHECK(decided("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n"
                "  gradient_clipping: 0.5\n") ==
        Settings{{"parallel.zero", "3"}, {"optimizer.clip", "0.5"}});
  // Offload: the optimizer's state, which is most of it, to the CPU.
  for (const auto& [device, offload] :
       Settings{{"cpu", "cpu"}, {"nvme", "cpu"}, {"none", "none"}}) {
    CHECK(decided("distributed_type: DEEPSPEED\ndeepspeed_config:\n  offload_optimizer_device: " +
                  device + "\n") ==
          Settings{{"parallel.zero", "2"}, {"optimizer.offload", offload}});
  }
  CHECK(decided("distributed_type: DEEPSPEED\ndeepspeed_config:\n  offload_optimizer_device: null\n"
                "  offload_param_device: cpu\n") == Settings{{"parallel.zero", "2"}});
  for (const auto& [truth, offload] : Settings{{"true", "cpu"}, {"false", "none"}}) {
    CHECK(decided("distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: " + truth + "\n") ==
          Settings{{"parallel.zero", "3"}, {"optimizer.offload", offload}});
    CHECK(decided("distributed_type: MEGATRON_LM\nmegatron_lm_config:\n"
                  "  megatron_lm_optimizer_cpu_offload: " +
                  truth + "\n") == Settings{{"optimizer.offload", offload}});
  }
  // Ulysses as it is configured for DeepSpeed, whose own file may say the rest.
  const std::string ulysses =
      "deepspeed_config:\n  deepspeed_config_file: ds.json\nparallelism_config:\n"
      "  parallelism_config_sp_size: 2\n  parallelism_config_sp_backend: deepspeed\n";
  CHECK(decided("distributed_type: DEEPSPEED\n" + ulysses) == Settings{{"parallel.cp", "2"}});
  CHECK(decided("distributed_type: MULTI_GPU\n" + ulysses).empty());
  CHECK(decided("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 0\n") ==
        Settings{{"parallel.zero", "0"}});
  CHECK(decided("distributed_type: DEEPSPEED\n") == Settings{{"parallel.zero", "2"}});
  for (const auto& [strategy, zero] : Settings{{"FULL_SHARD", "3"},
                                               {"1", "3"},
                                               {"SHARD_GRAD_OP", "2"},
                                               {"2", "2"},
                                               {"3", "0"},
                                               {"HYBRID_SHARD", "3"},
                                               {"HYBRID_SHARD_ZERO2", "2"}}) {
    CAPTURE(strategy);
    CHECK(decided("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: " + strategy +
                  "\n") == Settings{{"parallel.zero", zero}});
  }
  CHECK(decided("distributed_type: DEEPSPEED\ndeepspeed_config:\n  gradient_clipping: auto\n") ==
        Settings{{"parallel.zero", "2"}});
  // Hybrid shards are those of a machine, where the file says how many ranks it has.
  for (const auto& [strategy, zero] :
       Settings{{"HYBRID_SHARD", "3"}, {"hybrid_shard_zero2", "2"}, {"4", "3"}, {"5", "2"}}) {
    CAPTURE(strategy);
    const std::string hybrid =
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: " + strategy + "\n";
    CHECK(decided(hybrid + "num_machines: 2\nnum_processes: 16\n") ==
          Settings{{"parallel.zero", zero}, {"parallel.zero_ranks", "8"}});
    for (const char* counts : {"num_processes: 8\n", "num_machines: 2\nnum_processes: 2\n"}) {
      CHECK(decided(hybrid + counts) == Settings{{"parallel.zero", zero}});
    }
  }
  // FSDP 2 says it by degrees, which leave out those of tp and cp.
  const std::string mesh =
      "distributed_type: FSDP\nnum_processes: 32\nparallelism_config:\n"
      "  parallelism_config_dp_shard_size: 4\n  parallelism_config_tp_size: 2\n";
  CHECK(decided(mesh + "  parallelism_config_dp_replicate_size: 4\n") ==
        Settings{{"parallel.zero", "3"}, {"parallel.tp", "2"}, {"parallel.zero_ranks", "8"}});
  CHECK(decided(mesh) == Settings{{"parallel.zero", "3"}, {"parallel.tp", "2"}});
  for (const auto& [reshard, zero] : Settings{{"true", "3"}, {"false", "2"}, {"no", "2"}}) {
    CHECK(decided("distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
                  "  fsdp_sharding_strategy: NO_SHARD\n  fsdp_reshard_after_forward: " +
                  reshard + "\n") == Settings{{"parallel.zero", zero}});
  }
  CHECK(decided("distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: a\n")
            .empty());
  CHECK(decided("distributed_type: NO\nfsdp_config:\n  fsdp_version: 2\n").empty());
}

TEST_CASE("the keys of train.yaml that the file decides") {
  using Settings = std::vector<std::pair<std::string, std::string>>;
  const LaunchConfig config = good(kMegatron);
  CHECK(train_settings(config) == Settings{{"precision.dtype", "bf16"},
                                           {"parallel.tp", "4"},
                                           {"parallel.pp", "2"},
                                           {"optimizer.clip", "0.5"}});
  CHECK(ignores(config, "megatron_lm_config.megatron_lm_num_micro_batches"));
  CHECK(!ignores(config, "megatron_lm_config.megatron_lm_tp_degree"));
  // accelerate writes truth values as words, strings or booleans.
  std::string more = kMegatron;
  more.replace(more.find("  megatron_lm_num_micro_batches: 2\n"), 35,
               "  megatron_lm_recompute_activations: true\n"
               "  megatron_lm_sequence_parallelism: 'yes'\n"
               "  megatron_lm_use_distributed_optimizer: false\n");
  CHECK(train_settings(good(more)) == Settings{{"precision.dtype", "bf16"},
                                               {"parallel.tp", "4"},
                                               {"parallel.pp", "2"},
                                               {"parallel.sp", "auto"},
                                               {"parallel.zero", "0"},
                                               {"recompute.mode", "selective"},
                                               {"optimizer.clip", "0.5"}});
  CHECK(!ignores(good(more), "megatron_lm_config.megatron_lm_recompute_activations"));
  for (const auto& [from, to] :
       Settings{{"no", "fp32"}, {"bf16", "bf16"}, {"fp16", "fp16"}, {"fp8", "fp8"}}) {
    CHECK(train_settings(good("distributed_type: NO\nmixed_precision: " + from + "\n")) ==
          Settings{{"precision.dtype", to}});
  }
  // Without the type, accelerate does not look at the section, and neither do we; but it is said.
  std::string other = kMegatron;
  other.replace(other.find("MEGATRON_LM"), 11, "MULTI_GPU");
  CHECK(train_settings(good(other)) == Settings{{"precision.dtype", "bf16"}});
  CHECK(ignores(good(other), "megatron_lm_config"));
  CHECK(launch_config_yaml(good(other)) == other);
  // Our own keys in it count with any type.
  const LaunchConfig hosts = good(
      "distributed_type: NO\nmegatron_lm_config:\n  megatron_lm_tp_degree: 8\n"
      "  mtl_hosts: a,b\n");
  CHECK(hosts.own.at("hosts") == "a,b");
  CHECK(!ignores(hosts, "megatron_lm_config"));
  CHECK(!ignores(hosts, "megatron_lm_config.mtl_hosts"));
  CHECK(ignores(hosts, "megatron_lm_config.megatron_lm_tp_degree"));
}
