#include "launcher/settings/launch_config.h"

#include <algorithm>
#include <climits>
#include <variant>

#include <fmt/format.h>

#include "common/shell_word.h"
#include "common/text.h"
#include "launcher/settings/config_values.h"
#include "launcher/settings/launch_config_keys.h"
#include "launcher/settings/launch_flags.h"
#include "launcher/settings/train_settings.h"

namespace mtl {

namespace {

class ConfigReader {
 public:
  ConfigReader(const std::string& path, Diagnostics& diagnostics)
      : diagnostics_(diagnostics), values_(diagnostics) {
    config_.path = path;
  }

  LaunchConfig read(const YamlValue& root) {
    if (!is_for_us(root)) return config_;
    for (const YamlValue::Entry& entry : root.entries) top_level(entry);
    check_type(root);
    fill_in(root);
    check_counts(root);
    if (const auto wrong = unknown_stage_of_file(config_)) diagnostics_.add(*wrong);
    ignore_megatron(root);
    return config_;
  }

 private:
  bool is_for_us(const YamlValue& root) {
    if (root.kind != YamlValue::Kind::map) {
      diagnostics_.add({.code = "config.empty",
                        .what = is_null(root) ? "this configuration file is empty"
                                              : "a configuration file is a list of `key: value`",
                        .place = Place{config_.path},
                        .help = "make one: mtl config"});
      return false;
    }
    if (const YamlValue* model = root.find("model"); model != nullptr &&
                                                     model->kind == YamlValue::Kind::map &&
                                                     root.find("distributed_type") == nullptr) {
      diagnostics_.add({.code = "config.train_yaml",
                        .what = "this says what to train, and not where to run",
                        .place = model->place,
                        .help = "check it with: mtl launch --dry-run " + shell_word(config_.path)});
      return false;
    }
    const YamlValue* environment = root.find("compute_environment");
    if (environment == nullptr || environment->text != "AMAZON_SAGEMAKER") return true;
    config_.compute_environment = environment->text;
    diagnostics_.add({.code = "config.sagemaker",
                      .what = "mtl does not launch on Amazon SageMaker",
                      .place = environment->place,
                      .help = "use `accelerate launch` with this file, or make one for your own "
                              "machines: mtl config"});
    return false;
  }

  // --- the top level

  void top_level(const YamlValue::Entry& entry) {
    if (const LaunchSection* section = find_launch_section(entry.key)) {
      read_section(entry, *section);
    } else if (among(launch_keys_without_meaning(), entry.key)) {
      ignore(entry.key, entry);
    } else if (!among(launch_keys(), entry.key)) {
      diagnostics_.add(unknown_launch_key(entry));
    } else if (!is_null(entry.value)) {
      read_member(entry.key, entry.value);
    }
  }

  // A key that has a member of its own, and how that is read.
  struct Whole {
    int LaunchConfig::*member;
    int least;
    int most = INT_MAX;
  };
  struct Member {
    std::string key;
    std::variant<bool LaunchConfig::*, std::string LaunchConfig::*, Whole,
                 void (ConfigReader::*)(const YamlValue&)>
        how;
    bool LaunchConfig::*given = nullptr;
  };

