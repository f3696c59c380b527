// The optimizer step, and the sums for the loss and the gradient norm.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <span>

#include "runtime/device/cpu/cpu_device.h"

namespace mtl {

namespace {

constexpr int64_t kCell = kNormChunk;

// (Where weights are absent their type is f32: so is their table.)
[[maybe_unused]] bool belong_together(const Tensor& master, const Tensor& weights) {
  if (weights && weights.dtype == DType::bf16) return master.dtype == DType::u16;
  return master.dtype == DType::f32 && (!weights || weights.dtype == DType::f16);
}

void* address_of(const Tensor& x, int64_t i) {
  return x ? x.as<char>() + i * bytes_of(x.dtype) : nullptr;
}

// Elements [begin, begin + count) of the flat buffer of gradients, all of one piece, and where
// those of the others lie that belong to them.
struct PiecePart {
  const Piece& piece;
  int64_t begin = 0, count = 0;
  int64_t state = 0, second = 0, weight = 0;

  // Where weights are apart, masters lie in shards as moments do; else they are the weights.
  void* master(const Tensor& masters, const Tensor& weights) const {
    return address_of(masters, weights ? state : weight);
  }
};

// What a thread does of pieces: work(PiecePart) for what its cells [first, last) of them are.
template <typename Work>
auto each_part(const Pieces& pieces, const Work& work) {
  return [&pieces, &work](int64_t first, int64_t last) {
    const std::span all(pieces.table.as<const Piece>(), static_cast<size_t>(pieces.count()));
    first += pieces.first_cell;
    last += pieces.first_cell;
    const auto behind = std::upper_bound(
        all.begin(), all.end(), first, [](int64_t cell, const Piece& p) { return cell < p.cells; });
    for (auto piece = behind - 1; piece != all.end() && piece->cells < last; ++piece) {
      const int64_t cell = piece->offset / kCell - piece->cells;  // of the buffer, of cell 0
      const int64_t begin = std::max(piece->offset, (cell + first) * kCell);
      const int64_t end = std::min(piece->offset + piece->count, (cell + last) * kCell);
      const int64_t within = begin - piece->offset;
      work(PiecePart{.piece = *piece,
                     .begin = begin,
                     .count = end - begin,
                     .state = piece->state + within,
                     .second = piece->second + within,
                     .weight = piece->weight + within});
    }
  };
}

}  // namespace

void CpuDevice::sum(Tensor x, Tensor out, bool accumulate) {
  assert(x.dtype == DType::f32 && out.dtype == DType::f64);
  // One value per token: too few to be worth threads.
  double total = accumulate ? *out.as<double>() : 0.0;
  const float* values = x.as<float>();
  for (int64_t i = 0; i < x.numel(); ++i) total += static_cast<double>(values[i]);
  *out.as<double>() = total;
}

void CpuDevice::sum_squares(const SumSquares& args) {
  assert(args.x.dtype == DType::f32 && args.partials.dtype == DType::f64);
  const float* x = args.x.as<float>();
  const auto work = [&](const PiecePart& part) {
    const int64_t begin = part.begin, end = begin + part.count;
    double* sums =
        args.partials.as<double>() + part.piece.partial + begin / kCell - part.piece.offset / kCell;
    const int64_t border = std::min(end, (begin / kCell + 1) * kCell);
    kernels_.sum_squares(x + begin, border - begin, sums);
    if (border < end) kernels_.sum_squares(x + border, end - border, sums + 1);
  };
  split(args.pieces.cells, 1, each_part(args.pieces, work));
}

void CpuDevice::sum_ranges(Tensor x, Tensor ranges, Tensor out) {
  assert(x.dtype == DType::f64 && out.dtype == DType::f64);
  assert(ranges.numel() == out.numel() * static_cast<int64_t>(sizeof(ElementRange)));
  split(out.numel(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const ElementRange range = ranges.as<const ElementRange>()[i];
      double total = 0;
      for (int64_t k = 0; k < range.count; ++k) total += x.as<double>()[range.first + k];
      out.as<double>()[i] = total;
    }
  });
}

void CpuDevice::gradient_scale(const GradientScale& args) {
  assert(args.row_squares.dtype == DType::f64 && args.factor.dtype == DType::f32);
  double total = 0;
  for (int64_t i = 0; i < args.row_squares.numel(); ++i) total += args.row_squares.as<double>()[i];
  const double counted = *args.counted.as<double>();
  const double correction = counted > 0 ? args.tokens / counted : 0.0;
  const double norm = std::sqrt(total) / args.loss_scale * correction;
  double factor = args.clip > 0 ? std::min(1.0, args.clip / (norm + 1e-6)) : 1.0;
  factor /= args.loss_scale;
  factor *= correction;
  const bool finite = std::isfinite(*args.loss.as<double>()) && std::isfinite(norm);
  *args.norm.as<double>() = norm;
  *args.factor.as<float>() =
      finite ? static_cast<float>(factor) : std::numeric_limits<float>::quiet_NaN();
}

