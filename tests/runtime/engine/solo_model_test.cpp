// Going on from where an earlier pass ended gives what one pass over everything gives.
#include "runtime/engine/solo_model.h"

#include <stdexcept>
#include <utility>

#include <doctest/doctest.h>

#include "runtime/engine/init.h"

using namespace mtl;

namespace solo_model_test {

namespace {

ModelShape gpt2_shape() {
  ModelShape shape;
  shape.layers = 2;
  shape.heads = shape.kv_heads = 2;
  shape.head_dim = 16;
  shape.hidden = 32;
  shape.ffn = 128;
  shape.vocab = 50;
  shape.vocab_pad_to = shape.padded_vocab = 64;
  shape.max_seq = 150;  // more than two blocks of queries
  shape.init_std = 0.2;
  return shape;
}

ModelShape llama_shape() {
  ModelShape shape = gpt2_shape();
  shape.norm = NormType::rmsnorm;
  shape.activation = Activation::swiglu;
  shape.position = PositionType::rope;
  shape.kv_heads = 1;
  shape.qk_norm = true;
  shape.bias = shape.qkv_bias = false;
  shape.tie_embeddings = false;
  return shape;
}

ModelShape alibi_shape() {
  ModelShape shape = gpt2_shape();
  shape.position = PositionType::alibi;
  return shape;
}

ModelShape window_shape() {
  ModelShape shape = llama_shape();
  shape.sliding_window = 50;
  return shape;
}

// Layer 0 sees and rotates by its window, layer 1 everything.
ModelShape layered_shape() {
  ModelShape shape = window_shape();
  shape.full_layers = {1};
  shape.window_rope_base = 100;
  shape.attention_scale = 0.4;
  shape.attention_cap = 2;
  shape.logit_cap = 3;
  return shape;
}

ModelShape partial_shape() {
  ModelShape shape = llama_shape();
  shape.norm = NormType::layernorm;
  shape.rope_fraction = 0.4;  // 6 of 16
  shape.rope_scaling = {.type = RopeScalingType::yarn, .factor = 4, .original_max_seq = 40};
  return shape;
}

ModelShape neox_shape() {
  ModelShape shape = gpt2_shape();
  shape.activation = Activation::gelu_exact;
  shape.position = PositionType::rope;
  shape.parallel_residual = true;
  return shape;
}

ModelShape command_shape() {
  ModelShape shape = neox_shape();
  shape.shared_norm = shape.head_bias = true;
  shape.norm_bias = false;
  shape.residual_scale = 0.6;
  shape.logit_scale = 0.5;
  return shape;
}

ModelShape gemma_shape() {
  ModelShape shape = llama_shape();
  shape.activation = Activation::geglu;
  shape.embedding_scale = 4;
  shape.qk_norm = false;
  shape.tie_embeddings = true;
  return shape;
}

ModelShape olmo_shape() {
  ModelShape shape = llama_shape();
  shape.norm_place = NormPlace::output;
  shape.qk_norm_whole = true;
  return shape;
}

ModelShape latent_shape() {
  ModelShape shape = llama_shape();
  shape.kv_heads = shape.heads;
  shape.qk_norm = false;
  shape.head_dim = 12;
  shape.latent = {.kv_rank = 16, .q_rank = 24, .rope_dim = 4, .value_dim = 8};
  return shape;
}

ModelShape sandwich_shape() {
  ModelShape shape = gpt2_shape();
  shape.norm_place = NormPlace::both;
  return shape;
}

ModelShape sinks_shape() {
  ModelShape shape = window_shape();
  shape.qk_norm = false;
  shape.attention_sinks = shape.bias = shape.qkv_bias = true;
  shape.activation = Activation::quick_geglu;
  shape.glu_offset = 1;
  shape.glu_clamp = 0.5;
  shape.experts = 5;
  shape.experts_per_token = 2;
  return shape;
}

ModelShape mixtral_shape() {
  ModelShape shape = llama_shape();
  shape.qk_norm = false;
  shape.qkv_bias = true;
  shape.experts = 5;
  shape.experts_per_token = 2;
  return shape;
}

ModelShape gated_shape() {
  ModelShape shape = mixtral_shape();
  shape.moe_scores.normalize = false;
  shape.shared_ffn = 24;
  shape.shared_gate = true;
  return shape;
}

ModelShape balanced_shape() {
  ModelShape shape = gated_shape();
  shape.moe_scores = {.sigmoid = true};
  shape.shared_gate = false;
  shape.expert_bias = true;
  return shape;
}

// A small model with random weights.
class Model {
 public:
  explicit Model(const ModelShape& shape) : Model(shape, shape.max_seq) {}
  Model(const ModelShape& shape, int64_t context, int64_t pass_tokens = kPassTokens)
      : model_(shape, *device_, context, pass_tokens) {
    model_.fill([](const ParamRow& row, const std::vector<int64_t>& local, Tensor weights) {
      initialise(row, local, local_rects(row, GridSizes{}, Coord{}), 5, 0, weights.numel(),
                 weights.as<float>());
    });
  }
  std::vector<float> next_logits(const std::vector<int32_t>& ids, int64_t past) {
    return model_.next_logits(ids, past);
  }