  void read_member(const std::string& key, const YamlValue& value) {
    static const std::vector<Member> members = {
        {"compute_environment", &ConfigReader::read_environment},
        {"distributed_type", &ConfigReader::read_distributed_type},
        {"mixed_precision", &ConfigReader::read_mixed_precision,
         &LaunchConfig::mixed_precision_given},
        {"num_processes", &ConfigReader::read_num_processes},
        {"num_machines", Whole{&LaunchConfig::num_machines, 1}},
        {"machine_rank", Whole{&LaunchConfig::machine_rank, 0}, &LaunchConfig::machine_rank_given},
        {"use_cpu", &LaunchConfig::use_cpu},
        {"debug", &LaunchConfig::debug},
        {"gpu_ids", &LaunchConfig::gpu_ids, &LaunchConfig::gpu_ids_given},
        {"main_process_ip", &ConfigReader::read_address},
        {"main_process_port", Whole{&LaunchConfig::main_process_port, 0, 65'535},
         &LaunchConfig::main_process_port_given},
        {"rdzv_backend", &ConfigReader::read_backend},
        {"same_network", &LaunchConfig::same_network},
        {"enable_cpu_affinity", &LaunchConfig::enable_cpu_affinity},
        {"downcast_bf16", &LaunchConfig::downcast_bf16},
        {"main_training_function", &LaunchConfig::main_training_function}};
    const auto member = std::find_if(members.begin(), members.end(),
                                     [&](const Member& each) { return each.key == key; });
    if (member == members.end()) return;  // `fp16`: see fill_in
    if (const auto* truth = std::get_if<bool LaunchConfig::*>(&member->how)) {
      values_.truth(key, value, config_.**truth);
    } else if (const auto* text = std::get_if<std::string LaunchConfig::*>(&member->how)) {
      values_.text(key, value, config_.**text);
    } else if (const auto* whole = std::get_if<Whole>(&member->how)) {
      values_.whole(key, value, config_.*whole->member, whole->least, whole->most);
    } else {
      (this->*std::get<void (ConfigReader::*)(const YamlValue&)>(member->how))(value);
    }
    if (member->given != nullptr) config_.*member->given = true;
  }

  void read_environment(const YamlValue& value) {
    values_.choice("compute_environment", value, config_.compute_environment,
                   {"LOCAL_MACHINE", "AMAZON_SAGEMAKER"});
  }

  // An unquoted `NO` or `no`, which people write, is a boolean to YAML 1.1, and a writer of it may
  // have made one of it.
  static YamlValue with_no(const YamlValue& value, const char* no) {
    YamlValue word = value;
    if (lower(word.text) == "no" || word.text == "false") word.text = no;
    return word;
  }

  void read_distributed_type(const YamlValue& value) {
    values_.choice("distributed_type", with_no(value, "NO"), config_.distributed_type,
                   distributed_types());
  }

  void read_mixed_precision(const YamlValue& value) {
    YamlValue word = value;
    word.text = lower(word.text);
    values_.choice("mixed_precision", with_no(word, "no"), config_.mixed_precision,
                   {"no", "fp16", "bf16", "fp8"});
  }

  // accelerate's launcher heeds its flag and never the file: what its wizard took was never used.
  void read_backend(const YamlValue& value) {
    if (value.text != "etcd" && value.text != "etcd-v2") {
      if (value.kind == YamlValue::Kind::scalar && value.text.empty()) return;
      values_.choice("rdzv_backend", value, config_.rdzv_backend, {"static", "c10d", "tcp"});
      return;
    }
    diagnostics_.add({.code = "launch.ignored_key",
                      .what = fmt::format("rdzv_backend '{}' is ignored: mtl's own rendezvous is "
                                          "used",
                                          value.text),
                      .place = value.place,
                      .help = "static, or tcp for machines that join and get their ranks",
                      .severity = Diagnostic::Severity::warning});
  }

  void read_num_processes(const YamlValue& value) {
    if (value.text == "-1") return;  // accelerate's own way to say "not given"
    values_.whole("num_processes", value, config_.num_processes, 1);
  }

  void read_address(const YamlValue& value) {
    values_.text("main_process_ip", value, config_.main_process_ip);
    const std::string& address = config_.main_process_ip;
    if (address.empty() || address.find_first_not_of("0123456789") != std::string::npos) return;
    diagnostics_.add({.code = "config.address",
                      .what = fmt::format("main_process_ip '{}' is a bare number", address),
                      .place = value.place,
                      .help = "give an address like 10.0.0.1 or a host name",
                      .severity = Diagnostic::Severity::warning});
  }

  // --- sections

  void read_section(const YamlValue::Entry& entry, const LaunchSection& section) {
    const YamlValue& value = entry.value;
    if (value.kind != YamlValue::Kind::map && !is_null(value)) {
      values_.bad(value, entry.key + " is a section", "indent its keys below it");
      return;
    }
    const bool megatron = section.name == "megatron_lm_config";
    for (const YamlValue::Entry& inner : value.entries) {
      if (megatron && inner.key.starts_with(kOwnPrefix)) {
        read_own(inner);
      } else if (!is_key_of(section, inner.key)) {
        diagnostics_.add(unknown_key_of(section, inner));
      } else if (megatron) {
        read_megatron(inner);
      } else {
        read_setting(plugin_key(section.name, inner.key), inner);
      }
      if (section.name == "deepspeed_config") add_deepspeed_field(inner.key);
    }
    if (section.name == "parallelism_config")
      config_.use_parallelism_config = !value.entries.empty();
    if (!megatron) ignore(entry.key, entry);
  }

  // Python ends with a ValueError at any other, after all ranks have started.
  void read_dynamo_backend(const YamlValue& value) {
    YamlValue word = value;
    word.text = lower(word.text);
    std::string known;
    values_.choice("dynamo_backend", with_no(word, "no"), known, dynamo_backends());
    if (!known.empty()) config_.plugins["dynamo_backend"] = known == "no" ? known : value.text;
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
      values_.bad(value, fmt::format("{} cannot be '{}'", entry.key, text),
                  "it is three truth values: [false, false, true]");
    } else if (setting == "dynamo_backend" && value.kind == YamlValue::Kind::scalar) {
      read_dynamo_backend(value);
    } else if (value.kind == YamlValue::Kind::map || !scalars || (list && !is_word_list(setting))) {
      values_.bad(value, entry.key + " is a single value, not a list or a section",
                  setting == "fsdp_ignored_modules" ? "several are a regular expression: a|b" : "");
    } else if (is_wanted(setting, entry, text)) {
      config_.plugins[setting] = text;
    }
  }

