#include "launcher/settings/train_settings.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include "common/text.h"
#include "launcher/settings/launch_config_keys.h"

namespace mtl {

namespace {

// "" if it is not there or says nothing.
std::string plugin(const LaunchConfig& config, const std::string& key) {
  const auto found = config.plugins.find(key);
  const bool nothing = found == config.plugins.end() || lower(found->second) == "none" ||
                       lower(found->second) == "null" || found->second == "~";
  return nothing ? std::string() : found->second;
}

bool among(const std::string& text, std::initializer_list<const char*> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

constexpr std::initializer_list<const char*> kZeroStages = {"0", "1", "2", "3"};

// FSDP's word for what it divides; 2 does not look at the older key.
std::string strategy_key(const LaunchConfig& config) {
  const bool two = plugin(config, "fsdp_version") == "2";
  const bool older = !plugin(config, "fsdp_sharding_strategy").empty();
  const bool newer = !plugin(config, "fsdp_reshard_after_forward").empty();
  return !newer || (!two && older) ? "fsdp_sharding_strategy" : "fsdp_reshard_after_forward";
}

// By FSDP 1's names and torch's numbers for them, and by what FSDP 2 says in their place: whether
// weights are let go after forward.
std::optional<int> zero_of_fsdp(const std::string& strategy) {
  if (among(strategy, {"no_shard", "3"})) return 0;
  if (among(strategy, {"shard_grad_op", "2", "hybrid_shard_zero2", "5"})) return 2;
  if (among(strategy, {"full_shard", "1", "hybrid_shard", "4"})) return 3;
  const auto reshards = truth_of(strategy);
  if (!reshards) return std::nullopt;
  return *reshards ? 3 : 2;
}

// Hybrid shards: a copy of them is on each machine. 0 where there are no several.
int ranks_of_machine(const LaunchConfig& config) {
  const int machines = config.num_machines, ranks = config.num_processes;
  return machines > 1 && ranks > machines && ranks % machines == 0 ? ranks / machines : 0;
}

void add_fsdp(const LaunchConfig& config, TrainSettings& settings) {
  const std::string strategy = lower(plugin(config, strategy_key(config)));
  settings.emplace_back("parallel.zero", std::to_string(zero_of_fsdp(strategy).value_or(3)));
  const int machine = ranks_of_machine(config);
  if (machine > 0 && among(strategy, {"hybrid_shard", "4", "hybrid_shard_zero2", "5"})) {
    settings.emplace_back("parallel.zero_ranks", std::to_string(machine));
  }
  if (truth_of(plugin(config, "fsdp_activation_checkpointing")).value_or(false)) {
    settings.emplace_back("recompute.mode", "full");
  }
  // FSDP has weights and gradients there too; what this engine moves is two thirds of it all.
  if (const auto offload = truth_of(plugin(config, "fsdp_offload_params"))) {
    settings.emplace_back("optimizer.offload", *offload ? "cpu" : "none");
  }
}

void add_deepspeed(const LaunchConfig& config, TrainSettings& settings) {
  if (!plugin(config, "deepspeed_config_file").empty()) return;  // which says it all, elsewhere
  const std::string stage = plugin(config, "zero_stage");
  const bool known = among(stage, kZeroStages);
  settings.emplace_back("parallel.zero", known ? stage : "2");  // accelerate's own default
  // "auto" is DeepSpeed's word for what a program says elsewhere.
  const std::string clip = plugin(config, "gradient_clipping");
  if (!clip.empty() && clip != "auto") settings.emplace_back("optimizer.clip", clip);
  if (const auto offload = config.plugins.find("offload_optimizer_device");
      offload != config.plugins.end() && !among(lower(offload->second), {"", "null", "~"})) {
    const bool disk = lower(offload->second) == "nvme";
    settings.emplace_back("optimizer.offload", disk ? "cpu" : lower(offload->second));
  }
}

bool has_mesh(const LaunchConfig& config) {
  return config.use_parallelism_config &&
         (config.distributed_type == "FSDP" || config.distributed_type == "DEEPSPEED");
}

}  // namespace

// cp and sp (Ulysses) are two ways to divide a sequence, for which this engine has one. What is no
// number becomes 0, which the schema refuses.
TrainSettings mesh_settings(const LaunchConfig& config) {
  TrainSettings settings;
  if (!has_mesh(config)) return settings;
  const std::string tp = plugin(config, "parallelism_config_tp_size");
  if (!tp.empty()) settings.emplace_back("parallel.tp", tp);
  std::string cp = plugin(config, "parallelism_config_cp_size");
  const std::string sp = plugin(config, "parallelism_config_sp_size");
  const auto number = [](const std::string& text) {
    return std::strtol(text.c_str(), nullptr, 10);
  };
  if (!cp.empty() && !sp.empty()) cp = std::to_string(number(cp) * number(sp));
  if (cp.empty()) cp = sp;
  if (!cp.empty()) settings.emplace_back("parallel.cp", cp);
  const long copies = number(plugin(config, "parallelism_config_dp_replicate_size"));
  const std::string shards = plugin(config, "parallelism_config_dp_shard_size");
  if (config.distributed_type == "FSDP" && copies > 1 && !shards.empty() && shards != "1") {
    const auto degree = [&](const std::string& text) { return text.empty() ? 1 : number(text); };
    settings.emplace_back("parallel.zero_ranks",
                          std::to_string(number(shards) * degree(tp) * degree(cp)));
  }
  return settings;
}

bool decides_train_setting(const LaunchConfig& config, const std::string& key) {
  if (has_mesh(config) && among(key, {"parallelism_config_tp_size", "parallelism_config_cp_size",
                                      "parallelism_config_sp_size"})) {
    return true;
  }
  if (config.distributed_type == "FSDP") {
    const TrainSettings mesh = mesh_settings(config);
    const bool copies = std::any_of(mesh.begin(), mesh.end(), [](const auto& setting) {
      return setting.first == "parallel.zero_ranks";
    });
    const bool of_copies =
        among(key, {"parallelism_config_dp_replicate_size", "parallelism_config_dp_shard_size"});
    return (copies && of_copies) ||
           among(key, {"fsdp_sharding_strategy", "fsdp_reshard_after_forward",
                       "fsdp_activation_checkpointing", "fsdp_offload_params"});
  }
  return config.distributed_type == "DEEPSPEED" &&
         plugin(config, "deepspeed_config_file").empty() &&
         among(key, {"zero_stage", "gradient_clipping", "offload_optimizer_device"});
}

TrainSettings train_settings(const LaunchConfig& config) {
  TrainSettings settings;
  if (config.mixed_precision_given) {
    settings.emplace_back("precision.dtype",
                          config.mixed_precision == "no" ? "fp32" : config.mixed_precision);
  }
  if (config.distributed_type == "FSDP") add_fsdp(config, settings);
  if (config.distributed_type == "DEEPSPEED") add_deepspeed(config, settings);
  // accelerate's wizard writes all sizes, most of them 1.
  for (const auto& [key, value] : mesh_settings(config)) {
    if (value == "1") continue;
    std::erase_if(settings, [&](const auto& setting) { return setting.first == key; });
    settings.emplace_back(key, value);
  }
  if (config.distributed_type == "MEGATRON_LM") {
    for (const MegatronKey& key : megatron_train_keys()) {
      const auto entry = config.megatron_lm_config.find(key.key);
      if (entry == config.megatron_lm_config.end()) continue;
      const std::optional<bool> truth = key.is_truth ? truth_of(entry->second) : std::nullopt;
      const std::string value = !truth ? entry->second : *truth ? key.yes : key.no;
      if (!value.empty()) settings.emplace_back(key.train_key, value);
    }
  }
  return settings;
}

TrainSettings train_settings(const FlagValues& values, const std::string& engine,
                             const LaunchConfig& weaker) {
  // Megatron's degrees count whatever the engine: a train.yaml has them all.
  LaunchConfig config;
  config.distributed_type = "MEGATRON_LM";
  LaunchConfig other;
  other.distributed_type = engine;
  other.num_processes = weaker.num_processes;
  other.num_machines = weaker.num_machines;
  bool engine_said = engine != weaker.distributed_type &&
                     values.count("use_fsdp") + values.count("use_deepspeed") > 0;
  for (const LaunchFlag& flag : launch_flags()) {
    const auto found = values.find(flag.name);
    if (found == values.end() || found->second.texts.empty()) continue;
    const std::string& text = found->second.texts.back();
    if (flag.group == FlagGroup::megatron) {
      config.megatron_lm_config[flag.name] = canonical_value(flag, text);
    } else if (flag.name == "mixed_precision") {
      config.mixed_precision = text;
      config.mixed_precision_given = true;
    } else if (flag.group == FlagGroup::fsdp || flag.group == FlagGroup::deepspeed) {
      other.plugins[flag.name] = canonical_value(flag, text);
    }
  }
  TrainSettings settings = train_settings(config);
  for (const char* key : {"fsdp_sharding_strategy", "fsdp_reshard_after_forward", "zero_stage"}) {
    engine_said |= other.plugins.count(key) != 0;
  }
  if (engine != "FSDP" && engine != "DEEPSPEED") return settings;
  const auto add = [&](const std::string& key, const std::string& value) {
    const bool said = std::any_of(settings.begin(), settings.end(),
                                  [&](const auto& setting) { return setting.first == key; });
    if (!said) settings.emplace_back(key, value);
  };
  for (const auto& [key, value] : train_settings(other)) {
    // What an engine means without a word is said where the engine is.
    if (key != "parallel.zero" || engine_said) add(key, value);
  }
  LaunchConfig mesh = with_parallelism(weaker, values);
  mesh.distributed_type = engine;
  const auto has = [&](const char* axis) {
    return values.count(fmt::format("parallelism_config_{}_size", axis)) != 0;
  };
  for (const auto& [key, value] : mesh_settings(mesh)) {
    const bool cp = has("cp") || has("sp"), shards = has("dp_replicate") || has("dp_shard");
    const bool said = key == "parallel.tp"   ? has("tp")
                      : key == "parallel.cp" ? cp
                                             : has("tp") || cp || shards;
    if (said) add(key, value);
  }
  // What is divided how is said anew, and nothing of copies: then the weaker ones do not stay.
  const auto copies = [](const auto& setting) { return setting.first == "parallel.zero_ranks"; };
  const auto weaker_settings = train_settings(weaker);
  if ((engine_said || has("dp_replicate") || has("dp_shard")) &&
      std::any_of(weaker_settings.begin(), weaker_settings.end(), copies)) {
    add("parallel.zero_ranks", "auto");
  }
  return settings;
}

LaunchConfig with_parallelism(LaunchConfig file, const FlagValues& environment) {
  for (const LaunchFlag& flag : launch_flags()) {
    const auto found = environment.find(flag.name);
    if (flag.group != FlagGroup::parallelism || found == environment.end()) continue;
    if (found->second.texts.empty()) continue;
    file.plugins[flag.name] = canonical_value(flag, found->second.texts.back());
    file.use_parallelism_config = true;
  }
  return file;
}

std::optional<UnknownStage> unknown_stage(const LaunchConfig& config) {
  std::string key, wanted;
  if (config.distributed_type == "DEEPSPEED" && plugin(config, "deepspeed_config_file").empty()) {
    key = "zero_stage";
    if (among(plugin(config, key), kZeroStages)) return std::nullopt;
    wanted = "0, 1, 2 or 3";
  } else if (config.distributed_type == "FSDP") {
    key = strategy_key(config);
    if (zero_of_fsdp(lower(plugin(config, key)))) return std::nullopt;
    wanted = key == "fsdp_sharding_strategy"
                 ? "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2"
                 : "true or false";
  }
  if (key.empty() || plugin(config, key).empty()) return std::nullopt;
  return UnknownStage{key, plugin(config, key), wanted};
}

std::optional<Diagnostic> unknown_stage_of_file(const LaunchConfig& config) {
  const auto unknown = unknown_stage(config);
  const YamlValue::Entry* entry = unknown ? find_setting(config, unknown->key) : nullptr;
  if (entry == nullptr) return std::nullopt;
  return Diagnostic{.code = "config.bad_value",
                    .what = fmt::format("{} cannot be '{}'", entry->key, unknown->value),
                    .place = entry->value.place,
                    .help = "it is " + unknown->wanted};
}

}  // namespace mtl
