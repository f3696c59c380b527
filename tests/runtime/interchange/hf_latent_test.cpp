// Latent attention in config.json: DeepSeek-V2 and V3, Moonlight, Kimi K2, and models of ours that
// are almost one of them.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
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

namespace hf_latent_test {

namespace {

using Layers = std::vector<int64_t>;

// The fields of published files that tell of the model, as they stand there.
nlohmann::json v2_lite() {
  return nlohmann::json::parse(R"({
    "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"}, "aux_loss_alpha": 0.001,
    "bos_token_id": 100000, "eos_token_id": 100001, "first_k_dense_replace": 1,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "model_type": "deepseek_v2", "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1,
    "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": false,
    "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
    "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": null, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
                     "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096,
                     "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": true,
    "tie_word_embeddings": false, "topk_group": 1, "topk_method": "greedy",
    "torch_dtype": "bfloat16", "use_cache": true, "v_head_dim": 128, "vocab_size": 102400})");
}

nlohmann::json v3() {
  return nlohmann::json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "aux_loss_alpha": 0.001,
    "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3,
    "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02,
    "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
    "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "pretraining_tp": 1,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
                     "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
                     "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": true,
    "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16", "use_cache": true, "v_head_dim": 128, "vocab_size": 129280})");
}

// A copy of a reference folder whose config.json says something else.
void save_changed(const std::string& reference, const nlohmann::json& changes, const fs::path& to) {
  fs::copy(reference_folder(reference), to);
  auto config = nlohmann::json::parse(read_file(to / "config.json"));
  config.update(changes);
  std::ofstream(to / "config.json") << config.dump();
}

}  // namespace

TEST_CASE("a DeepSeek-V3's heads, mixture and scales") {
  const ConfigRead read = read_config("deepseek-v3", {});
  CHECK(read.problems == "");
  const ModelShape& shape = read.shape;
  CHECK(shape.latent.kv_rank == 12);
  CHECK(shape.latent.q_rank == 20);
  CHECK(shape.latent.rope_dim == 4);
  CHECK(shape.latent.value_dim == 6);
  CHECK(shape.latent.norm_eps == 1e-6);
  CHECK(shape.norm_eps == 1e-5);
  CHECK(shape.head_dim == 12);
  CHECK(shape.rotary_dim() == 4);
  CHECK(shape.kv_heads == 4);
  CHECK(shape.experts == 8);
  CHECK(shape.ffn == 12);
  CHECK(shape.shared_ffn == 24);
  CHECK(shape.dense_layers == Layers{0});
  CHECK(shape.dense_layer_ffn == 24);
  CHECK(shape.expert_bias);
  CHECK(shape.moe_scores.sigmoid);
  CHECK(shape.moe_scores.normalize);
  CHECK(shape.moe_scores.scale == 2.5);
  CHECK(shape.moe_scores.groups == 4);
  CHECK(shape.moe_scores.group_topk == 2);
  const double all = 0.1 * 0.707 * std::log(4.0) + 1, own = 0.1 * std::log(4.0) + 1;
  CHECK(shape.attention_scale == doctest::Approx(all * all / std::sqrt(12.0)).epsilon(1e-14));
  CHECK(shape.rope_scaling.attention_factor == doctest::Approx(own / all).epsilon(1e-14));
  check_returns(shape);

  const nlohmann::json written = hf_config_of(hf_model_of(shape), {}, "float32");
  CHECK(written.at("model_type") == "deepseek_v3");
  // transformers rotates that many elements of a head.
  CHECK(!written.contains("head_dim"));
  CHECK(written.at("rope_scaling").at("mscale") == 1.0);
  CHECK(written.at("rope_scaling").at("mscale_all_dim") == 0.707);
  CHECK(!written.at("rope_scaling").contains("attention_factor"));
  CHECK(written.at("topk_method") == "noaux_tc");
  CHECK(written.at("rope_interleave") == true);
}

