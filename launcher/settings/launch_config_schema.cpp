// The JSON Schema of default_config.yaml, for editors: from the table of keys and that of flags.
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/settings/launch_config.h"
#include "launcher/settings/launch_config_keys.h"
#include "launcher/settings/launch_flags.h"

namespace mtl {

namespace {

using nlohmann::ordered_json;

// A text, which YAML may take for something else. Null stands for a key that is not given, wherever
// accelerate writes one.
ordered_json any_value() {
  return {{"type", {"string", "number", "boolean", "null"}}};
}

ordered_json value_of(const LaunchFlag& flag) {
  ordered_json value;
  switch (flag.kind) {
    case FlagKind::truth:
      // 'no' and 'yes' are strings to YAML 1.2, which accelerate's wizard writes here and there.
      value["type"] = {"boolean", "string", "null"};
      break;
    case FlagKind::whole:
    case FlagKind::number:
      value["type"] = {flag.kind == FlagKind::whole ? "integer" : "number", "null"};
      value["minimum"] = flag.minimum;
      break;
    case FlagKind::choice: {
      value["enum"] = ordered_json::array();
      std::istringstream words(flag.value);
      for (std::string word; std::getline(words, word, '|');) value["enum"].push_back(word);
      value["enum"].push_back(nullptr);
      break;
    }
    case FlagKind::list:
      value["type"] = {"array", "string", "null"};
      break;
    case FlagKind::seconds:
    case FlagKind::size:
    case FlagKind::text:
      value = any_value();
      if (is_word_list(flag.name)) value["type"].push_back("array");
      break;
  }
  value["description"] = flag.meaningless.empty() ? flag.help
                                                  : fmt::format("{} (without meaning here: {})",
                                                                flag.help, flag.meaningless);
  return value;
}

// Of a key by its place in the file: "fsdp_config.fsdp_version".
ordered_json property(const std::string& place) {
  for (const LaunchFlag& flag : launch_flags()) {
    if (flag.file_key == place) return value_of(flag);
  }
  return any_value();
}

}  // namespace

std::string launch_config_json_schema() {
  ordered_json properties;
  for (const std::string& key : launch_keys()) properties[key] = property(key);
  for (const std::string& key : launch_keys_without_meaning()) {
    properties[key] = {{"description", "Read, and without meaning here."}};
  }
  properties["compute_environment"] = {{"enum", {"LOCAL_MACHINE", nullptr}}};
  for (const char* backend : {"etcd", "etcd-v2", ""}) {  // ignored
    properties["rdzv_backend"]["enum"].push_back(backend);
  }
  properties["distributed_type"] = {{"enum", distributed_types()}};
  for (const LaunchSection& section : launch_sections()) {
    ordered_json keys = ordered_json::object();
    for (const std::string& key : section.keys) {
      const ordered_json value = property(section.name + "." + plugin_key(section.name, key));
      keys[key] = value;
      // accelerate reads some sections with and without the prefix.
      if (!section.prefix_optional) continue;
      keys[key.starts_with(section.prefix) ? key.substr(section.prefix.size())
                                           : section.prefix + key] = value;
    }
    if (section.name == "megatron_lm_config") {
      for (const LaunchFlag& flag : launch_flags()) {
        if (flag.file_key.empty()) keys[std::string(kOwnPrefix) + flag.name] = value_of(flag);
      }
    }
    properties[section.name] = {
        {"type", {"object", "null"}}, {"additionalProperties", false}, {"properties", keys}};
  }
  const ordered_json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                               {"title", "default_config.yaml of mtl and accelerate"},
                               {"type", "object"},
                               {"additionalProperties", false},
                               {"required", {"distributed_type"}},
                               {"properties", properties}};
  return schema.dump(2) + "\n";
}

}  // namespace mtl
