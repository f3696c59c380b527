#include "launcher/request/launch_request.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/text.h"
#include "launcher/request/launch_resolver.h"
#include "launcher/settings/launch_config_keys.h"
#include "launcher/settings/train_settings.h"

namespace mtl {

std::vector<std::string> split_words(const std::string& text, char separator) {
  std::vector<std::string> words;
  size_t start = 0;
  while (start <= text.size()) {
    const size_t end = std::min(text.find(separator, start), text.size());
    if (end > start) words.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return words;
}

std::optional<int> whole_number(const std::string& text, int least, int most) {
  const auto number = to_number<int>(text);
  return number && *number >= least && *number <= most ? number : std::nullopt;
}

LaunchRequest LaunchResolver::resolve(const LaunchGiven& given) {
  r_.allocation = given.around;
  apply_file();
  apply(given.train_yaml, kTrainYaml);
  apply(given.surroundings, kSurroundings);
  apply(given.environment, kEnvironment);
  apply(given.flags, kFlags);
  finish_via();
  finish_engine();
  check_stage(given);
  check_fsdp(given);
  finish_hosts();
  check_job_device();
  finish_nodes();
  finish_counts();
  finish_layout();
  finish_numbers(given);
  finish_meeting();
  finish_logs();
  finish_environment();
  finish_warning();
  ignored_flags(given);
  absent_ranks(given);
  ignored_keys();
  return std::move(r_);
}

bool LaunchResolver::in_vain(const LaunchFlag& flag) const {
  if (!flag.meaningless.empty()) return true;
  const std::string& type = r_.config.distributed_type;
  switch (flag.group) {
    case FlagGroup::megatron:
      if (train_yaml_) {
        const auto& keys = megatron_train_keys();
        return std::none_of(keys.begin(), keys.end(),
                            [&](const MegatronKey& key) { return key.key == flag.name; });
      }
      return type != "MEGATRON_LM";
    case FlagGroup::fsdp:
      return train_yaml_ ? !decides_train_setting(r_.config, flag.name) : type != "FSDP";
    case FlagGroup::deepspeed:
      return train_yaml_ ? !decides_train_setting(r_.config, flag.name) : type != "DEEPSPEED";
    case FlagGroup::fp8:
      return train_yaml_ || r_.config.mixed_precision != "fp8";
    case FlagGroup::parallelism:
      return train_yaml_ ? !decides_train_setting(r_.config, flag.name)
                         : !r_.config.use_parallelism_config;
    case FlagGroup::dynamo:
      return train_yaml_ || type == "DEEPSPEED";
    default:
      return train_yaml_ &&
             (flag.name == "use_parallelism_config" ? type != "FSDP" && type != "DEEPSPEED"
                                                    : flag.name == "debug");
  }
}

// Whether it would with the engine that it is of.
bool LaunchResolver::would_decide(const LaunchFlag& flag) const {
  LaunchConfig config = r_.config;
  config.use_parallelism_config = true;
  for (const char* engine : {"FSDP", "DEEPSPEED"}) {
    config.distributed_type = engine;
    if (decides_train_setting(config, flag.name)) return true;
  }
  return false;
}

void LaunchResolver::ignored_flags(const LaunchGiven& given) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const LaunchFlag& flag : launch_flags()) {
    if (!in_vain(flag)) continue;
    for (const FlagValues* values : {&given.flags, &given.environment, &given.train_yaml}) {
      const auto found = values->find(flag.name);
      if (found == values->end()) continue;
      std::string reason = flag.meaningless;
      if (reason.empty() && train_yaml_ && flag.group == FlagGroup::fp8) {
        reason = "a train.yaml's fp8 has one recipe: E4M3, gradients E5M2, a scale per tensor";
      }
      if (reason.empty() && train_yaml_ && !would_decide(flag)) {
        reason = "a train.yaml does not know it";
      }
      if (reason.empty() && flag.group == FlagGroup::fp8) reason = "mixed_precision is not fp8";
      if (reason.empty()) reason = "its engine is not used (--use_...)";
      by_reason[reason].push_back(found->second.origin);
      break;
    }
  }
  if (scheduled()) {
    for (const char* name : {"main_process_ip", "machine_rank"}) {
      const auto found = given.flags.find(name);
      if (found == given.flags.end()) continue;
      by_reason["the nodes of the job are told where they meet"].push_back(found->second.origin);
    }
  }
  const auto all_have_slots = [&] {
    return !r_.hosts.empty() && std::all_of(r_.hosts.begin(), r_.hosts.end(),
                                            [](const Host& host) { return host.slots > 0; });
  };
  if (const auto found = given.flags.find("nproc_per_node");
      found != given.flags.end() && r_.mode == LaunchRequest::Mode::hosts && all_have_slots()) {
    by_reason["each host is given a number of its own"].push_back(found->second.origin);
  }
  if (!ignored_words_.empty()) by_reason["the rendezvous is mtl's own"] = ignored_words_;
  std::string what;
  for (const auto& [reason, names] : by_reason) {
    what += fmt::format("{}{} ({})", what.empty() ? "" : "; ", fmt::join(names, ", "), reason);
  }
  if (what.empty()) return;
  diagnostics_.add({.code = "launch.ignored_flag",
                    .what = "changes nothing here: " + what,
                    .severity = Diagnostic::Severity::warning});
}

