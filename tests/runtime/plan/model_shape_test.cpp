#include "runtime/plan/model_shape.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "runtime/plan/cost.h"
#include "support/specs.h"

using namespace mtl;

namespace {

// Llama's published sizes; `model` and `ffn` as in the configurations that Meta released.
ModelShape llama(int64_t layers, int64_t hidden, int64_t heads, int64_t kv_heads, int64_t ffn,
                 int64_t vocab) {
  TrainSpec spec;
  spec.model.layers = layers;
  spec.model.hidden = hidden;
  spec.model.heads = heads;
  spec.model.kv_heads = kv_heads;
  spec.model.ffn = ffn;
  test::use_llama_blocks(spec);
  spec.model.tie_embeddings = false;
  spec.train.seq_len = 4096;
  return model_shape(spec, vocab);
}

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
  CHECK(a.rope_scaling.short_factor == b.rope_scaling.short_factor);
  CHECK(a.rope_scaling.long_factor == b.rope_scaling.long_factor);
  CHECK(a.norm_place == b.norm_place);
  CHECK(a.qk_norm == b.qk_norm);
  CHECK(a.qk_norm_whole == b.qk_norm_whole);
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
  CHECK(a.dense_layers == b.dense_layers);
  CHECK(a.dense_layer_ffn == b.dense_layer_ffn);
  CHECK(a.shared_ffn == b.shared_ffn);
  CHECK(a.shared_gate == b.shared_gate);
  CHECK(a.expert_bias == b.expert_bias);
  CHECK(a.tie_embeddings == b.tie_embeddings);
  CHECK(a.embedding_scale == b.embedding_scale);
}

}  // namespace

