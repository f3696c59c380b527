#include "launcher/launch_config.h"

#include <algorithm>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/text.h"
#include "launcher/launch_config_keys.h"
#include "launcher/placement.h"
#include "launcher/train_settings.h"

namespace mtl {

namespace {

// YAML 1.1's words, in any case; accelerate's files have all of them.
std::optional<bool> as_bool(const std::string& text) {
  const std::string word = lower(text);
  if (word == "true" || word == "yes" || word == "on") return true;
  if (word == "false" || word == "no" || word == "off") return false;
  return std::nullopt;
}

bool is_null(const YamlValue& value) {
  return value.kind == YamlValue::Kind::null;
}

bool is_neutral(const YamlValue& value) {
  switch (value.kind) {
    case YamlValue::Kind::null:
      return true;
    case YamlValue::Kind::scalar: {
      const auto flag = as_bool(value.text);
      return value.text.empty() || (flag && !*flag);
    }
    case YamlValue::Kind::list:
      return value.items.empty();
    case YamlValue::Kind::map:
      return std::all_of(value.entries.begin(), value.entries.end(),
                         [](const YamlValue::Entry& entry) { return is_neutral(entry.value); });
  }
  return false;
}

constexpr std::string_view kOwnPrefix = "mtl_";

class Reader {
 public:
  Reader(const std::string& path, Diagnostics& diagnostics) : diagnostics_(diagnostics) {
    config_.path = path;
  }

  LaunchConfig read(const YamlValue& root) {
    if (root.kind != YamlValue::Kind::map) {
      diagnostics_.add({.code = "config.empty",
                        .what = is_null(root) ? "this configuration file is empty"
                                              : "a configuration file is a list of `key: value`",
                        .place = Place{config_.path},
                        .help = "make one: mtl config"});
      return config_;
    }
    if (const YamlValue* environment = root.find("compute_environment");
        environment != nullptr && environment->text == "AMAZON_SAGEMAKER") {
      config_.compute_environment = environment->text;
      diagnostics_.add({.code = "config.sagemaker",
                        .what = "mtl does not launch on Amazon SageMaker",
                        .place = environment->place,
                        .help = "use `accelerate launch` with this file, or make one for your own "
                                "machines: mtl config"});
      return config_;
    }
    for (const YamlValue::Entry& entry : root.entries) top_level(entry);
    finish(root);
    return config_;
  }

 private:
  void bad_value(const YamlValue& value, const std::string& what, const std::string& help = {}) {
    diagnostics_.add(
        {.code = "config.bad_value", .what = what, .place = value.place, .help = help});
  }

  std::string text(const std::string& key, const YamlValue& value) {
    if (value.kind == YamlValue::Kind::scalar) return value.text;
    bad_value(value, key + " is a single value, not a list or a section");
    return {};
  }

  void read_text(const std::string& key, const YamlValue& value, std::string& target) {
    if (const std::string given = text(key, value); !given.empty()) target = given;
  }

  void read_choice(const std::string& key, const YamlValue& value, std::string& target,
                   const std::vector<std::string>& choices) {
    const std::string given = text(key, value);
    if (value.kind != YamlValue::Kind::scalar) return;
    if (std::find(choices.begin(), choices.end(), given) != choices.end()) {
      target = given;
      return;
    }
    const auto near = did_you_mean(given, choices);
    bad_value(value, fmt::format("{} cannot be '{}'", key, given),
              near ? fmt::format("did you mean '{}'?", *near)
                   : fmt::format("it is one of {}", fmt::join(choices, ", ")));
  }

  void read_int(const std::string& key, const YamlValue& value, int& target, int least, int most) {
    const std::string given = text(key, value);
    if (value.kind != YamlValue::Kind::scalar) return;
    int number = 0;
    const char* end = given.data() + given.size();
    const auto [stop, error] = std::from_chars(given.data(), end, number);
    if (error != std::errc() || stop != end || number < least || number > most) {
      bad_value(value, fmt::format("{} cannot be '{}'", key, given),
                most == INT_MAX ? fmt::format("it is a whole number, at least {}", least)
                                : fmt::format("it is a whole number from {} to {}", least, most));
      return;
    }
    target = number;
  }

