// What the members of `mtl config` share: where the file is, how it is written, what it decides.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.h"
#include "launcher/settings/launch_config.h"

namespace mtl {

inline const char* const kOwnConfigPlace = "mtl's own, under $XDG_CONFIG_HOME or ~/.config";

// Where a new file goes: `named`, else ours. Makes its folders and looks whether it can be written
// there, before anybody has answered anything. Throws Error: usage.value, file.directory,
// file.write.
std::string config_target(const std::string& named);
// The file that a launch reads: `named`, else ours, else accelerate's. Throws Error (file.missing).
std::string config_in_use(const std::string& named);
// Its text; throws Error (file.missing, file.unreadable; as for a launch, the configuration is
// wrong).
std::string config_text(const std::string& path);
// Reads it; throws Error with all that is wrong.
LaunchConfig load_config(const std::string& path);
// Atomically, for its owner only (0600). Prints the path on stdout.
void write_config(const std::string& path, const LaunchConfig& config);
// "train.yaml: parallel.tp=4", "'tpu_name' means nothing here": what the file decides, in words.
std::vector<std::string> config_decisions(const LaunchConfig& config);
// Line by line: "  same", "- before", "+ after".
std::vector<std::string> line_changes(const std::string& before, const std::string& after);

// The members, without their own names.
int config_default(const Arguments& args);
int config_update(const Arguments& args);
int config_show(const Arguments& args);
int config_set(const Arguments& args);
int config_validate(const Arguments& args);
int config_schema(const Arguments& args);
int config_import(const Arguments& args);
// Asks, and writes to `path`. 130 if it was left without writing.
int config_wizard(const std::string& path);

}  // namespace mtl
