// Parameters and FLOPs of published models, as everybody counts them.
#include "runtime/plan/cost.h"

#include <cmath>

#include <doctest/doctest.h>

#include "support/specs.h"

using namespace mtl;

namespace cost_test {

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

TEST_CASE("DeepSeek's latents are counted as everybody counts them") {
  ModelShape v3 = llama(61, 7168, 128, 128, 2048, 129280);
  v3.head_dim = 192;
  v3.latent = {.kv_rank = 512, .q_rank = 1536, .rope_dim = 64, .value_dim = 128};
  v3.experts = 256;
  v3.experts_per_token = 8;
  v3.moe_scores.sigmoid = true;
  v3.shared_ffn = 2048;
  v3.expert_bias = true;
  v3.dense_layers = {0, 1, 2};
  v3.dense_layer_ffn = 18432;
  const Cost cost = mtl::cost(v3, shard_table(v3, false), 4096);
  CHECK(cost.parameters == 671'026'419'200);  // "671B total parameters with 37B activated"
  CHECK(std::llround(static_cast<double>(cost.active_parameters) / 1e9) == 38);  // two tables
  // Of a dense layer: matrices, and half of the squares of scores and of values.
  const double queries = 1536.0 * (7168 + 128 * 192), keys = 7168.0 * 576 + 512.0 * 128 * 256;
  const double matrices = queries + keys + 128.0 * 128 * 7168 + 3.0 * 7168 * 18432;
  CHECK(flops_per_token_of_layers(v3, 4096, 0, 1) ==
        doctest::Approx(6 * matrices + 6.0 * 128 * (192 + 128) * 4096 / 2));
  ModelShape lite = llama(27, 2048, 16, 16, 1408, 102400);
  lite.head_dim = 192;
  lite.latent = {.kv_rank = 512, .rope_dim = 64, .value_dim = 128};
  lite.experts = 64;
  lite.experts_per_token = 6;
  lite.shared_ffn = 2 * 1408;
  lite.dense_layers = {0};
  lite.dense_layer_ffn = 10944;
  CHECK(mtl::cost(lite, shard_table(lite, false), 4096).parameters == 15'706'484'224);
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

}  // namespace cost_test
