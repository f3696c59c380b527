#include "runtime/plan/model_shape.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "support/specs.h"

using namespace mtl;

namespace {

// Meta's apply_scaling (llama-models, models/llama3/model.py), rule by rule.
double published_scaling(double frequency, double factor, double low, double high, double context,
                         int& branch) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < context / high) {
    branch = 0;
    return frequency;
  }
  if (wavelength > context / low) {
    branch = 2;
    return frequency / factor;
  }
  branch = 1;
  const double smooth = (context / wavelength - low) / (high - low);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

// Everything that weights depend on.
void check_equal(const ModelShape& a, const ModelShape& b) {
  CHECK(a.layers == b.layers);
  CHECK(a.hidden == b.hidden);
  CHECK(a.heads == b.heads);
  CHECK(a.kv_heads == b.kv_heads);
  CHECK(a.head_dim == b.head_dim);
  CHECK(a.ffn == b.ffn);
  CHECK(a.vocab == b.vocab);
  CHECK(a.vocab_pad_to == b.vocab_pad_to);
  CHECK(a.padded_vocab == b.padded_vocab);
  CHECK(a.max_seq == b.max_seq);
  CHECK(a.norm == b.norm);
  CHECK(a.norm_eps == b.norm_eps);
  CHECK(a.activation == b.activation);
  CHECK(a.position == b.position);
  CHECK(a.rope_base == b.rope_base);
  CHECK(a.rope_fraction == b.rope_fraction);
  CHECK(a.rope_scaling.type == b.rope_scaling.type);
  CHECK(a.rope_scaling.factor == b.rope_scaling.factor);
  CHECK(a.rope_scaling.original_max_seq == b.rope_scaling.original_max_seq);
  CHECK(a.rope_scaling.low_freq_factor == b.rope_scaling.low_freq_factor);
  CHECK(a.rope_scaling.high_freq_factor == b.rope_scaling.high_freq_factor);
  CHECK(a.rope_scaling.beta_slow == b.rope_scaling.beta_slow);
  CHECK(a.rope_scaling.beta_fast == b.rope_scaling.beta_fast);
  CHECK(a.rope_scaling.truncate == b.rope_scaling.truncate);
  CHECK(a.rope_scaling.attention_factor == b.rope_scaling.attention_factor);
  CHECK(a.window_rope_base == b.window_rope_base);
  CHECK(a.unrotated_layers == b.unrotated_layers);
  CHECK(a.full_layers == b.full_layers);
  CHECK(a.attention_scale == b.attention_scale);
  CHECK(a.attention_cap == b.attention_cap);
  CHECK(a.logit_cap == b.logit_cap);
  CHECK(a.attention_sinks == b.attention_sinks);
  CHECK(a.glu_offset == b.glu_offset);
  CHECK(a.glu_clamp == b.glu_clamp);
  CHECK(a.rope_scaling.short_factor == b.rope_scaling.short_factor);
  CHECK(a.rope_scaling.long_factor == b.rope_scaling.long_factor);
  CHECK(a.norm_place == b.norm_place);
  CHECK(a.qk_norm == b.qk_norm);
  CHECK(a.qk_norm_whole == b.qk_norm_whole);
  CHECK(a.latent.kv_rank == b.latent.kv_rank);
  CHECK(a.latent.q_rank == b.latent.q_rank);
  CHECK(a.latent.rope_dim == b.latent.rope_dim);
  CHECK(a.latent.value_dim == b.latent.value_dim);
  CHECK(a.latent.norm_eps == b.latent.norm_eps);
  CHECK(a.parallel_residual == b.parallel_residual);
  CHECK(a.bias == b.bias);
  CHECK(a.qkv_bias == b.qkv_bias);
  CHECK(a.sliding_window == b.sliding_window);
  CHECK(a.experts == b.experts);
  CHECK(a.experts_per_token == b.experts_per_token);
  CHECK(a.moe_scores.sigmoid == b.moe_scores.sigmoid);
  CHECK(a.moe_scores.normalize == b.moe_scores.normalize);
  CHECK(a.moe_scores.scale == b.moe_scores.scale);
  CHECK(a.moe_scores.groups == b.moe_scores.groups);
  CHECK(a.moe_scores.group_topk == b.moe_scores.group_topk);
  CHECK(a.moe_scores.best_of_group(a.experts_per_token) ==
        b.moe_scores.best_of_group(b.experts_per_token));
  CHECK(a.dense_layers == b.dense_layers);
  CHECK(a.dense_layer_ffn == b.dense_layer_ffn);
  CHECK(a.shared_ffn == b.shared_ffn);
  CHECK(a.shared_gate == b.shared_gate);
  CHECK(a.expert_bias == b.expert_bias);
  CHECK(a.tie_embeddings == b.tie_embeddings);
  CHECK(a.embedding_scale == b.embedding_scale);
}

}  // namespace

