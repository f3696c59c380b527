// Tokens of any corpus that fits in memory, in one, two or four bytes each.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "runtime/data/data.h"

namespace mtl {

// A growing row of token ids, stored in the narrowest type that holds every id of the vocabulary.
class TokenArray {
 public:
  explicit TokenArray(int64_t vocab_size);
  int64_t size() const;
  void reserve(int64_t tokens);
  void append(std::span<const int32_t> ids);  // each in [0, vocab_size)
  void read(int64_t first, std::span<int32_t> out) const;

 private:
  std::variant<std::vector<uint8_t>, std::vector<uint16_t>, std::vector<int32_t>> ids_;
};

// Tokens [first, first + size) of `tokens`, which several sources share.
std::unique_ptr<TokenSource> make_token_range(std::shared_ptr<const TokenArray> tokens,
                                              int64_t first, int64_t size);

}  // namespace mtl
