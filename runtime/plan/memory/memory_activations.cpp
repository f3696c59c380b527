// What forward keeps for backward, block by block. Blocks look these buffers up by name.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/memory/memory_builder.h"

namespace mtl {

namespace {

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
  const RankDims d(shape, needs);
  const DType compute = needs.compute;
  const PartsAgain& recompute = group.parts;
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
  // the other one: that is kept, and x itself only until then; but adapters multiply that.
  auto copies_x = [&](const char* slot, const std::vector<int64_t>& dims) {
    return !shape.lora && std::any_of(float8.begin(), float8.end(), [&](const LocalLinear& linear) {
      return linear.slot == slot && dims == std::vector{d.n, linear.in};
    });
  };
  auto save_copy = [&](const char* slot, const std::vector<int64_t>& dims, bool again) {
    if (again || !copies_x(slot, dims)) return;
    save(std::string(slot) + kFloat8Kept, DType::f8_e4m3, {dims[1], dims[0]});
  };
  auto save_x = [&](const char* name, const char* slot, const std::vector<int64_t>& dims,
                    bool again) {
    save(name, compute, dims, again || copies_x(slot, dims));
    save_copy(slot, dims, again);
  };
  auto save_statistics = [&](const std::string& of) {
    if (layernorm) save(of + ".mean", DType::f32, {d.stream});
    save(of + ".rstd", DType::f32, {d.stream});
  };
  // Of a norm behind a block; what that makes is added at once.
  auto save_behind = [&](const std::string& block) {
    if (!shape.norms_outputs()) return;
    save(block + ".behind.input", compute, {d.stream, d.h});
    save_statistics(block + ".behind");
  };
  save("attn.input", compute, {d.stream, d.h});
  if (shape.norms_inputs()) {
    save_statistics("attn");
    const std::vector<int64_t> rows = {d.stream, d.h};
    // What blocks share is kept unless both have copies.
    const bool up_has_it = recompute.mlp || copies_x("mlp.up", rows);
    const bool other_reads = shape.shared_norm && !up_has_it;
    save("attn.normed", compute, rows,
         recompute.norms || (copies_x("attn.qkv", rows) && !other_reads));
    save_copy("attn.qkv", rows, recompute.norms);
  }
  // And of latents, what the norm before their product reads and makes, which is multiplied once
  // more where Q, K and V are made again.
  const bool qkv_again = recompute.latents && shape.has_latents();
  const auto save_latent = [&](const std::string& name, const char* slot, int64_t rank) {
    save(name, compute, {d.n, rank});
    save(name + ".rstd", DType::f32, {d.n});
    const std::string normed = name + ".normed";
    if (qkv_again) {
      save(normed, compute, {d.n, rank}, recompute.norms);
    } else {
      save_x(normed.c_str(), slot, {d.n, rank}, recompute.norms);
    }
  };
  if (shape.latent.q_rank > 0) save_latent(kQueryLatent, "attn.q", shape.latent.q_rank);
  if (shape.has_latents()) save_latent(kKeyLatent, "attn.kv", shape.latent.kv_rank);
  if (qkv_again) {
    save(kRotaryKey, compute, {d.n, shape.latent.rope_dim});
    if (shape.latent.q_rank == 0) save(kQueries, compute, {d.n, d.queries});
  }
  save("attn.qkv", compute, {d.seen, d.own_qkv()}, qkv_again);
  if (shape.qk_norm_whole) {
    save("attn.raw", compute, {d.n, (d.heads + d.kv_heads) * d.head_dim});
    save("attn.qk_squares", DType::f32, {2, d.n});
  } else if (shape.qk_norm) {
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
  save_behind("attn");
  if (!shape.parallel_residual) {  // else they are attention's
    save("mlp.input", compute, {d.stream, d.h});
    if (shape.norms_inputs()) save_statistics("mlp");
  }
  if (shape.shared_norm) {
    save_copy("mlp.up", {d.stream, d.h}, recompute.norms || recompute.mlp);
  } else if (shape.norms_inputs()) {
    save_x("mlp.normed", "mlp.up", {d.stream, d.h}, recompute.norms || recompute.mlp);
  }
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
  save_behind("mlp");
  return list;
}

void add_head(ArenaBuilder& arena, const ModelShape& shape, const MemoryNeeds& needs) {
  const RankDims d(shape, needs);
  arena.add("targets", DType::i32, {d.n});
  // Which rows count, where not all do.
  arena.add("head.rows", DType::i32, {d.n});
  arena.add("head.places", DType::i32, {d.n, 1});
  arena.add("head.input", needs.compute, {d.stream, d.h});
  if (shape.norm == NormType::layernorm) arena.add("head.mean", DType::f32, {d.stream});
  arena.add("head.rstd", DType::f32, {d.stream});
  arena.add("head.normed", needs.compute, {d.stream, d.h});
  arena.add("head.row_max", DType::f32, {d.n});
  // One buffer, so that both sums travel in one reduction.
  arena.add("head.sums", DType::f32, {2, d.n});
  arena.add("head.loss", DType::f32, {d.n});
}

// What backward of the layers of a group leaves for later.
void add_later(ArenaBuilder& arena, const ModelShape& shape, const MemoryNeeds& needs,
               const LayerGroup& group) {
  if (!group.leaves_weights()) return;
  const LayerShapes shapes(shape);
  for (int64_t layer = group.first_layer; layer < group.end_layer(); ++layer) {
    const ModelShape& of_layer = shapes.of(layer);
    const RankDims d(of_layer, needs);
    const auto add = [&](const char* name, std::vector<int64_t> dims) {
      arena.add(layer_buffer(layer, name), needs.compute, std::move(dims));
    };
    add(kAttentionStreamLater, {d.stream, d.h});
    if (shape.has_latents()) {
      add(kQueriesLater, {d.n, d.queries});
      add(kPairsLater, {d.n, d.pairs});
      add(kLatentsLater, {d.n, shape.latent_width()});
      if (shape.latent.q_rank > 0) add(kQueryLatentLater, {d.n, shape.latent.q_rank});
    } else {
      add(kQkvLater, {d.n, d.qkv});
    }
    add(kBeforeActLater, {d.expert_rows, of_layer.mlp_parts() * d.ffn});
    if (of_layer.experts > 0) {
      add(kWeightedLater, {d.expert_rows, d.h});
      add(kLogitsLater, {d.n, of_layer.experts});
    }
    if (d.shared > 0) {
      add(kSharedBeforeActLater, {d.n, of_layer.mlp_parts() * d.shared});
      if (of_layer.shared_gate) add(kSharedGateLater, {d.n, 1});
    }
    const bool reads_stream = of_layer.experts == 0 ? !of_layer.parallel_residual : d.shared > 0;
    if (reads_stream) add(kMlpStreamLater, {d.stream, d.h});
  }
}

}  // namespace

void add_activations(ArenaBuilder& arena, const ModelShape& shape, const MemoryNeeds& needs) {
  const RankDims d(shape, needs);
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
    arena.add(kFloat8Operands, DType::f32, {shape.layers, linear_slots(shape), kFloat8Numbers});
  }
  const LayerShapes shapes(shape);
  const int64_t chunks = arena.at();
  for (const ChunkRange& chunk : needs.chunks) {
    arena.go_to(chunks);
    if (chunk.embedding) arena.add("tokens", DType::i32, {d.n});
    if (chunk.embedding && needs.training && !shape.lora) {
      arena.add("tied.slots", DType::i32, {d.n});
    }
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
  arena.in_slot = false;
  if (needs.later > 0) {
    const int64_t later = arena.at();
    arena.later = true;
    for (const ChunkRange& chunk : needs.chunks) {
      arena.go_to(later);
      for (const LayerGroup& group : layer_groups(needs.recompute, chunk)) {
        add_later(arena, shape, needs, group);
      }
    }
    arena.repeat_later(later, needs.later);
    arena.later = false;
  }
  arena.count(slot);

  const int64_t again = arena.at();
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

}  // namespace mtl
