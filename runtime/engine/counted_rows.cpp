#include "runtime/engine/counted_rows.h"

#include <algorithm>

namespace mtl {

namespace {

constexpr int64_t kSizes = 16;

}  // namespace

void CountedRows::take(std::span<const int32_t> targets_of_pass) {
  const auto tokens = std::ssize(targets_of_pass);
  const int64_t counted =
      std::ranges::count_if(targets_of_pass, [](int32_t target) { return target >= 0; });
  const int64_t unit = (tokens + kSizes - 1) / kSizes;
  rows = counted / unit * unit + unit;  // more than are counted
  if (rows >= tokens) {
    rows = 0;
    return;
  }
  rows_of_pass.assign(static_cast<size_t>(rows), 0);
  targets.assign(static_cast<size_t>(rows), -1);
  places.assign(targets_of_pass.size(), static_cast<int32_t>(counted));
  size_t row = 0;
  for (size_t i = 0; i < targets_of_pass.size(); ++i) {
    if (targets_of_pass[i] < 0) continue;
    rows_of_pass[row] = static_cast<int32_t>(i);
    targets[row] = targets_of_pass[i];
    places[i] = static_cast<int32_t>(row++);
  }
}

}  // namespace mtl
