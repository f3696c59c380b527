// The hash that weights and tokens of tests come from (tests/reference/README.md defines both).
#pragma once

#include <cstdint>
#include <string_view>

namespace mtl::test {

// The output function of splitmix64 for state x (Steele, Lea, Flood, OOPSLA 2014).
inline uint64_t splitmix64(uint64_t x) {
  uint64_t z = x + 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

inline uint64_t fnv1a64(std::string_view s) {
  uint64_t h = 0xcbf29ce484222325ULL;
  for (const char c : s) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return h;
}

}  // namespace mtl::test
