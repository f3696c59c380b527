// GLM-4.5, whose mixtures have an attention of their own; and Seed-OSS and ERNIE 4.5, which mostly
// compute what Qwen2 or LLaMA do.
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "reference_folders.h"
#include "runtime/interchange/export.h"
#include "runtime/interchange/hf_config.h"
#include "runtime/interchange/import.h"

using namespace mtl;
using namespace mtl::test;
namespace fs = std::filesystem;

namespace hf_glm_test {

namespace {

void check_refused(const std::string& folder, const nlohmann::json& changes,
                   const std::string& word) {
  const std::string problems = read_config(folder, changes).problems;
  CAPTURE(changes.dump());
  CAPTURE(problems);
  CHECK(problems.find(word) != std::string::npos);
  CHECK(problems.find('\n') == problems.size() - 1);  // one
}

// GLM-4.5-Air's.
nlohmann::json air() {
  return nlohmann::json::parse(R"({
    "architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
    "eos_token_id": [151329, 151336, 151338], "first_k_dense_replace": 1, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 10944, "max_position_embeddings": 131072, "model_type": "glm4_moe",
    "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1,
    "norm_topk_prob": true, "num_attention_heads": 96, "num_experts_per_tok": 8,
    "num_hidden_layers": 46, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
    "pad_token_id": 151329, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05,
    "rope_scaling": null, "rope_theta": 1000000, "routed_scaling_factor": 1.0,
    "tie_word_embeddings": false, "topk_group": 1, "torch_dtype": "bfloat16", "use_cache": true,
    "use_qk_norm": false, "vocab_size": 151552})");
}

// ERNIE 4.5's of 0.3B, as it came with code of its own.
nlohmann::json ernie() {
  return nlohmann::json::parse(R"({
    "architectures": ["Ernie4_5_ForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
    "max_position_embeddings": 131072, "model_type": "ernie4_5", "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 128, "num_hidden_layers": 18, "pad_token_id": 0,
    "rms_norm_eps": 1e-05, "use_cache": false, "vocab_size": 103424, "rope_theta": 500000,
    "use_bias": false, "tie_word_embeddings": true, "torch_dtype": "bfloat16"})");
}

}  // namespace

TEST_CASE("a GLM-4.5's config.json") {
  ConfigRead read = read_config(air());
  CHECK(read.problems == "");
  const ModelShape& shape = read.shape;
  CHECK(shape.qkv_bias);
  CHECK_FALSE(shape.bias);
  CHECK_FALSE(shape.qk_norm);
  CHECK(shape.rotary_dim() == 64);
  CHECK(shape.rope_base == 1e6);
  CHECK(shape.norm_place == NormPlace::input);
  CHECK(shape.experts == 128);
  CHECK(shape.experts_per_token == 8);
  CHECK(shape.ffn == 1408);
  CHECK(shape.shared_ffn == 1408);
  CHECK(shape.dense_layers == std::vector<int64_t>{0});
  CHECK(shape.dense_layer_ffn == 10944);
  CHECK(shape.moe_scores.sigmoid);
  CHECK(shape.expert_bias);
  CHECK(hf_model_of(shape).architecture == "Glm4MoeForCausalLM");
  check_returns(shape);
  // What holds where nothing is said is what transformers takes.
  nlohmann::json silent = air();
  for (const char* key : {"first_k_dense_replace", "moe_intermediate_size", "n_group",
                          "n_routed_experts", "n_shared_experts", "norm_topk_prob",
                          "num_experts_per_tok", "num_key_value_heads", "partial_rotary_factor",
                          "rms_norm_eps", "routed_scaling_factor", "topk_group", "use_qk_norm"}) {
    silent.erase(key);
  }
  CHECK(to_json(read_config(silent).shape) == to_json(shape));
  silent.update({{"attention_bias", nullptr}, {"head_dim", nullptr}});
  read = read_config(silent);
  CHECK_FALSE(read.shape.qkv_bias);
  CHECK(read.shape.head_dim == 42);  // 4096 / 96

  nlohmann::json large = air();
  large.update({{"use_qk_norm", true}, {"first_k_dense_replace", 3}});
  read = read_config(large);
  CHECK(read.problems == "");
  CHECK(read.shape.qk_norm);
  check_returns(read.shape);
  // Without biases and with whole heads it would be dots.llm1.
  large.update({{"attention_bias", false}, {"partial_rotary_factor", 1.0}});
  CHECK(hf_model_of(read_config(large).shape).architecture == "Dots1ForCausalLM");

  check_refused("glm4-moe", {{"partial_rotary_factor", 0.4}}, "no pairs");
  check_refused("glm4-moe", {{"first_k_dense_replace", 2}}, "no layer has experts");
  check_refused("glm4-moe", {{"n_shared_experts", 0}}, "'n_shared_experts'");
  check_refused("glm4-moe", {{"n_group", 4}}, "'n_group'");
  check_refused("glm4-moe", {{"moe_layer_freq", 2}}, "'moe_layer_freq'");
  check_refused("glm4-moe", {{"hidden_act", "gelu"}}, "'hidden_act'");
  check_refused("glm4-moe", {{"quantization_config", {{"quant_method", "compressed-tensors"}}}},
                "quantised weights");
}

