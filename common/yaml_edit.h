// Changes of single values in a YAML file that a person wrote: comments, order and everything else
// stay as they are.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/error.h"

namespace mtl {

// `settings` are "section.key" and the value as YAML text ("8", "[norm, mlp_act]"). A value that is
// there is replaced, a key that is not is put first into its section, a section that is not is
// added at the end; block and flow style alike. What cannot be changed safely (a value over several
// lines, text that is no mapping) is an error "yaml.edit" at its place, and then the result is the
// text as it was. The result is read again and has the values.
std::string set_yaml_values(const std::string& text, const std::string& file_name,
                            const std::vector<std::pair<std::string, std::string>>& settings,
                            Diagnostics& diagnostics);

}  // namespace mtl
