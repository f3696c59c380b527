// Weights that fp16 has no number for: they would be infinite, and the model would give nothing.
#pragma once

#include <cmath>
#include <string>

namespace mtl {

[[noreturn]] void fail_beyond_fp16(const std::string& tensor, float value);

// Throws Error (Exit::data) ckpt.range for a finite value that would be rounded to an infinite one:
// from halfway between 65504 and 2^16 on. What is infinite or no number stays so in any type.
inline void require_fp16(const std::string& tensor, double value) {
  const auto narrow = static_cast<float>(value);  // on the way to fp16
  if (std::abs(narrow) >= 65520 && std::isfinite(value)) fail_beyond_fp16(tensor, narrow);
}

}  // namespace mtl
