#include "runtime/interchange/foreign_tensor.h"

#include <algorithm>
#include <map>

namespace mtl {

namespace {

// Where a part lies in a tensor of `strides`: its first element, and strides by axis of the
// parameter.
struct PartPlace {
  int64_t first = 0;
  Dims strides;
};
PartPlace place_of(const ForeignPart& part, const Dims& strides) {
  PartPlace place;
  for (size_t d = 0; d < part.at.size(); ++d) place.first += part.at[d] * strides[d];
  const size_t ahead = part.at.size() - part.rect.extent.size();
  place.strides.assign(strides.begin() + static_cast<ptrdiff_t>(ahead), strides.end());
  if (part.transposed) std::reverse(place.strides.begin(), place.strides.end());
  place.strides[0] *= part.step;
  return place;
}

// Copies a part of a parameter to its place in the tensor.
void copy_part(const ForeignPart& part, const Dims& from_shape, const std::vector<float>& from,
               const Dims& to_shape, std::vector<float>& to) {
  const bool matrix = from_shape.size() == 2;
  const Dims from_stride = contiguous_strides(from_shape);
  const PartPlace place = place_of(part, contiguous_strides(to_shape));
  const int64_t rows = matrix ? part.rect.extent[0] : 1;
  const int64_t columns = part.rect.extent.back();
  const int64_t row_stride = matrix ? place.strides[0] : 0, stride = place.strides.back();
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t source = matrix ? (part.rect.offset[0] + r) * from_stride[0] + part.rect.offset[1]
                                  : part.rect.offset[0];
    const int64_t target = place.first + r * row_stride;
    for (int64_t c = 0; c < columns; ++c) {
      to[static_cast<size_t>(target + c * stride)] =
          from[static_cast<size_t>(source + c)] - part.plus;
    }
  }
}

}  // namespace

StridedTensor view_of(const ForeignPart& part, StridedTensor tensor) {
  PartPlace place = place_of(part, tensor.strides);
  tensor.skip(place.first);
  tensor.shape = part.rect.extent;
  tensor.strides = std::move(place.strides);
  if (part.transposed) {
    std::reverse(tensor.shape.begin(), tensor.shape.end());
    std::reverse(tensor.strides.begin(), tensor.strides.end());
  }
  return tensor;
}

std::vector<ForeignTensor> slices_of(const ForeignTensor& tensor) {
  if (tensor.shape.size() < 3) return {tensor};
  std::vector<ForeignTensor> slices(static_cast<size_t>(tensor.shape[0]));
  for (ForeignTensor& slice : slices) {
    slice.shape = tensor.shape;
    slice.shape[0] = 1;
  }
  for (ForeignPart part : tensor.parts) {
    ForeignTensor& slice = slices[static_cast<size_t>(part.at[0])];
    part.at[0] = 0;
    slice.parts.push_back(std::move(part));
  }
  return slices;
}

std::vector<float> assemble(const ForeignTensor& tensor, const std::vector<ParamRow>& table,
                            const std::function<std::vector<float>(const ParamRow&)>& read) {
  std::vector<float> values(static_cast<size_t>(*volume(tensor.shape)), 0.0f);
  std::map<size_t, std::vector<float>> parameters;
  for (const ForeignPart& part : tensor.parts) {
    const ParamRow& row = table[part.row];
    std::vector<float>& parameter = parameters[part.row];
    if (parameter.empty()) parameter = read(row);
    copy_part(part, row.shape, parameter, tensor.shape, values);
  }
  return values;
}

}  // namespace mtl