 private:
  std::unique_ptr<Device> device_ = make_cpu_device(1);
  SoloModel model_;
};

}  // namespace

TEST_CASE("passes that go on give the logits of one pass over everything") {
  std::vector<int32_t> ids(150);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * i + 3 * i) % 50);
  for (const ModelShape& shape : {gpt2_shape(), llama_shape(), alibi_shape(), window_shape(),
                                  layered_shape(), partial_shape(), neox_shape(), command_shape(),
                                  gemma_shape(), olmo_shape(), sandwich_shape(), mixtral_shape(),
                                  gated_shape(), balanced_shape(), sinks_shape(), latent_shape()}) {
    Model piecewise(shape);
    int64_t past = 0;
    for (const int64_t length : {1, 2, 3, 40, 63, 64, 65, 66, 128, 149, 150}) {
      const std::vector<int32_t> prefix(ids.begin(), ids.begin() + length);
      const std::vector<float> step = piecewise.next_logits(prefix, past);
      past = length;
      Model whole(shape);
      const std::vector<float> expected = whole.next_logits(prefix, 0);
      REQUIRE(step.size() == 50);
      CAPTURE(length);
      for (size_t i = 0; i < step.size(); ++i) {
        CHECK(step[i] == doctest::Approx(expected[i]).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("a prompt in passes gives the logits of one pass, and takes memory for one") {
  std::vector<int32_t> ids(150);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * i + 3 * i) % 50);
  for (const ModelShape& shape :
       {gpt2_shape(), llama_shape(), alibi_shape(), window_shape(), layered_shape(),
        partial_shape(), neox_shape(), command_shape(), gemma_shape(), olmo_shape(),
        sandwich_shape(), mixtral_shape(), gated_shape(), balanced_shape(), sinks_shape()}) {
    for (const int64_t pass_tokens : {1, 7, 64, 149}) {
      CAPTURE(pass_tokens);
      Model whole(shape), cut(shape, shape.max_seq, pass_tokens);
      int64_t past = 0;
      for (const int64_t length : {131, 132, 150}) {
        const std::vector<int32_t> prefix(ids.begin(), ids.begin() + length);
        const std::vector<float> expected = whole.next_logits(prefix, past);
        const std::vector<float> got = cut.next_logits(prefix, past);
        past = length;
        REQUIRE(got.size() == 50);
        for (size_t i = 0; i < got.size(); ++i) {
          CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-4));
        }
      }
    }
    // What lies beside the cache is of a pass.
    const auto bytes = [&](int64_t context) { return solo_memory(shape, context, 10).total_bytes; };
    const int64_t cached = (shape.heads + 2 * shape.kv_heads) * shape.head_dim * shape.layers * 4;
    const int64_t attention = shape.heads * (shape.head_dim + 1) * 4,
                  rope = shape.rotary_dim() * 4 * (shape.window_rope_base > 0 ? 2 : 1);
    CHECK((bytes(150) - bytes(50)) <= 100 * (cached + attention + rope) + 8 * 256);
  }
}

