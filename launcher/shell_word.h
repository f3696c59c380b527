// A text as one word of a POSIX shell's command line.
#pragma once

#include <string>

namespace mtl {

// As it is where a shell takes it so, else in single quotes.
std::string shell_word(const std::string& word);

}  // namespace mtl
