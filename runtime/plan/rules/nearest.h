// Values next to one that does not work, for the help of errors.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/plan/model_shape.h"

namespace mtl {

// Ascending, for n >= 1.
std::vector<int64_t> divisors(int64_t n);

// The values next to `value` from below and from above: "4", or "4 or 6"; `possible` ascends and is
// not empty.
std::string nearest_of(const std::vector<int64_t>& possible, int64_t value);
// The divisors of `n` next to `value`: "4", or "4 or 6".
std::string nearest_divisors(int64_t n, int64_t value);
// The positive multiples of `n` next to `value`: "8 or 12".
std::string nearest_multiples(int64_t value, int64_t n);

// The TP degrees over which heads, KV heads and ffn can be split; ascending, the first is 1.
std::vector<int64_t> tensor_degrees(const ModelShape& model);

// Whether the heads that a rank of `tp` has can be split over `cp`; KV heads may be copied.
bool heads_divide(const ModelShape& model, int64_t tp, int64_t cp);

struct Degrees {
  int tp = 1, pp = 1, dp = 1;
  int chunks = 1;  // virtual stages per rank
  bool operator==(const Degrees&) const = default;
};
// Up to three layouts of `world` ranks for which `fits` holds, those nearest to `wanted` first: by
// the factors between the degrees, then with the wanted chunks. More stages than layers, or TP
// ranks than heads, are not asked for.
std::vector<Degrees> nearest_layouts(const ModelShape& model, int world, const Degrees& wanted,
                                     const std::function<bool(const Degrees&)>& fits);

}  // namespace mtl
