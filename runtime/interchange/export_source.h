// What both exports read: a checkpoint, tensor by tensor, in the type that is asked for.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

class ExportSource {
 public:
  explicit ExportSource(const std::filesystem::path& checkpoint);

  const ModelShape& shape() const { return shape_; }
  const CheckpointReader& reader() const { return reader_; }
  // A whole parameter.
  std::vector<float> read(const std::string& name, const std::vector<int64_t>& shape);

 private:
  CheckpointReader reader_;
  ModelShape shape_;
};

// f32 -> bytes of `dtype`, rounded to the nearest even. Throws Error (Exit::data) ckpt.range, with
// the name of the tensor, where fp16 cannot hold a value.
std::string to_dtype(const std::vector<float>& values, DType dtype, const std::string& tensor);

}  // namespace mtl