TEST_CASE("a DeepSeek-V2's mixture, and models without experts") {
  ConfigRead read = read_config("deepseek-v2", {});
  CHECK(read.problems == "");
  CHECK(read.shape.latent.q_rank == 0);
  const double all = 0.1 * 0.707 * std::log(4.0) + 1;
  CHECK(read.shape.attention_scale == doctest::Approx(all * all / std::sqrt(12.0)).epsilon(1e-14));
  CHECK(read.shape.rope_scaling.attention_factor == 1);
  CHECK(read.shape.shared_ffn == 12);
  CHECK_FALSE(read.shape.expert_bias);
  CHECK_FALSE(read.shape.moe_scores.sigmoid);
  CHECK_FALSE(read.shape.moe_scores.normalize);
  CHECK(read.shape.moe_scores.scale == 1.5);
  CHECK(read.shape.moe_scores.groups == 1);
  check_returns(read.shape);
  nlohmann::json written = hf_config_of(hf_model_of(read.shape), {}, "float32");
  CHECK(written.at("model_type") == "deepseek_v2");
  CHECK(written.at("topk_method") == "greedy");
  CHECK(written.at("q_lora_rank").is_null());
  // Groups count where the method says so.
  CHECK(read_config("deepseek-v2", {{"n_group", 2}, {"topk_group", 1}}).shape.moe_scores.groups ==
        1);
  read = read_config("deepseek-v2-groups", {});
  CHECK(read.problems == "");
  CHECK(read.shape.attention_scale == 0);
  CHECK(read.shape.moe_scores.groups == 4);
  CHECK(read.shape.moe_scores.group_topk == 2);
  CHECK(read.shape.dense_layers.empty());
  check_returns(read.shape);
  written = hf_config_of(hf_model_of(read.shape), {}, "float32");
  CHECK(written.at("topk_method") == "group_limited_greedy");

  read = read_config("deepseek-v3-dense", {});
  CHECK(read.problems == "");
  CHECK(read.shape.experts == 0);
  CHECK(read.shape.ffn == 24);
  CHECK(read.shape.dense_layers.empty());
  check_returns(read.shape);
  CHECK(hf_config_of(hf_model_of(read.shape), {}, "float32").at("first_k_dense_replace") == 2);
  // As DeepSeek's own code has it.
  read = read_config("deepseek-v2", {{"n_routed_experts", "null"}});
  CHECK(read.problems == "");
  CHECK(read.shape.experts == 0);
}