  void read_bool(const std::string& key, const YamlValue& value, bool& target) {
    const std::string given = text(key, value);
    if (value.kind != YamlValue::Kind::scalar) return;
    if (const auto flag = as_bool(given)) {
      target = *flag;
    } else {
      bad_value(value, fmt::format("{} cannot be '{}'", key, given), "it is true or false");
    }
  }

  void read_mixed_precision(const YamlValue& value) {
    // An unquoted `no` is a boolean to YAML 1.1, and what people write.
    YamlValue word = value;
    if (word.kind == YamlValue::Kind::scalar) {
      word.text = lower(word.text);
      if (word.text == "false") word.text = "no";
    }
    read_choice("mixed_precision", word, config_.mixed_precision, {"no", "fp16", "bf16", "fp8"});
    config_.mixed_precision_given = true;
  }

  void top_level(const YamlValue::Entry& entry) {
    const std::string& key = entry.key;
    const YamlValue& value = entry.value;
    if (const LaunchSection* section = find_launch_section(key))
      return read_section(entry, *section);
    const auto among = [&](const std::vector<std::string>& keys) {
      return std::find(keys.begin(), keys.end(), key) != keys.end();
    };
    if (among(launch_keys_without_meaning())) {
      config_.ignored.push_back({key, entry.key_place, value, is_neutral(value)});
    } else if (!among(launch_keys())) {
      unknown_top_level(entry);
    } else if (!is_null(value)) {
      read_member(key, value);
    }
  }

