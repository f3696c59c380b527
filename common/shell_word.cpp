#include "common/shell_word.h"

#include <string_view>

namespace mtl {

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,@%+";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  // Within single quotes fish reads \\ and \', and csh !: these stand outside, each behind a \,
  // which every shell takes for the character itself.
  constexpr std::string_view kApart = "'\\!";
  std::string text = "'";
  for (const char c : word) {
    text +=
        kApart.find(c) == std::string_view::npos ? std::string(1, c) : std::string("'\\") + c + "'";
  }
  return text + "'";
}

}  // namespace mtl
