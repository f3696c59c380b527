// The numbers of numpy.random.RandomState and of torch's CPU generator: MT19937 (Matsumoto and
// Nishimura, "Mersenne Twister", TOMACS 8(1), 1998), and what they make of it to shuffle.
// Megatron's sample order is made of them, so ours is bit for bit the same only with the same
// draws.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace mtl {

class Mt19937 {
 public:
  // As RandomState(seed) and torch's manual_seed(seed) for seeds below 2^32; larger ones as
  // RandomState([low word, high word]).
  explicit Mt19937(uint64_t seed);
  uint32_t next32() {
    if (at_ == kWords) refill();
    uint32_t y = words_[at_++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
  }
  // The first word drawn is the upper half.
  uint64_t next64() {
    const uint64_t high = next32();
    return high << 32 | next32();
  }

 private:
  static constexpr size_t kWords = 624;
  void seed_by_word(uint32_t seed);
  void refill();

  std::array<uint32_t, kWords> words_;
  size_t at_ = kWords;
};

// A number from 0 to `max`, both included: numpy's random_interval, which draws until the masked
// bits are small enough.
uint64_t numpy_interval(Mt19937& random, uint64_t max);

// RandomState.shuffle of a one-dimensional array.
template <typename T>
void numpy_shuffle(Mt19937& random, T* values, int64_t count) {
  for (int64_t i = count - 1; i > 0; --i) {
    std::swap(values[i], values[numpy_interval(random, static_cast<uint64_t>(i))]);
  }
}

// torch.randperm(count, generator=torch.Generator().manual_seed(seed)) on the CPU; count below
// 2^32 / 20.
std::vector<uint32_t> torch_randperm(uint32_t count, uint64_t seed);

}  // namespace mtl
