// Rotary positions on the q and k heads, and the heads of latent attention.
#include <cassert>

#include "runtime/device/cpu/cpu_device.h"

namespace mtl {

void CpuDevice::rope(const Rope& args) {
  const Tensor& qkv = args.qkv;
  const int64_t rows = qkv.rows(), cols = qkv.cols();
  const int64_t turned = args.table.cols();
  assert(cols == (args.heads + 2 * args.kv_heads) * args.head_dim);
  assert(args.table.dtype == DType::f32 && turned % 2 == 0 && turned <= args.head_dim);
  assert(args.seq > 0 && args.table.rows() >= args.seq && args.first_row >= 0);
  assert(!args.positions || (args.positions.dtype == DType::i32 && args.positions.numel() == rows));
  const int64_t heads = args.heads + args.kv_heads;
  const int64_t row_bytes = cols * bytes_of(qkv.dtype);
  const auto rope_rows = typed(qkv.dtype).rope;
  split_rows(rows, heads * turned, [&](int64_t begin, int64_t end) {
    rope_rows({.x = qkv.as<char>() + begin * row_bytes,
               .table = args.table.as<float>(),
               .rows = end - begin,
               .stride = cols,
               .heads = heads,
               .dim = args.head_dim,
               .turned = turned,
               .row0 = args.first_row + begin,
               .seq = args.seq,
               .backward = args.backward,
               .positions = args.positions ? args.positions.as<const int32_t>() + begin : nullptr});
  });
}

void CpuDevice::latent_heads(const LatentHeads& args) {
  const int64_t rows = args.qkv.rows(), cols = args.qkv.cols();
  [[maybe_unused]] const int64_t pair = args.head_dim - args.rope_dim + args.value_dim;
  const DType type = args.qkv.dtype;
  assert(args.rope_dim % 2 == 0 && args.rope_dim <= args.head_dim && args.value_dim > 0);
  assert(cols == args.heads * (2 * args.head_dim + args.value_dim));
  assert(args.queries.rows() == rows && args.queries.cols() == args.heads * args.head_dim);
  assert(args.pairs.rows() == rows && args.pairs.cols() == args.heads * pair);
  assert(args.latents.rows() == rows && args.latents.cols() >= args.rope_dim);
  assert(args.queries.dtype == type && args.pairs.dtype == type && args.latents.dtype == type);
  assert(args.table.dtype == DType::f32 && args.table.cols() == args.rope_dim);
  assert(!args.positions || (args.positions.dtype == DType::i32 && args.positions.numel() == rows));
  assert(args.positions || (args.seq > 0 && args.first_position >= 0 &&
                            args.table.rows() >= args.first_position + std::min(args.seq, rows)));
  const auto latent_rows = typed(type).latent_heads;
  split_rows(rows, cols, [&](int64_t begin, int64_t end) {
    latent_rows(
        {.queries = args.queries.at(begin, 0),
         .pairs = args.pairs.at(begin, 0),
         .latents = args.latents.at(begin, args.latents.cols() - args.rope_dim),
         .qkv = args.qkv.at(begin, 0),
         .table = args.table.as<float>(),
         .rows = end - begin,
         .latent_stride = args.latents.cols(),
         .heads = args.heads,
         .dim = args.head_dim,
         .rope_dim = args.rope_dim,
         .value_dim = args.value_dim,
         .row0 = begin,
         .seq = args.seq,
         .first_position = args.first_position,
         .backward = args.backward,
         .positions = args.positions ? args.positions.as<const int32_t>() + begin : nullptr});
  });
}

}  // namespace mtl
