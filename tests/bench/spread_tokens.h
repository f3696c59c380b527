// Uniformly spread token ids: the cost of a step, and what it touches, do not depend on what they
// say.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/data/data.h"

namespace mtl {

class SpreadTokens : public TokenSource {
 public:
  explicit SpreadTokens(int64_t vocab) : vocab_(static_cast<uint64_t>(vocab)) {}
  int64_t size() const override { return 1 << 22; }
  void read(int64_t first, std::span<int32_t> out) const override {
    for (size_t i = 0; i < out.size(); ++i) {
      const uint64_t x = (static_cast<uint64_t>(first) + i) * 0x9e3779b97f4a7c15ULL;
      out[i] = static_cast<int32_t>((x >> 33) % vocab_);
    }
  }
  uint64_t fingerprint() const override { return 0; }

 private:
  uint64_t vocab_;
};

}  // namespace mtl
