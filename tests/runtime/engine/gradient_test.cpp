// The whole model against finite differences: every parameter of small models of both families,
// with dropout, and with every mode of recompute.
#include <cmath>

#include <doctest/doctest.h>

#include "support/layouts.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;

namespace gradient_test {

namespace {

TrainSpec tiny_spec() {
  TrainSpec spec = spec_with(
      {.hidden = 16, .heads = 2, .global_batch = 3, .micro_batch = 0, .seq_len = 6, .steps = 1});
  spec.model.dropout = {0.2, 0.2};
  spec.init.std = 0.3;  // far from linear
  return spec;
}

// RMSNorm, rotary positions, SwiGLU, two query heads per key head, no biases, a head of its own.
TrainSpec tiny_llama() {
  TrainSpec spec = tiny_spec();
  spec.model.heads = 4;
  spec.model.kv_heads = 2;
  spec.model.ffn = 24;
  use_llama_blocks(spec);
  spec.model.tie_embeddings = false;
  return spec;
}

// Every token goes to all experts: where it has a choice, a step along a gradient can change it,
// and the loss has no slope there (parity_test.cpp has choices, against PyTorch's gradients).
TrainSpec tiny_mixtral() {
  TrainSpec spec = tiny_llama();
  spec.model.moe = {.experts = 3, .topk = 3, .aux_loss = 0.1, .z_loss = 0.02};
  return spec;
}

// With every other part that a mixture may have.
TrainSpec tiny_mixture(const char* score, bool normalize, bool gate) {
  TrainSpec spec = tiny_mixtral();
  TrainSpec::Model::Moe& moe = spec.model.moe;
  moe.score = score;
  moe.normalize = normalize;
  moe.shared_ffn = 16;
  moe.shared_gate = gate;
  moe.expert_bias = moe.score == "sigmoid";
  moe.ffn = 12;
  moe.dense_layers = {1};
  moe.scale = gate ? 1.5 : 2.5;
  return spec;
}

// What the gradients are those of.
double minimised(const TrainSpec& spec, const StepResult& result) {
  const TrainSpec::Model::Moe& moe = spec.model.moe;
  return result.loss + moe.aux_loss * result.moe_aux_loss + moe.z_loss * result.moe_z_loss;
}

void check_gradients(const TrainSpec& spec) {
  const auto source = markov_tokens(200, 11);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 3);
  run_layout(spec, 11, {}, [&](RankContext& rank) {
    rank.trainer.initialise();
    GlobalTensors analytic;
    rank.trainer.gradients(0, *source, sampler);
    collect(rank.trainer, Which::grad, analytic);
    for (const ParameterState& parameter : rank.trainer.state()) {
      if (!parameter.grad) continue;  // an expert's bias
      // Along the gradient itself the change is largest, and rounding matters least: compare the
      // slope there with the gradient's norm.
      const std::vector<float>& gradient = analytic.at(parameter.row->name);
      double norm = 0;
      for (float g : gradient) norm += static_cast<double>(g) * g;
      norm = std::sqrt(norm);
      CAPTURE(parameter.row->name);
      REQUIRE(norm > 1e-6);
      float* weights = parameter.master.whole.as<float>();
      const std::vector<float> before(weights, weights + gradient.size());
      auto loss_at = [&](double distance) {
        for (size_t i = 0; i < gradient.size(); ++i) {
          weights[i] = static_cast<float>(before[i] + distance * gradient[i] / norm);
        }
        const double loss = minimised(spec, rank.trainer.gradients(0, *source, sampler));
        std::copy(before.begin(), before.end(), weights);
        return loss;
      };
      // f32 forward: losses near 3 carry 1e-7 of noise, so slopes carry 1e-7 / h; the curvature
      // term is O(h^2).
      const double h = 2e-2 / std::max(1.0, norm);
      const double slope =
          (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h);
      CHECK(slope == doctest::Approx(norm).epsilon(0.01));
    }
  });
}

}  // namespace