TEST_CASE("the parameters of Llama 2 and 3 are counted as everybody counts them") {
  const auto parameters = [](const ModelShape& shape) {
    return cost(shape, shard_table(shape, false), 4096).parameters;
  };
  CHECK(parameters(llama(32, 4096, 32, 32, 11008, 32000)) == 6'738'415'616);  // Llama-2-7B
  CHECK(parameters(llama(80, 8192, 64, 8, 28672, 32000)) == 68'976'648'192);  // Llama-2-70B
  CHECK(parameters(llama(32, 4096, 32, 8, 14336, 128256)) == 8'030'261'248);  // Llama-3-8B
  ModelShape small = llama(16, 2048, 32, 8, 8192, 128256);
  small.tie_embeddings = true;
  CHECK(parameters(small) == 1'235'814'400);  // Llama-3.2-1B
}

TEST_CASE("Qwen2 and Mistral are counted as everybody counts them") {
  const auto parameters = [](const ModelShape& shape) {
    return cost(shape, shard_table(shape, false), 4096).parameters;
  };
  ModelShape qwen = llama(28, 3584, 28, 4, 18944, 152064);
  qwen.qkv_bias = true;
  CHECK(parameters(qwen) == 7'615'616'512);  // Qwen2-7B
  qwen = llama(24, 896, 14, 2, 4864, 151936);
  qwen.qkv_bias = qwen.tie_embeddings = true;
  CHECK(parameters(qwen) == 494'032'768);  // Qwen2-0.5B
  ModelShape mistral = llama(32, 4096, 32, 8, 14336, 32000);
  mistral.sliding_window = 4096;
  CHECK(parameters(mistral) == 7'241'732'096);  // Mistral-7B
}

TEST_CASE("Mixtral is counted as everybody counts it, all of it and what is active") {
  ModelShape shape = llama(32, 4096, 32, 8, 14336, 32000);
  shape.experts = 8;
  shape.experts_per_token = 2;
  const Cost cost = mtl::cost(shape, shard_table(shape, false), 4096);
  CHECK(cost.parameters == 46'702'792'704);         // Mixtral-8x7B
  CHECK(cost.active_parameters == 12'879'925'248);  // "13B active parameters"
  const double matrices = 12'879'925'248.0 - 32000.0 * 4096 - 65 * 4096;
  CHECK(cost.flops_per_token == doctest::Approx(6 * matrices + 6.0 * 32 * 4096 * 4096));
  shape.experts = shape.experts_per_token = 0;
  const Cost dense = mtl::cost(shape, shard_table(shape, false), 4096);
  CHECK(dense.active_parameters == dense.parameters);
}

TEST_CASE("Qwen's mixtures are counted as everybody counts them") {
  ModelShape qwen3 = llama(48, 2048, 32, 4, 768, 151936);
  qwen3.head_dim = 128;
  qwen3.qk_norm = true;
  qwen3.experts = 128;
  qwen3.experts_per_token = 8;
  Cost cost = mtl::cost(qwen3, shard_table(qwen3, false), 4096);
  CHECK(cost.parameters == 30'532'122'624);  // Qwen3-30B-A3B: "30.5B in total, 3.3B activated"
  CHECK(cost.active_parameters == 3'353'032'704);
  ModelShape qwen2 = llama(24, 2048, 16, 16, 1408, 151936);
  qwen2.qkv_bias = true;
  qwen2.experts = 60;
  qwen2.experts_per_token = 4;
  qwen2.moe_scores.normalize = false;
  qwen2.shared_ffn = 5632;
  qwen2.shared_gate = true;
  cost = mtl::cost(qwen2, shard_table(qwen2, false), 4096);
  CHECK(cost.parameters == 14'315'784'192);  // Qwen1.5-MoE-A2.7B: "14.3B in total, 2.7B activated"
  CHECK(cost.active_parameters == 2'689'173'504);
  // Of matrices: the active ones less the embedding, norms and biases; and attention's products.
  const double matrices = 2'689'173'504.0 - 151936.0 * 2048 - 49 * 2048.0 - 24 * 3 * 2048.0;
  CHECK(cost.flops_per_token == doctest::Approx(6 * matrices + 6.0 * 24 * 2048 * 4096));
  ModelShape dots = llama(62, 4096, 32, 32, 1408, 152064);
  dots.head_dim = 128;
  dots.qk_norm = true;
  dots.experts = 128;
  dots.experts_per_token = 6;
  dots.shared_ffn = 2 * 1408;
  dots.dense_layers = {0};
  dots.dense_layer_ffn = 10944;
  cost = mtl::cost(dots, shard_table(dots, false), 4096);
  // dots.llm1: "14B parameters out of a total of 142B"
  const int64_t attention = int64_t{62} * 4 * 4096 * 4096, tables = 2 * 152064 * int64_t{4096};
  const int64_t norms = 62 * (2 * 4096 + 2 * 128) + 4096, router = 61 * 128 * 4096;
  const int64_t expert = 3 * 4096 * 1408, dense = 3 * 4096 * 10944;
  const int64_t beside = attention + tables + norms + router + dense;
  CHECK(cost.parameters == beside + 61 * (128 + 2) * expert);
  CHECK(cost.active_parameters == beside + 61 * (6 + 2) * expert);
  CHECK(std::llround(static_cast<double>(cost.parameters) / 1e9) == 143);
  CHECK(std::llround(static_cast<double>(cost.active_parameters) / 1e9) == 14);
  const double of_dense = 6.0 * (4.0 * 4096 * 4096 + static_cast<double>(dense)) +
                          6.0 * 4096 * 4096;  // and half of the attention's square
  CHECK(flops_per_token_of_layers(dots, 4096, 0, 1) == doctest::Approx(of_dense));
  CHECK(flops_per_token_of_layers(dots, 4096, 0, 62) ==
        doctest::Approx(of_dense + 61 * flops_per_token_of_layer(dots, 4096)));
  CHECK(cost.flops_per_token ==
        flops_per_token_of_layers(dots, 4096, 0, 62) + flops_per_token_of_head(dots));
}

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

TEST_CASE("what a model lets its queries see is counted in its FLOPs") {
  ModelShape shape = llama(2, 64, 4, 4, 128, 100);
  // Twice as many for each pair of a query and a key, forward; three times that with backward. The
  // diagonal counts half.
  const auto attention = [&](int64_t seq) {
    ModelShape blind = shape;
    blind.sliding_window = 0;
    return flops_per_token_of_layer(shape, seq) - flops_per_token_of_layer(blind, seq) +
           6.0 * 64 * static_cast<double>(seq);
  };
  for (const int64_t window : {1, 5, 16, 17, 32, 33}) {
    CAPTURE(window);
    shape.sliding_window = window;
    double pairs = 0;
    for (int64_t q = 0; q < 32; ++q) {
      for (int64_t k = std::max<int64_t>(0, q - window + 1); k <= q; ++k) pairs += k == q ? 0.5 : 1;
      // The edge of the window counts half too, where it lies within the sequence.
      if (q >= window) pairs += 0.5;
    }
    CHECK(attention(32) == doctest::Approx(12 * 64 * pairs / 32));
  }
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

TEST_CASE("layers that see everything cost what they see") {
  ModelShape shape = llama(6, 64, 4, 4, 128, 100);
  ModelShape whole = shape;
  shape.sliding_window = 4;
  shape.full_layers = {2, 5};
  ModelShape windows = shape;
  windows.full_layers.clear();
  const auto flops = [](const ModelShape& of, int64_t begin, int64_t end) {
    return flops_per_token_of_layers(of, 64, begin, end);
  };
  CHECK(flops(shape, 0, 2) == doctest::Approx(flops(windows, 0, 2)));
  CHECK(flops(shape, 2, 3) == doctest::Approx(flops(whole, 2, 3)));
  CHECK(flops(shape, 0, 6) == doctest::Approx(flops(windows, 0, 4) + flops(whole, 0, 2)));
  CHECK(flops(whole, 0, 1) > flops(windows, 0, 1));
  // Such layers first: whoever has them has fewer.
  shape.vocab = 1;
  shape.full_layers = {0, 1, 2};
  CHECK(balanced_stages(shape, 1 << 14, 2) == std::vector<int64_t>{2, 4});
}

TEST_CASE("FLOPs of a Llama are six per weight of its matrices and token beside attention") {
  const ModelShape shape = llama(32, 4096, 32, 8, 14336, 128256);
  const Cost cost = mtl::cost(shape, shard_table(shape, false), 2048);
  const double matrices = 8'030'261'248.0 - 128256.0 * 4096 - 65 * 4096;  // without input and norms
  CHECK(cost.flops_per_token == doctest::Approx(6 * matrices + 6.0 * 32 * 4096 * 2048));
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
