// Dropout: the formula of its masks, on the host and in kernels. What changes from pass to pass
// lies in device memory and is read when an op runs, not when it is enqueued: so passes differ in
// nothing else, and a device may replay them (Device::replay).
#pragma once

#include <cstdint>

#include "runtime/device/tensor.h"

#if defined(__CUDACC__)
#define MTL_HOST_AND_DEVICE __host__ __device__
#else
#define MTL_HOST_AND_DEVICE
#endif

namespace mtl {

// Of the pass that an op belongs to, in device memory.
struct DropoutPass {
  uint64_t step_key = 0;       // dropout_step_key(seed, step)
  int64_t first_sequence = 0;  // of the pass, counted over the global batch of the step
};
static_assert(sizeof(DropoutPass) == 16, "as the memory plan has it");

// A deterministic mask: element i (counted over the *global* tensor of the global batch) is kept
// iff philox4x32-10(counter = i / 4, key)[i % 4] >= probability * 2^32, and scaled by 1 / (1 -
// probability), with
//   key = dropout_key(pass.step_key, layer, site)
//   i = pass.first_sequence * sequence_elements + the element's index in the pass, which ops
//   define.
// Depends on nothing else, so layout, micro-batching and recomputation do not change the mask.
struct Dropout {
  float probability = 0;
  int64_t layer = 0, site = 0;    // which dropout of the model it is
  int64_t sequence_elements = 0;  // of the global tensor; a multiple of 4 makes it faster
  Tensor pass = {};               // u8 [sizeof(DropoutPass)], at a multiple of 8 bytes
  explicit operator bool() const { return probability > 0; }
};

// A bijection of 64 bits in which every input bit moves about half of the output bits: the
// finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
// OOPSLA 2014).
MTL_HOST_AND_DEVICE inline uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
// One round of mixing per number, each with the golden ratio added: zeros are not a fixed point,
// and the order of the numbers matters. The keys are part of what a seed means: never change them.
MTL_HOST_AND_DEVICE inline uint64_t mix_in(uint64_t key, int64_t number) {
  return mix_bits((key ^ static_cast<uint64_t>(number)) + 0x9e3779b97f4a7c15u);
}
inline uint64_t dropout_step_key(uint64_t seed, int64_t step) {
  return mix_in(mix_in(seed, 0), step);
}
MTL_HOST_AND_DEVICE inline uint64_t dropout_key(uint64_t step_key, int64_t layer, int64_t site) {
  return mix_in(mix_in(step_key, layer), site);
}
// The number of the pass's first element.
MTL_HOST_AND_DEVICE inline uint64_t first_dropout_element(const DropoutPass& pass,
                                                          int64_t sequence_elements) {
  return static_cast<uint64_t>(pass.first_sequence) * static_cast<uint64_t>(sequence_elements);
}

}  // namespace mtl
