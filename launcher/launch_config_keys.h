// Which keys accelerate's configuration file may have, level by level.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace mtl {

struct LaunchSection {
  std::string name;              // the top-level key
  std::string prefix;            // of its keys
  bool prefix_optional = false;  // accelerate reads them without it too
  std::vector<std::string> keys;
};

// Sections: top-level keys whose value is a map.
const std::vector<LaunchSection>& launch_sections();
const LaunchSection* find_launch_section(const std::string& name);
bool is_key_of(const LaunchSection& section, const std::string& key);

// Whether a setting, by the name of its flag, is several words with commas: in the file it may be a
// list too.
bool is_word_list(const std::string& setting);
// What fp8_override_linear_precision says of fprop, dgrad and wgrad: "true,false,true", also as
// Python prints it; nothing if that is not three truth values.
std::optional<std::array<bool, 3>> linear_precision(const std::string& text);

// Top-level scalars and lists: those that LaunchConfig has a member for, and the others.
const std::vector<std::string>& launch_keys();
const std::vector<std::string>& launch_keys_without_meaning();

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
