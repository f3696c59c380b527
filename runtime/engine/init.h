// Initial weights that no layout changes: every element is drawn by a counter-based generator keyed
// by (seed, parameter name) at its global element index, so that each rank draws exactly its part.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/shard_table.h"

namespace mtl {

// The standard normal variate of element `index` of the parameter named `name`: Philox4x32-10 word
// index % 4 of counter index / 4, mapped by the inverse of the normal distribution function.
class NormalStream {
 public:
  NormalStream(uint64_t seed, const std::string& name);
  // out[i] = std * variate(first + i), rounded to f32.
  void fill(int64_t first, int64_t count, double std, float* out) const;

 private:
  uint64_t key_;
};

// The inverse of the standard normal distribution function, |relative error| < 1.2e-9 (P. J.
// Acklam's rational approximation). 0 < p < 1.
double inverse_normal(double p);

// Fills `out` with the elements [first, first + count) of a rank's tensor of `row`, flattened, of
// which `rects` are in the global one; what is in none is padding, 0.
void initialise(const ParamRow& row, const std::vector<int64_t>& local_shape,
                const std::vector<ParamRect>& rects, uint64_t seed, int64_t first, int64_t count,
                float* out);

}  // namespace mtl
