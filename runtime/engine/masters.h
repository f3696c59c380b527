// The f32 master copies of what a rank keeps of a parameter, as checkpoints and tests see them,
// wherever and in whatever form they lie.
#pragma once

#include <cstdint>

#include "runtime/device/device.h"

namespace mtl {

struct Masters {
  Tensor whole = {};                // f32; with f32 compute these are the weights themselves
  Tensor rests = {}, weights = {};  // or u16 and bf16: what the weights lack, and these
  // Of what is not trained these alone, if they are 16 bits wide: what they lack is lost.

  int64_t numel() const { return whole ? whole.numel() : weights.numel(); }
  // `n` of them from element `at` on.
  void read(Device& device, int64_t at, int64_t n, float* to) const;
  // The weights too, where they are a part of them; else they are to be made from these.
  void write(Device& device, int64_t at, int64_t n, const float* from) const;
};

}  // namespace mtl
