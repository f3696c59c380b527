// How kernels go over many parameters at once: a block takes a cell of a piece
// (optimizer_arguments.h) and looks in the table which piece that is. A step copies no table and
// launches no kernel per parameter.
#pragma once

#include "runtime/device/cuda/kernels.h"

namespace mtl::cuda {

// Elements [begin, begin + count) of the flat buffer of gradients.
struct Cell {
  Piece piece;
  int64_t begin = 0;
  int count = 0;
  int64_t behind = 0;  // cells of the piece before it
  // Of its first element in the weights, in the optimizer's state and in AdamW's second moments.
  __device__ int64_t weight() const { return piece.weight + begin - piece.offset; }
  __device__ int64_t state() const { return piece.state + begin - piece.offset; }
  __device__ int64_t second() const { return piece.second + begin - piece.offset; }
};

// The pieces as a kernel takes them.
struct CellTable {
  explicit CellTable(const Pieces& of)
      : pieces(of.table.as<const Piece>()),
        count(static_cast<int>(of.count())),
        first_cell(of.first_cell),
        cells(of.cells) {}
  const Piece* pieces;
  int count;
  int64_t first_cell, cells;

  // Every thread of the block looks for itself: the same few addresses, which are in the cache.
  __device__ Cell cell(int64_t index) const {
    constexpr int64_t kCell = kNormChunk;
    index += first_cell;
    int low = 0, high = count;  // the last piece with no more cells before it than `index`
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (pieces[middle].cells <= index) {
        low = middle;
      } else {
        high = middle;
      }
    }
    Cell cell;
    cell.piece = pieces[low];
    cell.behind = index - cell.piece.cells;
    const int64_t border = (cell.piece.offset / kCell + cell.behind) * kCell;
    cell.begin = max(cell.piece.offset, border);
    cell.count =
        static_cast<int>(min(cell.piece.offset + cell.piece.count, border + kCell) - cell.begin);
    return cell;
  }
};

// op.in(cell).at<N>(i) for every pack of every cell, at<1>(i) for what is left behind its last one.
// Nothing where the update's factor is no number.
template <int N, typename Op>
__global__ void __launch_bounds__(kBlock) update_kernel(Op op, CellTable table) {
  op.grad_scale = *op.factor;
  if (op.grad_scale != op.grad_scale) return;
  const int me = static_cast<int>(threadIdx.x);
  for (int64_t index = blockIdx.x; index < table.cells; index += gridDim.x) {
    const Cell cell = table.cell(index);
    const Op here = op.in(cell);
    int done = 0;
    if ((cell.begin | cell.weight() | cell.state() | cell.second()) % N == 0) {
      const int packs = cell.count / N;
      MTL_UNROLL(4)
      for (int pack = me; pack < packs; pack += kBlock) here.template at<N>(pack * N);
      done = packs * N;
    }
    for (int i = done + me; i < cell.count; i += kBlock) here.template at<1>(i);
  }
}
template <int N, typename Op>
void update_cells(Queue& queue, const Pieces& pieces, const Op& op) {
  const CellTable table(pieces);
  launch(update_kernel<N, Op>, blocks_for(queue, table.cells, 1), dim3(kBlock), 0, queue.stream(),
         op, table);
}

}  // namespace mtl::cuda