TEST_CASE("a pass larger than the plan is refused") {
  Model model(gpt2_shape());
  CHECK_THROWS_AS(model.next_logits(std::vector<int32_t>(151, 0), 0), std::logic_error);
  Model shorter(gpt2_shape(), 20);
  CHECK_THROWS_AS(shorter.next_logits(std::vector<int32_t>(21, 0), 0), std::logic_error);
}

TEST_CASE("a shorter context has the bits of the whole one") {
  std::vector<int32_t> ids(100);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * i + 7 * i) % 50);
  for (const ModelShape& shape :
       {gpt2_shape(), llama_shape(), alibi_shape(), window_shape(), layered_shape(),
        partial_shape(), neox_shape(), command_shape(), gemma_shape(), olmo_shape(),
        sandwich_shape(), mixtral_shape(), gated_shape(), balanced_shape(), sinks_shape()}) {
    Model whole(shape), shorter(shape, 100);
    int64_t past = 0;
    for (const int64_t length : {40, 41, 64, 65, 99, 100}) {
      CAPTURE(length);
      const std::vector<int32_t> prefix(ids.begin(), ids.begin() + length);
      CHECK(shorter.next_logits(prefix, past) == whole.next_logits(prefix, past));
      past = length;
    }
  }
}

TEST_CASE("memory is that of the context, not of all that the model could have") {
  // Llama 3.2 1B.
  ModelShape shape = llama_shape();
  shape.layers = 16;
  shape.heads = 32;
  shape.kv_heads = 8;
  shape.head_dim = 64;
  shape.hidden = 2048;
  shape.ffn = 8192;
  shape.qk_norm = false;
  shape.tie_embeddings = true;
  shape.vocab = shape.padded_vocab = 128256;
  shape.max_seq = 131072;
  const auto beside_weights = [&](int64_t context) {
    const MemoryPlan plan = solo_memory(shape, context);
    return plan.total_bytes - plan.bytes_of_category(MemoryCategory::weights);
  };
  CHECK(beside_weights(8) < int64_t{8} << 20);
  // Of a token, queries, keys and values in all layers, and the rest of one layer.
  const int64_t token = (beside_weights(2048) - beside_weights(1024)) / 1024;
  const int64_t cache = 16 * (32 + 2 * 8) * 64 * 4;
  CHECK(token > cache);
  CHECK(token < 2 * cache);
}

TEST_CASE("what lies before the window of every layer changes nothing") {
  ModelShape shape = window_shape();
  std::vector<int32_t> ids(130);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * i + 5 * i) % 50);
  // Through two layers the last position sees 2 (50 - 1) before it.
  const size_t first_seen = ids.size() - 1 - 2 * 49;
  const auto last_logits = [&](size_t changed) {
    const int32_t before = std::exchange(ids[changed], (ids[changed] + 1) % 50);
    std::vector<float> logits = Model(shape).next_logits(ids, 0);
    ids[changed] = before;
    return logits;
  };
  const std::vector<float> logits = Model(shape).next_logits(ids, 0);
  CHECK(last_logits(first_seen - 1) == logits);
  CHECK(last_logits(0) == logits);
  CHECK(last_logits(first_seen) != logits);
  shape.full_layers = {1};  // through which the last position sees all
  CHECK(last_logits(0) != Model(shape).next_logits(ids, 0));
  shape.full_layers.clear();
  shape.sliding_window = 0;
  CHECK(last_logits(0) != Model(shape).next_logits(ids, 0));
}

}  // namespace solo_model_test
