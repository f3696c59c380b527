// Families with one norm for both blocks of a layer, and Granite: their config.json, and models of
// ours that are almost one.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "reference_folders.h"
#include "runtime/interchange/hf_config.h"
#include "runtime/interchange/import.h"
#include "runtime/interchange/megatron_layout.h"

using namespace mtl;
using namespace mtl::test;

namespace hf_side_by_side_test {

namespace {

using Layers = std::vector<int64_t>;

ModelShape shape_of(const char* folder) {
  return read_config(folder, nlohmann::json::object()).shape;
}

// Refused for one reason, in which `word` stands.
void check_refused(const char* folder, const nlohmann::json& changes, const std::string& word) {
  const std::string problems = read_config(folder, changes).problems;
  CAPTURE(problems);
  CHECK(std::count(problems.begin(), problems.end(), '\n') == 1);
  CHECK(problems.find(word) != std::string::npos);
}

}  // namespace

TEST_CASE("Command R of 7B as it is published: windows with rotation, everything without") {
  const ConfigRead read = read_config(nlohmann::json::parse(R"({
    "architectures": ["Cohere2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 5, "cache_implementation": "hybrid", "eos_token_id": 255001, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "layer_norm_eps": 1e-05, "layer_switch": 4, "logit_scale": 0.25,
    "max_position_embeddings": 8192, "model_type": "cohere2", "num_attention_heads": 32,
    "num_hidden_layers": 8, "num_key_value_heads": 8,
    "order_of_interleaved_layers": "local_attn_first", "pad_token_id": 0,
    "position_embedding_type": "rope_gptj", "rope_scaling": null, "rope_theta": 50000,
    "rotary_pct": 1.0, "sliding_window": 4096, "sliding_window_pattern": 4,
    "torch_dtype": "bfloat16", "use_cache": true, "use_embedding_sharing": true,
    "use_gated_activation": true, "use_parallel_block": true, "use_parallel_embedding": false,
    "vocab_size": 256000})"));
  CHECK(read.problems == "");
  CHECK(read.architecture == "Cohere2ForCausalLM");
  const ModelShape& shape = read.shape;
  CHECK(shape.norm == NormType::layernorm);
  CHECK_FALSE(shape.has_norm_bias());
  CHECK(shape.parallel_residual);
  CHECK(shape.shared_norm);
  CHECK(shape.logit_scale == 0.25);
  CHECK(shape.tie_embeddings);
  CHECK(shape.sliding_window == 4096);
  CHECK(shape.full_layers == Layers{3, 7});
  CHECK(shape.unrotated_layers == Layers{3, 7});
  check_returns(shape);
}

TEST_CASE("what families with one norm say is read or refused") {
  CHECK(shape_of("cohere").logit_scale == 0.25);
  CHECK(read_config("cohere", {{"logit_scale", nullptr}}).shape.logit_scale == 0.0625);
  CHECK(read_config("cohere", {{"tie_word_embeddings", nullptr}}).shape.tie_embeddings);
  check_refused("cohere", {{"use_qk_norm", true}}, "'use_qk_norm'");
  check_refused("cohere", {{"attention_bias", true}}, "'attention_bias'");
  check_refused("cohere", {{"logit_scale", 0}}, "'logit_scale'");
  // Without a window no layer of these rotates.
  const ModelShape none = read_config("cohere2", {{"sliding_window", "null"}}).shape;
  CHECK(none.sliding_window == 0);
  CHECK(none.position == PositionType::none);
  check_returns(none);
  const ModelShape all =
      read_config("cohere2", {{"layer_types", {"sliding_attention", "sliding_attention"}}}).shape;
  CHECK(all.sliding_window == 4);
  CHECK(all.unrotated_layers.empty());
  check_returns(all);

  CHECK(shape_of("phi").head_bias);
  CHECK(shape_of("phi").rope_fraction == 0.5);
  CHECK(shape_of("phi").activation == Activation::gelu_tanh);
  check_refused("phi", {{"qk_layernorm", true}}, "'qk_layernorm'");
  check_refused("phi", {{"hidden_act", "silu"}}, "'hidden_act'");

  // null is false.
  CHECK_FALSE(
      read_config("stablelm-parallel", {{"use_parallel_residual", "null"}}).shape.shared_norm);
  CHECK_FALSE(read_config("cohere", {{"tie_word_embeddings", "null"}}).shape.tie_embeddings);
  CHECK(shape_of("stablelm-parallel").shared_norm);
  CHECK_FALSE(shape_of("stablelm").parallel_residual);
}

TEST_CASE("what Granite says is read or refused") {
  const ModelShape granite = shape_of("granite");
  CHECK(granite.embedding_scale == 6);
  CHECK(granite.residual_scale == 0.3);
  CHECK(granite.logit_scale == 0.25);
  CHECK(granite.attention_scale == 0.4);
  CHECK(granite.bias);
  // What is usual is none; and what is not said is 1, not that.
  CHECK(read_config("granite", {{"attention_multiplier", 0.5}}).shape.attention_scale == 0);
  CHECK(read_config("granite", {{"attention_multiplier", nullptr}}).shape.attention_scale == 1);
  CHECK(read_config("granite", {{"logits_scaling", nullptr}}).shape.logit_scale == 1);
  check_refused("granite", {{"mlp_bias", false}}, "'mlp_bias'");
  check_refused("granite", {{"logits_scaling", 0}}, "'logits_scaling'");
  check_refused("granite", {{"residual_multiplier", 0}}, "'residual_multiplier'");
  check_refused("granitemoe", {{"attention_bias", true}}, "'attention_bias'");
  check_refused("granitemoe", {{"num_local_experts", 0}, {"num_experts_per_tok", 0}},
                "'num_experts_per_tok'");
  check_refused("granitemoe", {{"position_embedding_type", "nope"}}, "'position_embedding_type'");
  CHECK(shape_of("granite4").ffn == 20);
  check_refused("granite4", {{"layer_types", {"attention", "mamba"}}}, "'layer_types'");
  check_refused("granite4", {{"layer_types", nullptr}}, "'layer_types'");
  check_refused("granite4", {{"position_embedding_type", "alibi"}}, "'position_embedding_type'");
  CHECK(read_config("granite4", {{"position_embedding_type", nullptr}}).shape.position ==
        PositionType::none);
  const ModelShape mixture =
      read_config("granite4", {{"num_local_experts", 4}, {"num_experts_per_tok", 2}}).shape;
  CHECK(mixture.experts == 4);
  CHECK(mixture.ffn == 24);
  CHECK(mixture.shared_ffn == 20);
  CHECK(hf_model_of(mixture).architecture == "GraniteMoeSharedForCausalLM");
  CHECK(shape_of("granitemoeshared").shared_ffn == 20);
  CHECK(read_config("granitemoeshared", {{"shared_intermediate_size", nullptr}}).problems == "");
}

TEST_CASE("of a model that is almost Command R, Phi-2 or Granite what keeps it from it is named") {
  const auto cohere = [&](const Change& change) {
    return family_or_keys(shape_of("cohere"), change);
  };
  CHECK(cohere([](ModelShape&) {}) == "CohereForCausalLM");
  CHECK(cohere([](ModelShape& s) { s.logit_scale = 1; }) == "CohereForCausalLM");
  CHECK(cohere([](ModelShape& s) { s.head_dim = 6; }) == "CohereForCausalLM");
  CHECK(cohere([](ModelShape& s) { s.norm = NormType::rmsnorm; }) == "model.norm.type");
  CHECK(cohere([](ModelShape& s) { s.bias = true; }) == "model.bias");
  CHECK(cohere([](ModelShape& s) { s.qkv_bias = true; }) == "model.qkv_bias");
  CHECK(cohere([](ModelShape& s) { s.rope_fraction = 0.5; }) == "model.position.fraction");
  CHECK(cohere([](ModelShape& s) { s.qk_norm = true; }) == "model.qk_norm");
  CHECK(cohere([](ModelShape& s) { s.residual_scale = 0.5; }) == "model.residual_scale");
  CHECK(cohere([](ModelShape& s) { s.logit_cap = 5; }) == "model.logit_cap");
  CHECK(cohere([](ModelShape& s) { s.attention_scale = 5; }) == "model.attention_scale");
  CHECK(cohere([](ModelShape& s) { s.sliding_window = 5; }) == "Cohere2ForCausalLM");
  CHECK(cohere([](ModelShape& s) { s.unrotated_layers = {1}; }) ==
        "model.position.skip model.sliding_window");
  CHECK(cohere([](ModelShape& s) { s.norm_bias = std::nullopt; }) == "model.logit_scale");
  CHECK(cohere([](ModelShape& s) {
          s.norm_bias = std::nullopt;
          s.logit_scale = 1;
        }) == "StableLmForCausalLM");
  // Blocks one behind the other, whose norms have no bias.
  CHECK(cohere([](ModelShape& s) {
          s.parallel_residual = s.shared_norm = false;
          s.logit_scale = 1;
        }) == "model.norm.bias");

  const auto phi = [&](const Change& change) { return family_or_keys(shape_of("phi"), change); };
  CHECK(phi([](ModelShape&) {}) == "PhiForCausalLM");
  CHECK(phi([](ModelShape& s) { s.activation = Activation::gelu_exact; }) == "PhiForCausalLM");
  CHECK(phi([](ModelShape& s) { s.head_bias = false; }) == "model.head_bias");
  CHECK(phi([](ModelShape& s) { s.qkv_bias = false; }) == "model.bias");
  CHECK(phi([](ModelShape& s) { s.norm_bias = false; }) == "model.norm.bias");
  CHECK(phi([](ModelShape& s) { s.activation = Activation::swiglu; }) == "model.activation");
  CHECK(phi([](ModelShape& s) { s.logit_scale = 2; }) == "model.logit_scale");
  CHECK(phi([](ModelShape& s) { s.position = PositionType::alibi; }) == "model.position.type");

  const auto granite = [&](const Change& change) {
    return family_or_keys(shape_of("granitemoe"), change);
  };
  CHECK(granite([](ModelShape&) {}) == "GraniteMoeForCausalLM");
  CHECK(granite([](ModelShape& s) { s.experts = s.experts_per_token = 0; }) ==
        "GraniteForCausalLM");
  CHECK(granite([](ModelShape& s) { s.shared_ffn = 8; }) == "GraniteMoeSharedForCausalLM");
  CHECK(granite([](ModelShape& s) { s.moe_scores.sigmoid = true; }) == "model.moe.score");
  CHECK(granite([](ModelShape& s) { s.moe_scores.normalize = false; }) == "model.moe.normalize");
  CHECK(granite([](ModelShape& s) { s.moe_scores.scale = 2; }) == "model.moe.scale");
  CHECK(granite([](ModelShape& s) { s.sliding_window = 4; }) == "model.sliding_window");
  CHECK(granite([](ModelShape& s) { s.qkv_bias = true; }) == "model.qkv_bias");
  CHECK(granite([](ModelShape& s) { s.unrotated_layers = {0}; }) == "model.position.skip");
  CHECK(granite([](ModelShape& s) { s.logit_cap = 4; }) == "model.logit_cap");
  CHECK(granite([](ModelShape& s) { s.head_bias = true; }) == "model.head_bias");
  // With norms of queries and keys it is nobody's, each multiplier for itself.
  CHECK(granite([](ModelShape& s) {
          s.qk_norm = true;
          s.embedding_scale = 1;
          s.attention_scale = 0;
        }) == "model.residual_scale model.logit_scale");
}

TEST_CASE("Megatron has neither these scales nor these biases") {
  const auto obstacle = [](const Change& change) {
    ModelShape shape;
    shape.layers = 2;
    shape.hidden = shape.ffn = 16;
    shape.heads = shape.kv_heads = 2;
    shape.head_dim = 8;
    shape.vocab = shape.padded_vocab = 96;
    shape.max_seq = 64;
    change(shape);
    return megatron_obstacle(shape, 1);
  };
  CHECK(obstacle([](ModelShape&) {}) == "");
  CHECK(obstacle([](ModelShape& s) { s.residual_scale = 2; }).find("model.residual_scale") !=
        std::string::npos);
  CHECK(obstacle([](ModelShape& s) { s.logit_scale = 2; }).find("model.logit_scale") !=
        std::string::npos);
  CHECK(obstacle([](ModelShape& s) { s.head_bias = true; }).find("model.head_bias") !=
        std::string::npos);
  CHECK(obstacle([](ModelShape& s) { s.norm_bias = false; }).find("model.norm.bias") !=
        std::string::npos);
}

}  // namespace hf_side_by_side_test
