// The arguments of ops over many parameters at once: the gradient norm, and the optimizers.
#pragma once

#include <cstdint>

#include "runtime/device/tensor.h"

namespace mtl {

// Elements of a cell; fixed, so that sums do not depend on the layout of threads.
inline constexpr int64_t kNormChunk = 4096;

// Ops over many parameters at once, in flat buffers. A piece is what a rank has of one parameter:
// elements that lie together. It is cut into cells where the buffer of the gradients has multiples
// of kNormChunk, so its first and last may be short.
struct Piece {
  int64_t offset = 0;   // of the first element in the buffer of gradients
  int64_t weight = 0;   // in that of weights
  int64_t state = 0;    // in those of the optimizer's state
  int64_t second = 0;   // but in that of AdamW's second moments
  int64_t count = 0;    // elements, at least one
  int64_t cells = 0;    // of the pieces before it in its table
  int64_t partial = 0;  // sum_squares: where the sum of its first cell goes
  int64_t decays = 0;   // 1: weight decay applies
};
// Pieces that lie together in a table that was made once and is the device's.
struct Pieces {
  Tensor table;            // u8 [count * sizeof(Piece)]
  int64_t first_cell = 0;  // Piece::cells of the first
  int64_t cells = 0;       // of all of them
  int64_t count() const { return table.numel() / static_cast<int64_t>(sizeof(Piece)); }
};

// A range of a sum, in a table of the device.
struct ElementRange {
  int64_t first = 0, count = 0;
};

// partials[piece.partial + i] = the sum of squares of the piece's cell i, f64; x f32.
struct SumSquares {
  Pieces pieces;
  Tensor x, partials;
};

// What the gradients of an update are to be multiplied by, of sums that are on the device: the host
// need not know them to enqueue the update.
struct GradientScale {
  Tensor row_squares;     // f64 [n]: sums of squares of the gradients, by parameter
  Tensor loss;            // f64 [1]: no update where it is not finite
  Tensor counted;         // f64 [1]: tokens that the loss counts
  double tokens = 1;      // that the gradients were made the mean over
  double loss_scale = 1;  // that the gradients have
  double clip = 0;        // the largest norm; 0 = any
  // f64 [1], written: sqrt(the sum of row_squares) / loss_scale * correction, with correction =
  // tokens / counted, or 0 where nothing counts.
  Tensor norm;
  // f32 [1], written: min(1, clip / (norm + 1e-6)) / loss_scale * correction; NaN where loss or
  // norm is not finite.
  Tensor factor;
};

struct AdamW {
  Pieces pieces;
  // f32; beside weights in bf16 u16: what those lack of the masters (common/half.h), so that both
  // together are the state, in as many bytes. Without `weights` the masters are the weights and lie
  // where these would.
  Tensor master;
  Tensor exp_avg, exp_avg_sq, grad;  // f32
  // For the matmuls: bf16, a part of the masters, or f16, a rounded copy of them; absent when the
  // compute type is f32 (master is used)
  Tensor weights;
  // f32 [1], multiplied into grad before use (clipping, and 1 / loss scale). NaN: nothing changes.
  Tensor factor;
  float lr = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  // Decoupled (arXiv 1711.05101): master -= lr * weight_decay * master. Else it is Adam (arXiv
  // 1412.6980) with an L2 penalty: weight_decay * master is added to the scaled gradient.
  float weight_decay = 0;  // of pieces that decay
  bool decoupled = true;
  int64_t step = 1;  // counts from 1, for the bias corrections
};

// PyTorch's SGD: g = grad * factor + weight_decay * master, buffer = momentum * buffer + g,
// master -= lr * buffer. The buffer begins as zeros.
struct Sgd {
  Pieces pieces;
  Tensor master, momentum_buffer, grad, weights, factor;  // as in AdamW
  float lr = 0, momentum = 0.9f, weight_decay = 0;
};

// Lion (X. Chen et al., arXiv 2302.06675): g = grad * factor,
// master -= lr * (sign(beta1 * exp_avg + (1 - beta1) * g) + weight_decay * master), and then
// exp_avg = beta2 * exp_avg + (1 - beta2) * g.
struct Lion {
  Pieces pieces;
  Tensor master, exp_avg, grad, weights, factor;  // as in AdamW
  float lr = 0, beta1 = 0.9f, beta2 = 0.99f, weight_decay = 0;
};

// The direction of Muon (K. Jordan et al., 2024), in place of the gradient: g = grad * factor,
// buffer = momentum * buffer + (1 - momentum) * g, grad = buffer, or with `nesterov`
// momentum * buffer + (1 - momentum) * g. The buffer begins as zeros. A factor of NaN: nothing
// changes.
struct Momentum {
  Pieces pieces;
  Tensor buffer, grad, factor;  // f32
  float momentum = 0.95f;
  bool nesterov = true;
};

// A step along what lies in place of the gradient: master -= lr * (grad + weight_decay * master).
// The factor only says whether there is a step: NaN, and nothing changes.
struct Descend {
  Pieces pieces;
  Tensor master, grad, weights, factor;  // as in AdamW
  float lr = 0, weight_decay = 0;        // of pieces that decay
};

}  // namespace mtl
