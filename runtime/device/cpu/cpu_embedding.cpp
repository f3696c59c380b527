// Token and position embeddings, and the fused additions with dropout.
#include <cassert>
#include <cmath>
#include <cstring>

#include "runtime/device/cpu/cpu_device.h"

namespace mtl {

std::optional<kernels::Mask> mask_of(const Dropout& dropout) {
  if (!dropout) return std::nullopt;
  assert(dropout.probability < 1);
  // word >= probability * 2^32 for an integer word: the threshold is the product rounded up, exact
  // in f64 and below 2^32 for every float below 1.
  const double probability = static_cast<double>(dropout.probability);
  const auto& pass = *dropout.pass.as<const DropoutPass>();
  return kernels::Mask{.key = dropout_key(pass.step_key, dropout.layer, dropout.site),
                       .threshold = static_cast<uint32_t>(std::ceil(std::ldexp(probability, 32))),
                       .scale = static_cast<float>(1.0 / (1.0 - probability))};
}

namespace {

const kernels::Mask* pointer(const std::optional<kernels::Mask>& mask) {
  return mask ? &*mask : nullptr;
}

// The number of element `index` of the pass.
uint64_t element_of(const Dropout& dropout, int64_t index) {
  const uint64_t first = dropout ? first_dropout_element(*dropout.pass.as<const DropoutPass>(),
                                                         dropout.sequence_elements)
                                 : 0;
  return first + static_cast<uint64_t>(index);
}

}  // namespace

void CpuDevice::embedding_forward(Tensor tokens, Tensor table, int64_t first, Tensor out) {
  assert(tokens.dtype == DType::i32 && out.dtype == table.dtype);
  assert(out.rows() == tokens.numel() && out.cols() == table.cols());
  const int64_t row_bytes = table.cols() * bytes_of(table.dtype);
  const int64_t table_rows = table.rows();
  const auto* ids = tokens.as<const int32_t>();
  split_rows(tokens.numel(), table.cols(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      char* to = out.as<char>() + i * row_bytes;
      const int64_t row = ids[i] - first;
      if (row >= 0 && row < table_rows) {
        std::memcpy(to, table.as<const char>() + row * row_bytes, static_cast<size_t>(row_bytes));
      } else {
        std::memset(to, 0, static_cast<size_t>(row_bytes));
      }
    }
  });
}

// Every thread walks all tokens in order on its own columns: a row's additions happen in token
// order whatever the number of threads.
void CpuDevice::embedding_backward(Tensor tokens, Tensor dout, int64_t first, Tensor dtable) {
  assert(tokens.dtype == DType::i32 && dtable.dtype == DType::f32);
  assert(dout.rows() == tokens.numel() && dout.cols() == dtable.cols());
  const int64_t n = tokens.numel(), cols = dtable.cols(), table_rows = dtable.rows();
  const int64_t size = bytes_of(dout.dtype);
  const auto* ids = tokens.as<const int32_t>();
  const auto add_to_f32 = typed(dout.dtype).add_to_f32;
  split(cols, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = ids[i] - first;
      if (row < 0 || row >= table_rows) continue;
      add_to_f32(dout.as<const char>() + (i * cols + begin) * size,
                 dtable.as<float>() + row * cols + begin, end - begin);
    }
  });
}

void CpuDevice::position_forward(Tensor x, Tensor positions, int64_t seq, Tensor out,
                                 Dropout dropout, int64_t first_row) {
  const int64_t rows = x.rows(), cols = x.cols();
  assert(out.dtype == x.dtype && out.numel() == x.numel());
  assert(positions.dtype == x.dtype && positions.cols() == cols && positions.rows() >= seq);
  assert(seq > 0 && first_row >= 0);
  const auto mask = mask_of(dropout);
  const int64_t row_bytes = cols * bytes_of(x.dtype);
  const auto add_rows = typed(x.dtype).add_rows;
  split_rows(rows, cols, [&](int64_t begin, int64_t end) {
    add_rows({.x = x.as<char>() + begin * row_bytes,
              .addend = positions.data,
              .residual = nullptr,
              .out = out.as<char>() + begin * row_bytes,
              .rows = end - begin,
              .cols = cols,
              .row0 = first_row + begin,
              .period = seq,
              .mask = pointer(mask),
              .first_element = element_of(dropout, (first_row + begin) * cols)});
  });
}

