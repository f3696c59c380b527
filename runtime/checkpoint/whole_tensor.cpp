#include "runtime/checkpoint/whole_tensor.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "runtime/checkpoint/rectangles.h"

namespace mtl {

namespace {

// The rectangles that elements [at, at + n) of a row-major tensor are, in order.
std::vector<Rect> rects_of_range(const Dims& shape, int64_t at, int64_t n) {
  std::vector<Rect> rects;
  while (n > 0) {
    Dims index(shape.size());
    int64_t rest = at;
    for (size_t d = shape.size(); d-- > 0;) {
      index[d] = rest % shape[d];
      rest /= shape[d];
    }
    // The outermost axis whose inner ones are all at their beginning and fit whole.
    size_t axis = shape.size();
    int64_t inner = 1;
    while (axis > 0) {
      const size_t d = axis - 1;
      if (inner > n) break;
      axis = d;
      if (index[d] != 0 || shape[d] > n / inner) break;
      inner *= shape[d];
    }
    Rect rect{index, Dims(shape.size(), 1)};
    int64_t taken = 1;
    if (!shape.empty()) {
      int64_t unit = 1;
      for (size_t d = axis + 1; d < shape.size(); ++d) {
        rect.extent[d] = shape[d];
        unit *= shape[d];
      }
      rect.extent[axis] = std::min(shape[axis] - index[axis], n / unit);
      taken = rect.extent[axis] * unit;
    }
    rects.push_back(std::move(rect));
    at += taken;
    n -= taken;
  }
  return rects;
}

}  // namespace

std::vector<TensorInfo> tensors_of(const CheckpointReader& reader) {
  std::map<std::string, TensorInfo> tensors;
  for (const ChunkRecord& chunk : reader.chunks()) {
    TensorInfo& tensor = tensors[chunk.tensor];
    tensor.name = chunk.tensor;
    tensor.dtype = chunk.dtype;
    tensor.shape = chunk.shape;
    tensor.elements = *volume(chunk.shape);
    ++tensor.chunks;
    tensor.optimizer = chunk.file.starts_with("optim-");
  }
  std::vector<TensorInfo> list;
  for (auto& [name, tensor] : tensors) list.push_back(std::move(tensor));
  return list;
}

void refuse_adapters(const CheckpointReader& reader, const std::string& what) {
  if (!reader.state().value("model", nlohmann::json::object()).contains("lora_rank")) return;
  throw Error(Exit::usage, {.code = "ckpt.adapters",
                            .what = what,
                            .help = "mtl ckpt export merges them into the model, and mtl ckpt "
                                    "import takes that"});
}

DType dtype_of(const TensorInfo& tensor, const std::string& where) {
  for (const DType dtype :
       {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::u8}) {
    if (safetensors_name(dtype) == tensor.dtype) return dtype;
  }
  throw Error(Exit::data, Diagnostic{.code = "ckpt.shape",
                                     .what = fmt::format("{}: tensor '{}' is of type {}, which "
                                                         "this command does not know",
                                                         where, tensor.name, tensor.dtype),
                                     .help = "use a checkpoint that mtl wrote"});
}

void read_elements(CheckpointReader& reader, const TensorInfo& tensor, DType dtype, int64_t at,
                   int64_t n, void* to) {
  char* out = static_cast<char*>(to);
  for (Rect& rect : rects_of_range(tensor.shape, at, n)) {
    const int64_t bytes = *volume(rect.extent) * bytes_of(dtype);
    CheckpointTensor piece;
    piece.name = tensor.name;
    piece.dtype = dtype;
    piece.shape = tensor.shape;
    piece.local_shape = rect.extent;
    piece.rects = {{.global_offset = rect.offset,
                    .local_offset = Dims(rect.offset.size(), 0),
                    .extent = rect.extent}};
    piece.data = out;
    reader.read(piece);
    out += bytes;
  }
}

CheckpointTensor streamed(const TensorInfo& tensor, DType dtype,
                          std::function<void(int64_t at, int64_t n, void* to)> fetch) {
  CheckpointTensor out;
  out.name = tensor.name;
  out.dtype = dtype;
  out.shape = tensor.shape;
  out.local_shape = tensor.shape;
  const Dims zero(tensor.shape.size(), 0);
  out.rects = {{.global_offset = zero, .local_offset = zero, .extent = tensor.shape}};
  out.count = tensor.elements;
  out.fetch = std::move(fetch);
  out.optimizer = tensor.optimizer;
  return out;
}

}  // namespace mtl
