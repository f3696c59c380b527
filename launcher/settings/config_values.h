// Single values of a configuration file, read as what their key wants. A value that is not that is
// an error "config.bad_value" at its place, and its target stays as it was.
#pragma once

#include <climits>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/yaml.h"

namespace mtl {

bool is_null(const YamlValue& value);
// Null, false, 'no', an empty text, list or map, or a map of nothing else: what accelerate's wizard
// writes for what it was not asked for.
bool is_neutral(const YamlValue& value);

class ConfigValues {
 public:
  explicit ConfigValues(Diagnostics& diagnostics) : diagnostics_(diagnostics) {}

  void bad(const YamlValue& value, const std::string& what, const std::string& help = {});
  // False, and an error, for anything but a scalar: a list, a section, null.
  bool is_single(const std::string& key, const YamlValue& value);

  // An empty text leaves the target as it is.
  void text(const std::string& key, const YamlValue& value, std::string& target);
  void choice(const std::string& key, const YamlValue& value, std::string& target,
              const std::vector<std::string>& choices);
  void whole(const std::string& key, const YamlValue& value, int& target, int least,
             int most = INT_MAX);
  // true, yes, on and their opposites, in any case.
  void truth(const std::string& key, const YamlValue& value, bool& target);

 private:
  Diagnostics& diagnostics_;
};

}  // namespace mtl