TEST_CASE("of a model that is almost GLM-4.5 what keeps it from being one is named") {
  const ModelShape glm = read_config("glm4-moe", nlohmann::json::object()).shape;
  const auto keys = [&](const Change& change) { return family_or_keys(glm, change); };
  CHECK(keys([](ModelShape&) {}) == "Glm4MoeForCausalLM");
  CHECK(keys([](ModelShape& s) { s.qk_norm = false; }) == "Glm4MoeForCausalLM");
  CHECK(keys([](ModelShape& s) { s.dense_layers.clear(); }) == "Glm4MoeForCausalLM");
  CHECK(keys([](ModelShape& s) { s.tie_embeddings = true; }) == "Glm4MoeForCausalLM");
  CHECK(keys([](ModelShape& s) { s.rope_scaling.type = RopeScalingType::linear; }) ==
        "Glm4MoeForCausalLM");
  const std::pair<const char*, Change> kOthers[] = {
      {"model.moe.score sigmoid without expert_bias", [](ModelShape& s) { s.expert_bias = false; }},
      {"model.sliding_window", [](ModelShape& s) { s.sliding_window = 4; }},
      {"model.position.skip", [](ModelShape& s) { s.unrotated_layers = {0}; }},
      {"model.moe.shared_gate with sigmoids", [](ModelShape& s) { s.shared_gate = true; }},
      {"model.moe.shared_ffn", [](ModelShape& s) { s.shared_ffn = 0; }},
      {"model.moe.dense_layers", [](ModelShape& s) { s.dense_layers = {1}; }},
      {"model.attention_scale", [](ModelShape& s) { s.attention_scale = 0.5; }},
      {"model.logit_scale", [](ModelShape& s) { s.logit_scale = 2; }}};
  for (const auto& [key, change] : kOthers) {
    const std::string found = keys(change);
    CAPTURE(found);
    CHECK(found.starts_with(key));
  }
  // By softmax it is nobody's.
  CHECK(keys([](ModelShape& s) {
          s.moe_scores.sigmoid = false;
        }).starts_with("model.position.fraction model.qk_norm with biases"));
}

TEST_CASE("a GLM-4.5's layers that predict tokens further ahead are left out") {
  const Scratch scratch;
  for (const int64_t ahead : {0, 1}) {
    const fs::path folder = scratch / std::to_string(ahead);
    fs::copy(reference_folder("glm4-moe-air"), folder);
    auto config = nlohmann::json::parse(read_file(folder / "config.json"));
    config.update({{"num_hidden_layers", 1}, {"num_nextn_predict_layers", ahead}});
    std::ofstream(folder / "config.json") << config.dump();
    if (ahead == 0) {
      CHECK(code_of([&] { open_hf_folder(folder); }) == "import.tensor");
      continue;
    }
    const ForeignModel model = open_hf_folder(folder);
    REQUIRE(model.warnings.size() == 1);
    CHECK(model.warnings[0].what.find("of the layer behind the model's 1 are") !=
          std::string::npos);
  }
}

