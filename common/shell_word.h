// A text as one word of a shell's command line: of POSIX shells, fish, csh (but for a newline).
#pragma once

#include <string>

namespace mtl {

// As it is where a shell takes it so, else in single quotes.
std::string shell_word(const std::string& word);

}  // namespace mtl
