// What an op cannot do without: the products it needs and the bytes that go in and out of it once.
// With a device's rates that is the least time it can take. What an implementation does on top
// (scores made again, a tensor read twice) is what it may lose, so it is not counted.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "runtime/device/device.h"

namespace mtl::bench {

struct OpWork {
  double flops = 0;  // of products, on the tensor cores
  double bytes = 0;  // of device memory, read and written
  bool fp8 = false;  // the products
  std::vector<Tensor> tensors = {};
};

// What a device reaches with large square products and long copies.
struct DeviceRates {
  double flops = 0, fp8_flops = 0;  // FLOP/s
  double memory = 0;                // bytes/s, read and written
};

inline double least_seconds(const OpWork& work, const DeviceRates& rates) {
  const double flops = work.fp8 ? rates.fp8_flops : rates.flops;
  return std::max(work.flops > 0 && flops > 0 ? work.flops / flops : 0,
                  rates.memory > 0 ? work.bytes / rates.memory : 0);
}

// Tensors that are absent count nothing.
inline double bytes_of(std::initializer_list<Tensor> tensors) {
  double bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor ? static_cast<double>(tensor.bytes()) : 0;
  return bytes;
}
inline OpWork moves(std::initializer_list<Tensor> tensors) {
  OpWork work{0, bytes_of(tensors)};
  for (const Tensor& tensor : tensors) {
    if (tensor) work.tensors.push_back(tensor);
  }
  return work;
}
// "BF16 [32768, 768], F32 [768]"
inline std::string words_of(const std::vector<Tensor>& tensors) {
  std::string text;
  for (const Tensor& tensor : tensors) {
    text += fmt::format("{}{} [", text.empty() ? "" : ", ", safetensors_name(tensor.dtype));
    for (int i = 0; i < tensor.rank; ++i)
      text += fmt::format("{}{}", i > 0 ? ", " : "", tensor.dim(i));
    text += ']';
  }
  return text;
}

inline OpWork work_of(const Matmul& args) {
  const int64_t k = args.transpose_a ? args.a.rows() : args.a.cols();
  OpWork work = moves({args.a, args.b, args.c, args.bias, args.aux});
  if (args.accumulate) work.bytes += bytes_of({args.c});
  work.flops = 2.0 * static_cast<double>(args.c.numel()) * static_cast<double>(k);
  work.fp8 = args.a.dtype == DType::f8_e4m3 || args.a.dtype == DType::f8_e5m2;
  return work;
}

inline OpWork work_of(const Quantize& args) {
  return moves({args.x, args.y, args.transposed});
}
inline OpWork work_of(const LayerNorm& args) {
  return moves({args.x, args.gamma, args.beta, args.y, args.mean, args.rstd});
}
inline OpWork work_of(const LayerNormBackward& args) {
  OpWork work = moves({args.dy, args.x, args.gamma, args.mean, args.rstd, args.dx});
  if (args.add_to_dx) work.bytes += bytes_of({args.dx});
  return work;
}
// The columns of the heads alone.
inline OpWork work_of(const HeadNorm& args) {
  const double share = static_cast<double>(args.heads * args.head_dim) / args.x.cols();
  return {0, 3 * share * bytes_of({args.x})};  // x in and out, raw out
}
inline OpWork work_of(const HeadNormBackward& args) {
  const double share = static_cast<double>(args.heads * args.head_dim) / args.dx.cols();
  return {0, 3 * share * bytes_of({args.dx})};  // dx in and out, raw in
}
// The columns alone, as often as the op passes over them: squares read x, products dx and raw; of
// the other two each reads or writes raw, and reads and writes the other.
inline OpWork work_of(const WideNorm& args, int times) {
  const double share = static_cast<double>(args.columns) / static_cast<double>(args.x.cols());
  return {0, times * share * bytes_of({args.x})};
}
inline OpWork work_of(const WideNormBackward& args, int times) {
  const double share = static_cast<double>(args.columns) / static_cast<double>(args.dx.cols());
  return {0, times * share * bytes_of({args.dx})};
}
inline OpWork work_of(const Swiglu& args) {
  return moves({args.x, args.y});
}
inline OpWork work_of(const SwigluBackward& args) {
  return moves({args.dy, args.x, args.dx, args.y});
}
inline OpWork work_of(const CopyColumns& args) {
  const double share = static_cast<double>(args.columns) / static_cast<double>(args.from.cols());
  return {0, 2 * share * bytes_of({args.from})};
}
inline OpWork work_of(const Rope& args) {
  const auto turned = static_cast<double>((args.heads + args.kv_heads) * args.table.cols());
  const double share = turned / static_cast<double>(args.qkv.cols());
  return {0, 2 * share * bytes_of({args.qkv})};
}

// The pairs of query and key that are seen; documents are not looked at.
inline double seen(const AttentionShape& shape) {
  const auto seq = static_cast<double>(shape.seq);
  const double window = shape.window > 0 ? std::min(static_cast<double>(shape.window), seq) : seq;
  const double keys = window - window * window / (2 * seq);
  return static_cast<double>(shape.batch * shape.heads) * seq * keys;
}
// Q K^T and P V.
inline OpWork work_of(const Attention& args) {
  OpWork work = moves({args.qkv, args.out, args.lse});
  work.flops =
      2 * seen(args.shape) * static_cast<double>(args.shape.head_dim + args.shape.values());
  return work;
}
// Scores again, dQ, dK, and of values dV and dP.
inline OpWork work_of(const AttentionBackward& args) {
  OpWork work = moves({args.qkv, args.out, args.lse, args.dout, args.dqkv});
  work.flops =
      seen(args.shape) * static_cast<double>(6 * args.shape.head_dim + 4 * args.shape.values());
  return work;
}

inline double elements_of(const Pieces& pieces) {
  return static_cast<double>(pieces.cells * kNormChunk);
}
inline OpWork work_of(const SumSquares& args) {
  return {0, 4 * elements_of(args.pieces)};
}
// Master and moments in and out, the gradient in, the copy for the matmuls out; in bf16 that is
// half of the master, and comes in as well.
inline double master_bytes(const Tensor& weights) {
  return !weights || weights.dtype == DType::bf16 ? 8 : 10;
}
inline OpWork work_of(const AdamW& args) {
  return {0, (20 + master_bytes(args.weights)) * elements_of(args.pieces)};
}
inline OpWork work_of(const Sgd& args) {
  return {0, (12 + master_bytes(args.weights)) * elements_of(args.pieces)};
}
inline OpWork work_of(const Lion& args) {
  return {0, (12 + master_bytes(args.weights)) * elements_of(args.pieces)};
}
inline OpWork work_of(const Momentum& args) {
  return {0, 16 * elements_of(args.pieces)};
}
inline OpWork work_of(const Descend& args) {
  return {0, (4 + master_bytes(args.weights)) * elements_of(args.pieces)};
}

}  // namespace mtl::bench
