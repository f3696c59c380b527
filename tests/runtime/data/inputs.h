// What samples give a model to read.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/data/orders.h"

namespace mtl::test {

inline std::vector<int32_t> inputs_of(const Samples& samples, int64_t first, int64_t count,
                                      int64_t seq) {
  std::vector<int32_t> inputs(static_cast<size_t>(count * seq)), targets(inputs.size());
  samples.fill(first, count, {inputs, targets});
  return inputs;
}

}  // namespace mtl::test
