// Values next to one that does not work, for the help of errors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/model_shape.h"

namespace mtl {

// The divisors of `n` nearest below and above `value`: "4", or "4 or 6".
std::string nearest_divisors(int64_t n, int64_t value);
// The positive multiples of `n` next to `value`: "8 or 12".
std::string nearest_multiples(int64_t value, int64_t n);

struct WantedLayout {
  int tp = 1, pp = 1;
  int world = 1;
  int chunks = 1;  // virtual stages per rank
};
// Up to three layouts of `world` ranks in which heads, ffn and layers divide, those with degrees
// nearest to the wanted ones first: "tp=2 pp=2 dp=2".
std::vector<std::string> nearest_layouts(const ModelShape& model, const WantedLayout& wanted);

}  // namespace mtl