void CpuDevice::adamw(const AdamW& args) {
  assert(args.exp_avg.dtype == DType::f32 && args.exp_avg_sq.dtype == DType::f32 &&
         args.grad.dtype == DType::f32);
  assert(belong_together(args.master, args.weights));
  assert(args.step >= 1);
  const float factor = *args.factor.as<float>();
  if (std::isnan(factor)) return;
  const double beta1 = static_cast<double>(args.beta1), beta2 = static_cast<double>(args.beta2);
  const double lr = static_cast<double>(args.lr);
  const double step = static_cast<double>(args.step);
  kernels::AdamWRange range = {};
  range.beta1 = args.beta1;
  range.one_minus_beta1 = static_cast<float>(1 - beta1);
  range.beta2 = args.beta2;
  range.one_minus_beta2 = static_cast<float>(1 - beta2);
  range.rate = static_cast<float>(lr / (1 - std::pow(beta1, step)));
  range.inverse_sqrt_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, step)));
  range.eps = args.eps;
  range.grad_scale = factor;
  const auto update = typed(args.weights.dtype).adamw;
  const auto work = [&](const PiecePart& part) {
    const float weight_decay = part.piece.decays != 0 ? args.weight_decay : 0.0f;
    const double decay = args.decoupled ? lr * static_cast<double>(weight_decay) : 0.0;
    kernels::AdamWRange share = range;
    share.keep = static_cast<float>(1 - decay);
    share.coupled_decay = args.decoupled ? 0.0f : weight_decay;
    share.master = part.master(args.master, args.weights);
    share.exp_avg = args.exp_avg.as<float>() + part.state;
    share.exp_avg_sq = args.exp_avg_sq.as<float>() + part.second;
    share.grad = args.grad.as<float>() + part.begin;
    share.weights = address_of(args.weights, part.weight);
    share.n = part.count;
    update(share);
  };
  split(args.pieces.cells, 1, each_part(args.pieces, work));
}

void CpuDevice::sgd(const Sgd& args) {
  assert(args.momentum_buffer.dtype == DType::f32 && args.grad.dtype == DType::f32);
  assert(belong_together(args.master, args.weights));
  const float factor = *args.factor.as<float>();
  if (std::isnan(factor)) return;
  const auto update = typed(args.weights.dtype).sgd;
  const auto work = [&](const PiecePart& part) {
    update({.master = part.master(args.master, args.weights),
            .momentum_buffer = args.momentum_buffer.as<float>() + part.state,
            .grad = args.grad.as<float>() + part.begin,
            .weights = address_of(args.weights, part.weight),
            .n = part.count,
            .lr = args.lr,
            .momentum = args.momentum,
            .weight_decay = part.piece.decays != 0 ? args.weight_decay : 0.0f,
            .grad_scale = factor});
  };
  split(args.pieces.cells, 1, each_part(args.pieces, work));
}

void CpuDevice::lion(const Lion& args) {
  assert(args.exp_avg.dtype == DType::f32 && args.grad.dtype == DType::f32);
  assert(belong_together(args.master, args.weights));
  const float factor = *args.factor.as<float>();
  if (std::isnan(factor)) return;
  const auto update = typed(args.weights.dtype).lion;
  const auto work = [&](const PiecePart& part) {
    update({.master = part.master(args.master, args.weights),
            .exp_avg = args.exp_avg.as<float>() + part.state,
            .grad = args.grad.as<float>() + part.begin,
            .weights = address_of(args.weights, part.weight),
            .n = part.count,
            .lr = args.lr,
            .beta1 = args.beta1,
            .beta2 = args.beta2,
            .keep = part.piece.decays != 0 ? 1 - args.lr * args.weight_decay : 1.0f,
            .grad_scale = factor});
  };
  split(args.pieces.cells, 1, each_part(args.pieces, work));
}

void CpuDevice::momentum(const Momentum& args) {
  assert(args.buffer.dtype == DType::f32 && args.grad.dtype == DType::f32);
  const float factor = *args.factor.as<float>();
  if (std::isnan(factor)) return;
  const auto work = [&](const PiecePart& part) {
    kernels_.momentum({.buffer = args.buffer.as<float>() + part.state,
                       .grad = args.grad.as<float>() + part.begin,
                       .n = part.count,
                       .momentum = args.momentum,
                       .of_buffer = args.nesterov ? args.momentum : 1.0f,
                       .of_gradient = args.nesterov ? 1 - args.momentum : 0.0f,
                       .grad_scale = factor});
  };
  split(args.pieces.cells, 1, each_part(args.pieces, work));
}

void CpuDevice::descend(const Descend& args) {
  assert(args.grad.dtype == DType::f32);
  assert(belong_together(args.master, args.weights));
  if (std::isnan(*args.factor.as<float>())) return;
  const auto update = typed(args.weights.dtype).descend;
  const auto work = [&](const PiecePart& part) {
    update({.master = part.master(args.master, args.weights),
            .grad = args.grad.as<float>() + part.begin,
            .weights = address_of(args.weights, part.weight),
            .n = part.count,
            .lr = args.lr,
            .keep = part.piece.decays != 0 ? 1 - args.lr * args.weight_decay : 1.0f});
  };
  split(args.pieces.cells, 1, each_part(args.pieces, work));
}

}  // namespace mtl