TEST_CASE("which layers are mixtures follows from model.moe.every and dense_layers") {
  TrainSpec spec;
  spec.model.layers = 7;
  spec.model.hidden = 64;
  spec.model.heads = 4;
  spec.model.activation = "swiglu";
  spec.model.ffn = 96;
  spec.model.moe.experts = 4;
  const auto dense = [&] { return model_shape(spec, 65).dense_layers; };
  CHECK(dense().empty());
  CHECK(model_shape(spec, 65).ffn == 96);
  spec.model.moe.ffn = 48;
  CHECK(model_shape(spec, 65).ffn == 48);
  CHECK(model_shape(spec, 65).dense_layer_ffn == 0);
  spec.model.moe.every = 3;
  CHECK(dense() == std::vector<int64_t>{1, 2, 4, 5});
  spec.model.moe.dense_layers = {6, 0, 6};
  CHECK(dense() == std::vector<int64_t>{0, 1, 2, 4, 5, 6});
  spec.model.moe.every = 1;
  CHECK(dense() == std::vector<int64_t>{0, 6});
  const ModelShape shape = model_shape(spec, 65);
  CHECK(shape.ffn == 48);
  CHECK(shape.dense_layer_ffn == 96);
  CHECK(shape.active_ffn() == 2 * 48);
  CHECK(shape.of_dense_layers().active_ffn() == 96);
  spec.model.moe.experts = 0;
  CHECK(dense().empty());
  CHECK(model_shape(spec, 65).ffn == 96);
}

TEST_CASE("which layers have a window, and which rotate, follows from patterns and lists") {
  TrainSpec spec;
  spec.model.layers = 9;
  spec.model.hidden = 64;
  spec.model.heads = 4;
  test::use_llama_blocks(spec);
  spec.train.seq_len = 32;
  spec.model.full_attention = {.every = 4, .layers = {8, 0, 8}};
  spec.model.position.window_base = 100;
  ModelShape shape = model_shape(spec, 65);
  CHECK(shape.full_layers.empty());  // there is no window
  CHECK(shape.window_rope_base == 0);
  spec.model.sliding_window = 5;
  spec.model.position.skip = {.every = 3, .layers = {3}};
  shape = model_shape(spec, 65);
  CHECK(shape.full_layers == std::vector<int64_t>{0, 3, 7, 8});
  CHECK(shape.unrotated_layers == std::vector<int64_t>{2, 3, 5, 8});
  CHECK(shape.full_layers_in(0, 9) == 4);
  CHECK(shape.full_layers_in(1, 8) == 2);
  CHECK(shape.window_of(3) == 0);
  CHECK(shape.window_of(4) == 5);
  CHECK(shape.rotates(4));
  CHECK(shape.rotates_by_window(4));
  CHECK(shape.rotates(7));
  CHECK_FALSE(shape.rotates_by_window(7));
  CHECK_FALSE(shape.rotates(5));
  CHECK_FALSE(shape.rotates_by_window(5));
  shape.window_rope_base = 0;
  CHECK_FALSE(shape.rotates_by_window(4));
  spec.model.position.type = "alibi";
  CHECK(model_shape(spec, 65).unrotated_layers.empty());
  CHECK_FALSE(model_shape(spec, 65).rotates(4));
}

