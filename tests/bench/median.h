// Of measured times the one in the middle.
#pragma once

#include <algorithm>
#include <vector>

namespace mtl {

// Of an even number the upper one of the two; `values` has at least one.
inline double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace mtl