void CpuDevice::position_backward(Tensor dout, int64_t seq, Tensor dx, Tensor dpositions,
                                  bool accumulate, Dropout dropout, int64_t first_row) {
  const int64_t rows = dout.rows(), cols = dout.cols();
  assert(dx.dtype == dout.dtype && dx.numel() == dout.numel());
  assert(dpositions.dtype == DType::f32 && dpositions.cols() == cols && dpositions.rows() >= seq);
  assert(seq > 0 && first_row >= 0);
  const auto mask = mask_of(dropout);
  // The first `seq` rows have different positions; a thread's share is some of them, each with the
  // later rows of its position.
  const int64_t distinct = std::min(rows, seq);
  const auto position_backward_range = typed(dout.dtype).position_backward;
  split_rows(distinct, (rows + seq - 1) / seq * cols, [&](int64_t begin, int64_t end) {
    position_backward_range({.dout = dout.data,
                             .dx = dx.data,
                             .dpositions = dpositions.as<float>(),
                             .rows = rows,
                             .seq = seq,
                             .cols = cols,
                             .row0 = first_row,
                             .begin = begin,
                             .end = end,
                             .accumulate = accumulate,
                             .mask = pointer(mask),
                             .first_element = element_of(dropout, first_row * cols)});
  });
  if (accumulate || distinct == seq) return;
  // The positions that no row has lie behind the last row's, around the end of the sequence.
  const int64_t missing = (first_row + rows) % seq;
  const int64_t to_end = std::min(seq - missing, seq - rows);
  fill(dpositions.slice(missing * cols, to_end * cols), 0);
  fill(dpositions.slice(0, (seq - rows - to_end) * cols), 0);
}

void CpuDevice::bias_dropout_add(const ResidualAdd& args) {
  const Tensor &x = args.x, &residual = args.residual, &out = args.out;
  const int64_t rows = x.rows(), cols = x.cols();
  assert(residual.dtype == x.dtype && residual.numel() == x.numel());
  assert(out.dtype == x.dtype && out.numel() == x.numel());
  assert(!args.bias || (args.bias.dtype == x.dtype && args.bias.numel() == cols));
  const auto mask = mask_of(args.dropout);
  const int64_t row_bytes = cols * bytes_of(x.dtype);
  const auto add_rows = typed(x.dtype).add_rows;
  split_rows(rows, cols, [&](int64_t begin, int64_t end) {
    add_rows({.x = x.as<char>() + begin * row_bytes,
              .addend = args.bias.data,
              .residual = residual.as<char>() + begin * row_bytes,
              .out = out.as<char>() + begin * row_bytes,
              .rows = end - begin,
              .cols = cols,
              .row0 = 0,
              .period = 1,
              .mask = pointer(mask),
              .first_element = element_of(args.dropout, (args.first_row + begin) * cols),
              .scale = args.scale});
  });
}

void CpuDevice::dropout_backward(const DropoutBackward& args) {
  const Tensor &dout = args.dout, &dx = args.dx;
  const int64_t rows = dout.rows(), cols = dout.cols();
  assert(dx.dtype == dout.dtype && dx.numel() == dout.numel());
  if (!args.dropout && args.scale == 1) {
    if (dx.data != dout.data) copy_from_host(dx, dout.data);
    return;
  }
  const auto mask = mask_of(args.dropout);
  const int64_t row_bytes = cols * bytes_of(dout.dtype);
  const auto add_rows = typed(dout.dtype).add_rows;
  split_rows(rows, cols, [&](int64_t begin, int64_t end) {
    add_rows({.x = dout.as<char>() + begin * row_bytes,
              .addend = nullptr,
              .residual = nullptr,
              .out = dx.as<char>() + begin * row_bytes,
              .rows = end - begin,
              .cols = cols,
              .row0 = 0,
              .period = 1,
              .mask = pointer(mask),
              .first_element = element_of(args.dropout, (args.first_row + begin) * cols),
              .scale = args.scale});
  });
}

}  // namespace mtl
