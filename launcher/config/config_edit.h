// Changing accelerate's configuration file key by key, and checking one as a launch would.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/yaml.h"
#include "launcher/settings/launch_config.h"
#include "launcher/settings/launch_flags.h"

namespace mtl {

// Where a key of the file stands, from any way to write it: "num_processes",
// "megatron_lm_config.megatron_lm_tp_degree", "megatron_lm_tp_degree", "fsdp_config.version",
// "hosts" (ours: megatron_lm_config.mtl_hosts), "use_cpu" or "cpu". "" if there is none; then
// `suggestion` is the nearest.
std::string config_key_path(const std::string& key, std::string* suggestion = nullptr);

// What a configuration says, as a tree; with nulls and empty sections left out, as it is written.
YamlValue config_tree(const LaunchConfig& config);
// The value at a dotted path; "" if there is none (or a section).
std::string config_value(const YamlValue& root, const std::string& path);
// Sets one value; an empty one takes the key out.
void set_config_value(YamlValue& root, const std::string& path, const std::string& value);

// Sets keys as `mtl config set` does. Codes: config.unknown_key, config.bad_value, those of the
// reader; warning config.no_effect for a section that is not looked at. Nothing is changed where
// there are errors.
LaunchConfig edit_launch_config(const LaunchConfig& config,
                                const std::vector<std::pair<std::string, std::string>>& changes,
                                Diagnostics& diagnostics);

// The file that says the same as flags: those of `mtl launch`. Codes as above, those of
// resolve_launch().
LaunchConfig config_of_flags(const FlagValues& flags, Diagnostics& diagnostics);

// All that a launch would say of the file: its errors and warnings, and every value that its
// setting cannot have. (What the machines lack is not looked at.)
void check_launch_config(const LaunchConfig& config, Diagnostics& diagnostics);

}  // namespace mtl
