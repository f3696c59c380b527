#include "runtime/plan/memory.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace mtl {

const char* category_name(MemoryCategory category) {
  static constexpr std::array kNames = {"weights",     "gradients", "optimizer",
                                        "activations", "scratch",   "io"};
  return kNames[static_cast<size_t>(category)];
}

namespace {

constexpr int64_t kAlignBytes = 256;

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
}

class Builder {
 public:
  void add(MemoryCategory category, std::string name, DType dtype, std::vector<int64_t> shape) {
    place(category, std::move(name), dtype, std::move(shape), end_);
    end_ = std::max(end_, cursor_);
  }
  // Scratch of a phase shares memory with scratch of the other phases.
  void begin_phases() { base_ = phase_cursor_ = end_; }
  void phase() { phase_cursor_ = base_; }
  void add_scratch(std::string name, DType dtype, std::vector<int64_t> shape) {
    place(MemoryCategory::scratch, std::move(name), dtype, std::move(shape), phase_cursor_);
    phase_cursor_ = cursor_;
    end_ = std::max(end_, cursor_);
  }
  MemoryPlan take() {
    plan_.total_bytes = end_;
    return std::move(plan_);
  }

 private:
  void place(MemoryCategory category, std::string name, DType dtype, std::vector<int64_t> shape,
             int64_t offset) {
    BufferPlan buffer;
    buffer.name = std::move(name);
    buffer.category = category;
    buffer.dtype = dtype;
    buffer.bytes = bytes_of(dtype);
    for (int64_t d : shape) buffer.bytes *= d;
    buffer.shape = std::move(shape);
    buffer.offset = offset;
    cursor_ = offset + aligned(buffer.bytes);
    plan_.index.emplace(buffer.name, plan_.buffers.size());
    plan_.buffers.push_back(std::move(buffer));
  }

  MemoryPlan plan_;
  int64_t end_ = 0;
  int64_t cursor_ = 0;
  int64_t base_ = 0;
  int64_t phase_cursor_ = 0;
};

}  // namespace

int64_t MemoryPlan::bytes_of_category(MemoryCategory category) const {
  // Scratch overlaps, so it is measured by its extent; the others are added up.
  int64_t sum = 0, low = total_bytes, high = 0;
  for (const BufferPlan& buffer : buffers) {
    if (buffer.category != category) continue;
    sum += aligned(buffer.bytes);
    low = std::min(low, buffer.offset);
    high = std::max(high, buffer.offset + aligned(buffer.bytes));
  }
  return category == MemoryCategory::scratch ? std::max<int64_t>(0, high - low) : sum;
}

const BufferPlan* MemoryPlan::find(const std::string& name) const {
  auto it = index.find(name);
  return it == index.end() ? nullptr : &buffers[it->second];
}

std::string layer_buffer(int64_t layer, const char* name) {
  return fmt::format("layer{}.{}", layer, name);
}

MemoryPlan memory_plan(const ModelShape& shape, const std::vector<ParamRow>& table,
                       const ParamLayout& layout, const LocalSizes& local, DType compute) {
  using enum MemoryCategory;
  Builder arena;
  const int64_t n = local.tokens();
  const int64_t h = shape.hidden;
  const int64_t context = shape.heads * shape.head_dim / local.tp;
  const int64_t qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim / local.tp;
  const int64_t ffn = shape.ffn / local.tp;
  const int64_t vocab = vocab_shard(shape, local.tp, 0).rows;

  arena.add(weights, "weights", compute, {layout.total});
  if (local.training) {
    arena.add(gradients, "grads", DType::f32, {layout.total});
    if (compute != DType::f32) arena.add(optimizer, "master", DType::f32, {layout.total});
    arena.add(optimizer, "exp_avg", DType::f32, {layout.total});
    arena.add(optimizer, "exp_avg_sq", DType::f32, {layout.total});
  }

  arena.add(io, "tokens", DType::i32, {n});
  arena.add(io, "targets", DType::i32, {n});

  // What forward saves for backward, per layer: the declared lists of the blocks.
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    auto save = [&](const char* name, DType dtype, std::vector<int64_t> dims) {
      arena.add(activations, layer_buffer(layer, name), dtype, std::move(dims));
    };
    save("attn.input", compute, {n, h});
    save("attn.mean", DType::f32, {n});
    save("attn.rstd", DType::f32, {n});
    save("attn.normed", compute, {n, h});
    save("attn.qkv", compute, {n, qkv});
    save("attn.lse", DType::f32, {local.micro_batch, shape.heads / local.tp, local.seq});
    save("attn.context", compute, {n, context});
    save("mlp.input", compute, {n, h});
    save("mlp.mean", DType::f32, {n});
    save("mlp.rstd", DType::f32, {n});
    save("mlp.normed", compute, {n, h});
    save("mlp.before_gelu", compute, {n, ffn});
    save("mlp.activated", compute, {n, ffn});
  }
  arena.add(activations, "head.input", compute, {n, h});
  arena.add(activations, "head.mean", DType::f32, {n});
  arena.add(activations, "head.rstd", DType::f32, {n});
  arena.add(activations, "head.normed", compute, {n, h});
  arena.add(activations, "head.row_max", DType::f32, {n});
  // One buffer, so that both sums travel in one reduction.
  arena.add(activations, "head.sums", DType::f32, {2, n});
  arena.add(activations, "head.loss", DType::f32, {n});

  arena.add(scratch, "branch", compute, {n, h});  // output of a block before the residual
  if (!local.training) {
    arena.add(scratch, "logits", compute, {1, vocab});
    return arena.take();
  }
  arena.add(scratch, "dresidual", compute, {n, h});  // gradient of the residual stream
  // Sums of squares by row of the table, for the gradient norm, and behind them the requests
  // of all ranks (stop, checkpoint).
  arena.add(scratch, "row_squares", DType::f64, {static_cast<int64_t>(table.size()) + 2});
  arena.add(scratch, "loss_sum", DType::f64, {3});  // sum of the losses, and those requests
  arena.begin_phases();
  arena.phase();  // head
  arena.add_scratch("logits", compute, {n, vocab});
  arena.add_scratch("head.dnormed", compute, {n, h});
  arena.phase();  // attention, backward
  arena.add_scratch("attn.dcontext", compute, {n, context});
  arena.add_scratch("attn.dqkv", compute, {n, qkv});
  arena.add_scratch("attn.dnormed", compute, {n, h});
  arena.phase();  // mlp, backward
  arena.add_scratch("mlp.dbefore_gelu", compute, {n, ffn});
  arena.add_scratch("mlp.dnormed", compute, {n, h});
  arena.phase();  // update
  // Sums of squares by fixed chunks of each parameter.
  const auto parameters = static_cast<int64_t>(table.size());
  arena.add_scratch("squares", DType::f64, {layout.total / kSquaresChunk + parameters});
  return arena.take();
}

}  // namespace mtl