TEST_CASE("a model's shape comes back from a checkpoint") {
  ModelShape gpt2;
  gpt2.layers = 3;
  gpt2.hidden = 48;
  gpt2.heads = gpt2.kv_heads = 6;
  gpt2.head_dim = 8;
  gpt2.ffn = 100;
  gpt2.vocab = 61;
  gpt2.vocab_pad_to = 16;
  gpt2.padded_vocab = 64;
  gpt2.max_seq = 32;
  CHECK(gpt2.family() == Family::gpt2);
  check_equal(model_shape_from_json(to_json(gpt2)), gpt2);

  // Every value another than its default.
  ModelShape other = gpt2;
  other.kv_heads = 2;
  other.head_dim = 16;
  other.norm = NormType::rmsnorm;
  other.norm_eps = 1e-6;
  other.activation = Activation::swiglu;
  other.position = PositionType::rope;
  other.rope_base = 500000;
  other.rope_fraction = 0.25;
  other.rope_scaling = {.type = RopeScalingType::llama3,
                        .factor = 32,
                        .original_max_seq = 4096,
                        .low_freq_factor = 2,
                        .high_freq_factor = 5};
  other.qk_norm = true;
  other.sliding_window = 7;
  other.full_layers = {1};
  other.attention_scale = 0.1;
  other.attention_cap = 50;
  other.logit_cap = 30;
  other.attention_sinks = true;
  other.glu_offset = 1;
  other.glu_clamp = 7;
  other.window_rope_base = 100;
  other.unrotated_layers = {0, 2};
  other.bias = other.qkv_bias = false;
  other.tie_embeddings = false;
  CHECK(other.family() == Family::llama);
  check_equal(model_shape_from_json(to_json(other)), other);
  other.rope_scaling = {.type = RopeScalingType::linear, .factor = 3};
  check_equal(model_shape_from_json(to_json(other)), other);
  other.rope_scaling = {.type = RopeScalingType::yarn,
                        .factor = 32,
                        .original_max_seq = 4096,
                        .beta_slow = 2,
                        .beta_fast = 16,
                        .truncate = false,
                        .attention_factor = 1.25};
  check_equal(model_shape_from_json(to_json(other)), other);
  other.rope_scaling = {.type = RopeScalingType::longrope,
                        .factor = 32,
                        .original_max_seq = 4096,
                        .short_factor = {1, 1.05},
                        .long_factor = {1.5, 64}};
  check_equal(model_shape_from_json(to_json(other)), other);
  other.activation = Activation::gelu_exact;
  other.parallel_residual = true;
  check_equal(model_shape_from_json(to_json(other)), other);
  other.activation = Activation::geglu;
  other.embedding_scale = std::sqrt(48.0);
  check_equal(model_shape_from_json(to_json(other)), other);
  other.parallel_residual = false;
  other.qk_norm_whole = true;
  for (const NormPlace place : {NormPlace::output, NormPlace::both}) {
    other.norm_place = place;
    check_equal(model_shape_from_json(to_json(other)), other);
    ModelShape behind = gpt2;
    behind.norm_place = place;  // which GPT-2's files have no place for
    CHECK(behind.family() == Family::llama);
  }
  ModelShape latents = other;
  latents.latent = {.kv_rank = 16, .rope_dim = 4, .value_dim = 8};
  check_equal(model_shape_from_json(to_json(latents)), latents);
  latents.latent.q_rank = 24;
  latents.latent.norm_eps = 1e-5;
  check_equal(model_shape_from_json(to_json(latents)), latents);
  ModelShape scaled = gpt2;
  scaled.embedding_scale = 2;  // which GPT-2's files have no place for
  CHECK(scaled.family() == Family::llama);
  other.activation = Activation::swiglu;
  other.qkv_bias = true;
  other.sliding_window = 7;
  check_equal(model_shape_from_json(to_json(other)), other);
  other.experts = 6;
  other.experts_per_token = 3;
  CHECK(other.family() == Family::llama);
  check_equal(model_shape_from_json(to_json(other)), other);
  other.moe_scores.normalize = false;
  other.shared_ffn = 40;
  check_equal(model_shape_from_json(to_json(other)), other);
  other.moe_scores.scale = 2.5;
  other.moe_scores.groups = 3;
  other.moe_scores.group_topk = 2;
  check_equal(model_shape_from_json(to_json(other)), other);
  other.moe_scores.group_best = 2;  // and not 3 / 2
  check_equal(model_shape_from_json(to_json(other)), other);
  other.moe_scores.group_best = 1;  // what it is anyway: nothing is said
  CHECK(to_json(other).count("moe_group_best") == 0);
  other.dense_layers = {0, 2};
  other.dense_layer_ffn = other.ffn + 16;
  CHECK(other.ffn != model_shape_from_json(to_json(other)).dense_layer_ffn);
  check_equal(model_shape_from_json(to_json(other)), other);
  other.moe_scores.sigmoid = true;
  other.shared_gate = other.expert_bias = true;
  check_equal(model_shape_from_json(to_json(other)), other);
  other.bias = true;
  other.qkv_bias = false;
  check_equal(model_shape_from_json(to_json(other)), other);
  other.position = PositionType::alibi;
  other.rope_base = 10000;
  other.window_rope_base = 0;
  other.unrotated_layers.clear();
  other.rope_fraction = 1;
  other.rope_scaling = {};
  check_equal(model_shape_from_json(to_json(other)), other);
}

