// The settings of a run as its resolved.yaml has them, without the schema that wrote it: a run may
// be of another version, or damaged.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/metrics/event_file.h"

namespace mtl {

struct RunSetting {
  std::string key;     // "train.micro_batch"
  std::string value;   // as it stands there
  std::string origin;  // "built-in", "train.yaml", ...
};

// By the file's lines, in its order; what is no line of a resolved.yaml is passed over.
std::vector<RunSetting> settings_of(std::string_view resolved_yaml);

// Those that somebody has given, each as the boolean, the number or the text that it is.
std::vector<TaggedSetting> given_settings(const std::vector<RunSetting>& settings);

}  // namespace mtl
