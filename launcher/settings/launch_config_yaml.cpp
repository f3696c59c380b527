// Writes a LaunchConfig as accelerate's own writer would: YAML 1.1, sorted keys, strings quoted
// where a YAML 1.1 reader would take them for something else.
#include <algorithm>
#include <cctype>
#include <set>

#include <fmt/format.h>

#include "common/text.h"
#include "launcher/settings/launch_config.h"
#include "launcher/settings/launch_config_keys.h"

namespace mtl {

namespace {

// What a YAML 1.1 reader may not read as a string: words, numbers (octal, sexagesimal and with
// underscores too), dates. Rather one too many: quotes never hurt.
bool means_something_else(const std::string& text) {
  static const std::set<std::string> words = {"y",    "n",    "yes",   "no",   "true", "false",
                                              "on",   "off",  "null",  "~",    "=",    "<<",
                                              ".inf", ".nan", "+.inf", "-.inf"};
  const std::string word = lower(text);
  if (words.count(word) != 0) return true;
  const bool starts = std::string_view("0123456789+-.").find(word[0]) != std::string_view::npos;
  const bool number = word.find_first_not_of("0123456789_:.+-xabcdef") == std::string::npos &&
                      std::count(word.begin(), word.end(), '.') <= 1;
  const bool date = word.size() > 4 && word[4] == '-' && word.find_first_not_of("0123456789") == 4;
  return starts && (number || date);
}

bool plain_word(const std::string& text) {
  const auto fits = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_-./,:+@%").find(c) != std::string_view::npos;
  };
  if (text.empty()) return false;
  const char first = text[0];
  return std::all_of(text.begin(), text.end(), fits) && text.back() != ':' &&
         (std::isalnum(static_cast<unsigned char>(first)) != 0 || first == '/' || first == '_' ||
          first == '.');
}

std::string double_quoted(const std::string& text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string string_text(const std::string& text) {
  if (plain_word(text) && !means_something_else(text)) return text;
  const bool printable = std::none_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
  if (!printable) return double_quoted(text);
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? std::string("''") : std::string(1, c);
  return quoted + "'";
}

// A value whose type was not kept: booleans and numbers as they are, else a string.
std::string loose_text(const std::string& text) {
  const bool flag = text == "true" || text == "false";
  const std::string digits = text.substr(text.starts_with('-') ? 1 : 0);
  const size_t point = std::min(digits.find('.'), digits.size());
  const auto all_digits = [](std::string_view part) {
    return !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
  };
  const bool number = all_digits(digits.substr(0, point)) && (digits[0] != '0' || point == 1) &&
                      (point == digits.size() || all_digits(digits.substr(point + 1)));
  return flag || number ? text : string_text(text);
}

std::string bool_text(bool flag) {
  return flag ? "true" : "false";
}

// Everything after "key:", with its newline.
std::string value_text(const YamlValue& value, int depth) {
  const std::string indent(static_cast<size_t>(2 * depth), ' ');
  switch (value.kind) {
    case YamlValue::Kind::null:
      return " null\n";
    case YamlValue::Kind::scalar: {
      const bool string =
          value.quoted || value.text.empty() || value.text.find('\n') != std::string::npos;
      return " " + (string ? string_text(value.text) : value.text) + "\n";
    }
    case YamlValue::Kind::list: {
      if (value.items.empty()) return " []\n";
      std::string text = "\n";
      for (const YamlValue& item : value.items) text += indent + "-" + value_text(item, depth + 1);
      return text;
    }
    case YamlValue::Kind::map: {
      if (value.entries.empty()) return " {}\n";
      std::map<std::string, std::string> sorted;
      for (const YamlValue::Entry& entry : value.entries) {
        sorted[entry.key] = value_text(entry.value, depth + 1);
      }
      std::string text = "\n";
      for (const auto& [key, rest] : sorted) text += indent + "  " + string_text(key) + ":" + rest;
      return text;
    }
  }
  return "\n";
}

YamlValue scalar(const std::string& text) {
  YamlValue value;
  value.kind = YamlValue::Kind::scalar;
  value.text = text;
  value.quoted = loose_text(text) != text;
  return value;
}

// accelerate takes the truth values one by one, and lists of words as one text.
YamlValue setting_value(const std::string& setting, const std::string& text) {
  const auto truths = linear_precision(text);
  if (setting != "fp8_override_linear_precision" || !truths) return scalar(text);
  YamlValue list;
  list.kind = YamlValue::Kind::list;
  for (const bool truth : *truths) list.items.push_back(scalar(bool_text(truth)));
  return list;
}

// The sections that only launched programs read: as the file had them, with what flags and the
// environment changed.
std::map<std::string, YamlValue> plugin_sections(const LaunchConfig& config) {
  std::map<std::string, YamlValue> sections;
  for (const IgnoredKey& ignored : config.ignored) {
    if (ignored.value.kind == YamlValue::Kind::map) sections[ignored.key] = ignored.value;
  }
  for (const auto& [key, value] : config.plugins) {
    for (const LaunchSection& section : launch_sections()) {
      if (!is_key_of(section, key)) continue;
      YamlValue& map = sections[section.name];
      map.kind = YamlValue::Kind::map;
      const auto same = [&](const YamlValue::Entry& candidate) {
        return plugin_key(section.name, candidate.key) == key;
      };
      const YamlValue written = setting_value(key, value);
      const auto entry = std::find_if(map.entries.begin(), map.entries.end(), same);
      if (entry == map.entries.end()) {
        YamlValue::Entry added;
        added.key = key;
        added.value = written;
        map.entries.push_back(std::move(added));
      } else {
        if (written.kind != entry->value.kind || written.text != entry->value.text ||
            written.kind == YamlValue::Kind::list) {
          entry->value = written;
        }
        // Under another of its names.
        map.entries.erase(std::remove_if(entry + 1, map.entries.end(), same), map.entries.end());
      }
      break;
    }
  }
  return sections;
}

}  // namespace

std::string launch_config_yaml(const LaunchConfig& config) {
  std::map<std::string, std::string> lines;  // key -> what follows the colon
  const auto set = [&](const std::string& key, const std::string& value) {
    lines[key] = " " + value + "\n";
  };
  set("tpu_use_cluster", "false");
  set("tpu_use_sudo", "false");
  for (const IgnoredKey& ignored : config.ignored) {
    const bool dropped = ignored.value.kind == YamlValue::Kind::null ||
                         (ignored.value.kind == YamlValue::Kind::map &&
                          ignored.value.entries.empty());  // accelerate drops these too
    if (!dropped && !ignored.key.starts_with("megatron_lm_config")) {
      lines[ignored.key] = value_text(ignored.value, 0);
    }
  }
  for (const auto& [section, value] : plugin_sections(config)) {
    if (!value.entries.empty()) lines[section] = value_text(value, 0);
  }
  set("compute_environment", string_text(config.compute_environment));
  set("debug", bool_text(config.debug));
  set("distributed_type", string_text(config.distributed_type));
  set("downcast_bf16", loose_text(config.downcast_bf16));
  set("enable_cpu_affinity", bool_text(config.enable_cpu_affinity));
  if (config.gpu_ids_given || config.gpu_ids != "all") set("gpu_ids", string_text(config.gpu_ids));
  // Of several machines, somebody has to say which one this is: 0 would be a guess.
  if (config.machine_rank_given || config.machine_rank != 0 || config.num_machines == 1) {
    set("machine_rank", std::to_string(config.machine_rank));
  }
  if (!config.main_process_ip.empty()) set("main_process_ip", string_text(config.main_process_ip));
  // Without it accelerate takes 29500, not a free one.
  if (config.main_process_port_given || config.main_process_port != 0) {
    set("main_process_port", std::to_string(config.main_process_port));
  }
  set("main_training_function", string_text(config.main_training_function));
  std::map<std::string, std::string> megatron = config.megatron_lm_config;
  if (config.role != "default") megatron["mtl_role"] = config.role;
  for (const auto& [key, value] : config.own) megatron[std::string(kOwnPrefix) + key] = value;
  if (!megatron.empty()) {
    std::string section = "\n";
    for (const auto& [key, value] : megatron) {
      section += "  " + string_text(key) + ": " + loose_text(value) + "\n";
    }
    lines["megatron_lm_config"] = section;
  }
  if (config.mixed_precision_given || config.mixed_precision != "no") {
    set("mixed_precision", string_text(config.mixed_precision));
  }
  set("num_machines", std::to_string(config.num_machines));
  set("num_processes", std::to_string(config.num_processes));
  set("rdzv_backend", string_text(config.rdzv_backend));
  set("same_network", bool_text(config.same_network));
  set("use_cpu", bool_text(config.use_cpu));
  std::string text;
  for (const auto& [key, rest] : lines) text += key + ":" + rest;
  return text;
}

}  // namespace mtl
