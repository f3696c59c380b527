// Several sources as one, mixed by weights: Megatron-LM's greedy blend
// (megatron/core/datasets/helpers.cpp, build_blending_indices). Sample k comes from the source that
// lags most behind its weight; of each source the samples come in their own order.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/data/samples.h"

namespace mtl {

// Divided by their sum, added up as numpy does.
std::vector<double> normalized(std::span<const double> weights);
// Samples that Megatron makes of each source of a blend of `samples`: a little more (0.5 %) than
// its weight asks for.
std::vector<int64_t> blend_sizes(std::span<const double> normalized_weights, int64_t samples);

class BlendIndex {
 public:
  // `limits`: samples that each source has; one that has given all of them is passed over.
  BlendIndex(std::span<const double> normalized_weights, int64_t samples,
             std::span<const int64_t> limits);
  int64_t size() const { return static_cast<int64_t>(sources_.size()); }
  // Which source sample k comes from, and which of its samples it is.
  struct Place {
    int source = 0;
    int64_t sample = 0;
  };
  Place at(int64_t k) const;

 private:
  static constexpr int64_t kEvery = 1024;
  int64_t count_;
  std::vector<uint16_t> sources_;
  std::vector<int64_t> given_;  // by each source before every kEvery-th sample
};

std::unique_ptr<Samples> blended_samples(std::vector<std::unique_ptr<Samples>> sources,
                                         BlendIndex index);
// All samples of one, then all of the next.
std::unique_ptr<Samples> samples_in_turn(std::vector<std::unique_ptr<Samples>> sources);

// Helpers of samples: throws data.exhausted unless [first, first + count) is below `size`; the part
// of a batch that samples [first, first + count) of it are; writes a sample of seq_len + 1 tokens.
void check_samples(int64_t first, int64_t count, int64_t size);
SampleBatch part_of(const SampleBatch& batch, int64_t samples, int64_t first, int64_t count);
void put_sample(std::span<const int32_t> tokens, int64_t row, const SampleBatch& batch);

}  // namespace mtl