TEST_CASE("a checkpoint of version 0.1 is a GPT-2") {
  const auto json = nlohmann::json::parse(R"({
    "family": "gpt2", "layers": 3, "hidden": 48, "heads": 6, "kv_heads": 6, "head_dim": 8,
    "ffn": 192, "vocab": 61, "vocab_pad_to": 128, "max_seq": 32, "norm_eps": 1e-5, "bias": true,
    "tie_embeddings": true})");
  const ModelShape shape = model_shape_from_json(json);
  CHECK(shape.family() == Family::gpt2);
  CHECK(shape.norm == NormType::layernorm);
  CHECK(shape.activation == Activation::gelu_tanh);
  CHECK(shape.position == PositionType::learned);
  CHECK_FALSE(shape.qk_norm);
  CHECK(shape.qkv_bias);
  CHECK(shape.sliding_window == 0);
  CHECK(shape.experts == 0);
  CHECK(shape.experts_per_token == 0);
  CHECK(shape.padded_vocab == 128);
  auto unknown = json;
  unknown["activation"] = "relu";
  CHECK_THROWS_WITH_AS(model_shape_from_json(unknown), "unknown kind 'relu' in a model's shape",
                       std::invalid_argument);
}

TEST_CASE("rotary frequencies are those of Llama 3.1's published rule") {
  struct Published {
    int64_t head_dim;
    double base, factor;
  };
  for (const Published& p : {Published{128, 500000, 8}, {64, 500000, 32}}) {  // 3.1 8B, 3.2 1B
    CAPTURE(p.head_dim);
    const std::vector<double> plain = rope_frequencies(p.head_dim, p.base, {}, 0);
    const std::vector<double> scaled = rope_frequencies(
        p.head_dim, p.base, {.type = RopeScalingType::llama3, .factor = p.factor}, 0);
    REQUIRE(static_cast<int64_t>(plain.size()) == p.head_dim / 2);
    REQUIRE(scaled.size() == plain.size());
    int branches[3] = {};
    for (size_t i = 0; i < plain.size(); ++i) {
      CAPTURE(i);
      CHECK(plain[i] == doctest::Approx(1 / std::pow(p.base, 2.0 * static_cast<double>(i) /
                                                                 static_cast<double>(p.head_dim)))
                            .epsilon(1e-14));
      int branch = 0;
      const double expected = published_scaling(plain[i], p.factor, 1, 4, 8192, branch);
      CHECK(scaled[i] == doctest::Approx(expected).epsilon(1e-14));
      ++branches[branch];
    }
    for (const int count : branches) CHECK(count > 0);
  }
}
