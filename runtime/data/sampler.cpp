// Which window of the corpus sample `index` is. Random offsets come from Philox4x32-10 (Salmon et
// al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11): a pure function of (seed, index), so
// any rank of any layout finds its samples without asking another, and a resumed run goes on where
// it stopped.
#include <algorithm>
#include <vector>

#include <Random123/philox.h>
#include <fmt/format.h>

#include "runtime/data/blend.h"

namespace mtl {

namespace {

// Keeps these draws apart from every other use of the run's seed ("data").
constexpr uint32_t kStream = 0x64617461;

uint64_t random_bits(uint64_t seed, uint64_t index) {
  const r123::Philox4x32::ctr_type counter = {
      {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), kStream, 0}};
  const r123::Philox4x32::key_type key = {
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}};
  const auto bits = r123::Philox4x32()(counter, key);
  return bits[0] | (static_cast<uint64_t>(bits[1]) << 32);
}

// floor(bits / 2^64 * n): uniform over [0, n) to within n / 2^64.
uint64_t scale(uint64_t bits, uint64_t n) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(bits) * n) >> 64);
}

}  // namespace

Sampler::Sampler(int64_t corpus_tokens, int64_t seq_len, SampleOrder order, uint64_t seed)
    : corpus_tokens_(corpus_tokens), seq_len_(seq_len), order_(order), seed_(seed) {
  if (seq_len < 1 || corpus_tokens <= seq_len) {
    throw Error(
        Exit::data,
        Diagnostic{.code = "data.too_short",
                   .what = fmt::format("no window of {} + 1 tokens fits into a corpus of {}",
                                       seq_len, corpus_tokens),
                   .help = fmt::format("use 1 <= train.seq_len <= {}, or more data",
                                       std::max<int64_t>(corpus_tokens - 1, 1))});
  }
}

int64_t Sampler::offset(int64_t index) const {
  if (order_ == SampleOrder::sequential) {
    const int64_t windows = (corpus_tokens_ - 1) / seq_len_;
    return index % windows * seq_len_;
  }
  return static_cast<int64_t>(scale(random_bits(seed_, static_cast<uint64_t>(index)),
                                    static_cast<uint64_t>(corpus_tokens_ - seq_len_)));
}

int64_t Sampler::size() const {
  return order_ == SampleOrder::sequential ? (corpus_tokens_ - 1) / seq_len_ : kEndless;
}

void Sampler::fill(const TokenSource& source, int64_t first, int64_t count,
                   std::span<int32_t> inputs, std::span<int32_t> targets) const {
  std::vector<int32_t> window(seq_len_ + 1);
  for (int64_t i = 0; i < count; ++i) {
    source.read(offset(first + i), window);
    put_sample(window, i, {inputs, targets});
  }
}

void TokenWindows::fill(int64_t first, int64_t count, const SampleBatch& batch) const {
  sampler_.fill(source_, first, count, batch.inputs, batch.targets);
  // One document, as far as a row of tokens tells.
  std::fill(batch.first_key.begin(), batch.first_key.end(), 0);
  const size_t seq = batch.positions.size() / static_cast<size_t>(std::max<int64_t>(count, 1));
  for (size_t i = 0; i < batch.positions.size(); ++i) {
    batch.positions[i] = static_cast<int32_t>(i % seq);
  }
}

}  // namespace mtl