// Who asks for a rank that there is not sees nothing, and would wait for it.
void LaunchResolver::absent_ranks(const LaunchGiven& given) {
  int most = r_.local_ranks;
  for (const Host& host : r_.hosts) most = std::max(most, host.slots);
  const bool known =
      r_.local_ranks > 0 || std::all_of(r_.hosts.begin(), r_.hosts.end(),
                                        [](const Host& host) { return host.slots > 0; });
  if (!known || most <= 0) return;
  const auto look = [&](const char* name, int rank) {
    const auto found = given.flags.find(name);
    if (rank < most || found == given.flags.end()) return;
    // One number for all ranks stands there for more than there are.
    const bool all = name != std::string_view("local_ranks_filter") &&
                     found->second.texts.back().find(':') == std::string::npos;
    if (all) return;
    diagnostics_.add(
        {.code = "launch.value",
         .what = fmt::format("{} names local rank {}, and there is {}", found->second.origin, rank,
                             most == 1 ? "0 only" : fmt::format("0 to {}", most - 1)),
         .severity = Diagnostic::Severity::warning});
  };
  for (const auto& [rank, bits] : r_.logs.console) look("tee", rank);
  for (const auto& [rank, bits] : r_.logs.redirected) look("redirects", rank);
  for (const int rank : r_.logs.only_local_ranks) look("local_ranks_filter", rank);
}

// Of the file; neutral values, which accelerate's wizard writes, are not worth a word.
void LaunchResolver::ignored_keys() {
  const auto name = [&](const std::string& key, const Place& place, const std::string& help) {
    diagnostics_.add({.code = "launch.ignored_key",
                      .what = fmt::format("'{}' means nothing to {} and is ignored", key,
                                          train_yaml_ ? "mtl's own runtime" : "this launch"),
                      .place = place,
                      .help = help,
                      .severity = Diagnostic::Severity::warning});
  };
  for (const IgnoredKey& ignored : r_.config.ignored) {
    if (ignored.neutral) continue;
    if (!train_yaml_ && reaches_program(ignored.key)) {
      // Which machines of a hostfile are not to be used: DeepSpeed's launcher would leave them out.
      for (const YamlValue::Entry& entry : ignored.value.entries) {
        const bool filter =
            entry.key == "deepspeed_exclusion_filter" || entry.key == "deepspeed_inclusion_filter";
        if (!filter || entry.value.text.empty()) continue;
        name(entry.key, entry.key_place, find_launch_flag(entry.key)->meaningless);
      }
    } else if (!train_yaml_ || !taken_in_part(ignored)) {
      name(ignored.key, ignored.place, {});
    }
  }
}

// FSDP and ZeRO, of which a train.yaml takes what mtl's own runtime has.
bool LaunchResolver::taken_in_part(const IgnoredKey& section) {
  const std::string& type = r_.config.distributed_type;
  const bool engine =
      (type == "FSDP" && section.key == "fsdp_config") ||
      (type == "DEEPSPEED" && section.key == "deepspeed_config") ||
      ((type == "FSDP" || type == "DEEPSPEED") && section.key == "parallelism_config");
  if (!engine || section.value.kind != YamlValue::Kind::map) return false;
  std::string rest;
  for (const YamlValue::Entry& entry : section.value.entries) {
    const std::string& text = entry.value.text;
    const bool nothing = entry.value.items.empty() &&
                         (text.empty() || text == "false" || text == "none" || text == "1");
    if (nothing || decides_train_setting(r_.config, plugin_key(section.key, entry.key))) continue;
    rest += (rest.empty() ? "" : ", ") + entry.key;
  }
  std::string taken;
  const auto mesh = mesh_settings(r_.config);
  for (const auto& [key, value] : train_settings(r_.config)) {
    const bool of_mesh = std::any_of(mesh.begin(), mesh.end(),
                                     [&](const auto& setting) { return setting.first == key; });
    if (key == "precision.dtype" || value == "none" ||
        of_mesh != (section.key == "parallelism_config"))
      continue;
    taken += fmt::format("{}{}={}", taken.empty() ? "" : ", ", key, value);
  }
  if (rest.empty()) return true;
  diagnostics_.add(
      {.code = "launch.ignored_key",
       .what = fmt::format("of '{}', mtl's own runtime takes {}{}", section.key,
                           taken.empty() ? "nothing" : taken, "; without meaning to it: " + rest),
       .place = section.place,
       .severity = Diagnostic::Severity::warning});
  return true;
}

