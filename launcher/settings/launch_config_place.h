// Where the configuration file lies that a launch reads and `mtl config` writes.
#pragma once

#include <string>

namespace mtl {

// accelerate's: $HF_HOME or $XDG_CACHE_HOME/huggingface or ~/.cache/huggingface, +
// /accelerate/default_config.yaml.
std::string accelerate_config_path();
// Ours: $XDG_CONFIG_HOME or ~/.config, + /mtl/default_config.yaml.
std::string own_config_path();
// The one that a launch reads where none is named: ours, else accelerate's, else none ("").
std::string default_launch_config_path();
// Whether `path` says that no file is to be read: "none", where no file has that name.
bool means_no_config(const std::string& path);

}  // namespace mtl