TEST_CASE("gradients of the whole model agree with finite differences") {
  SUBCASE("GPT-2") {
    check_gradients(tiny_spec());
  }
  SUBCASE("untied, no biases") {
    TrainSpec spec = tiny_spec();
    spec.model.tie_embeddings = false;
    spec.model.bias = false;
    check_gradients(spec);
  }
  SUBCASE("accumulated over micro-batches") {
    TrainSpec spec = tiny_spec();
    spec.train.micro_batch = 1;
    check_gradients(spec);
  }
  SUBCASE("LLaMA") {
    check_gradients(tiny_llama());
  }
  SUBCASE("LLaMA with biases and stretched frequencies and norms of queries and keys") {
    TrainSpec spec = tiny_llama();
    spec.model.head_dim = 8;  // four heads of it are not the hidden size
    spec.model.bias = true;
    spec.model.qk_norm = true;
    spec.model.position.scaling.type = "llama3";
    spec.model.position.scaling.original_max_seq = 4;
    check_gradients(spec);
  }
  SUBCASE("biases of queries and keys and values alone, under a rotation that stretches") {
    TrainSpec spec = tiny_llama();
    spec.model.qkv_bias = "true";
    spec.model.position.scaling = {.type = "yarn", .factor = 4, .original_max_seq = 6};
    spec.model.position.scaling.attention_factor = 1.5;
    check_gradients(spec);
  }
  SUBCASE("frequencies by factors of their own, for long texts") {
    TrainSpec spec = tiny_llama();
    spec.model.position.scaling = {.type = "longrope", .original_max_seq = 4};
    const auto pairs = static_cast<size_t>(spec.model.hidden / spec.model.heads / 2);
    spec.model.position.scaling.short_factor.assign(pairs, 1);
    spec.model.position.scaling.long_factor.assign(pairs, 2.5);
    check_gradients(spec);
  }
  SUBCASE("rotation of a part of every head, that stretches, behind norms of queries and keys") {
    TrainSpec spec = tiny_llama();
    spec.model.norm.type = "layernorm";
    spec.model.head_dim = 10;
    spec.model.qk_norm = true;
    spec.model.position.fraction = 0.45;  // 4 of 10
    spec.model.position.scaling = {.type = "yarn", .factor = 4, .original_max_seq = 6};
    spec.model.position.scaling.attention_factor = 1.5;
    check_gradients(spec);
  }
  SUBCASE("blocks side by side, exact GELU") {
    TrainSpec spec = tiny_spec();
    spec.model.activation = "gelu_exact";
    spec.model.position.type = "rope";
    spec.model.parallel_residual = true;
    check_gradients(spec);
  }
  SUBCASE("blocks behind one norm without a bias, what they add and logits scaled") {
    TrainSpec spec = tiny_llama();
    spec.model.norm.type = "layernorm";
    spec.model.norm.bias = "false";
    spec.model.parallel_residual = spec.model.norm.shared = true;
    spec.model.residual_scale = 0.6;
    spec.model.logit_scale = 0.5;
    spec.model.head_bias = true;
    check_gradients(spec);
  }
  SUBCASE("what blocks add scaled behind their norms, a bias of a tied head") {
    TrainSpec spec = tiny_llama();
    spec.model.norm.place = "both";
    spec.model.residual_scale = 0.6;
    spec.model.tie_embeddings = spec.model.head_bias = true;
    check_gradients(spec);
  }
  SUBCASE("layers that differ in their windows and rotations") {
    TrainSpec spec = tiny_llama();
    spec.model.layers = 4;
    spec.model.sliding_window = 3;
    spec.model.full_attention.every = 2;
    spec.model.position.window_base = 20;
    spec.model.position.skip.layers = {2, 3};
    spec.model.attention_scale = 0.7;
    check_gradients(spec);
  }
  SUBCASE("scores and logits that are capped") {
    TrainSpec spec = tiny_llama();
    spec.model.attention_scale = 1;
    spec.model.attention_cap = 1;
    spec.model.logit_cap = 3;
    check_gradients(spec);
  }
  SUBCASE("sinks of attention, bounded gates") {
    TrainSpec spec = tiny_llama();
    spec.model.attention_sinks = true;
    spec.model.activation = "quick_geglu";
    spec.model.glu_offset = 1;
    spec.model.glu_clamp = 7;
    check_gradients(spec);
  }
  SUBCASE("latents of keys and values") {
    TrainSpec spec = tiny_llama();
    spec.model.kv_heads = 0;
    spec.model.head_dim = 6;
    spec.model.latent = {.kv_rank = 10, .rope_dim = 2, .value_dim = 5};
    check_gradients(spec);
  }
  SUBCASE("latents of queries too, stretched, and their norms made again") {
    TrainSpec spec = tiny_llama();
    spec.model.kv_heads = 0;
    spec.model.head_dim = 8;
    spec.model.latent = {.kv_rank = 8, .q_rank = 12, .rope_dim = 4};
    spec.model.position.scaling = {.type = "yarn", .factor = 4, .original_max_seq = 6};
    spec.model.position.scaling.attention_factor = 1.5;
    spec.train.micro_batch = 1;
    spec.recompute.mode = "selective";
    spec.recompute.modules = {"norm", "core_attn", "latent_up"};
    check_gradients(spec);
  }
  SUBCASE("norms behind blocks, and one of all heads") {
    TrainSpec spec = tiny_llama();
    spec.model.norm.place = "output";
    spec.model.qk_norm = spec.model.qk_norm_whole = true;
    check_gradients(spec);
  }
  SUBCASE("norms before and behind blocks with biases, made again") {
    TrainSpec spec = tiny_spec();
    spec.model.norm.place = "both";
    spec.model.position.type = "rope";  // else the gradients of biases of keys are 0
    spec.train.micro_batch = 1;
    spec.recompute.mode = "full";
    check_gradients(spec);
  }
  SUBCASE("norms behind a mixture of experts") {
    TrainSpec spec = tiny_mixtral();
    spec.model.norm.place = "output";
    check_gradients(spec);
  }
  for (const bool tied : {false, true}) {
    SUBCASE(tied ? "GELU as a gate, scaled embeddings, tied head"
                 : "GELU as a gate, scaled embeddings") {
      TrainSpec spec = tiny_llama();
      spec.model.activation = "geglu";
      spec.model.embedding_scale = 3;
      spec.model.tie_embeddings = tied;
      check_gradients(spec);
    }
  }
  SUBCASE("ALiBi") {
    TrainSpec spec = tiny_spec();
    spec.model.position.type = "alibi";
    spec.model.bias = false;
    check_gradients(spec);
  }
  SUBCASE("no positions") {
    TrainSpec spec = tiny_llama();
    spec.model.position.type = "none";
    check_gradients(spec);
  }
  SUBCASE("mixture of experts") {
    check_gradients(tiny_mixtral());
  }
  SUBCASE("mixture of experts: probabilities, a block for all tokens behind a gate") {
    check_gradients(tiny_mixture("softmax", false, true));
  }
  SUBCASE("mixture of experts with biases everywhere, and sinks") {
    for (const int64_t micro_batch : {0, 1}) {
      TrainSpec spec = tiny_mixtral();
      spec.model.bias = spec.model.attention_sinks = true;
      spec.model.activation = micro_batch > 0 ? "quick_geglu" : "geglu";
      spec.model.glu_offset = 1;
      spec.train.micro_batch = micro_batch;
      check_gradients(spec);
    }
  }
  SUBCASE("mixture of experts: sigmoids, a block for all tokens") {
    check_gradients(tiny_mixture("sigmoid", true, false));
  }
  SUBCASE("mixture of experts: sigmoids as they are, over micro-batches with recompute") {
    TrainSpec spec = tiny_mixture("sigmoid", false, true);
    spec.train.micro_batch = 1;
    spec.recompute.mode = "selective";
    spec.recompute.modules = {"mlp_act"};
    check_gradients(spec);
  }
  SUBCASE("mixture of experts: a block for all tokens without a gate, with recompute") {
    TrainSpec spec = tiny_mixture("sigmoid", true, false);
    spec.recompute.mode = "selective";
    spec.recompute.modules = {"mlp_act"};
    check_gradients(spec);
  }
  SUBCASE("mixture of experts over micro-batches with recompute") {
    TrainSpec spec = tiny_mixtral();
    spec.train.micro_batch = 1;
    spec.recompute.mode = "selective";
    spec.recompute.modules = {"mlp"};
    check_gradients(spec);
  }
  SUBCASE("selective recompute") {
    TrainSpec spec = tiny_llama();
    spec.recompute.mode = "selective";
    spec.recompute.modules = {"core_attn", "mlp_act", "norm"};
    check_gradients(spec);
  }
  SUBCASE("recompute of the feed-forward block") {
    TrainSpec spec = tiny_spec();
    spec.recompute.mode = "selective";
    spec.recompute.modules = {"mlp"};
    check_gradients(spec);
  }
  SUBCASE("full recompute") {
    TrainSpec spec = tiny_llama();
    spec.recompute.mode = "full";
    spec.recompute.layers = 2;
    check_gradients(spec);
  }
}

