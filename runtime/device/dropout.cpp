// The key of one use of dropout.
#include <cstdint>

#include "runtime/device/device.h"

namespace mtl {

namespace {

// A bijection of 64 bits in which every input bit moves about half of the output bits: the
// finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
// OOPSLA 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

// One round of mixing per number, each with the golden ratio added: zeros are not a fixed point,
// and the order of the numbers matters. The result is part of what a seed means: never change it.
uint64_t dropout_key(uint64_t seed, int64_t step, int64_t layer, int64_t site) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  uint64_t key = mix(seed + kGolden);
  for (const int64_t number : {step, layer, site}) {
    key = mix((key ^ static_cast<uint64_t>(number)) + kGolden);
  }
  return key;
}

}  // namespace mtl
