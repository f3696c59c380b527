// Text out of tokens that come one by one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/data.h"

namespace mtl {

// A token may be a part of a character, and its text may depend on the token before it (the space
// before a word). Gives the text piece by piece, in whole characters.
class TokenText {
 public:
  // `before`: tokens whose text is known already, e.g. a prompt's.
  TokenText(const Tokenizer& tokenizer, std::vector<int32_t> before);
  // What there is to show now; may be empty.
  std::string add(int32_t id);
  // What is left at the end: the beginning of a character.
  std::string rest();

 private:
  std::string next(bool whole);

  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;  // a few that have been shown, for the context, and the new ones
  size_t shown_;
};

}  // namespace mtl
