#include "runtime/interchange/export_source.h"

#include <cstring>

#include <nlohmann/json.hpp>

#include "common/half.h"
#include "runtime/checkpoint/fp16_range.h"

namespace mtl {

ExportSource::ExportSource(const std::filesystem::path& checkpoint)
    : reader_(checkpoint), shape_(model_shape_from_json(reader_.state().at("model"))) {
  if (shape_.lora) adapters_.emplace(shape_);
  shape_ = shape_.without_adapters();
}

std::vector<float> ExportSource::read(const std::string& name, const std::vector<int64_t>& shape) {
  std::vector<float> values = stored(name, shape);
  if (adapters_) {
    adapters_->merge(name, values, [this](const std::string& of, const std::vector<int64_t>& dims) {
      return stored(of, dims);
    });
  }
  return values;
}

std::vector<float> ExportSource::stored(const std::string& name,
                                        const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t d : shape) elements *= d;
  std::vector<float> values(static_cast<size_t>(elements));
  CheckpointTensor tensor;
  tensor.name = name;
  tensor.shape = tensor.local_shape = shape;
  tensor.rects = {
      {std::vector<int64_t>(shape.size(), 0), std::vector<int64_t>(shape.size(), 0), shape}};
  tensor.data = values.data();
  reader_.read(tensor);
  return values;
}

std::string to_dtype(const std::vector<float>& values, DType dtype, const std::string& tensor) {
  std::string bytes(values.size() * static_cast<size_t>(bytes_of(dtype)), '\0');
  if (dtype == DType::f32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::f16) require_fp16(tensor, values[i]);
    const uint16_t half = dtype == DType::bf16 ? f32_to_bf16(values[i]) : f32_to_f16(values[i]);
    std::memcpy(bytes.data() + 2 * i, &half, 2);
  }
  return bytes;
}

}  // namespace mtl
