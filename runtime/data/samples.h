// What the trainer reads: samples by their number in the run. Which tokens a sample is, is up to
// the order (windows of a row of tokens, Megatron's shuffled documents, blends of several); the
// number of a sample and its tokens depend on nothing but the data, the settings and the seed.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "runtime/data/data.h"

namespace mtl {

// Where `count` samples of `seq_len` tokens go, row-major [count, seq_len].
struct SampleBatch {
  std::span<int32_t> inputs, targets;  // targets: -1 = does not count
  // Of documents packed into a sequence (with_documents()); either may be empty, then it is not
  // wanted. The first token of the sequence that a token sees, and a token's place in its document.
  std::span<int32_t> first_key = {}, positions = {};
};

// Samples first .. first + count - 1.
struct SampleRange {
  int64_t first = 0, count = 0;
};

// A sample number that no run reaches: orders that never end have as many.
inline constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();

// Safe to read from several threads.
class Samples {
 public:
  virtual ~Samples() = default;
  // Samples 0 .. size() - 1 are there.
  virtual int64_t size() const = 0;
  // Samples first .. first + count - 1. Throws Error (Exit::data): data.token, data.token_range,
  // data.exhausted (no such sample).
  virtual void fill(int64_t first, int64_t count, const SampleBatch& batch) const = 0;
};

// Windows of a row of tokens. Both outlive it.
class TokenWindows : public Samples {
 public:
  TokenWindows(const TokenSource& source, const Sampler& sampler)
      : source_(source), sampler_(sampler) {}
  int64_t size() const override { return sampler_.size(); }
  void fill(int64_t first, int64_t count, const SampleBatch& batch) const override;

 private:
  const TokenSource& source_;
  const Sampler& sampler_;
};

}  // namespace mtl
