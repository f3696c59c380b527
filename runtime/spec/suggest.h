// What a person most likely meant by a key that does not exist.
#pragma once

#include <optional>
#include <string>

#include "common/error.h"
#include "runtime/spec/schema.h"

namespace mtl::spec {

struct UnknownKey {
  Diagnostic diagnostic;             // config.unknown_key, without a place
  std::optional<std::string> meant;  // the full key that the help names
};
UnknownKey unknown_key(const std::string& path);

// The variable that was most likely meant by `name` ("MTL_TRAIN__STEP"), if any is near.
std::optional<std::string> nearest_environment_name(const std::string& name);
// True for a name that differs from a setting's variable by its underscores only.
bool resembles_environment_name(const std::string& name);

// Names directly below a section, sub-sections included ("" = the top).
std::vector<std::string> names_below(const std::string& section);

}  // namespace mtl::spec