TEST_CASE("published models of latent attention") {
  ConfigRead read = read_config(v2_lite());
  CHECK(read.problems == "");
  CHECK(read.shape.head_dim == 192);
  CHECK(read.shape.latent.q_rank == 0);
  CHECK(read.shape.latent.value_dim == 128);
  CHECK(read.shape.rope_scaling.attention_factor == 1);
  // What DeepSeek's own code multiplies by, and transformers from 5.24 on.
  const double lite = 0.1 * 0.707 * std::log(40.0) + 1;
  CHECK(read.shape.attention_scale ==
        doctest::Approx(lite * lite / std::sqrt(192.0)).epsilon(1e-14));
  check_returns(read.shape);

  read = read_config(v3());
  CHECK(read.problems == "");
  const double third = 0.1 * std::log(40.0) + 1;
  CHECK(read.shape.attention_scale ==
        doctest::Approx(third * third / std::sqrt(192.0)).epsilon(1e-14));
  CHECK(read.shape.latent.q_rank == 1536);
  CHECK(read.shape.dense_layers == Layers{0, 1, 2});
  CHECK(read.shape.shared_ffn == 2048);
  check_returns(read.shape);
  const nlohmann::json written = hf_config_of(hf_model_of(read.shape), {}, "float32");
  CHECK(written.at("rope_scaling").at("mscale") == 1.0);
  CHECK(written.at("rope_scaling").at("mscale_all_dim") == 1.0);
  CHECK(written.at("num_nextn_predict_layers") == 0);

  // Its own numbers are what holds where nothing is said, as in transformers.
  nlohmann::json silent = v3();
  for (const char* key :
       {"first_k_dense_replace", "kv_lora_rank", "moe_intermediate_size", "moe_layer_freq",
        "n_group", "n_routed_experts", "n_shared_experts", "norm_topk_prob", "num_experts_per_tok",
        "num_nextn_predict_layers", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
        "routed_scaling_factor", "scoring_func", "topk_group", "topk_method", "v_head_dim"}) {
    silent.erase(key);
  }
  CHECK(to_json(read_config(silent).shape) == to_json(read.shape));

  nlohmann::json moonlight = v3();
  moonlight.update({{"n_group", 1},
                    {"topk_group", 1},
                    {"n_routed_experts", 64},
                    {"num_experts_per_tok", 6},
                    {"q_lora_rank", nullptr},
                    {"rope_scaling", nullptr},
                    {"rope_theta", 50000.0},
                    {"num_nextn_predict_layers", 0}});
  read = read_config(moonlight);
  CHECK(read.problems == "");
  CHECK(read.shape.moe_scores.groups == 1);
  CHECK(read.shape.attention_scale == 0);
  check_returns(read.shape);

  nlohmann::json kimi = v3();
  kimi.update({{"model_type", "kimi_k2"},
               {"n_group", 1},
               {"topk_group", 1},
               {"n_routed_experts", 384},
               {"num_attention_heads", 64},
               {"num_key_value_heads", 64}});
  read = read_config(kimi);
  CHECK(read.problems == "");
  CHECK(read.shape.experts == 384);
  CHECK(hf_model_of(read.shape).architecture == "DeepseekV3ForCausalLM");

  // DeepSeek-V2 itself takes six experts of three groups, by the best of each.
  nlohmann::json second = v2_lite();
  second.update({{"topk_method", "group_limited_greedy"},
                 {"n_group", 8},
                 {"topk_group", 3},
                 {"n_routed_experts", 160}});
  read = read_config(second);
  CHECK(read.problems == "");
  CHECK(read.shape.moe_scores.best_of_group(6) == 1);
  // And V3 is published in fp8.
  nlohmann::json fp8 = v3();
  fp8["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  Diagnostics diagnostics;
  model_from_hf_config(fp8, "c", diagnostics);
  REQUIRE(diagnostics.all().size() == 1);
  CHECK(diagnostics.all()[0].what ==
        "c: 'quantization_config' is there: weights in fp8, with scales");
  CHECK(diagnostics.all()[0].help.starts_with("convert the weights to bf16 first"));
}

TEST_CASE("what latents come with here is all that is read") {
  const std::pair<nlohmann::json, const char*> kOfAll[] = {
      {{{"attention_bias", true}}, "'attention_bias' is true"},
      {{{"use_mla", false}}, "'use_mla' is false"},
      {{{"num_key_value_heads", 2}}, "'num_key_value_heads' is 2"},
      {{{"kv_lora_rank", 0}}, "'kv_lora_rank' is 0"},
      {{{"qk_nope_head_dim", 0}}, "'kv_lora_rank' is 12, 'qk_nope_head_dim' 0"},
      {{{"v_head_dim", 0}}, "'kv_lora_rank' is 12"},
      {{{"v_head_dim", 13}}, "values of 13 elements"},
      {{{"qk_head_dim", 16}}, "'qk_head_dim' is 16"},
      {{{"qk_rope_head_dim", 3}, {"qk_head_dim", 11}}, "of the 11 elements of a head 3 are"},
      {{{"hidden_act", "gelu"}}, "'hidden_act' is 'gelu'"},
      {{{"moe_layer_freq", 2}}, "'moe_layer_freq' is 2"},
      {{{"n_shared_experts", 0}}, "'n_shared_experts' is 0"},
      {{{"n_routed_experts", 0}}, "'n_routed_experts' is 0"},
      {{{"routed_scaling_factor", 0}}, "'routed_scaling_factor' is 0"},
      {{{"scoring_func", "tanh"}}, "'scoring_func' is 'tanh'"},
      {{{"topk_method", "random"}}, "'topk_method' is 'random'"},
      {{{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}}, "rotary positions are scaled"},
      {{{"some_field", 1}}, "'some_field' is not known here"}};
  for (const char* folder : {"deepseek-v2", "deepseek-v3"}) {
    for (const auto& one : kOfAll) {
      CAPTURE(std::string(folder) + ": " + one.second);
      const std::string problems = read_config(folder, one.first).problems;
      CAPTURE(problems);
      CHECK(problems.starts_with(std::string("c: ") + one.second));
    }
  }
  // Once, though three would not divide four either.
  const std::string heads = read_config("deepseek-v3", {{"num_key_value_heads", 3}}).problems;
  CHECK(std::count(heads.begin(), heads.end(), '\n') == 1);
  CHECK(read_config("deepseek-v2", {{"mlp_bias", true}}).problems.starts_with("c: 'mlp_bias' is"));
  CHECK(read_config("deepseek-v2", {{"norm_topk_prob", true}})
            .problems.starts_with("c: 'norm_topk_prob' is true: DeepSeek's own code"));
  CHECK(read_config("deepseek-v2", {{"scoring_func", "sigmoid"}})
            .problems.starts_with("c: 'scoring_func' is 'sigmoid', and models of this type have"));
  CHECK(read_config("deepseek-v3", {{"rope_interleave", false}})
            .problems.starts_with("c: 'rope_interleave' is false"));
  CHECK(read_config("deepseek-v3", {{"topk_method", "greedy"}})
            .problems.starts_with("c: 'topk_method' is 'greedy', and models of this type have"));
  CHECK(read_config("deepseek-v3", {{"num_experts_per_tok", 8}, {"topk_group", 4}}).problems == "");
  CHECK(read_config("deepseek-v3", {{"n_group", 8}})
            .problems.starts_with("c: 'n_group' 8 and 'topk_group' 2 do not fit 4 of 8 experts"));
  CHECK(read_config("deepseek-v3", {{"norm_topk_prob", false}}).problems == "");
  CHECK(read_config("deepseek-v3", {{"model_type", "deepseek_v32"}})
            .problems.starts_with("c: models of type 'deepseek_v32' are not here: attention to"));
  CHECK(read_config("deepseek-v3", {{"architectures", {"DeepseekV3Model"}}}).problems == "");
}

TEST_CASE("the two scales of YaRN that DeepSeek has are found again from what they made") {
  const auto scaled = [](const nlohmann::json& more) {
    nlohmann::json scaling = {
        {"type", "yarn"}, {"factor", 40}, {"original_max_position_embeddings", 64}};
    scaling.update(more);
    return read_config("deepseek-v3", {{"rope_scaling", scaling}});
  };
  const auto written = [](const ModelShape& shape) {
    return nlohmann::json(hf_config_of(hf_model_of(shape), {}, "float32").at("rope_scaling"));
  };
  for (const double all : {0.1, 0.707, 1.0, 1.25, 3.0, 0.123456789}) {
    for (const double own : {0.1, 0.707, 1.0, 2.0}) {
      CAPTURE(all);
      CAPTURE(own);
      const ConfigRead read = scaled({{"mscale", own}, {"mscale_all_dim", all}});
      CHECK(read.problems == "");
      check_returns(read.shape);
      CHECK(written(read.shape).at("mscale_all_dim") == all);
      CHECK(written(read.shape).at("mscale").get<double>() == doctest::Approx(own).epsilon(1e-12));
    }
  }
  // Alone that of whole heads scales scores, and the rotation is as without any.
  ConfigRead read = scaled({{"mscale_all_dim", 1.0}});
  CHECK(read.problems == "");
  CHECK(read.shape.rope_scaling.attention_factor == 0);
  const double amplitude = 0.1 * std::log(40.0) + 1;
  CHECK(read.shape.attention_scale ==
        doctest::Approx(amplitude * amplitude / std::sqrt(12.0)).epsilon(1e-14));
  Diagnostics diagnostics;
  const HfModel back =
      model_from_hf_config(hf_config_of(hf_model_of(read.shape), {}, "float32"), "c", diagnostics);
  CHECK(back.shape.attention_scale == read.shape.attention_scale);
  CHECK(rope_amplitude(back.shape.rope_scaling) == doctest::Approx(amplitude).epsilon(1e-14));
  // That of the rotation alone is none of either, as in transformers.
  read = scaled({{"mscale", 2.0}});
  CHECK(read.shape.rope_scaling.attention_factor == 0);
  CHECK(read.shape.attention_scale == 0);
  check_returns(read.shape);
  // A rotation that shrinks so much that no scale of a logarithm makes it.
  read = scaled({{"mscale_all_dim", 1.0}, {"attention_factor", 0.25}});
  CHECK(read.shape.rope_scaling.attention_factor == 0.25);
  check_returns(read.shape);
  CHECK(written(read.shape).at("attention_factor") == 0.25);
  CHECK(!written(read.shape).contains("mscale"));
  // Of other families it scales no scores.
  CHECK(read_config(
            "llama-yarn",
            {{"rope_scaling",
              {{"rope_type", "yarn"}, {"factor", 4.0}, {"mscale", 1.0}, {"mscale_all_dim", 1.0}}}})
            .shape.attention_scale == 0);
}

TEST_CASE("of a model that is almost DeepSeek-V3 what keeps it from being one is named") {
  const ModelShape v3_shape = read_config("deepseek-v3", {}).shape;
  const auto family = [&](const Change& change) { return family_or_keys(v3_shape, change); };
  CHECK(family([](ModelShape&) {}) == "DeepseekV3ForCausalLM");
  const std::pair<const char*, Change> kNot[] = {
      {"model.norm.type", [](ModelShape& s) { s.norm = NormType::layernorm; }},
      {"model.norm.place", [](ModelShape& s) { s.norm_place = NormPlace::both; }},
      {"model.activation", [](ModelShape& s) { s.activation = Activation::geglu; }},
      {"model.position.skip", [](ModelShape& s) { s.unrotated_layers = {1}; }},
      {"model.bias", [](ModelShape& s) { s.qkv_bias = true; }},
      {"model.kv_heads", [](ModelShape& s) { s.kv_heads = 2; }},
      {"model.qk_norm", [](ModelShape& s) { s.qk_norm = true; }},
      {"model.latent.norm_eps", [](ModelShape& s) { s.latent.norm_eps = 1e-5; }},
      {"model.parallel_residual", [](ModelShape& s) { s.parallel_residual = true; }},
      {"model.sliding_window", [](ModelShape& s) { s.sliding_window = 4; }},
      {"model.attention_scale", [](ModelShape& s) { s.attention_scale = 0.1; }},
      {"model.attention_cap", [](ModelShape& s) { s.attention_cap = 50; }},
      {"model.logit_cap", [](ModelShape& s) { s.logit_cap = 30; }},
      {"model.embedding_scale", [](ModelShape& s) { s.embedding_scale = 4; }},
      {"model.moe.shared_gate", [](ModelShape& s) { s.shared_gate = true; }},
      {"model.moe.shared_ffn", [](ModelShape& s) { s.shared_ffn = 0; }},
      {"model.moe.shared_ffn", [](ModelShape& s) { s.shared_ffn = 20; }},
      {"model.moe.dense_layers", [](ModelShape& s) { s.dense_layers = {1}; }},
      {"model.moe.score sigmoid without expert_bias", [](ModelShape& s) { s.expert_bias = false; }},
      {"model.moe.group_best", [](ModelShape& s) { s.moe_scores.group_best = 1; }}};
  for (const auto& one : kNot) {
    CAPTURE(std::string(one.first));
    CHECK(family(one.second) == one.first);
  }
  CHECK(family([](ModelShape& s) { s.rope_scaling.type = RopeScalingType::linear; }) ==
        "model.attention_scale");
  CHECK(family([](ModelShape& s) {
          s.position = PositionType::none;
          s.rope_scaling.type = RopeScalingType::none;
          s.attention_scale = 0;
        }) == "model.position.type");
  CHECK(family([](ModelShape& s) {
          s.rope_scaling.type = RopeScalingType::longrope;
          s.attention_scale = 0;
        }) == "model.position.scaling longrope");
  // The scale that holds anyway, said.
  CHECK(family([](ModelShape& s) {
          s.rope_scaling.type = RopeScalingType::none;
          s.attention_scale = 1 / std::sqrt(12.0);
        }) == "DeepseekV3ForCausalLM");
  // Softmax is DeepSeek-V2's.
  const ModelShape v2_shape = read_config("deepseek-v2-groups", {}).shape;
  const auto second = [&](const Change& change) { return family_or_keys(v2_shape, change); };
  CHECK(second([](ModelShape&) {}) == "DeepseekV2ForCausalLM");
  CHECK(second([](ModelShape& s) { s.moe_scores.normalize = true; }) == "model.moe.normalize");
  CHECK(second([](ModelShape& s) { s.moe_scores.group_best = 0; }) == "model.moe.group_best");
  CHECK(second([](ModelShape& s) { s.moe_scores.groups = s.moe_scores.group_topk = 1; }) ==
        "DeepseekV2ForCausalLM");
}

TEST_CASE("tensors of latent attention come in under their own names and go out as they came") {
  for (const char* name :
       {"deepseek-v2", "deepseek-v2-groups", "deepseek-v3", "deepseek-v3-dense"}) {
    CAPTURE(std::string(name));
    const Scratch scratch;
    const auto imported =
        import_model({.source = reference_folder(name), .out = scratch / "run", .tokenizer = {}});
    export_hf({.checkpoint = imported.checkpoint, .out = scratch / "hf"});
    CHECK(tensor_bytes(scratch / "hf") == tensor_bytes(reference_folder(name)));
    CHECK(code_of([&] {
            export_megatron_split({.checkpoint = imported.checkpoint, .out = scratch / "split"});
          }) == "export.split");
  }
}

TEST_CASE("layers that predict tokens further ahead are left out, if config.json has them") {
  const Scratch scratch;
  const nlohmann::json one = {{"num_hidden_layers", 1}, {"first_k_dense_replace", 1}};
  nlohmann::json ahead = one;
  ahead["num_nextn_predict_layers"] = 1;
  save_changed("deepseek-v3-dense", ahead, scratch / "ahead");
  const ForeignModel model = open_hf_folder(scratch / "ahead");
  REQUIRE(model.warnings.size() == 1);
  CHECK(model.warnings[0].code == "import.tensor");
  CHECK(model.warnings[0].what.starts_with("10 tensors of the layer behind the model's 1 are"));
  CHECK(all_weights(model).size() == 13);
  save_changed("deepseek-v3-dense", one, scratch / "none");
  std::string text;
  CHECK(code_of([&] { open_hf_folder(scratch / "none"); }, &text) == "import.tensor");
  CHECK(text.find("unexpected: model.layers.1.") != std::string::npos);
}

TEST_CASE("an import's train.yaml says the latents") {
  for (const char* name : {"deepseek-v2", "deepseek-v3"}) {
    CAPTURE(std::string(name));
    check_import_says(name);
  }
}

TEST_CASE("an export warns of transformers that leave out the scale of a DeepSeek-V2's scores") {
  const Scratch scratch;
  for (const char* reference : {"deepseek-v2", "deepseek-v2-groups", "deepseek-v3"}) {
    CAPTURE(std::string(reference));
    const bool scaled = reference == std::string("deepseek-v2");
    const fs::path run = scratch / (reference + std::string("-run"));
    const auto imported =
        import_model({.source = reference_folder(reference), .out = run, .tokenizer = {}});
    const ExportReport report =
        export_hf({.checkpoint = imported.checkpoint, .out = scratch / reference});
    bool warned = false;
    for (const Diagnostic& d : report.warnings) {
      if (d.what.find("mscale_all_dim") == std::string::npos) continue;
      CHECK(d.code == "export.yarn");
      warned = true;
    }
    CHECK(warned == scaled);
  }
}

}  // namespace hf_latent_test