  // As the flag of that name has it: what no program could make sense of is no setting.
  bool is_wanted(const std::string& setting, const YamlValue::Entry& entry,
                 const std::string& text) {
    const LaunchFlag* const flag = find_launch_flag(setting);
    if (flag == nullptr || text.empty()) return true;
    const auto wanted = flag_value_wanted(*flag, text);
    if (!wanted) return true;
    values_.bad(entry.value, fmt::format("{} wants {}, got '{}'", entry.key, *wanted, text),
                "what each key takes: mtl help launch-flags");
    return false;
  }

  void read_megatron(const YamlValue::Entry& entry) {
    if (is_null(entry.value) || !values_.is_single(entry.key, entry.value)) return;
    if (!is_wanted(entry.key, entry, entry.value.text)) return;
    config_.megatron_lm_config[entry.key] = entry.value.text;
    const auto& used = megatron_train_keys();
    const bool has_meaning = std::any_of(
        used.begin(), used.end(), [&](const MegatronKey& key) { return key.key == entry.key; });
    if (!has_meaning) ignore("megatron_lm_config." + entry.key, entry);
  }

  // The name is checked by whoever knows our flags.
  void read_own(const YamlValue::Entry& entry) {
    if (is_null(entry.value) || !values_.is_single(entry.key, entry.value)) return;
    const std::string name = entry.key.substr(kOwnPrefix.size());
    config_.own[name] = entry.value.text;
    if (name == "role") config_.role = entry.value.text;
  }

  // Without MEGATRON_LM, nothing of its section has a meaning but for our own keys, which count
  // with any type: beside those, what is in vain is named key by key.
  void ignore_megatron(const YamlValue& root) {
    if (config_.distributed_type == "MEGATRON_LM" || config_.megatron_lm_config.empty()) return;
    for (const YamlValue::Entry& entry : root.entries) {
      if (entry.key != "megatron_lm_config" || is_neutral(entry.value)) continue;
      std::erase_if(config_.ignored, [](const IgnoredKey& key) {
        return key.key.starts_with("megatron_lm_config.");
      });
      const std::vector<YamlValue::Entry>& keys = entry.value.entries;
      const bool has_own = std::any_of(keys.begin(), keys.end(), [](const YamlValue::Entry& key) {
        return key.key.starts_with(kOwnPrefix);
      });
      if (!has_own) {
        ignore(entry.key, entry);
        continue;
      }
      for (const YamlValue::Entry& key : keys) {
        if (!key.key.starts_with(kOwnPrefix)) ignore(entry.key + '.' + key.key, key);
      }
    }
  }

