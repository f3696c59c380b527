// Samples of whole documents: each sequence has as many as fit into it, and none is cut in two.
// Documents go into the fullest sequence that still has room for them, the longest first (best fit
// decreasing; H. Ding et al., "Fewer Truncations Improve Language Modeling", arXiv 2404.10830).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/data/documents.h"
#include "runtime/data/samples.h"

namespace mtl {

struct BestFitOrder {
  std::vector<int32_t> documents;  // those of the first sequence, of the second, ...
  std::vector<int64_t> begins;     // where in `documents` a sequence begins, and behind the last
  // Documents of more than seq_len + 1 tokens end there, and what is left out of them.
  int64_t cut_documents = 0, cut_tokens = 0;
  int64_t cut_unlearned = 0;  // of these, documents of which what is left is not to be learned
  int64_t sequences() const { return static_cast<int64_t>(begins.size()) - 1; }
};
// Documents with less than two tokens have nothing to foresee and are left out. Throws Error
// (Exit::data): data.too_short (nothing is left), data.loss (and nothing to be learned), data.order
// (2^31 documents and more), and what reading throws.
BestFitOrder best_fit_order(const Documents& documents, int64_t seq_len);

// The sequences in that order. With a seed permuted anew for each epoch, without end; else once,
// as they are. What a sequence has behind its documents is `padding`, which does not count. Each
// document is seen by itself, if first_key and positions are asked for.
std::unique_ptr<Samples> best_fit_samples(std::shared_ptr<const Documents> documents,
                                          std::shared_ptr<const BestFitOrder> order,
                                          int64_t seq_len, int32_t padding,
                                          std::optional<uint64_t> seed);

}  // namespace mtl
