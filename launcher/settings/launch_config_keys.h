// Which keys accelerate's configuration file may have, level by level, and what one that it does
// not have was perhaps meant to be.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/yaml.h"

namespace mtl {

struct LaunchSection {
  std::string name;              // the top-level key
  std::string prefix;            // of its keys
  bool prefix_optional = false;  // accelerate reads them without it too
  std::vector<std::string> keys;
};

bool among(const std::vector<std::string>& keys, const std::string& key);

// Sections: top-level keys whose value is a map.
const std::vector<LaunchSection>& launch_sections();
const LaunchSection* find_launch_section(const std::string& name);
bool is_key_of(const LaunchSection& section, const std::string& key);
// The name that accelerate's flag has for a key of a section: "fsdp_config", "version" ->
// "fsdp_version"; also for the names that its wizard writes and its launcher does not know, and for
// older ones.
std::string plugin_key(const std::string& section, const std::string& key);

// Of settings that accelerate does not know, by the names of our flags: mtl_hosts. They stand in
// megatron_lm_config, the one place where accelerate tolerates them.
inline constexpr std::string_view kOwnPrefix = "mtl_";

// Whether a setting, by the name of its flag, is several words with commas: in the file it may be a
// list too.
bool is_word_list(const std::string& setting);
// What fp8_override_linear_precision says of fprop, dgrad and wgrad: "true,false,true", also as
// Python prints it; nothing if that is not three truth values.
std::optional<std::array<bool, 3>> linear_precision(const std::string& text);
// What dynamo_backend may be, in lower case: that of accelerate 1.15, and what it once had.
const std::vector<std::string>& dynamo_backends();

// Top-level scalars and lists: those that LaunchConfig has a member for, and the others.
const std::vector<std::string>& launch_keys();
const std::vector<std::string>& launch_keys_without_meaning();

// The errors "config.unknown_key": of a key of the file, and of one inside a section.
Diagnostic unknown_launch_key(const YamlValue::Entry& entry);
Diagnostic unknown_key_of(const LaunchSection& section, const YamlValue::Entry& entry);

const std::vector<std::string>& distributed_types();

// A key of megatron_lm_config and the key of train.yaml that it decides: by its own value, or, for
// a truth value, by what yes and no stand for ("": nothing is decided).
struct MegatronKey {
  std::string key, train_key;
  bool is_truth = false;
  std::string yes = {}, no = {};
};
const std::vector<MegatronKey>& megatron_train_keys();

}  // namespace mtl
