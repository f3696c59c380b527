#include "runtime/data/numpy_random.h"

#include <numeric>

namespace mtl {

namespace {

// The reference implementation's init_by_array seeds with this first.
constexpr uint32_t kArraySeed = 19650218;

}  // namespace

Mt19937::Mt19937(uint64_t seed) {
  const auto low = static_cast<uint32_t>(seed), high = static_cast<uint32_t>(seed >> 32);
  if (high == 0) {
    seed_by_word(low);
    return;
  }
  // init_by_array of the two words.
  seed_by_word(kArraySeed);
  const std::array<uint32_t, 2> key = {low, high};
  size_t i = 1, j = 0;
  const auto next = [&] {
    if (++i < kWords) return;
    words_[0] = words_[kWords - 1];
    i = 1;
  };
  const auto mixed = [&](uint32_t factor) {
    return words_[i] ^ ((words_[i - 1] ^ (words_[i - 1] >> 30)) * factor);
  };
  for (size_t k = 0; k < kWords; ++k) {
    words_[i] = mixed(1664525u) + key[j] + static_cast<uint32_t>(j);
    next();
    j = (j + 1) % key.size();
  }
  for (size_t k = 0; k < kWords - 1; ++k) {
    words_[i] = mixed(1566083941u) - static_cast<uint32_t>(i);
    next();
  }
  words_[0] = 0x80000000u;
}

void Mt19937::seed_by_word(uint32_t seed) {
  words_[0] = seed;
  for (uint32_t i = 1; i < kWords; ++i) {
    words_[i] = 1812433253u * (words_[i - 1] ^ (words_[i - 1] >> 30)) + i;
  }
}

void Mt19937::refill() {
  constexpr size_t kAhead = 397;
  const auto twisted = [](uint32_t upper, uint32_t lower) {
    const uint32_t both = (upper & 0x80000000u) | (lower & 0x7fffffffu);
    return (both >> 1) ^ ((lower & 1) != 0 ? 0x9908b0dfu : 0u);
  };
  for (size_t i = 0; i < kWords; ++i) {
    words_[i] = words_[(i + kAhead) % kWords] ^ twisted(words_[i], words_[(i + 1) % kWords]);
  }
  at_ = 0;
}

uint64_t numpy_interval(Mt19937& random, uint64_t max) {
  if (max == 0) return 0;
  uint64_t mask = max;
  for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
  uint64_t value = 0;
  do {
    value = (max <= 0xffffffffu ? random.next32() : random.next64()) & mask;
  } while (value > max);
  return value;
}

std::vector<uint32_t> torch_randperm(uint32_t count, uint64_t seed) {
  Mt19937 random(seed & 0xffffffffu);
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  for (uint32_t i = 0; i + 1 < count; ++i) {
    std::swap(order[i], order[i + random.next32() % (count - i)]);
  }
  return order;
}

}  // namespace mtl