  void ignore(const std::string& name, const YamlValue::Entry& entry) {
    config_.ignored.push_back({name, entry.key_place, entry.value, is_neutral(entry.value)});
  }

  void add_deepspeed_field(const std::string& name) {
    config_.deepspeed_fields += (config_.deepspeed_fields.empty() ? "" : ",") + name;
  }

  // --- the whole file

  void check_type(const YamlValue& root) {
    const YamlValue* type = root.find("distributed_type");
    if (type != nullptr && !is_null(*type)) return;
    diagnostics_.add({.code = "config.missing_key",
                      .what = "distributed_type is missing",
                      .place = Place{config_.path},
                      .help = "add for example `distributed_type: MULTI_GPU`; for one process: "
                              "`distributed_type: 'NO'`"});
  }

  // What follows from what is not said, or is said by an older key.
  void fill_in(const YamlValue& root) {
    if (const YamlValue* fp16 = root.find("fp16");
        fp16 != nullptr && !config_.mixed_precision_given) {
      bool on = false;
      if (!is_null(*fp16)) values_.truth("fp16", *fp16, on);
      config_.mixed_precision = on ? "fp16" : "no";
      config_.mixed_precision_given = true;
    }
    if (config_.mixed_precision_given) add_deepspeed_field("mixed_precision");
    if (config_.distributed_type == "NO" && root.find("num_processes") == nullptr) {
      config_.num_processes = 1;
    }
    if (const YamlValue* dynamo = root.find("dynamo_backend");
        dynamo != nullptr && dynamo->kind == YamlValue::Kind::scalar && !is_null(*dynamo) &&
        !config_.plugins.contains("dynamo_backend")) {
      read_dynamo_backend(*dynamo);
    }
  }

  void check_counts(const YamlValue& root) {
    const YamlValue* rank = root.find("machine_rank");
    if (rank != nullptr && config_.machine_rank >= config_.num_machines) {
      values_.bad(*rank,
                  fmt::format("machine_rank {} does not exist with num_machines {}",
                              config_.machine_rank, config_.num_machines),
                  "ranks count from 0");
    }
    const YamlValue* processes = root.find("num_processes");
    if (processes != nullptr && config_.num_processes > 0 &&
        config_.num_processes % config_.num_machines != 0) {
      values_.bad(*processes,
                  fmt::format("num_processes {} cannot be shared out evenly by {} machines",
                              config_.num_processes, config_.num_machines),
                  "num_processes is the total of all machines");
    }
  }

  LaunchConfig config_;
  Diagnostics& diagnostics_;
  ConfigValues values_;
};

LaunchConfig interpret(const YamlValue& root, const std::string& path, const Diagnostics& own,
                       Diagnostics& diagnostics) {
  for (const Diagnostic& diagnostic : own.all()) diagnostics.add(diagnostic);
  if (own.has_errors() && root.kind != YamlValue::Kind::map) {  // no YAML: not "empty" on top of it
    LaunchConfig nothing;
    nothing.path = path;
    return nothing;
  }
  Diagnostics reading;
  LaunchConfig config = ConfigReader(path, reading).read(root);
  for (const Diagnostic& diagnostic : reading.all()) {
    // May stand in what could not be read.
    if (own.has_errors() && diagnostic.code == "config.missing_key") continue;
    diagnostics.add(diagnostic);
  }
  return config;
}

}  // namespace

LaunchConfig interpret_launch_config(const YamlValue& root, const std::string& path,
                                     Diagnostics& diagnostics) {
  return ConfigReader(path, diagnostics).read(root);
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

const YamlValue::Entry* find_setting(const LaunchConfig& config, const std::string& setting) {
  for (const IgnoredKey& section : config.ignored) {
    for (const YamlValue::Entry& entry : section.value.entries) {
      if (plugin_key(section.key, entry.key) == setting) return &entry;
    }
  }
  return nullptr;
}

}  // namespace mtl
