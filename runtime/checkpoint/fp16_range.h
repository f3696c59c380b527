// Weights that fp16 has no number for: they would be infinite, and the model would give nothing.
#pragma once

#include <cmath>
#include <string>

namespace mtl {

[[noreturn]] void fail_beyond_fp16(const std::string& tensor, float value);

// Whether a finite value would be rounded to an infinite one: from halfway between 65504 and 2^16
// on. What is infinite or no number stays so in any type.
inline bool is_beyond_fp16(double value) {
  const auto narrow = static_cast<float>(value);  // on the way to fp16
  return std::abs(narrow) >= 65520 && std::isfinite(value);
}

// Throws Error (Exit::data) ckpt.range for such a one.
inline void require_fp16(const std::string& tensor, double value) {
  if (is_beyond_fp16(value)) fail_beyond_fp16(tensor, static_cast<float>(value));
}

}  // namespace mtl
