#include "runtime/engine/layout_matrix.h"

#include <algorithm>
#include <functional>
#include <vector>

#include <doctest/doctest.h>

#include "support/specs.h"

namespace mtl::test::layout_matrix {

bool runs_all(Model model) {
  return std::ranges::find(kMainModels, model) != kMainModels.end();
}

TrainSpec spec_of(Model model) {
  TrainSpec spec = spec_with({.layers = 8, .micro_batch = 1});
  spec.model.dropout.hidden = 0.1;
  // Costs much of the time of so small a model, and knows nothing of experts.
  spec.model.dropout.attention =
      model == Model::gpt2_untied || model == Model::llama_tied || model == Model::neox ? 0.1 : 0.0;
  spec.model.tie_embeddings = model == Model::gpt2_tied || model == Model::llama_tied;
  if (model == Model::llama_tied || model == Model::llama_untied || model == Model::mixtral) {
    spec.model.kv_heads = 2;
    spec.model.ffn = 80;
    use_llama_blocks(spec);
    spec.model.position.scaling = {.type = "yarn", .factor = 4, .original_max_seq = 16};
    spec.model.qk_norm = true;
    if (model == Model::llama_untied) spec.model.position.fraction = 0.5;
    if (model == Model::llama_tied) {
      spec.model.activation = "geglu";
      spec.model.embedding_scale = 3;
    }
  }
  if (model == Model::mixtral) {
    spec.model.moe = {.experts = 4, .topk = 2, .aux_loss = 0.05, .z_loss = 0.01};
    spec.model.qk_norm = false;
  }
  if (model == Model::neox) {
    spec.model.activation = "gelu_exact";
    spec.model.position.type = "rope";
    spec.model.position.fraction = 0.5;
    spec.model.parallel_residual = true;
  }
  if (model == Model::olmo) {
    spec.model.kv_heads = 2;
    spec.model.ffn = 80;
    use_llama_blocks(spec);
    spec.model.norm.place = "output";
    spec.model.qk_norm = spec.model.qk_norm_whole = true;
  }
  if (model == Model::sandwich) {
    spec.model.norm.place = "both";
    spec.model.position.type = "rope";  // else the gradients of biases of keys are sums to 0
  }
  if (model == Model::layers) {
    spec.model.kv_heads = 2;
    spec.model.ffn = 80;
    use_llama_blocks(spec);
    spec.model.sliding_window = 5;
    spec.model.full_attention = {.every = 3, .layers = {0}};
    spec.model.position.scaling = {.type = "linear", .factor = 4};
    spec.model.position.window_base = 100;
    spec.model.position.skip = {.every = 4, .layers = {1, 2}};
    spec.model.attention_scale = 0.5;
    spec.model.attention_cap = 1;
    spec.model.logit_cap = 3;
  }
  if (model == Model::sinks) {
    spec.model.kv_heads = 2;
    use_llama_blocks(spec);
    spec.model.ffn = 48;
    spec.model.sliding_window = 5;
    spec.model.full_attention = {.every = 2};
    spec.model.bias = spec.model.attention_sinks = true;
    spec.model.activation = "quick_geglu";
    spec.model.glu_offset = 1;
    spec.model.glu_clamp = 0.3;
    spec.model.moe = {.experts = 4, .topk = 2, .aux_loss = 0.05, .z_loss = 0.01};
  }
  if (model == Model::command) {
    spec.model.kv_heads = 2;
    use_llama_blocks(spec);
    spec.model.ffn = 80;
    spec.model.norm.type = "layernorm";
    spec.model.norm.bias = "false";
    spec.model.parallel_residual = spec.model.norm.shared = true;
    spec.model.residual_scale = 0.6;
    spec.model.logit_scale = 0.5;
    spec.model.head_bias = true;
  }
  spec.train.seed = 11;
  spec.lr.max = 1e-3;
  spec.lr.warmup = 2;
  return spec;
}

Trajectory train(const TrainSpec& spec, Layout layout, int64_t steps, int32_t vocab) {
  const auto source = markov_tokens(20'000, vocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, spec.train.seed);
  Trajectory result;
  run_layout(spec, vocab, layout, [&](RankContext& rank) {
    rank.trainer.initialise();
    collect(rank.trainer, Which::master, result.initial);
    rank.trainer.gradients(0, *source, sampler);
    collect(rank.trainer, Which::grad, result.first_gradients);
    for (int64_t step = 0; step < steps; ++step) {
      const StepResult done = rank.trainer.step(step, *source, sampler, {});
      if (rank.rank == 0) {
        result.losses.push_back(done.loss);
        result.norms.push_back(done.grad_norm);
        result.scales.push_back(done.loss_scale);
        result.aux.push_back(done.moe_aux_loss);
        result.z.push_back(done.moe_z_loss);
        result.turns.push_back(done.moe_turns);
      }
      if (step + 1 != kBitSteps) continue;
      collect(rank.trainer, Which::master, result.weights);
      const double valid = rank.trainer.evaluate(*source, 7);
      if (rank.rank == 0) result.valid = valid;
    }
  });
  return result;
}

void check_bits(const Trajectory& a, const Trajectory& b) {
  const auto begin_of = [&](const std::vector<double>& all) {
    return std::vector<double>(all.begin(), all.begin() + kBitSteps);
  };
  CHECK(a.initial == b.initial);
  CHECK(a.first_gradients == b.first_gradients);
  CHECK(a.losses == begin_of(b.losses));
  CHECK(a.norms == begin_of(b.norms));
  CHECK(a.scales == begin_of(b.scales));
  CHECK(a.weights == b.weights);
  CHECK(a.valid == b.valid);
}

void check_near(const Trajectory& split, const Trajectory& single, const Bounds& bounds) {
  CHECK(split.initial == single.initial);
  CHECK(split.scales == single.scales);
  CHECK(split.losses[0] == doctest::Approx(single.losses[0]).epsilon(bounds.first_loss));
  CHECK(split.norms[0] == doctest::Approx(single.norms[0]).epsilon(bounds.first_gradient));
  for (const auto& [name, gradient] : single.first_gradients) {
    CAPTURE(name);
    CHECK(relative_error(split.first_gradients.at(name), gradient) < bounds.first_gradient);
  }
  for (size_t step = 0; step < single.losses.size(); ++step) {
    CAPTURE(step);
    CHECK(split.losses[step] == doctest::Approx(single.losses[step]).epsilon(bounds.loss));
  }
  CHECK(split.valid == doctest::Approx(single.valid).epsilon(bounds.loss));
}

std::vector<Variant> in_shards(Layout layout) {
  const auto with = [](void (*zero)(TrainSpec&), auto change) {
    return [zero, change](TrainSpec& s) {
      zero(s);
      change(s);
    };
  };
  const auto full_of_3 = [](TrainSpec& s) {
    s.recompute.mode = "full";
    s.recompute.layers = 3;
  };
  const auto no_overlap = [](TrainSpec& s) {
    s.parallel.overlap = {
        .grad_reduce = false, .param_gather = "false", .p2p = false, .tp = "false"};
  };
  // Of two layers or three.
  const auto larger_buckets = [](TrainSpec& s) { s.parallel.bucket_mb = 0.08; };
  return {{"zero 2", layout, zero2, true},
          {"zero 3", layout, zero3, true},
          {"zero 2 full recompute", layout, with(zero2, full)},
          {"zero 3 full recompute", layout, with(zero3, full), true},
          {"zero 3 full recompute of 3", layout, with(zero3, full_of_3)},
          {"zero 3 selective recompute", layout, with(zero3, selective)},
          {"zero 2 no overlap", layout, with(zero2, no_overlap)},
          {"zero 3 no overlap", layout, with(zero3, no_overlap)},
          {"zero 2 larger buckets", layout, with(zero2, larger_buckets)},
          {"zero 3 larger buckets", layout, with(zero3, larger_buckets), true}};
}

void check_variants(const TrainSpec& spec, const Trajectory& base,
                    const std::vector<Variant>& variants, bool all) {
  for (const Variant& variant : variants) {
    if (!all && !variant.any_head) continue;
    CAPTURE(variant.name);
    TrainSpec changed = spec;
    variant.change(changed);
    check_bits(train(changed, variant.layout, kBitSteps), base);
  }
}
void check_rows(const TrainSpec& spec, const std::vector<Row>& rows, bool all,
                const std::function<Bounds(const Row&)>& bounds) {
  const Trajectory single = train(spec, {}, kSteps);
  if (!kSanitized) CHECK(single.losses.back() < single.losses.front());
  for (const Row& row : rows) {
    if (!all && !row.any_head) continue;
    CAPTURE(row.base.tp);
    CAPTURE(row.base.dp);
    CAPTURE(row.base.cp);
    CAPTURE(row.base.ep);
    CAPTURE(row.base.zero_ranks);
    CAPTURE(row.sequence_parallel);
    TrainSpec divided = spec;
    divided.parallel.sp = row.sequence_parallel ? "true" : "false";
    const Trajectory base = row.base.world() == 1 ? single : train(divided, row.base, kSteps);
    check_near(base, single, bounds(row));
    check_variants(divided, base, row.variants, all);
  }
}

}  // namespace mtl::test::layout_matrix
