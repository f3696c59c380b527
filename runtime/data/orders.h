// Orders of samples beside Megatron's (megatron_order.h): windows of a row of tokens, at random, in
// turn, or permuted without an index; and a permutation of samples that another order has.
#pragma once

#include <memory>

#include "runtime/data/samples.h"

namespace mtl {

// Windows as a Sampler takes them; random ones never end, nor do windows in turn with `again`.
std::unique_ptr<Samples> window_samples(std::shared_ptr<const TokenSource> row, int64_t seq_len,
                                        SampleOrder order, uint64_t seed, bool again);

// A permutation of 0 .. count - 1 of which nothing is kept: a Feistel network over the next power
// of four, walked along until it is back below `count` (J. Black and P. Rogaway, "Ciphers with
// Arbitrary Finite Domains", CT-RSA 2002). Its rounds are Philox words keyed by (seed, epoch).
class FeistelPermutation {
 public:
  FeistelPermutation(int64_t count, uint64_t seed, int64_t epoch);
  int64_t operator()(int64_t i) const;

 private:
  uint64_t encrypt(uint64_t value) const;
  uint64_t count_, seed_, epoch_;
  int half_bits_ = 1;
};
// All windows of a row once per epoch, each epoch permuted on its own; never ends.
std::unique_ptr<Samples> feistel_samples(std::shared_ptr<const TokenSource> row, int64_t seq_len,
                                         uint64_t seed);

// Megatron's cyclic sampler: in epoch e the samples of `base` come in the order of torch.randperm
// seeded with e alone. Never ends.
std::unique_ptr<Samples> cyclic_samples(std::unique_ptr<Samples> base);

// Documents in a sequence end with an EOD token.
struct DocumentOptions {
  int32_t eod = -1;
  bool mask_loss = false;  // the target behind an EOD token does not count
};
// Fills first_key, positions and, with mask_loss, targets of -1, as Megatron's
// _get_ltor_masks_and_position_ids: the token behind an EOD token has position 0 and sees nothing
// before itself.
std::unique_ptr<Samples> with_documents(std::unique_ptr<Samples> samples,
                                        const DocumentOptions& options);

}  // namespace mtl
