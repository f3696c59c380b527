// The scripts that make shells complete mtl's words.
#pragma once

#include <string_view>
#include <vector>

namespace mtl {

struct CompletionScript {
  std::string_view shell;  // bash, zsh, fish
  const char* text;
  const char* installed_as;  // below share/
};
const std::vector<CompletionScript>& completion_scripts();

}  // namespace mtl
