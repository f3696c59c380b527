#include "runtime/model/context_parallel.h"

#include <algorithm>

namespace mtl {

ColumnSection ContextParallel::section(int64_t heads, int64_t head_dim) const {
  return {.columns = heads * head_dim, .pieces = std::min<int64_t>(heads, size())};
}

// A rank's block for each of the others: its tokens of their heads. Received, the blocks of all
// ranks are the rows of the whole sequence in their order.
ColumnBlocks ContextParallel::blocks_of(Tensor share, Tensor whole,
                                        const Sections& sections) const {
  return {.rows = share,
          .blocks = Tensor(blocks_.slice(0, whole.numel()).data, whole.dtype,
                           {whole.rows(), whole.cols()}),
          .parts = size(),
          .sections = sections};
}

void ContextParallel::scatter_heads(Tensor share, Tensor whole, const Sections& sections) const {
  const ColumnBlocks blocks = blocks_of(share, whole, sections);
  device_.regroup_columns(blocks);
  exchange(blocks.blocks, whole);
}

void ContextParallel::gather_heads(Tensor whole, Tensor share, const Sections& sections) const {
  ColumnBlocks blocks = blocks_of(share, whole, sections);
  blocks.to_rows = true;
  exchange(whole, blocks.blocks);
  device_.regroup_columns(blocks);
}

void ContextParallel::gather(Tensor share, Tensor whole) const {
  device_.anew([this, share, whole] { group_.all_gather(share, whole); });
}

void ContextParallel::exchange(Tensor from, Tensor to) const {
  device_.anew([this, from, to] { group_.all_to_all(from, to); });
}

}  // namespace mtl
