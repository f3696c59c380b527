// The command that a shell script launches, read and not run.
#pragma once

#include <string>
#include <vector>

namespace mtl {

// A shell script or a command rather than YAML.
bool looks_like_command(const std::string& text);
// The words of the launching command of a shell script: comments, continued lines, quotes, simple
// assignments (A=1, A+=0, "$A", ${A:-1}, $((A * 2)), ARGS=(...) with "${ARGS[@]}") are understood;
// redirections, here documents and other commands are passed over. What nobody knows before the
// script runs stays as it stands there ($A, `date`; is_shell_variable): variables that it is given
// or computes, and those that it assigns under a condition; a list that a condition may make longer
// ends with ${ARGS+=}. Empty if there is none.
std::vector<std::string> command_of_script(const std::string& script);

}  // namespace mtl
