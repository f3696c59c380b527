#include "launcher/config/config_edit.h"

#include <algorithm>
#include <climits>
#include <optional>

#include <fmt/format.h>

#include "launcher/request/launch_request.h"
#include "launcher/request/launch_resolver.h"
#include "launcher/settings/launch_config_keys.h"

namespace mtl {

namespace {

YamlValue* entry_of(YamlValue& map, const std::string& key) {
  for (YamlValue::Entry& entry : map.entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

YamlValue scalar(const std::string& text) {
  YamlValue value;
  value.kind = YamlValue::Kind::scalar;
  value.text = text;
  return value;
}

// The setting behind a place in the file; nullptr for keys that are no flag's.
const LaunchFlag* flag_at(const std::string& path) {
  // Several flags stand for parts of it.
  if (path == "distributed_type" || path == "parallelism_config") return nullptr;
  const size_t dot = path.find('.');
  const std::string section = path.substr(0, dot);
  const std::string key = dot == std::string::npos ? "" : path.substr(dot + 1);
  if (section == "megatron_lm_config" && key.starts_with(kOwnPrefix)) {
    const LaunchFlag* flag = find_launch_flag(key.substr(kOwnPrefix.size()));
    return flag != nullptr && flag->file_key.empty() ? flag : nullptr;
  }
  const std::string wanted = key.empty() ? path : section + '.' + plugin_key(section, key);
  for (const LaunchFlag& flag : launch_flags()) {
    if (flag.file_key == wanted) return &flag;
  }
  return nullptr;
}

std::vector<std::string> all_keys() {
  std::vector<std::string> keys = launch_keys();
  for (const std::string& key : launch_keys_without_meaning()) keys.push_back(key);
  for (const LaunchSection& section : launch_sections()) {
    for (const std::string& key : section.keys) {
      keys.push_back(key);
      keys.push_back(section.name + '.' + key);
    }
  }
  for (const LaunchFlag& flag : launch_flags()) {
    if (flag.file_key.empty()) keys.push_back(flag.name);
  }
  return keys;
}

// Truth values of sections, numbers and words, by the table of flags.
void check_values(const LaunchConfig& config, Diagnostics& diagnostics) {
  const auto check = [&](const std::string& path, const std::string& text, const Place& place) {
    const LaunchFlag* flag = flag_at(path);
    if (flag == nullptr || text.empty() || text == "null" || text == "none" || text == "None") {
      return;
    }
    const auto wanted = flag_value_wanted(*flag, text);
    // accelerate reads 1e8 as a number where it wants one; so may people.
    if (!wanted || (flag->kind == FlagKind::whole && text == "1e8")) return;
    diagnostics.add({.code = "config.bad_value",
                     .what = fmt::format("{} wants {}, got '{}'", path, *wanted, text),
                     .place = place});
  };
  for (const IgnoredKey& ignored : config.ignored) {
    if (ignored.value.kind != YamlValue::Kind::map) continue;
    for (const YamlValue::Entry& entry : ignored.value.entries) {
      if (entry.value.kind == YamlValue::Kind::scalar) {
        check(ignored.key + '.' + entry.key, entry.value.text, entry.value.place);
      }
    }
  }
  for (const auto& [key, text] : config.megatron_lm_config) {
    const bool looked_at =
        std::any_of(config.ignored.begin(), config.ignored.end(),
                    [](const IgnoredKey& ignored) { return ignored.key == "megatron_lm_config"; });
    if (!looked_at) check("megatron_lm_config." + key, text, Place{config.path});
  }
}

// The file counts machines, and ranks in total; flags may count them machine by machine. What has
// no number before the launch is -1 there.
void count_processes(YamlValue& root, const FlagValues& flags, Diagnostics& diagnostics) {
  const auto given = [&](const char* name) {
    const auto found = flags.find(name);
    return found == flags.end() ? std::string() : found->second.texts.back();
  };
  const std::string nodes = given("nnodes"), per_node = given("nproc_per_node");
  const bool elastic = !nodes.empty() && !whole_number(nodes, 1, INT_MAX);
  std::vector<Host> hosts;
  if (!given("hosts").empty()) hosts = parse_hosts(given("hosts"), diagnostics);
  if (!hosts.empty()) {
    set_config_value(root, "num_machines", std::to_string(hosts.size()));
  } else if (!nodes.empty() && !elastic && given("num_machines").empty()) {
    set_config_value(root, "num_machines", nodes);
    set_config_value(root, "megatron_lm_config.mtl_nnodes", "");
  }
  if (!given("num_processes").empty()) return;
  const bool slots =
      !given("hostfile").empty() ||
      std::any_of(hosts.begin(), hosts.end(), [](const Host& host) { return host.slots > 0; });
  // Without a word, as many as this machine has.
  const auto each =
      whole_number(per_node.empty() ? config_value(root, "num_processes") : per_node, 1, 1 << 20);
  const auto machines = whole_number(config_value(root, "num_machines"), 1, 1 << 10);
  if (each && machines && !slots && !elastic) {
    set_config_value(root, "num_processes", std::to_string(*each * *machines));
    set_config_value(root, "megatron_lm_config.mtl_nproc_per_node", "");
  } else {
    set_config_value(root, "num_processes", "-1");
  }
}

}  // namespace

std::string config_key_path(const std::string& given, std::string* suggestion) {
  std::string key = given;
  std::replace(key.begin(), key.end(), '-', '_');
  const size_t dot = key.find('.');
  if (dot != std::string::npos) {
    const LaunchSection* section = find_launch_section(key.substr(0, dot));
    const std::string inner = key.substr(dot + 1);
    if (section != nullptr && is_key_of(*section, inner)) return key;
    if (section != nullptr && section->name == "megatron_lm_config" &&
        inner.starts_with(kOwnPrefix) && flag_at(key) != nullptr) {
      return key;
    }
    if (section != nullptr && is_key_of(*section, section->prefix + inner)) {
      return section->name + '.' + section->prefix + inner;
    }
  } else {
    if (among(launch_keys(), key) || among(launch_keys_without_meaning(), key)) return key;
    for (const LaunchSection& section : launch_sections()) {
      if (among(section.keys, key)) return section.name + '.' + key;
    }
    const std::string bare = key.starts_with(kOwnPrefix) ? key.substr(kOwnPrefix.size()) : key;
    const LaunchFlag* flag = find_launch_flag(bare);
    if (flag != nullptr && flag->file_key.empty()) {
      return fmt::format("megatron_lm_config.{}{}", kOwnPrefix, flag->name);
    }
    if (flag != nullptr && flag->file_key != "-" && flag->file_key != "distributed_type" &&
        flag->file_key != "parallelism_config") {
      return flag->file_key;
    }
  }
  if (suggestion != nullptr) {
    *suggestion = did_you_mean(key, all_keys()).value_or("");
    if (suggestion->empty())
      *suggestion = did_you_mean("megatron_lm_" + key, all_keys()).value_or("");
  }
  return {};
}

YamlValue config_tree(const LaunchConfig& config) {
  Diagnostics ignored;
  return parse_yaml(launch_config_yaml(config), config.path, ignored);
}

std::string config_value(const YamlValue& root, const std::string& path) {
  const size_t dot = path.find('.');
  const YamlValue* value = root.find(path.substr(0, dot));
  if (value != nullptr && dot != std::string::npos) value = value->find(path.substr(dot + 1));
  return value != nullptr && value->kind == YamlValue::Kind::scalar ? value->text : std::string();
}

void set_config_value(YamlValue& root, const std::string& path, const std::string& value) {
  const size_t dot = path.find('.');
  const std::string key = path.substr(0, dot);
  root.kind = YamlValue::Kind::map;
  if (value.empty() && dot == std::string::npos) {
    std::erase_if(root.entries, [&](const YamlValue::Entry& entry) { return entry.key == key; });
    return;
  }
  YamlValue* target = entry_of(root, key);
  if (target == nullptr) {
    if (value.empty()) return;
    YamlValue::Entry added;
    added.key = key;
    root.entries.push_back(std::move(added));
    target = &root.entries.back().value;
  }
  if (dot != std::string::npos) {
    set_config_value(*target, path.substr(dot + 1), value);
  } else {
    *target = scalar(value);
  }
}

LaunchConfig edit_launch_config(const LaunchConfig& config,
                                const std::vector<std::pair<std::string, std::string>>& changes,
                                Diagnostics& diagnostics) {
  YamlValue root = config_tree(config);
  bool good = true;
  for (const auto& [key, value] : changes) {
    std::string near;
    const std::string path = config_key_path(key, &near);
    const auto fail = [&](const char* code, const std::string& what, const std::string& help) {
      diagnostics.add({.code = code, .what = what, .help = help});
      good = false;
    };
    if (path.empty()) {
      fail("config.unknown_key", fmt::format("unknown key '{}'", key),
           near.empty() ? "see the keys with: mtl help launch-flags"
                        : fmt::format("did you mean '{}'?", near));
      continue;
    }
    std::string text = value;
    if (const LaunchFlag* flag = flag_at(path); flag != nullptr && !value.empty()) {
      if (const auto wanted = flag_value_wanted(*flag, value)) {
        fail("config.bad_value", fmt::format("{} wants {}, got '{}'", key, *wanted, value),
             "what each key takes: mtl help launch-flags");
        continue;
      }
      if (flag->kind == FlagKind::truth) text = *truth_of(value) ? "true" : "false";
    }
    set_config_value(root, path, text);
  }
  if (!good) return config;
  Diagnostics reading;
  LaunchConfig edited = interpret_launch_config(root, config.path, reading);
  for (Diagnostic diagnostic : reading.all()) {
    diagnostic.place.reset();  // of a text that stands nowhere
    diagnostics.add(diagnostic);
  }
  for (const auto& [key, value] : changes) {
    const std::string path = config_key_path(key);
    if (path.starts_with("megatron_lm_config.megatron_lm_") &&
        edited.distributed_type != "MEGATRON_LM") {
      diagnostics.add({.code = "config.no_effect",
                       .what = fmt::format("{} counts with distributed_type MEGATRON_LM, and it is "
                                           "{}",
                                           path, edited.distributed_type),
                       .help = "mtl config set distributed_type=MEGATRON_LM",
                       .severity = Diagnostic::Severity::warning});
      break;
    }
  }
  return edited;
}

namespace {

bool said(const FlagValues& flags, const char* name) {
  const auto found = flags.find(name);
  return found != flags.end() && truth_of(found->second.texts.back()).value_or(false);
}

// Each flag under its key, but those that several keys follow from.
void set_flags(YamlValue& root, const FlagValues& flags) {
  for (const LaunchFlag& flag : launch_flags()) {
    const auto found = flags.find(flag.name);
    if (found == flags.end()) continue;
    std::string text;
    for (const std::string& word : found->second.texts) text += (text.empty() ? "" : ",") + word;
    if (flag.kind == FlagKind::truth) text = truth_of(text).value_or(false) ? "true" : "false";
    if (flag.file_key.empty()) {
      set_config_value(root, fmt::format("megatron_lm_config.{}{}", kOwnPrefix, flag.name), text);
    } else if (flag.file_key != "-" && flag.file_key != "distributed_type" &&
               flag.file_key != "parallelism_config") {
      set_config_value(root, flag.file_key, text);
    }
  }
}

// The engine that was asked for, or the one whose settings were given; empty: none.
std::string engine_asked(const FlagValues& flags, Diagnostics& diagnostics) {
  const auto given = [&](FlagGroup group) {
    return std::any_of(flags.begin(), flags.end(), [&](const auto& entry) {
      const LaunchFlag* flag = find_launch_flag(entry.first);
      return flag != nullptr && flag->group == group && flag->meaningless.empty();
    });
  };
  struct Engine {
    const char* flag;
    const char* type;
    FlagGroup group;
  };
  static constexpr Engine kEngines[] = {
      {"use_megatron_lm", "MEGATRON_LM", FlagGroup::megatron},
      {"use_fsdp", "FSDP", FlagGroup::fsdp},
      {"use_deepspeed", "DEEPSPEED", FlagGroup::deepspeed},
  };
  const bool any = std::any_of(std::begin(kEngines), std::end(kEngines),
                               [&](const Engine& engine) { return said(flags, engine.flag); });
  std::vector<std::string> found;
  for (const Engine& engine : kEngines) {
    if (said(flags, engine.flag) || (!any && given(engine.group))) found.emplace_back(engine.type);
  }
  if (found.size() > 1) {
    diagnostics.add({.code = "launch.conflict",
                     .what = fmt::format("{} and {} exclude each other: a program has one engine",
                                         found[0], found[1]),
                     .help = "give the flags of one of them"});
  }
  return found.empty() ? "" : found.front();
}

// Whether the ranks run on other machines than this one.
bool runs_elsewhere(const FlagValues& flags) {
  if (flags.count("hosts") != 0 || flags.count("hostfile") != 0) return true;
  const auto via = flags.find("via");
  return via != flags.end() && via->second.texts.back() != "auto" &&
         via->second.texts.back() != "local";
}

// What accelerate calls the kind of the run, which follows from several flags.
void set_distributed_type(YamlValue& root, const FlagValues& flags, const std::string& engine) {
  const bool cpu = config_value(root, "use_cpu") == "true" && flags.count("multi_gpu") == 0;
  const bool several = config_value(root, "num_processes") != "1" ||
                       config_value(root, "num_machines") != "1" || flags.count("hosts") != 0;
  std::string type = !engine.empty() ? engine : !several ? "NO" : cpu ? "MULTI_CPU" : "MULTI_GPU";
  if (said(flags, "multi_gpu")) {
    set_config_value(root, "use_cpu", "false");
    if (engine.empty()) type = "MULTI_GPU";
  }
  set_config_value(root, "distributed_type", type);
}

}  // namespace

LaunchConfig config_of_flags(const FlagValues& flags, Diagnostics& diagnostics) {
  YamlValue root = config_tree(detect_launch_config("no"));
  // That the machine where this is typed (a login node) has no GPUs says nothing of theirs.
  if (runs_elsewhere(flags)) set_config_value(root, "use_cpu", "false");
  set_flags(root, flags);
  const std::string engine = engine_asked(flags, diagnostics);
  count_processes(root, flags, diagnostics);
  set_distributed_type(root, flags, engine);
  if (flags.count("hosts") == 0 && config_value(root, "num_machines") != "1" &&
      flags.count("machine_rank") == 0) {
    set_config_value(root, "machine_rank", "");  // each machine's own; a launch asks for it
  }
  Diagnostics reading;
  LaunchConfig config = interpret_launch_config(root, "", reading);
  for (Diagnostic diagnostic : reading.all()) {
    diagnostic.place.reset();
    diagnostics.add(diagnostic);
  }
  return config;
}

void check_launch_config(const LaunchConfig& config, Diagnostics& diagnostics) {
  check_values(config, diagnostics);
  Diagnostics launching;
  LaunchConfig file = config;
  if (file.path.empty()) file.path = "default_config.yaml";  // without one, it is nobody's word
  resolve_launch(file, {}, false, launching);
  for (const Diagnostic& diagnostic : launching.all()) {
    // Of this machine, not of the file; and which machine it is may be left to each launch.
    const bool of_launch = diagnostic.code == "placement.gpu_count" ||
                           (diagnostic.code == "launch.machine_rank" && !config.machine_rank_given);
    if (!of_launch) diagnostics.add(diagnostic);
  }
}

}  // namespace mtl
