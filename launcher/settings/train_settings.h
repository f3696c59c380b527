// What accelerate's settings mean for a train.yaml: mixed_precision is precision.dtype,
// megatron_lm_tp_degree parallel.tp, FSDP and ZeRO are parallel.zero, hybrid shards
// parallel.zero_ranks. The values are checked by train.yaml's schema.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/settings/launch_config.h"
#include "launcher/settings/launch_flags.h"

namespace mtl {

using TrainSettings = std::vector<std::pair<std::string, std::string>>;

// What the file decides.
TrainSettings train_settings(const LaunchConfig& config);
// Of these parallel.tp, parallel.cp and parallel.zero_ranks as a parallelism_config gives them,
// degrees of 1 too.
TrainSettings mesh_settings(const LaunchConfig& config);
// The keys of a section (by the names of accelerate's flags) that train_settings() reads.
bool decides_train_setting(const LaunchConfig& config, const std::string& key);

// What flags (or variables) decide: --megatron_lm_tp_degree 2 -> parallel.tp=2. Those of FSDP and
// DeepSpeed count where that is the engine. `weaker`: what file (and environment) say. Where its
// engine is the same, --use_fsdp alone says nothing that is not said better there; sizes of a
// parallelism_config that make one degree here (cp, sp) are put together.
TrainSettings train_settings(const FlagValues& values, const std::string& engine = {},
                             const LaunchConfig& weaker = {});
// The file with the parallelism_config that variables of the environment change.
LaunchConfig with_parallelism(LaunchConfig file, const FlagValues& environment);

// The engine's word for how much of a model is divided, where it is none: by the name of
// accelerate's flag ("fsdp_sharding_strategy"). train_settings() takes it as if it were not there.
struct UnknownStage {
  std::string key, value;
  std::string wanted;  // what it may be
};
std::optional<UnknownStage> unknown_stage(const LaunchConfig& config);
// The error, where it is the file that says it. Code config.bad_value.
std::optional<Diagnostic> unknown_stage_of_file(const LaunchConfig& config);

}  // namespace mtl
