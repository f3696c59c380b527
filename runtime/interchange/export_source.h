// What both exports read: a checkpoint, tensor by tensor, in the type that is asked for; adapters
// are merged into the model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/interchange/merge_adapters.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

class ExportSource {
 public:
  explicit ExportSource(const std::filesystem::path& checkpoint);

  // Without adapters.
  const ModelShape& shape() const { return shape_; }
  const CheckpointReader& reader() const { return reader_; }
  // A whole parameter.
  std::vector<float> read(const std::string& name, const std::vector<int64_t>& shape);
  // The same without what an adapter adds; or a matrix of one.
  std::vector<float> stored(const std::string& name, const std::vector<int64_t>& shape);
  // Null where the checkpoint has none.
  const MergeAdapters* adapters() const { return adapters_ ? &*adapters_ : nullptr; }

 private:
  CheckpointReader reader_;
  ModelShape shape_;
  std::optional<MergeAdapters> adapters_;
};

// f32 -> bytes of `dtype`, rounded to the nearest even. Throws Error (Exit::data) ckpt.range, with
// the name of the tensor, where fp16 cannot hold a value.
std::string to_dtype(const std::vector<float>& values, DType dtype, const std::string& tensor);

}  // namespace mtl