TEST_CASE("dropout: other elements in every step and the same when a step is done again") {
  TrainSpec spec = tiny_spec();
  spec.train.steps = 2;
  const SyntheticTokens source(200, [](int64_t) { return 5; });  // all windows are equal
  const Sampler sampler(source.size(), spec.train.seq_len, SampleOrder::random, 3);
  run_layout(spec, 11, {}, [&](RankContext& rank) {
    rank.trainer.initialise();
    const double first = rank.trainer.gradients(0, source, sampler).loss;
    CHECK(rank.trainer.gradients(1, source, sampler).loss != first);
    CHECK(rank.trainer.gradients(0, source, sampler).loss == first);
  });
}

TEST_CASE("heads that other ranks have leave no gradient of their sinks from the step before") {
  TrainSpec spec = tiny_llama();
  spec.model.attention_sinks = true;
  const auto source = markov_tokens(200, 11);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 3);
  GlobalTensors fresh, later;
  for (GlobalTensors* gradients : {&fresh, &later}) {
    run_layout(spec, 11, {.cp = 2}, [&](RankContext& rank) {
      rank.trainer.initialise();
      if (gradients == &later) rank.trainer.gradients(0, *source, sampler);
      rank.trainer.gradients(1, *source, sampler);
      collect(rank.trainer, Which::grad, *gradients);
    });
  }
  CHECK(fresh == later);
  CHECK(norm_of(fresh.at("model.layers.0.self_attn.sinks")) > 0);
}

TEST_CASE("an expert without tokens has no gradient, whatever the step before left there") {
  TrainSpec spec = tiny_mixtral();
  spec.model.moe = {.experts = 12, .topk = 2, .aux_loss = 0.1};
  spec.train.global_batch = 2;
  const auto source = markov_tokens(200, 11);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 3);
  for (const int64_t micro_batch : {2, 1}) {
    CAPTURE(micro_batch);
    spec.train.micro_batch = micro_batch;
    GlobalTensors fresh, later;
    for (GlobalTensors* gradients : {&fresh, &later}) {
      run_layout(spec, 11, {}, [&](RankContext& rank) {
        rank.trainer.initialise();
        if (gradients == &later) rank.trainer.gradients(0, *source, sampler);
        rank.trainer.gradients(1, *source, sampler);
        collect(rank.trainer, Which::grad, *gradients);
      });
    }
    CHECK(fresh == later);
    int64_t idle = 0, busy = 0;
    for (const auto& [name, gradient] : fresh) {
      if (name.find(".experts.") != std::string::npos) ++(norm_of(gradient) == 0 ? idle : busy);
    }
    CHECK(idle > 0);
    CHECK(busy > idle);
  }
}

}  // namespace gradient_test
