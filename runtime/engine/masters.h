// What a rank keeps of a parameter as f32, as checkpoints and tests see it, wherever and in
// whatever form it lies: of what is trained the masters, of what is not the weights.
#pragma once

#include <cstdint>

#include "runtime/device/device.h"

namespace mtl {

struct Masters {
  Tensor whole = {};  // f32; with f32 compute these are the weights themselves
  // Or u16 and bf16: what the weights lack, and these; or, of what is not trained, these alone, of
  // 16 bits: what they lack is lost.
  Tensor rests = {}, weights = {};

  int64_t numel() const { return whole ? whole.numel() : weights.numel(); }
  // `n` of them from element `at` on.
  void read(Device& device, int64_t at, int64_t n, float* to) const;
  // The weights too, where they are a part of them; else they are to be made from these.
  void write(Device& device, int64_t at, int64_t n, const float* from) const;
};

}  // namespace mtl