  void read_member(const std::string& key, const YamlValue& value) {
    if (key == "compute_environment") {
      read_choice(key, value, config_.compute_environment, {"LOCAL_MACHINE", "AMAZON_SAGEMAKER"});
    } else if (key == "distributed_type") {
      YamlValue word = value;
      // `NO` without quotes, which a YAML 1.1 writer may have turned into a boolean.
      if (lower(word.text) == "no" || word.text == "false") word.text = "NO";
      read_choice(key, word, config_.distributed_type, distributed_types());
    } else if (key == "mixed_precision") {
      read_mixed_precision(value);
    } else if (key == "num_processes") {
      read_num_processes(value);
    } else if (key == "num_machines") {
      read_int(key, value, config_.num_machines, 1, INT_MAX);
    } else if (key == "machine_rank") {
      read_int(key, value, config_.machine_rank, 0, INT_MAX);
      config_.machine_rank_given = true;
    } else if (key == "use_cpu") {
      read_bool(key, value, config_.use_cpu);
    } else if (key == "debug") {
      read_bool(key, value, config_.debug);
    } else if (key == "gpu_ids") {
      read_text(key, value, config_.gpu_ids);
      config_.gpu_ids_given = true;
    } else if (key == "main_process_ip") {
      read_address(value);
    } else if (key == "main_process_port") {
      read_int(key, value, config_.main_process_port, 0, 65'535);
      config_.main_process_port_given = true;
    } else if (key == "rdzv_backend") {
      read_backend(value);
    } else if (key == "same_network") {
      read_bool(key, value, config_.same_network);
    } else if (key == "enable_cpu_affinity") {
      read_bool(key, value, config_.enable_cpu_affinity);
    } else if (key == "downcast_bf16") {
      read_text(key, value, config_.downcast_bf16);
    } else if (key == "main_training_function") {
      read_text(key, value, config_.main_training_function);
    }
  }

  // accelerate's launcher heeds its flag and never the file: what its wizard took was never used.
  void read_backend(const YamlValue& value) {
    const std::string given = text("rdzv_backend", value);
    if (given != "etcd" && given != "etcd-v2") {
      if (!given.empty()) {
        read_choice("rdzv_backend", value, config_.rdzv_backend, {"static", "c10d", "tcp"});
      }
      return;
    }
    diagnostics_.add({.code = "launch.ignored_key",
                      .what = fmt::format("rdzv_backend '{}' is ignored: mtl's own rendezvous is "
                                          "used",
                                          given),
                      .place = value.place,
                      .help = "static, or tcp for machines that join and get their ranks",
                      .severity = Diagnostic::Severity::warning});
  }

  void read_num_processes(const YamlValue& value) {
    if (value.text == "-1") return;  // accelerate's own way to say "not given"
    read_int("num_processes", value, config_.num_processes, 1, INT_MAX);
  }

  void read_address(const YamlValue& value) {
    read_text("main_process_ip", value, config_.main_process_ip);
    const std::string& address = config_.main_process_ip;
    if (!address.empty() &&
        std::all_of(address.begin(), address.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      diagnostics_.add({.code = "config.address",
                        .what = fmt::format("main_process_ip '{}' is a bare number", address),
                        .place = value.place,
                        .help = "give an address like 10.0.0.1 or a host name",
                        .severity = Diagnostic::Severity::warning});
    }
  }

  void read_section(const YamlValue::Entry& entry, const LaunchSection& section) {
    const YamlValue& value = entry.value;
    if (value.kind != YamlValue::Kind::map && !is_null(value)) {
      bad_value(value, entry.key + " is a section", "indent its keys below it");
      return;
    }
    const bool megatron = section.name == "megatron_lm_config";
    for (const YamlValue::Entry& inner : value.entries) {
      if (megatron && inner.key.starts_with(kOwnPrefix)) {
        read_own(inner);
      } else if (!is_key_of(section, inner.key)) {
        unknown_nested(inner, section);
      } else if (megatron) {
        read_megatron(inner);
      } else {
        read_setting(plugin_key(section.name, inner.key), inner);
      }
    }
    if (section.name == "parallelism_config")
      config_.use_parallelism_config = !value.entries.empty();
    if (section.name == "deepspeed_config") {
      for (const YamlValue::Entry& inner : value.entries) {
        config_.deepspeed_fields += (config_.deepspeed_fields.empty() ? "" : ",") + inner.key;
      }
    }
    if (!megatron)
      config_.ignored.push_back({entry.key, entry.key_place, value, is_neutral(value)});
  }

  // Of a section that programs read: as its flag has it.
  void read_setting(const std::string& setting, const YamlValue::Entry& entry) {
    const YamlValue& value = entry.value;
    const bool list = value.kind == YamlValue::Kind::list;
    if (is_null(value) || (list && value.items.empty())) return;
    std::string text = value.text;
    for (const YamlValue& item : value.items) text += (text.empty() ? "" : ",") + item.text;
    const bool scalars =
        std::all_of(value.items.begin(), value.items.end(),
                    [](const YamlValue& item) { return item.kind == YamlValue::Kind::scalar; });
    if (setting == "fp8_override_linear_precision" && !linear_precision(text)) {
      bad_value(value, fmt::format("{} cannot be '{}'", entry.key, text),
                "it is three truth values: [false, false, true]");
    } else if (value.kind == YamlValue::Kind::map || !scalars || (list && !is_word_list(setting))) {
      bad_value(value, entry.key + " is a single value, not a list or a section",
                setting == "fsdp_ignored_modules" ? "several are a regular expression: a|b" : "");
    } else {
      config_.plugins[setting] = text;
    }
  }

  void read_megatron(const YamlValue::Entry& entry) {
    if (is_null(entry.value)) return;
    if (entry.value.kind != YamlValue::Kind::scalar) {
      bad_value(entry.value, entry.key + " is a single value, not a list or a section");
      return;
    }
    config_.megatron_lm_config[entry.key] = entry.value.text;
    const auto& used = megatron_train_keys();
    const bool has_meaning = std::any_of(
        used.begin(), used.end(), [&](const MegatronKey& key) { return key.key == entry.key; });
    if (!has_meaning) {
      config_.ignored.push_back({"megatron_lm_config." + entry.key, entry.key_place, entry.value,
                                 is_neutral(entry.value)});
    }
  }

  // The name is checked by whoever knows our flags.
  void read_own(const YamlValue::Entry& entry) {
    if (is_null(entry.value)) return;
    if (entry.value.kind != YamlValue::Kind::scalar) {
      bad_value(entry.value, entry.key + " is a single value, not a list or a section");
      return;
    }
    config_.own[entry.key.substr(kOwnPrefix.size())] = entry.value.text;
    if (entry.key == "mtl_role") config_.role = entry.value.text;
  }

  void unknown(const YamlValue::Entry& entry, const std::string& where, const std::string& help) {
    diagnostics_.add({.code = "config.unknown_key",
                      .what = fmt::format("unknown key '{}'{}", entry.key, where),
                      .place = entry.key_place,
                      .help = help});
  }

  void unknown_top_level(const YamlValue::Entry& entry) {
    for (const LaunchSection& section : launch_sections()) {
      const auto& keys = section.keys;
      if (std::find(keys.begin(), keys.end(), entry.key) != keys.end()) {
        return unknown(entry, "", fmt::format("it belongs under {}:", section.name));
      }
    }
    std::vector<std::string> candidates = launch_keys();
    for (const std::string& key : launch_keys_without_meaning()) candidates.push_back(key);
    for (const LaunchSection& section : launch_sections()) candidates.push_back(section.name);
    const auto near = did_you_mean(entry.key, candidates);
    unknown(entry, "",
            near ? fmt::format("did you mean '{}'?", *near)
                 : "remove it; what to train stands in train.yaml");
  }

  void unknown_nested(const YamlValue::Entry& entry, const LaunchSection& section) {
    auto near = did_you_mean(entry.key, section.keys);
    if (!section.prefix.empty() && !entry.key.starts_with(section.prefix)) {
      // `tp_degree` for `megatron_lm_tp_degree` is far by distance and near in mind.
      if (auto prefixed = did_you_mean(section.prefix + entry.key, section.keys)) near = prefixed;
    }
    unknown(entry, " in " + section.name,
            near ? fmt::format("did you mean '{}'?", *near)
                 : fmt::format("its keys are {}", fmt::join(section.keys, ", ")));
  }

  void finish(const YamlValue& root) {
    const YamlValue* type = root.find("distributed_type");
    if (type == nullptr || is_null(*type)) {
      diagnostics_.add({.code = "config.missing_key",
                        .what = "distributed_type is missing",
                        .place = Place{config_.path},
                        .help = "add for example `distributed_type: MULTI_GPU`; for one process: "
                                "`distributed_type: 'NO'`"});
    }
    if (const YamlValue* fp16 = root.find("fp16");
        fp16 != nullptr && !config_.mixed_precision_given) {
      bool on = false;
      if (!is_null(*fp16)) read_bool("fp16", *fp16, on);
      config_.mixed_precision = on ? "fp16" : "no";
      config_.mixed_precision_given = true;
    }
    if (config_.num_processes < 0 && config_.distributed_type == "NO" &&
        root.find("num_processes") == nullptr) {
      config_.num_processes = 1;
    }
    const YamlValue* rank = root.find("machine_rank");
    if (rank != nullptr && config_.machine_rank >= config_.num_machines) {
      bad_value(*rank,
                fmt::format("machine_rank {} does not exist with num_machines {}",
                            config_.machine_rank, config_.num_machines),
                "ranks count from 0");
    }
    const YamlValue* processes = root.find("num_processes");
    if (processes != nullptr && config_.num_processes % config_.num_machines != 0 &&
        config_.num_processes > 0) {
      bad_value(*processes,
                fmt::format("num_processes {} cannot be shared out evenly by {} machines",
                            config_.num_processes, config_.num_machines),
                "num_processes is the total of all machines");
    }
    if (const auto wrong = unknown_stage_of_file(config_)) diagnostics_.add(*wrong);
    if (config_.mixed_precision_given) {
      config_.deepspeed_fields += config_.deepspeed_fields.empty() ? "" : ",";
      config_.deepspeed_fields += "mixed_precision";
    }
    if (const YamlValue* dynamo = root.find("dynamo_backend");
        dynamo != nullptr && dynamo->kind == YamlValue::Kind::scalar) {
      config_.plugins.emplace("dynamo_backend", dynamo->text);
    }
    if (config_.distributed_type != "MEGATRON_LM" && !config_.megatron_lm_config.empty()) {
      for (const YamlValue::Entry& entry : root.entries) {
        if (entry.key != "megatron_lm_config" || is_neutral(entry.value)) continue;
        std::erase_if(config_.ignored, [](const IgnoredKey& key) {
          return key.key.starts_with("megatron_lm_config.");
        });
        config_.ignored.push_back({entry.key, entry.key_place, entry.value, false});
      }
    }
  }

  LaunchConfig config_;
  Diagnostics& diagnostics_;
};

LaunchConfig interpret(const YamlValue& root, const std::string& path, const Diagnostics& own,
                       Diagnostics& diagnostics) {
  for (const Diagnostic& diagnostic : own.all()) diagnostics.add(diagnostic);
  if (own.has_errors() && root.kind != YamlValue::Kind::map) {  // no YAML: not "empty" on top of it
    LaunchConfig nothing;
    nothing.path = path;
    return nothing;
  }
  return Reader(path, diagnostics).read(root);
}

std::string home_expanded(const std::string& path) {
  if (path != "~" && !path.starts_with("~/")) return path;
  const char* home = std::getenv("HOME");
  return (home != nullptr ? home : "") + path.substr(1);
}

int gpus_in(const std::string& devices) {
  int count = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(devices, ignored)) {
    const std::string name = entry.path().filename();
    const bool numbered =
        name.size() > 6 && name.starts_with("nvidia") &&
        std::all_of(name.begin() + 6, name.end(), [](char c) { return c >= '0' && c <= '9'; });
    count += numbered ? 1 : 0;
  }
  const std::vector<GpuDevice> installed(static_cast<size_t>(count));
  return static_cast<int>(visible_gpus(installed, std::getenv("CUDA_VISIBLE_DEVICES")).size());
}

}  // namespace

std::string plugin_key(const std::string& section, const std::string& key) {
  // The wizard's names, and older ones.
  static const std::map<std::string, std::string> others = {
      {"fsdp_backward_prefetch_policy", "fsdp_backward_prefetch"},
      {"fp8_amax_history_length", "fp8_amax_history_len"},
      {"fp8_amax_compute_algorithm", "fp8_amax_compute_algo"},
      {"fp8_optimization_level", "fp8_opt_level"}};
  const LaunchSection* found = find_launch_section(section);
  std::string name = key;
  if (found != nullptr && found->prefix_optional && !key.starts_with(found->prefix)) {
    name = found->prefix + key;
  }
  const auto other = others.find(name);
  return other != others.end() ? other->second : name;
}

const YamlValue::Entry* find_setting(const LaunchConfig& config, const std::string& setting) {
  for (const IgnoredKey& section : config.ignored) {
    for (const YamlValue::Entry& entry : section.value.entries) {
      if (plugin_key(section.key, entry.key) == setting) return &entry;
    }
  }
  return nullptr;
}

namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

}  // namespace

std::string accelerate_config_path() {
  const std::string cache = variable("XDG_CACHE_HOME").value_or("~/.cache");
  const std::string home = variable("HF_HOME").value_or(cache + "/huggingface");
  return home_expanded(home) + "/accelerate/default_config.yaml";
}

std::string own_config_path() {
  std::string home = variable("XDG_CONFIG_HOME").value_or("");
  // The specification: a path that is not absolute is no path.
  if (!home.starts_with('/')) home = home_expanded("~/.config");
  return home + "/mtl/default_config.yaml";
}

std::string default_launch_config_path() {
  for (const std::string& path : {own_config_path(), accelerate_config_path()}) {
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) return path;
  }
  return {};
}

bool means_no_config(const std::string& path) {
  std::error_code ignored;
  return path == "none" && !std::filesystem::exists(path, ignored);
}

LaunchConfig interpret_launch_config(const YamlValue& root, const std::string& path,
                                     Diagnostics& diagnostics) {
  return Reader(path, diagnostics).read(root);
}

LaunchConfig parse_launch_config(const std::string& text, const std::string& path,
                                 Diagnostics& diagnostics) {
  Diagnostics own;
  const YamlValue root = parse_yaml(text, path, own);
  return interpret(root, path, own, diagnostics);
}

LaunchConfig read_launch_config(const std::string& path, Diagnostics& diagnostics) {
  Diagnostics own;
  const YamlValue root = read_yaml(path, own);
  return interpret(root, path, own, diagnostics);
}

LaunchConfig detect_launch_config(const std::string& mixed_precision, const std::string& devices) {
  LaunchConfig config;
  const int gpus = gpus_in(devices);
  config.mixed_precision = mixed_precision;
  config.mixed_precision_given = true;
  config.num_processes = std::max(gpus, 1);
  config.use_cpu = gpus == 0;
  config.distributed_type = gpus > 1 ? "MULTI_GPU" : "NO";
  return config;
}

}  // namespace mtl
