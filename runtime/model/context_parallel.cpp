#include "runtime/model/context_parallel.h"

#include <algorithm>

namespace mtl {

ColumnSection ContextParallel::section(int64_t heads, int64_t head_dim) const {
  return {.columns = heads * head_dim, .pieces = std::min<int64_t>(heads, size())};
}

namespace {

Tensor sequence_of(Tensor rows, int64_t sequences, int64_t number) {
  const int64_t of_one = rows.rows() / sequences;
  return rows.row_slice(number * of_one, of_one);
}

}  // namespace

// A rank's block for each of the others: its tokens, of one sequence, of their heads. Received, the
// blocks of all ranks are the rows of the whole sequence in their order.
ColumnBlocks ContextParallel::blocks_of(Tensor share, Tensor whole,
                                        const Sections& sections) const {
  return {.rows = share,
          .blocks = Tensor(blocks_.slice(0, whole.numel()).data, whole.dtype,
                           {whole.rows(), whole.cols()}),
          .parts = size(),
          .sections = sections};
}

void ContextParallel::scatter_heads(int64_t sequences, Tensor share, Tensor whole,
                                    const Sections& sections) const {
  for (int64_t i = 0; i < sequences; ++i) {
    const Tensor to = sequence_of(whole, sequences, i);
    const ColumnBlocks blocks = blocks_of(sequence_of(share, sequences, i), to, sections);
    device_.regroup_columns(blocks);
    exchange(blocks.blocks, to);
  }
}

void ContextParallel::gather_heads(int64_t sequences, Tensor whole, Tensor share,
                                   const Sections& sections) const {
  for (int64_t i = 0; i < sequences; ++i) {
    const Tensor from = sequence_of(whole, sequences, i);
    ColumnBlocks blocks = blocks_of(sequence_of(share, sequences, i), from, sections);
    blocks.to_rows = true;
    exchange(from, blocks.blocks);
    device_.regroup_columns(blocks);
  }
}

void ContextParallel::gather(int64_t sequences, Tensor share, Tensor whole) const {
  for (int64_t i = 0; i < sequences; ++i) {
    const Tensor from = sequence_of(share, sequences, i), to = sequence_of(whole, sequences, i);
    device_.anew([this, from, to] { group_.all_gather(from, to); });
  }
}

void ContextParallel::exchange(Tensor from, Tensor to) const {
  device_.anew([this, from, to] { group_.all_to_all(from, to); });
}

}  // namespace mtl
