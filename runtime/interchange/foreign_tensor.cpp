#include "runtime/interchange/foreign_tensor.h"

#include <algorithm>
#include <map>

namespace mtl {

namespace {

// Copies a part of a parameter to its place in the tensor.
void place(const ForeignPart& part, const Dims& from_shape, const std::vector<float>& from,
           const Dims& to_shape, std::vector<float>& to) {
  const bool matrix = from_shape.size() == 2;
  const Dims from_stride = contiguous_strides(from_shape), to_stride = contiguous_strides(to_shape);
  const int64_t rows = matrix ? part.rect.extent[0] : 1;
  const int64_t columns = part.rect.extent.back();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t source =
          matrix ? (part.rect.offset[0] + r) * from_stride[0] + part.rect.offset[1] + c
                 : part.rect.offset[0] + c;
      const int64_t row = part.transposed ? c : r, column = part.transposed ? r : c;
      const int64_t target =
          matrix ? (part.at[0] + row * part.row_step) * to_stride[0] + part.at[1] + column
                 : part.at[0] + c * part.row_step;
      to[static_cast<size_t>(target)] = from[static_cast<size_t>(source)] - part.plus;
    }
  }
}

}  // namespace

StridedTensor view_of(const ForeignPart& part, StridedTensor tensor) {
  for (size_t d = 0; d < part.at.size(); ++d) {
    tensor.byte_offset += part.at[d] * tensor.strides[d] * bytes_of(tensor.dtype);
  }
  tensor.shape = part.rect.extent;
  if (part.transposed) std::reverse(tensor.shape.begin(), tensor.shape.end());
  tensor.strides[0] *= part.row_step;
  return tensor;
}

std::vector<float> assemble(const ForeignTensor& tensor, const std::vector<ParamRow>& table,
                            const std::function<std::vector<float>(const ParamRow&)>& read) {
  std::vector<float> values(static_cast<size_t>(*volume(tensor.shape)), 0.0f);
  std::map<size_t, std::vector<float>> parameters;
  for (const ForeignPart& part : tensor.parts) {
    const ParamRow& row = table[part.row];
    std::vector<float>& parameter = parameters[part.row];
    if (parameter.empty()) parameter = read(row);
    place(part, row.shape, parameter, tensor.shape, values);
  }
  return values;
}

}  // namespace mtl
