// Which token comes next, of a model's scores.
#pragma once

#include <cstdint>
#include <span>

namespace mtl {

struct Sampling {
  double temperature = 0.8;  // scores are divided by it; 0 = the likeliest token
  int64_t top_k = 0;         // of so many of the likeliest, 0 = all
  // Of the fewest of the likeliest that have this much of the probability together (A. Holtzman et
  // al., arXiv 1904.09751), counted among the top_k; 1 = all.
  double top_p = 1;
  uint64_t seed = 1234;
};

// Draws from softmax(logits / temperature), by a number that follows from the seed and `index`,
// which token of a text it is. Throws Error (Exit::run_failed) generate.numbers for scores that are
// NaN, or without a finite largest one.
int32_t sample_token(std::span<const float> logits, const Sampling& sampling, int64_t index);

}  // namespace mtl