bool LaunchResolver::reaches_program(const std::string& key) const {
  const std::string& type = r_.config.distributed_type;
  if (key.starts_with("megatron_lm_config")) return type == "MEGATRON_LM";
  if (key == "fsdp_config") return type == "FSDP";
  if (key == "deepspeed_config") return type == "DEEPSPEED";
  if (key == "fp8_config") return r_.config.mixed_precision == "fp8";
  if (key == "parallelism_config") return r_.config.use_parallelism_config;
  if (key == "dynamo_config" || key == "dynamo_backend") return type != "DEEPSPEED";
  return key == "mpirun_config";
}

LaunchRequest resolve_launch(const LaunchConfig& file, const LaunchGiven& given, bool train_yaml,
                             Diagnostics& diagnostics) {
  return LaunchResolver(file, train_yaml, diagnostics).resolve(given);
}

int ranks_of_node(int local_ranks, const NodeHardware& hardware, bool use_cpu,
                  Diagnostics& diagnostics) {
  if (local_ranks > 0) return local_ranks;
  if (local_ranks == LaunchRequest::kPerCore) return hardware.cores;
  const int gpus = use_cpu ? 0 : static_cast<int>(hardware.gpus.size());
  if (local_ranks == LaunchRequest::kPerGpu && gpus == 0) {
    diagnostics.add({.code = "placement.gpu_count",
                     .what = "one rank per GPU, and 0 GPUs are visible",
                     .help = "nproc_per_node auto or a number runs without; see: mtl env"});
  }
  if (local_ranks == LaunchRequest::kPerDevice && gpus == 0) return hardware.cores;
  return std::max(gpus, 1);
}

PlacementRequest placement_request(const LaunchRequest& request, int ranks) {
  PlacementRequest placement;
  placement.ranks = ranks;
  placement.use_cpu = request.config.use_cpu;
  placement.need_gpu = request.need_gpu && !request.config.use_cpu;
  placement.gpu_ids = request.config.gpu_ids;
  placement.binding = request.binding;
  placement.omp_threads = request.omp_threads;
  return placement;
}

std::string engine_of(const LaunchConfig& file, const LaunchGiven& given) {
  for (const FlagValues* values : {&given.flags, &given.environment}) {
    for (const auto& [name, type] : {std::pair{"use_fsdp", "FSDP"},
                                     {"use_deepspeed", "DEEPSPEED"},
                                     {"use_megatron_lm", "MEGATRON_LM"}}) {
      const auto found = values->find(name);
      if (found != values->end() && truth_of(found->second.texts.back()).value_or(false)) {
        return type;
      }
    }
  }
  return file.distributed_type;
}

std::string given_text(const LaunchGiven& given, std::string_view name) {
  for (const FlagValues* values :
       {&given.flags, &given.environment, &given.surroundings, &given.train_yaml}) {
    const auto found = values->find(name);
    if (found != values->end() && !found->second.texts.empty()) return found->second.texts.back();
  }
  return {};
}

bool is_on(const LaunchGiven& given, std::string_view name) {
  return truth_of(given_text(given, name)).value_or(false);
}

std::optional<Endpoint> parse_endpoint(const std::string& text) {
  Endpoint endpoint;
  std::string port;
  bool has_port = false;
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string::npos) return std::nullopt;
    endpoint.host = text.substr(1, close - 1);
    const std::string rest = text.substr(close + 1);
    has_port = rest.starts_with(':');
    if (!rest.empty() && !has_port) return std::nullopt;
    if (has_port) port = rest.substr(1);
  } else if (const size_t colon = text.find(':');
             colon != std::string::npos && text.find(':', colon + 1) == std::string::npos) {
    endpoint.host = text.substr(0, colon);
    port = text.substr(colon + 1);
    has_port = true;
  } else {
    endpoint.host = text;  // a name, or a bare IPv6 address, which can have no port
  }
  if (endpoint.host.empty() || endpoint.host.find_first_of(" \t/") != std::string::npos) {
    return std::nullopt;
  }
  if (has_port) {
    const auto number = whole_number(port, 0, 65'535);
    if (!number) return std::nullopt;
    endpoint.port = *number;
  }
  return endpoint;
}

}  // namespace mtl
