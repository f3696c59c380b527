// Rotary positions on the q and k heads.
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

}  // namespace mtl
