#include "runtime/plan/memory.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace mtl {

const char* category_name(MemoryCategory category) {
  static constexpr std::array kNames = {"weights", "gradients", "optimizer", "activations",
                                        "scratch"};
  return kNames[static_cast<size_t>(category)];
}

namespace {

constexpr int64_t kAlignBytes = 256;
constexpr int64_t kTileRows = 128;  // of a matrix product's result: parts of whole tiles waste none

// Lays buffers one behind the other. Where alternatives share memory, each begins at the same mark,
// and the region ends where the longest of them does.
class Builder {
 public:
  MemoryCategory category = MemoryCategory::weights;
  bool in_slot = false;
  bool on_host = false;

  void add(std::string name, DType dtype, std::vector<int64_t> shape) {
    BufferPlan buffer;
    buffer.name = std::move(name);
    buffer.category = category;
    buffer.dtype = dtype;
    buffer.bytes = bytes_of(dtype);
    for (int64_t d : shape) buffer.bytes *= d;
    buffer.shape = std::move(shape);
    buffer.in_slot = in_slot;
    buffer.on_host = on_host;
    int64_t& at = on_host ? plan_.host_bytes : at_;
    buffer.offset = at;
    at += (buffer.bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    end_ = std::max(end_, at_);
    plan_.index.emplace(buffer.name, plan_.buffers.size());
    plan_.buffers.push_back(std::move(buffer));
  }
  int64_t at() const { return at_; }
  void go_to(int64_t offset) { at_ = offset; }
  void go_to_end() { at_ = end_; }
  // Everything since `from` belongs to the category.
  void count(int64_t from) { plan_.category_bytes[static_cast<size_t>(category)] += end_ - from; }
  // What lies since `from` is slot 0 of `slots`.
  void repeat(int64_t from, int64_t slots) {
    plan_.slots = slots;
    plan_.slot_bytes = end_ - from;
    end_ += (slots - 1) * plan_.slot_bytes;
    at_ = end_;
  }
  MemoryPlan take() {
    plan_.total_bytes = end_;
    return std::move(plan_);
  }

 private:
  MemoryPlan plan_;
  int64_t at_ = 0;
  int64_t end_ = 0;
};

// The sizes that shapes are made of, on one rank.
struct Dims {
  Dims(const ModelShape& shape, const MemoryNeeds& needs)
      : n(needs.tokens()),
        stream(needs.sequence_parallel ? n / needs.tp : n),
        h(shape.hidden),
        heads(shape.heads / needs.tp),
        kv_heads(local_kv_heads(shape, needs.tp)),
        context(heads * shape.head_dim),
        qkv((heads + 2 * kv_heads) * shape.head_dim),
        ffn(shape.ffn / needs.tp),
        shared(shape.experts > 0 ? shape.shared_ffn / needs.tp : 0),
        cp(needs.cp),
        all(n * cp),
        own_heads(heads / cp),
        own_kv_heads(local_kv_heads(shape, needs.tp * needs.cp)),
        head_dim(shape.head_dim),
        seen(needs.training ? all : needs.context),
        rows(n * shape.active_experts()),
        expert_rows(needs.rows_of_experts(shape)),
        ep(needs.ep),
        vocab(vocab_shard(shape, needs.tp, 0).rows) {}
  int64_t n, stream;  // tokens, and those of the residual stream
  int64_t h, heads, kv_heads, context, qkv, ffn;
  int64_t shared;  // of the block beside the experts
  int64_t cp;
  // A rank's attention: all tokens of a sequence, and of the heads the cp'th part.
  int64_t all, own_heads, own_kv_heads, head_dim;
  int64_t seen;  // in generation those of earlier passes too, of which all else is gone
  int64_t own_context() const { return own_heads * head_dim; }
  int64_t own_qkv() const { return (own_heads + 2 * own_kv_heads) * head_dim; }
  // Of feed-forward blocks: a token has one for each of its experts. Those that the rank's tokens
  // have, and those for which its experts have memory.
  int64_t rows, expert_rows;
  int64_t ep;
  int64_t vocab;
};

// One buffer that a layer keeps, or has while it computes, forward or in backward.
struct Saved {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  bool again = false;  // it has it only while it computes
};

// The declared list of a layer of a group, whose shape it is.
std::vector<Saved> saved_by_layer(const ModelShape& shape, const MemoryNeeds& needs, int64_t layer,
                                  const LayerGroup& group) {
  const Dims d(shape, needs);
  const DType compute = needs.compute;
  const Recompute& recompute = needs.recompute;
  const bool layernorm = shape.norm == NormType::layernorm;
  std::vector<Saved> list;
  auto save = [&](std::string name, DType dtype, std::vector<int64_t> dims, bool again = false) {
    // Without backward nobody reads what a layer leaves, but for later tokens' attention.
    const bool passing = !needs.training && name != "attn.qkv";
    list.push_back({std::move(name), dtype, std::move(dims), again || passing});
  };
  std::vector<LocalLinear> float8;
  if (needs.training && needs.float8.holds(shape, layer) && !group.again) {
    float8 = float8_linears(shape, needs.share(), needs.tp, needs.ep);
  }
  // What the block beside experts multiplies these, the router and the gate ask for too.
  if (shape.experts > 0) {
    std::erase_if(float8, [](const LocalLinear& x) { return x.slot.starts_with("mlp."); });
  }
  // x of a linear. In FP8 backward multiplies its copy along the tokens, which forward makes beside
  // the other one: that is kept, and x itself only until then.
  auto save_x = [&](const char* name, const char* slot, std::vector<int64_t> dims, bool again) {
    const auto found = std::find_if(float8.begin(), float8.end(), [&](const LocalLinear& linear) {
      return linear.slot == slot && dims == std::vector{d.n, linear.in};
    });
    const bool copied = found != float8.end() && !again;
    save(name, compute, std::move(dims), again || copied);
    if (copied) save(std::string(slot) + kFloat8Kept, DType::f8_e4m3, {found->in, d.n});
  };
  save("attn.input", compute, {d.stream, d.h});
  if (layernorm) save("attn.mean", DType::f32, {d.stream});
  save("attn.rstd", DType::f32, {d.stream});
  save_x("attn.normed", "attn.qkv", {d.stream, d.h}, recompute.norms);
  save("attn.qkv", compute, {d.seen, d.own_qkv()});
  if (shape.qk_norm) {
    save("attn.raw", compute, {d.all, (d.own_heads + d.own_kv_heads) * d.head_dim});
    save("attn.q_rstd", DType::f32, {d.all, d.own_heads});
    save("attn.k_rstd", DType::f32, {d.all, d.own_kv_heads});
  }
  const int64_t sequence = needs.training ? needs.seq : needs.context;
  save("attn.lse", DType::f32, {needs.micro_batch, d.own_heads, sequence},
       recompute.core_attention);
  if (d.cp > 1) {
    save("attn.context_by_head", compute, {d.all, d.own_context()}, recompute.core_attention);
  }
  save("attn.context", compute, {needs.training ? d.n : d.seen, d.context},
       recompute.core_attention);
  if (!shape.parallel_residual) {  // else they are attention's
    save("mlp.input", compute, {d.stream, d.h});
    if (layernorm) save("mlp.mean", DType::f32, {d.stream});
    save("mlp.rstd", DType::f32, {d.stream});
  }
  save_x("mlp.normed", "mlp.up", {d.stream, d.h}, recompute.norms || recompute.mlp);
  if (shape.experts > 0) {
    save("mlp.logits", DType::f32, {d.n, shape.experts}, recompute.mlp);
    save("mlp.weights", DType::f32, {d.n, shape.experts_per_token}, recompute.mlp);
    save("mlp.experts", DType::i32, {d.n, shape.experts_per_token}, recompute.mlp);
    save("mlp.rows", DType::i32, {d.n, shape.experts_per_token}, recompute.mlp);
    save("mlp.assignments", DType::i32, {d.rows}, recompute.mlp);
    save("mlp.counts", DType::i32, {d.ep, shape.experts}, recompute.mlp);
    if (d.ep > 1) save("mlp.arrived", compute, {d.expert_rows, d.h}, recompute.mlp);
  }
  if (d.shared > 0) {
    if (shape.shared_gate) save("mlp.shared_gate", DType::f32, {d.n, 1}, recompute.mlp);
    save("mlp.shared_before_act", compute, {d.n, shape.mlp_parts() * d.shared}, recompute.mlp);
    save("mlp.shared_activated", compute, {d.n, d.shared},
         recompute.mlp_activation || recompute.mlp);
  }
  save("mlp.before_act", compute, {d.expert_rows, shape.mlp_parts() * d.ffn}, recompute.mlp);
  save_x("mlp.activated", "mlp.down", {d.expert_rows, d.ffn},
         recompute.mlp_activation || recompute.mlp);
  return list;
}

// FP8 copies of weights, and where operands lie on their way into products. None for generation,
// which is in f32.
// Where weights are whole only while they are used, layers take turns with two sets of copies, as
// the weights do.
void add_float8_weights(Builder& arena, const ModelShape& shape, const ParamLayout& layout,
                        const MemoryNeeds& needs) {
  const LayerShapes shapes(shape);
  std::vector<std::pair<int64_t, std::vector<LocalLinear>>> layers;
  for (const ChunkRange& chunk : needs.chunks) {
    for (int64_t layer = chunk.first_layer; layer < chunk.end_layer(); ++layer) {
      if (!needs.float8.holds(shape, layer)) continue;
      std::vector<LocalLinear> linears =
          float8_linears(shapes.of(layer), needs.share(), needs.tp, needs.ep);
      if (!linears.empty()) layers.emplace_back(layer, std::move(linears));
    }
  }
  const size_t sets = layout.shards_weights() ? 2 : 1;
  for (size_t set = 0; set < sets; ++set) {
    const int64_t begin = arena.at();
    for (size_t turn = set; turn < layers.size(); turn += sets) {
      if (sets > 1) arena.go_to(begin);
      const auto& [layer, linears] = layers[turn];
      // First, so that a set is known by where these are (Float8Weights), whatever kind of layer
      // has it.
      arena.add(layer_buffer(layer, kFloat8Amax), DType::f32,
                {static_cast<int64_t>(linears.size())});
      for (const LocalLinear& linear : linears) {
        const std::string name = layer_buffer(layer, linear.slot.c_str());
        arena.add(name + kFloat8Forward, DType::f8_e4m3, {linear.out, linear.in});
        arena.add(name + kFloat8Backward, DType::f8_e4m3, {linear.in, linear.out});
        arena.add(name + kFloat8Inverse, DType::f32, {1});
      }
    }
    arena.go_to_end();
  }
}

void add_float8_scratch(Builder& arena, const ModelShape& shape, const MemoryNeeds& needs) {
  if (!needs.float8.on) return;
  int64_t in = 0, out = 0, expert_in = 0, expert_out = 0;
  const auto widen = [&](const ModelShape& of_layers) {
    for (const LocalLinear& linear : float8_linears(of_layers, needs.share(), needs.tp, needs.ep)) {
      int64_t& widest_in = linear.expert >= 0 ? expert_in : in;
      int64_t& widest_out = linear.expert >= 0 ? expert_out : out;
      widest_in = std::max(widest_in, linear.in);
      widest_out = std::max(widest_out, linear.out);
    }
  };
  widen(shape);
  if (!shape.dense_layers.empty()) widen(shape.of_dense_layers());
  if (in > 0) {
    arena.add("fp8.x", DType::f8_e4m3, {needs.tokens(), in});
    arena.add("fp8.dy", DType::f8_e5m2, {needs.tokens(), out});
    arena.add("fp8.dy_by_column", DType::f8_e5m2, {out, needs.tokens()});
    arena.add("fp8.dy_inverse", DType::f32, {1});
  }
  if (expert_in == 0) return;
  // All rows may be one expert's.
  const int64_t rows = needs.rows_of_experts(shape), tokens = float8_filled_up(rows);
  arena.add(kFloat8ExpertRows, DType::u8,
            {std::max(rows * std::max(expert_in, expert_out), tokens * expert_out)});
  arena.add(kFloat8ExpertX, DType::f8_e4m3, {expert_in, tokens});
  arena.add(kFloat8ExpertNumbers, DType::f32, {3, 2});
}

void add_head(Builder& arena, const ModelShape& shape, const MemoryNeeds& needs) {
  const Dims d(shape, needs);
  arena.add("targets", DType::i32, {d.n});
  arena.add("head.input", needs.compute, {d.stream, d.h});
  if (shape.norm == NormType::layernorm) arena.add("head.mean", DType::f32, {d.stream});
  arena.add("head.rstd", DType::f32, {d.stream});
  arena.add("head.normed", needs.compute, {d.stream, d.h});
  arena.add("head.row_max", DType::f32, {d.n});
  // One buffer, so that both sums travel in one reduction.
  arena.add("head.sums", DType::f32, {2, d.n});
  arena.add("head.loss", DType::f32, {d.n});
}

// What one micro-batch on its way through one of the chunks needs, in the slot; what recompute
// makes again, in one region for all slots and layers.
void add_activations(Builder& arena, const ModelShape& shape, const MemoryNeeds& needs) {
  const Dims d(shape, needs);
  arena.category = MemoryCategory::activations;
  const int64_t slot = arena.at();
  arena.in_slot = true;
  // For whatever chunk has the slot: of the documents, of the operands in FP8, and what dropout
  // reads of the pass (two numbers of 8 bytes).
  if (needs.training && (shape.dropout_hidden > 0 || shape.dropout_attention > 0)) {
    arena.add("dropout", DType::u8, {16});
  }
  if (needs.first_keys) arena.add("first_key", DType::i32, {d.all});
  if (needs.position_ids) arena.add("position_ids", DType::i32, {d.all});
  if (needs.float8.on && needs.training) {
    arena.add(kFloat8Operands, DType::f32,
              {shape.layers, static_cast<int64_t>(kLinearSlots.size()), kFloat8Numbers});
  }
  const LayerShapes shapes(shape);
  const int64_t chunks = arena.at();
  for (const ChunkRange& chunk : needs.chunks) {
    arena.go_to(chunks);
    if (chunk.embedding) arena.add("tokens", DType::i32, {d.n});
    if (chunk.embedding && needs.training) arena.add("tied.slots", DType::i32, {d.n});
    for (const LayerGroup& group : layer_groups(needs.recompute, chunk)) {
      if (group.again && needs.recompute.distribute) {
        arena.add(layer_buffer(group.first_layer, "attn.kept"), needs.compute,
                  {d.stream / needs.tp, d.h});
      }
      for (int64_t layer = group.first_layer; layer < group.end_layer(); ++layer) {
        const std::vector<Saved> list = saved_by_layer(shapes.of(layer), needs, layer, group);
        for (const Saved& saved : list) {
          const bool input = layer == group.first_layer && &saved == &list.front();
          const bool kept = group.again ? input && !needs.recompute.distribute : !saved.again;
          if (kept) arena.add(layer_buffer(layer, saved.name.c_str()), saved.dtype, saved.shape);
        }
      }
    }
    if (chunk.head) add_head(arena, shape, needs);
  }
  arena.repeat(slot, needs.slots);
  arena.count(slot);

  const int64_t again = arena.at();
  arena.in_slot = false;
  for (const ChunkRange& chunk : needs.chunks) {
    for (const LayerGroup& group : layer_groups(needs.recompute, chunk)) {
      arena.go_to(again);
      for (int64_t layer = group.first_layer; layer < group.end_layer(); ++layer) {
        const std::vector<Saved> list = saved_by_layer(shapes.of(layer), needs, layer, group);
        for (const Saved& saved : list) {
          const bool input = layer == group.first_layer && &saved == &list.front();
          const bool made = group.again ? !(input && !needs.recompute.distribute) : saved.again;
          if (made) arena.add(layer_buffer(layer, saved.name.c_str()), saved.dtype, saved.shape);
        }
      }
    }
  }
  arena.go_to_end();
  arena.count(again);
}

void add_scratch(Builder& arena, const ModelShape& shape, const ParamLayout& layout,
                 const MemoryNeeds& needs, size_t table_rows) {
  const Dims d(shape, needs);
  const DType compute = needs.compute;
  arena.category = MemoryCategory::scratch;
  const int64_t begin = arena.at();
  const bool head = std::any_of(needs.chunks.begin(), needs.chunks.end(),
                                [](const ChunkRange& chunk) { return chunk.head; });
  const bool sends = std::any_of(needs.chunks.begin(), needs.chunks.end(),
                                 [](const ChunkRange& chunk) { return !chunk.head; });
  if (shape.position == PositionType::rope) {
    const int64_t positions = needs.training ? shape.max_seq : needs.context;
    arena.add("rope", DType::f32, {positions, shape.rotary_dim()});
  }
  arena.add("branch", compute, {d.n, d.h});  // output of a block before the residual
  if (sends) arena.add(kChunkOutput, compute, {d.stream, d.h});
  if (!needs.training) {
    if (shape.experts > 0) arena.add("mlp.token_rows", compute, {d.rows, d.h});
    arena.add("logits", compute, {1, d.vocab});
    arena.count(begin);
    return;
  }
  // Sequence parallelism: the rows of all ranks, where only the own ones are kept.
  if (needs.sequence_parallel) arena.add("gathered", compute, {d.n, d.h});
  arena.add("dresidual", compute, {d.stream, d.h});  // gradient of the residual stream
  // Sums of squares by row of the table, for the gradient norm, and behind them the requests
  // of all ranks (stop, checkpoint, saving).
  arena.add("row_squares", DType::f64, {static_cast<int64_t>(table_rows) + 3});
  arena.add("row_ranges", DType::u8, {static_cast<int64_t>(table_rows) * kRangeBytes});
  arena.add("pieces", DType::u8, {static_cast<int64_t>(layout.params.size()) * kPieceBytes});
  if (layout.wire != DType::f32) arena.add("grad_wire", layout.wire, {kRoundedAside});
  arena.add("loss_sum", DType::f64, {StepSums::kAll});
  add_float8_scratch(arena, shape, needs);
  if (d.ep > 1) arena.add("mlp.row_numbers", DType::i32, {d.expert_rows});  // 0, 1, 2, ...
  const int64_t phases = arena.at();
  if (head) {
    arena.add("logits", compute, {logits_rows(d.n, needs.logits_rows), d.vocab});
    if (needs.tp > 1) arena.add("head.dnormed", compute, {d.n, d.h});
  }
  arena.go_to(phases);  // attention, backward; some of it forward too, where sequences are divided
  arena.add("attn.dcontext", compute, {d.n, d.context});
  // With blocks side by side this waits for the end of the other's backward.
  const int64_t of_mlp = shape.parallel_residual ? arena.at() : phases;
  arena.add("attn.dqkv", compute, {d.n, d.qkv});
  arena.add("attn.dnormed", compute, {d.n, d.h});
  if (d.cp > 1) {
    arena.add("attn.dcontext_by_head", compute, {d.all, d.own_context()});
    arena.add("attn.dqkv_by_head", compute, {d.all, d.own_qkv()});
    arena.add("attn.blocks", compute, {d.all * d.own_qkv()});  // on their way, forward too
  }
  arena.go_to(of_mlp);  // mlp, backward
  if (shape.experts > 0) {
    // Rows on their way to the experts and back, forward too: the head uses the logits, which lie
    // here as well, within its own forward.
    arena.add("mlp.token_rows", compute, {d.rows, d.h});
    arena.add("mlp.dweights", DType::f32, {d.rows});
    if (d.ep > 1) {
      arena.add("mlp.products", compute, {d.expert_rows, d.h});
      arena.add("mlp.turn_counts", DType::i32, {d.ep, shape.experts});
      arena.add("mlp.row_weights", DType::f32, {2, d.rows});  // on their way, and their gradients
      arena.add("mlp.arrived_weights", DType::f32, {2, d.expert_rows});
    }
    arena.add("mlp.dlogits", compute, {d.n, shape.experts});
    arena.add("mlp.losses", DType::f32, {2, d.n});  // aux and z of each token
    if (d.cp > 1) {
      arena.add("mlp.sequence_experts", DType::i32, {d.all, shape.experts_per_token});
    }
  }
  arena.add("mlp.dbefore_act", compute, {d.expert_rows, shape.mlp_parts() * d.ffn});
  if (shape.activation == Activation::swiglu) {
    arena.add("mlp.dactivated", compute, {d.expert_rows, d.ffn});
  }
  if (d.shared > 0) {
    if (shape.shared_gate) arena.add("mlp.dshared_gate", compute, {d.n, 1});
    arena.add("mlp.dshared_before_act", compute, {d.n, shape.mlp_parts() * d.shared});
    arena.add("mlp.dshared_activated", compute, {d.n, d.shared});
  }
  arena.add("mlp.dnormed", compute, {d.n, d.h});
  if (!shape.dense_layers.empty()) {
    arena.go_to(phases);  // of dense layers, backward
    const int64_t ffn = shape.dense_layer_ffn / needs.tp;
    arena.add("mlp.dense_dbefore_act", compute, {d.n, shape.mlp_parts() * ffn});
    arena.add("mlp.dense_dactivated", compute, {d.n, ffn});
    arena.add("mlp.dense_dnormed", compute, {d.n, d.h});
  }
  arena.go_to(phases);  // update: sums of squares by chunks of the parameters
  int64_t squares = 0;
  for (const ParamPlacement& param : layout.params) {
    squares += squares_count(param.offset, param.numel);
  }
  arena.add("squares", DType::f64, {squares});
  arena.go_to_end();
  arena.count(begin);
}

}  // namespace

int64_t logits_rows(int64_t tokens, int64_t most) {
  const int64_t parts = (tokens + most - 1) / most;
  const int64_t rows = (tokens + parts - 1) / parts;
  if (rows <= kTileRows) return rows;
  return std::min(tokens, (rows + kTileRows - 1) / kTileRows * kTileRows);
}

const BufferPlan* MemoryPlan::find(const std::string& name) const {
  auto it = index.find(name);
  return it == index.end() ? nullptr : &buffers[it->second];
}

std::string layer_buffer(int64_t layer, const char* name) {
  return fmt::format("layer{}.{}", layer, name);
}

std::string stream_after(const ModelShape& shape, const ChunkRange& chunk, int64_t layer) {
  if (layer + 1 == shape.layers && chunk.head) return "head.input";
  return layer + 1 < chunk.end_layer() ? layer_buffer(layer + 1, "attn.input") : kChunkOutput;
}

MemoryPlan memory_plan(const ModelShape& shape, const ParamLayout& layout, const MemoryNeeds& needs,
                       size_t table_rows) {
  Builder arena;
  auto begin = [&](MemoryCategory category) {
    arena.category = category;
    return arena.at();
  };
  int64_t from = begin(MemoryCategory::weights);
  arena.add("weights", needs.compute, {layout.weights_total()});
  if (layout.shards_weights()) {
    arena.add("weight_shards", needs.compute, {layout.shard_total()});
  }
  if (needs.training) add_float8_weights(arena, shape, layout, needs);
  if (shape.expert_bias) arena.add(kExpertBias, DType::f32, {shape.layers, shape.experts});
  arena.count(from);
  if (needs.training) {
    from = begin(MemoryCategory::gradients);
    arena.add("grads", DType::f32, {layout.gradients_total()});
    if (layout.shards_gradients()) {
      arena.add("grad_shards", DType::f32, {layout.shard_total()});
    }
    // A tied embedding on one rank: the part that comes from the input side, for the tokens that
    // occur, so that it is added to the head's part in the same order as if it came from another
    // stage.
    const bool together =
        shape.tie_embeddings &&
        std::any_of(needs.chunks.begin(), needs.chunks.end(),
                    [](const ChunkRange& chunk) { return chunk.embedding && chunk.head; });
    if (together) {
      const int64_t at_once = layout.shards_gradients() ? 1 : needs.micro_batches;
      const int64_t rows = std::min(vocab_shard(shape, needs.tp, 0).rows, needs.tokens() * at_once);
      arena.add("tied.grad", DType::f32, {rows, shape.hidden});
      arena.add("tied.ids", DType::i32, {rows});
    }
    arena.count(from);
    from = begin(MemoryCategory::optimizer);
    arena.on_host = needs.offload;
    if (needs.compute != DType::f32) arena.add("master", DType::f32, {layout.shard_total()});
    if (needs.optimizer == OptimizerKind::sgd) {
      arena.add("momentum_buffer", DType::f32, {layout.shard_total()});
    } else {
      arena.add("exp_avg", DType::f32, {layout.shard_total()});
      arena.add("exp_avg_sq", DType::f32, {layout.shard_total()});
    }
    arena.on_host = false;
    if (shape.expert_bias) arena.add(kExpertCounts, DType::f64, {shape.layers, shape.experts});
    arena.count(from);
  }
  add_activations(arena, shape, needs);
  add_scratch(arena, shape, layout, needs, table_rows);
  return arena.take();
}

}  // namespace mtl
