// The topics of `mtl help`: short texts on what concerns every command.
#pragma once

#include <string>
#include <vector>

namespace mtl {

struct HelpTopic {
  std::string name;   // "exit-codes"
  std::string about;  // a few words
  std::string text;   // lines of at most 80 columns; "" = it is made when it is asked for
};
const std::vector<HelpTopic>& help_topics();

}  // namespace mtl
