// A tensor of a checkpoint as one row of elements, read in pieces: what commands stream from.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace mtl {

// How many elements commands hold of one at a time.
constexpr int64_t kPieceElements = int64_t{1} << 20;

// One tensor, as the manifest's chunks describe it.
struct TensorInfo {
  std::string name;
  std::string dtype;  // safetensors spelling
  std::vector<int64_t> shape;
  int64_t elements = 0;
  int chunks = 0;
  bool optimizer = false;  // in an optim-* file
};
// By name.
std::vector<TensorInfo> tensors_of(const CheckpointReader& reader);

// What takes a checkpoint's tensors for a whole model: throws Error (Exit::usage) ckpt.adapters,
// `what`, if it has adapters.
void refuse_adapters(const CheckpointReader& reader, const std::string& what);

// A type that the engine knows; throws Error (Exit::data) ckpt.shape for others.
DType dtype_of(const TensorInfo& tensor, const std::string& where);

// Copies elements [at, at + n) of the flattened tensor to `to`. Throws what read() does.
void read_elements(CheckpointReader& reader, const TensorInfo& tensor, DType dtype, int64_t at,
                   int64_t n, void* to);

// The whole tensor, or rows [first_row, first_row + rows) of it, as write_shards() takes them:
// elements come from `fetch`, which is called with places in the whole flattened tensor.
CheckpointTensor streamed(const TensorInfo& tensor, DType dtype,
                          std::function<void(int64_t at, int64_t n, void* to)> fetch);

}  // namespace mtl
