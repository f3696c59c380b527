// What is needed only while something is computed. The phases of a step (the head, a block's
// backward, the update) share memory: none of them reads what another has left.
#include <algorithm>

#include "runtime/plan/matrices.h"
#include "runtime/plan/memory/memory_builder.h"

namespace mtl {

namespace {

constexpr int64_t kTileRows = 128;  // of a matrix product's result: parts of whole tiles waste none

void add_float8_scratch(ArenaBuilder& arena, const ModelShape& shape, const MemoryNeeds& needs) {
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
  arena.add(kFloat8ExpertNumbers, DType::f32, {3, kFloat8Numbers});
}

// What latent attention makes queries, keys and values of, on the way to qkv and back.
void add_latent_scratch(ArenaBuilder& arena, const ModelShape& shape, const RankDims& d,
                        DType compute, bool training) {
  if (!shape.has_latents()) return;
  arena.add(kQueries, compute, {d.n, d.queries});
  arena.add("attn.pairs", compute, {d.n, d.pairs});
  arena.add("attn.latents", compute, {d.n, shape.latent_width()});
  if (!training) return;
  const int64_t q_rank = shape.latent.q_rank, kv_rank = shape.latent.kv_rank;
  if (q_rank > 0) arena.add("attn.dq_latent", compute, {d.n, q_rank});
  arena.add("attn.dkv_latent", compute, {d.n, kv_rank});
  arena.add("attn.dnormed_latent", compute, {d.n, std::max(q_rank, kv_rank)});
}

// Of the linear that is at work: what its adapter's inner width is of x and of dy, and in backward
// what the adapter adds where a GELU before the linear has the sum's gradient.
void add_adapter_scratch(ArenaBuilder& arena, const ModelShape& shape, const RankDims& d,
                         DType compute, bool training) {
  if (!shape.lora) return;
  arena.add(kAdapterX, compute, {d.n, shape.lora.rank});
  if (!training) return;
  arena.add(kAdapterDy, compute, {d.n, shape.lora.rank});
  if (shape.activation == Activation::gelu_tanh && shape.lora.down) {
    arena.add(kAdapterDx, compute, {d.n, d.ffn});
  }
}

// What Muon orthogonalizes matrices in.
void add_matrix_scratch(ArenaBuilder& arena, const MemoryNeeds& needs) {
  const DType type = matrix_type(needs.compute);
  const MatrixNeeds& of = needs.matrices;
  const auto add = [&](const char* name, int64_t elements) {
    if (elements > 0) arena.add(name, type, {elements});
  };
  add("muon.parts", of.parts);
  add("muon.arrived", of.arrived);
  add("muon.whole", of.whole);
  add("muon.columns", of.columns);
  add("muon.segment", of.segment);
  add("muon.next", of.matrix);
  add("muon.gram", of.gram);
  add("muon.gram_squared", of.gram);
}

}  // namespace

int64_t logits_rows(int64_t tokens, int64_t most) {
  const int64_t parts = (tokens + most - 1) / most;
  const int64_t rows = (tokens + parts - 1) / parts;
  if (rows <= kTileRows) return rows;
  return std::min(tokens, (rows + kTileRows - 1) / kTileRows * kTileRows);
}

void add_scratch(ArenaBuilder& arena, const ModelShape& shape, const ParamLayout& layout,
                 const MemoryNeeds& needs, size_t table_rows) {
  const RankDims d(shape, needs);
  const DType compute = needs.compute;
  arena.category = MemoryCategory::scratch;
  const int64_t begin = arena.at();
  const bool head = std::any_of(needs.chunks.begin(), needs.chunks.end(),
                                [](const ChunkRange& chunk) { return chunk.head; });
  const bool sends = std::any_of(needs.chunks.begin(), needs.chunks.end(),
                                 [](const ChunkRange& chunk) { return !chunk.head; });
  if (shape.position == PositionType::rope) {
    const int64_t positions = needs.training ? needs.seq : needs.context;
    arena.add(kRopeTable, DType::f32, {positions, shape.rotary_dim()});
    if (shape.window_rope_base > 0) {
      arena.add(kWindowRopeTable, DType::f32, {positions, shape.rotary_dim()});
    }
  }
  arena.add("branch", compute, {d.n, d.h});  // output of a block before the residual
  if (sends) arena.add(kChunkOutput, compute, {d.stream, d.h});
  add_adapter_scratch(arena, shape, d, compute, needs.training);
  if (!needs.training) {
    if (shape.experts > 0) arena.add("mlp.token_rows", compute, {d.rows, d.h});
    add_latent_scratch(arena, shape, d, compute, false);
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
  if (shape.qk_norm_whole) arena.add("attn.qk_products", DType::f32, {2, d.n});
  if (d.cp > 1) {
    arena.add("attn.dcontext_by_head", compute, {d.all, d.own_context()});
    arena.add("attn.dqkv_by_head", compute, {d.all, d.own_qkv()});
    arena.add("attn.blocks", compute, {needs.seq * d.own_qkv()});  // on their way, forward too
  }
  const int64_t room = arena.at();  // nothing lies here when attention itself goes back
  add_latent_scratch(arena, shape, d, compute, true);
  arena.add("attn.dnormed", compute, {d.n, d.h});
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
  if (shape.gated()) {
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
  if (needs.optimizer == OptimizerKind::muon) add_matrix_scratch(arena, needs);
  arena.go_to_end();
  const int64_t end = arena.at();
  arena.go_to(room);
  arena.add(kAttentionRoom, DType::u8, {end - room});
  arena.count(begin);
}

}  // namespace mtl