TEST_CASE("Seed-OSS's biases are Qwen2's, LLaMA's or its own, and some are nobody's") {
  const auto read = [](const char* qkv, const char* out, const char* mlp) {
    nlohmann::json changes;
    const auto say = [&](const char* key, const char* value) {
      changes[key] = nlohmann::json::parse(value);
    };
    say("attention_bias", qkv);
    say("attention_out_bias", out);
    say("mlp_bias", mlp);
    return read_config("seed-oss", changes);
  };
  const auto family = [&](const ConfigRead& one) {
    CHECK(one.problems == "");
    check_returns(one.shape);
    return hf_model_of(one.shape).architecture;
  };
  CHECK(family(read("null", "null", "null")) == "Qwen2ForCausalLM");  // nothing is said
  CHECK(family(read("true", "false", "false")) == "Qwen2ForCausalLM");
  CHECK(family(read("false", "false", "false")) == "LlamaForCausalLM");
  CHECK(family(read("true", "true", "true")) == "LlamaForCausalLM");
  CHECK(family(read("false", "true", "true")) == "SeedOssForCausalLM");
  for (const char* qkv : {"false", "true"}) {
    CHECK(read(qkv, "true", "false").problems.find("'attention_out_bias'") != std::string::npos);
    CHECK(read(qkv, "false", "true").problems.find("'mlp_bias'") != std::string::npos);
  }
  check_refused("seed-oss", {{"mlp_bias", true}}, "differ");
  CHECK(read_config("seed-oss", {{"residual_dropout", 0.5}}).problems == "");
  // The published file says its scaling like this.
  CHECK(read_config("seed-oss", {{"rope_scaling", {{"rope_type", "default"}}}}).problems == "");
  CHECK(read_config("seed-oss", {{"head_dim", nullptr}}).shape.head_dim == 128);
  CHECK(read_config("seed-oss", {{"head_dim", "null"}}).shape.head_dim == 4);
  CHECK(read_config("seed-oss", {{"num_key_value_heads", "null"}}).shape.kv_heads == 4);

  const ModelShape own = read("false", "true", "true").shape;
  const auto keys = [&](const Change& change) { return family_or_keys(own, change); };
  const std::string biases = "biases everywhere but of queries, keys and values";
  CHECK(keys([](ModelShape& s) { s.qk_norm = true; }) == biases);
  CHECK(keys([](ModelShape& s) { s.sliding_window = 4; }) == biases);
  CHECK(keys([](ModelShape& s) { s.rope_fraction = 0.5; }) == "model.position.fraction");
  CHECK(keys([](ModelShape& s) { s.unrotated_layers = {0}; }) == "model.position.skip");
}

TEST_CASE("ERNIE 4.5 is a LLaMA, whose rows of queries and keys are moved") {
  const ConfigRead read = read_config(ernie());
  CHECK(read.problems == "");
  CHECK(read.shape.tie_embeddings);
  CHECK(read.shape.head_dim == 128);
  CHECK_FALSE(read.shape.bias);
  CHECK(hf_model_of(read.shape).architecture == "LlamaForCausalLM");
  check_returns(read.shape);
  nlohmann::json silent = ernie();
  for (const char* key : {"head_dim", "num_key_value_heads", "rms_norm_eps", "rope_theta",
                          "tie_word_embeddings", "use_bias"}) {
    silent.erase(key);
  }
  CHECK(to_json(read_config(silent).shape) == to_json(read.shape));
  silent["num_key_value_heads"] = nullptr;
  CHECK(read_config(silent).shape.kv_heads == 16);
  silent.update({{"compression_ratio", 1.0}, {"tie_word_embeddings", false}});
  CHECK(read_config(silent).problems == "");
  CHECK_FALSE(read_config(silent).shape.tie_embeddings);
  check_refused("ernie4-5", {{"compression_ratio", 2.0}}, "'compression_ratio'");
  check_refused("ernie4-5", {{"partial_rotary_factor", 0.5}}, "'partial_rotary_factor'");
  check_refused("ernie4-5", {{"model_type", "ernie4_5_moe"}}, "'ernie4_5_moe'");
  check_refused("llama", {{"architectures", {"Ernie4_5_ForCausalLM"}}}, "'architectures'");

  const Scratch scratch;
  const auto imported = import_model(
      {.source = reference_folder("ernie4-5"), .out = scratch / "run", .tokenizer = {}});
  export_hf({.checkpoint = imported.checkpoint, .out = scratch / "hf"});
  const auto ours = tensor_bytes(scratch / "hf"),
             theirs = tensor_bytes(reference_folder("ernie4-5"));
  for (const auto& [name, bytes] : theirs) {
    CAPTURE(name);
    const bool moved =
        name.find(".q_proj.") != std::string::npos || name.find(".k_proj.") != std::string::npos;
    CHECK((ours.at(name) == bytes) == !moved);
  }
}

TEST_CASE("the train.yaml of their imports says these models") {
  for (const char* name : {"glm4-moe", "glm4-moe-air", "seed-oss", "seed-oss-biases", "ernie4-5"}) {
    CAPTURE(std::string(name));
    check_import_says(name);
  }
}

}  // namespace hf_glm_test
