// Bytes per rank, buffer by buffer. The engine allocates one arena laid out by this plan, so the
// number before the run is the number in the run. Activations are declared here as data, per block;
// blocks look their buffers up by name.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/dtype.h"
#include "runtime/plan/model_shape.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

enum class MemoryCategory { weights, gradients, optimizer, activations, scratch, io };
inline constexpr int kMemoryCategories = 6;
const char* category_name(MemoryCategory category);

struct BufferPlan {
  std::string name;  // "master", "layer3.attn.qkv", "scratch.dlogits"
  MemoryCategory category = MemoryCategory::activations;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  int64_t offset = 0;  // bytes from the start of the arena, a multiple of 256
  int64_t bytes = 0;
};

struct MemoryPlan {
  std::vector<BufferPlan> buffers;
  int64_t total_bytes = 0;
  int64_t bytes_of_category(MemoryCategory category) const;
  // nullptr if there is none (a bias of a model without biases, say).
  const BufferPlan* find(const std::string& name) const;
  std::unordered_map<std::string, size_t> index;
};

// What the buffers of a rank depend on; all ranks have the same.
struct LocalSizes {
  int64_t micro_batch = 1;  // sequences
  int64_t seq = 1;
  int tp = 1;
  bool training = true;  // false = generation: no gradients, optimizer or backward
  int64_t tokens() const { return micro_batch * seq; }
};

// Elements per partial sum of the gradient norm; the device's chunk (Device::kNormChunk) is the
// same.
inline constexpr int64_t kSquaresChunk = 4096;

// The name of a buffer that a layer's block saves: "layer3.attn.qkv".
std::string layer_buffer(int64_t layer, const char* name);

// Scratch that lives only during one phase (head, a block's backward, the update) shares its memory
// with that of the other phases.
MemoryPlan memory_plan(const ModelShape& shape, const std::vector<ParamRow>& table,
                       const ParamLayout& layout, const LocalSizes& local, DType compute);

}  // namespace mtl
