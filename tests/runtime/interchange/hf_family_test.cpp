// Which of Hugging Face's families a shape is, and what keeps an almost fitting one from being it.
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "reference_folders.h"
#include "runtime/interchange/hf_config.h"

using namespace mtl;
using namespace mtl::test;

namespace {

// Of GPT-2's family, as every ModelShape of which nothing else is said.
ModelShape small_shape() {
  ModelShape shape;
  shape.layers = shape.heads = shape.kv_heads = 2;
  shape.head_dim = 8;
  shape.hidden = 16;
  return shape;
}

// The architecture that `shape` has after `change`, or the one key that keeps it from having any.
std::string family_or_key(ModelShape shape, const Change& change) {
  change(shape);
  try {
    return hf_model_of(shape).architecture;
  } catch (const Error& error) {
    const std::vector<std::string>& notes = error.diagnostics()[0].notes;
    return notes.size() == 1 ? notes[0].substr(0, notes[0].find(':')) : "several";
  }
}

}  // namespace

TEST_CASE("models that no family holds are refused with what is in the way") {
  ModelShape shape = small_shape();
  shape.position = PositionType::alibi;
  std::string text;
  CHECK(code_of([&] { hf_model_of(shape); }, &text) == "export.family");
  CHECK(text.find("model.position.type") != std::string::npos);
  CHECK(text.find("model.activation") != std::string::npos);
  shape.position = PositionType::rope;
  shape.norm = NormType::rmsnorm;
  shape.activation = Activation::swiglu;
  CHECK(hf_model_of(shape).architecture == "LlamaForCausalLM");
  shape.bias = shape.qkv_bias = false;
  shape.qk_norm = true;
  CHECK(hf_model_of(shape).architecture == "Qwen3ForCausalLM");
}

TEST_CASE("of a model that is almost GPT-2 what keeps it from being one is named, and no more") {
  ModelShape gpt2 = small_shape();
  CHECK(hf_model_of(gpt2).architecture == "GPT2LMHeadModel");
  const auto family = [&](const Change& change) { return family_or_key(gpt2, change); };
  CHECK(family([](ModelShape& shape) { shape.kv_heads = 1; }) == "model.kv_heads");
  CHECK(family([](ModelShape& shape) { shape.head_dim = 16; }) == "model.head_dim");
  CHECK(family([](ModelShape& shape) { shape.qkv_bias = !shape.bias; }) == "model.qkv_bias");
  CHECK(family([](ModelShape& shape) { shape.qk_norm = true; }) == "model.qk_norm");
  CHECK(family([](ModelShape& shape) { shape.sliding_window = 4; }) == "model.sliding_window");
  CHECK(family([](ModelShape& shape) { shape.parallel_residual = true; }) ==
        "model.parallel_residual");
  gpt2.activation = Activation::gelu_exact;
  CHECK(hf_model_of(gpt2).architecture == "GPT2LMHeadModel");
  CHECK(hf_config_of(hf_model_of(gpt2), {}, "float32").at("activation_function") == "gelu");
}

TEST_CASE("of a model that is almost GPT-NeoX what keeps it from being one is named, and no more") {
  ModelShape neox = small_shape();
  neox.activation = Activation::gelu_exact;
  neox.position = PositionType::rope;
  neox.rope_fraction = 0.5;
  neox.parallel_residual = true;
  const auto family = [&](const Change& change) { return family_or_key(neox, change); };
  CHECK(family([](ModelShape&) {}) == "GPTNeoXForCausalLM");
  CHECK(family([](ModelShape& s) { s.parallel_residual = false; }) == "GPTNeoXForCausalLM");
  CHECK(family([](ModelShape& s) { s.activation = Activation::gelu_tanh; }) ==
        "GPTNeoXForCausalLM");
  CHECK(family([](ModelShape& s) { s.kv_heads = 1; }) == "model.kv_heads");
  CHECK(family([](ModelShape& s) { s.head_dim = 16; }) == "model.head_dim");
  CHECK(family([](ModelShape& s) { s.bias = s.qkv_bias = false; }) == "model.bias");
  CHECK(family([](ModelShape& s) { s.qkv_bias = false; }) == "model.bias");
  CHECK(family([](ModelShape& s) { s.qk_norm = true; }) == "model.qk_norm");
  CHECK(family([](ModelShape& s) { s.sliding_window = 4; }) == "model.sliding_window");
  CHECK(family([](ModelShape& s) { s.experts = 4; }) == "model.moe");
  // StableLM's and LLaMA's blocks stand behind each other.
  CHECK(family([](ModelShape& s) {
          s.activation = Activation::swiglu;
          s.bias = s.qkv_bias = false;
        }) == "model.parallel_residual");
  CHECK(family([](ModelShape& s) {
          s.activation = Activation::swiglu;
          s.norm = NormType::rmsnorm;
          s.rope_fraction = 1;
        }) == "model.parallel_residual");
  // What config.json says is what was there.
  const nlohmann::ordered_json written = hf_config_of(hf_model_of(neox), {}, "float32");
  CHECK(written.at("hidden_act") == "gelu");
  CHECK(written.at("use_parallel_residual") == true);
  CHECK(written.at("rotary_pct") == 0.5);
}

TEST_CASE("of a model that is almost StableLM what keeps it from being one is named, and no more") {
  ModelShape stablelm = small_shape();
  stablelm.activation = Activation::swiglu;
  stablelm.position = PositionType::rope;
  stablelm.rope_fraction = 0.5;
  stablelm.bias = false;
  const auto family = [&](const Change& change) { return family_or_key(stablelm, change); };
  CHECK(family([](ModelShape&) {}) == "StableLmForCausalLM");
  CHECK(family([](ModelShape& shape) { shape.qkv_bias = false; }) == "StableLmForCausalLM");
  CHECK(family([](ModelShape& shape) { shape.rope_fraction = 1; }) == "StableLmForCausalLM");
  CHECK(family([](ModelShape& shape) { shape.head_dim = 16; }) == "model.head_dim");
  CHECK(family([](ModelShape& shape) { shape.bias = true; }) == "model.bias");
  CHECK(family([](ModelShape& shape) { shape.qk_norm = true; }) == "model.qk_norm");
  CHECK(family([](ModelShape& shape) { shape.sliding_window = 4; }) == "model.sliding_window");
  CHECK(family([](ModelShape& shape) { shape.experts = 4; }) == "model.moe");
  // With an RMS norm it is Phi-3, but for these.
  stablelm.norm = NormType::rmsnorm;
  stablelm.qkv_bias = false;
  CHECK(family([](ModelShape&) {}) == "Phi3ForCausalLM");
  CHECK(family([](ModelShape& shape) { shape.sliding_window = 4; }) == "Phi3ForCausalLM");
  CHECK(family([](ModelShape& shape) { shape.head_dim = 16; }) == "Phi3ForCausalLM");
  CHECK(family([](ModelShape& shape) { shape.rope_fraction = 1; }) == "LlamaForCausalLM");
  CHECK(family([](ModelShape& shape) { shape.qkv_bias = true; }) == "GlmForCausalLM");
  CHECK(family([](ModelShape& shape) { shape.qk_norm = true; }) == "model.position.fraction");
  CHECK(family([](ModelShape& shape) { shape.experts = 4; }) == "model.position.fraction");
  CHECK(family([](ModelShape& shape) { shape.rope_scaling.type = RopeScalingType::linear; }) ==
        "model.position.fraction");
}

TEST_CASE("of a model that is almost Gemma what keeps it from being one is named, and no more") {
  ModelShape gemma = small_shape();
  gemma.activation = Activation::geglu;
  gemma.norm = NormType::rmsnorm;
  gemma.position = PositionType::rope;
  gemma.bias = gemma.qkv_bias = false;
  gemma.embedding_scale = 4;
  const auto family = [&](const Change& change) { return family_or_key(gemma, change); };
  CHECK(family([](ModelShape&) {}) == "GemmaForCausalLM");
  CHECK(family([](ModelShape& shape) { shape.head_dim = 16; }) == "GemmaForCausalLM");
  CHECK(family([](ModelShape& shape) { shape.tie_embeddings = false; }) == "GemmaForCausalLM");
  CHECK(family([](ModelShape& shape) { shape.embedding_scale = 1; }) == "model.embedding_scale");
  CHECK(family([](ModelShape& s) { s.norm = NormType::layernorm; }) == "model.norm.type");
  CHECK(family([](ModelShape& s) { s.position = PositionType::none; }) == "model.position.type");
  CHECK(family([](ModelShape& s) { s.rope_fraction = 0.5; }) == "model.position.fraction");
  CHECK(family([](ModelShape& shape) { shape.qkv_bias = true; }) == "model.bias");
  CHECK(family([](ModelShape& shape) { shape.qk_norm = true; }) == "model.qk_norm");
  CHECK(family([](ModelShape& shape) { shape.sliding_window = 4; }) == "model.sliding_window");
  CHECK(family([](ModelShape& shape) { shape.experts = 4; }) == "model.moe");
  CHECK(family([](ModelShape& s) { s.parallel_residual = true; }) == "model.parallel_residual");
  // Granite alone scales the embeddings too.
  CHECK(family([](ModelShape& s) { s.activation = Activation::swiglu; }) == "GraniteForCausalLM");
  CHECK(family([](ModelShape& s) {
          s.activation = Activation::swiglu;
          s.qk_norm = true;
        }) == "model.embedding_scale");
  const nlohmann::ordered_json written = hf_config_of(hf_model_of(gemma), {}, "float32");
  CHECK(written.at("hidden_act") == "gelu_pytorch_tanh");
  CHECK(written.at("hidden_activation") == "gelu_pytorch_tanh");
}

TEST_CASE(
    "norms behind blocks are OLMo 2's and EXAONE 4's, and of all heads OLMo 2's and OLMoE's") {
  ModelShape olmo = small_shape();
  olmo.activation = Activation::swiglu;
  olmo.norm = NormType::rmsnorm;
  olmo.position = PositionType::rope;
  olmo.bias = olmo.qkv_bias = olmo.tie_embeddings = false;
  olmo.norm_place = NormPlace::output;
  olmo.qk_norm = olmo.qk_norm_whole = true;
  const auto family = [&](const Change& change) { return family_or_key(olmo, change); };
  CHECK(family([](ModelShape&) {}) == "Olmo2ForCausalLM");
  CHECK(family([](ModelShape& s) { s.head_dim = 16; }) == "Olmo2ForCausalLM");
  CHECK(family([](ModelShape& s) { s.qk_norm_whole = false; }) == "Exaone4ForCausalLM");
  CHECK(family([](ModelShape& s) { s.qk_norm = s.qk_norm_whole = false; }) ==
        "model.norm.place without model.qk_norm");
  CHECK(family([](ModelShape& s) { s.norm_place = NormPlace::both; }) == "model.norm.place both");
  CHECK(family([](ModelShape& s) { s.norm_place = NormPlace::input; }) == "model.qk_norm_whole");
  CHECK(family([](ModelShape& s) { s.norm = NormType::layernorm; }) == "model.norm.place");
  CHECK(family([](ModelShape& s) { s.activation = Activation::gelu_tanh; }) == "model.norm.place");
  CHECK(family([](ModelShape& s) { s.rope_fraction = 0.5; }) == "model.position.fraction");
  CHECK(family([](ModelShape& s) { s.sliding_window = 4; }) == "Olmo3ForCausalLM");
  CHECK(family([](ModelShape& s) { s.rope_scaling.type = RopeScalingType::linear; }) ==
        "Olmo3ForCausalLM");
  CHECK(family([](ModelShape& s) { s.experts = 4; }) == "model.moe");
  ModelShape olmoe = olmo;
  olmoe.norm_place = NormPlace::input;
  olmoe.experts = 4;
  olmoe.experts_per_token = 2;
  const auto of_mixture = [&](const Change& change) { return family_or_key(olmoe, change); };
  CHECK(of_mixture([](ModelShape&) {}) == "OlmoeForCausalLM");
  CHECK(of_mixture([](ModelShape& s) { s.moe_scores.normalize = false; }) == "OlmoeForCausalLM");
  CHECK(of_mixture([](ModelShape& s) { s.head_dim = 16; }) == "model.head_dim");
  CHECK(of_mixture([](ModelShape& s) { s.sliding_window = 4; }) == "model.sliding_window");
  CHECK(of_mixture([](ModelShape& s) { s.moe_scores.scale = 2; }) == "model.moe.scale");
  CHECK(of_mixture([](ModelShape& s) {
          s.shared_ffn = 8;
          s.shared_gate = true;
        }) == "model.moe.shared_ffn");
  CHECK(of_mixture([](ModelShape& s) {
          s.dense_layers = {0};
          s.dense_layer_ffn = 8;
        }) == "model.moe.dense_layers");
  // What config.json says is what was there.
  for (const bool whole : {true, false}) {
    ModelShape shape = olmo;
    shape.qk_norm_whole = whole;
    shape.vocab = shape.padded_vocab = shape.vocab_pad_to = 128;
    shape.ffn = shape.max_seq = 32;
    Diagnostics diagnostics;
    const HfModel back =
        model_from_hf_config(hf_config_of(hf_model_of(shape), {}, "float32"), "", diagnostics);
    CHECK_FALSE(diagnostics.has_errors());
    CHECK(to_json(back.shape) == to_json(hf_model_of(shape).shape));
  }
}

TEST_CASE(
    "GPT-NeoX's blocks behind each other with fewer key heads, a window or no biases are StarCoder "
    "2") {
  ModelShape shape = small_shape();
  shape.position = PositionType::rope;
  const auto family = [&](const Change& change) { return family_or_key(shape, change); };
  CHECK(family([](ModelShape&) {}) == "GPTNeoXForCausalLM");
  CHECK(family([](ModelShape& s) { s.kv_heads = 1; }) == "Starcoder2ForCausalLM");
  CHECK(family([](ModelShape& s) { s.sliding_window = 4; }) == "Starcoder2ForCausalLM");
  CHECK(family([](ModelShape& s) { s.bias = s.qkv_bias = false; }) == "Starcoder2ForCausalLM");
  shape.kv_heads = 1;
  CHECK(family([](ModelShape& s) { s.activation = Activation::gelu_exact; }) ==
        "Starcoder2ForCausalLM");
  CHECK(family([](ModelShape& s) { s.parallel_residual = true; }) == "model.kv_heads");
  CHECK(family([](ModelShape& s) { s.rope_fraction = 0.5; }) == "model.kv_heads");
}

TEST_CASE("norms on both sides of blocks are GLM-4's, and a part of each head under biases GLM's") {
  ModelShape glm = small_shape();
  glm.activation = Activation::swiglu;
  glm.norm = NormType::rmsnorm;
  glm.position = PositionType::rope;
  glm.rope_fraction = 0.5;
  glm.bias = false;
  const auto family = [&](const Change& change) { return family_or_key(glm, change); };
  CHECK(family([](ModelShape&) {}) == "GlmForCausalLM");
  CHECK(family([](ModelShape& s) { s.qkv_bias = false; }) == "Phi3ForCausalLM");
  CHECK(family([](ModelShape& s) { s.rope_fraction = 1; }) == "Qwen2ForCausalLM");
  CHECK(family([](ModelShape& s) { s.sliding_window = 4; }) == "model.position.fraction");
  glm.norm_place = NormPlace::both;
  for (const bool biases : {false, true}) {
    for (const double fraction : {0.5, 1.0}) {
      glm.qkv_bias = biases;
      glm.rope_fraction = fraction;
      CHECK(family([](ModelShape&) {}) == "Glm4ForCausalLM");
    }
  }
  CHECK(family([](ModelShape& s) {
          s.qk_norm = true;
          s.qkv_bias = false;
        }) == "model.norm.place both");
  CHECK(family([](ModelShape& s) { s.sliding_window = 4; }) == "model.norm.place both");
  CHECK(family([](ModelShape& s) { s.rope_scaling.type = RopeScalingType::linear; }) ==
        "model.norm.place both");
}

TEST_CASE("of a mixture the family follows from its parts, and what none has is refused") {
  ModelShape mixtral = small_shape();
  mixtral.norm = NormType::rmsnorm;
  mixtral.activation = Activation::swiglu;
  mixtral.position = PositionType::rope;
  mixtral.bias = mixtral.qkv_bias = false;
  mixtral.experts = 4;
  mixtral.experts_per_token = 2;
  const auto family = [&](const Change& change) {
    ModelShape shape = mixtral;
    change(shape);
    try {
      return hf_model_of(shape).architecture;
    } catch (const Error& error) {
      return error.diagnostics()[0].notes[0];
    }
  };
  const auto shared = [](ModelShape& shape) {
    shape.shared_ffn = 24;
    shape.shared_gate = shape.qkv_bias = true;
  };
  CHECK(family([](ModelShape&) {}) == "MixtralForCausalLM");
  CHECK(family([](ModelShape& shape) { shape.qk_norm = true; }) == "Qwen3MoeForCausalLM");
  CHECK(family(shared) == "Qwen2MoeForCausalLM");
  CHECK(family([&](ModelShape& shape) {
          shared(shape);
          shape.shared_gate = false;
        }).starts_with("model.qkv_bias: Granite"));
  CHECK(family([&](ModelShape& shape) {
          shared(shape);
          shape.shared_gate = shape.qkv_bias = false;
        }) == "GraniteMoeSharedForCausalLM");
  const auto dots = [](ModelShape& shape) {
    shape.qk_norm = shape.expert_bias = true;
    shape.moe_scores = {.sigmoid = true, .scale = 2.5, .groups = 2};
    shape.ffn = 12;
    shape.shared_ffn = 24;
    shape.dense_layers = {0};
  };
  CHECK(family(dots) == "Dots1ForCausalLM");
  const std::pair<const char*, Change> kNotDots[] = {
      {"model.moe.score sigmoid without expert_bias", [](ModelShape& s) { s.expert_bias = false; }},
      {"Glm4MoeForCausalLM", [](ModelShape& s) { s.qk_norm = false; }},
      {"Glm4MoeForCausalLM", [](ModelShape& s) { s.qkv_bias = true; }},
      {"Glm4MoeForCausalLM", [](ModelShape& s) { s.rope_fraction = 0.5; }},
      {"model.moe.shared_gate", [](ModelShape& s) { s.shared_gate = true; }},
      {"model.moe.shared_ffn", [](ModelShape& s) { s.shared_ffn = 20; }},
      {"model.moe.shared_ffn", [](ModelShape& s) { s.shared_ffn = 0; }},
      {"model.moe.dense_layers", [](ModelShape& s) { s.dense_layers = {1}; }},
      {"model.moe.group_best", [](ModelShape& s) { s.moe_scores.group_best = 1; }},
      {"model.moe.scale", [](ModelShape& s) { s.moe_scores = {.scale = 2}; }},
      {"model.moe.groups", [](ModelShape& s) { s.moe_scores = {.groups = 2}; }}};
  for (const auto& one : kNotDots) {
    CAPTURE(std::string(one.first));
    const Change& changed = one.second;
    CHECK(family([&dots, &changed](ModelShape& s) {
            dots(s);
            changed(s);
          }).starts_with(one.first));
  }
  CHECK(family([](ModelShape& shape) {
          shape.dense_layers = {1};
        }).starts_with("model.moe.dense_layers"));
  CHECK(family([](ModelShape& shape) {
          shape.dense_layers = {1};
          shape.qk_norm = true;
        }) == "Qwen3MoeForCausalLM");
  CHECK(family([](ModelShape& shape) {
          shape.moe_scores.normalize = false;
        }).starts_with("model.moe.normalize false"));
  CHECK(family([](ModelShape& shape) { shape.qkv_bias = true; }).starts_with("biases beside"));
}

TEST_CASE("windows and rotations by layer are those of a few families") {
  ModelShape llama = small_shape();
  llama.activation = Activation::swiglu;
  llama.norm = NormType::rmsnorm;
  llama.position = PositionType::rope;
  llama.bias = llama.qkv_bias = llama.tie_embeddings = false;
  const auto window = [](ModelShape& s) {
    s.sliding_window = 4;
    s.full_layers = {1};
  };
  const auto skip = [](ModelShape& s) { s.unrotated_layers = {1}; };
  const auto both = [&](ModelShape& s) {
    window(s);
    skip(s);
  };
  const auto family = [&](const Change& change) { return family_or_key(llama, change); };
  CHECK(family(window) == "SmolLM3ForCausalLM");
  CHECK(family(skip) == "SmolLM3ForCausalLM");
  CHECK(family(both) == "SmolLM3ForCausalLM");
  CHECK(family([](ModelShape& s) {
          s.sliding_window = 4;
          s.bias = s.qkv_bias = true;
        }) == "SmolLM3ForCausalLM");
  CHECK(family([](ModelShape& s) { s.attention_scale = 0.5; }) == "GraniteForCausalLM");
  CHECK(family([](ModelShape& s) {
          s.attention_scale = 0.5;
          s.qk_norm = true;
        }) == "model.attention_scale");
  CHECK(family([](ModelShape& s) { s.logit_cap = 15; }) == "model.logit_cap");
  CHECK(family([&](ModelShape& s) {
          window(s);
          s.window_rope_base = 100;
        }) == "model.position.window_base");
  CHECK(family([&](ModelShape& s) {
          window(s);
          s.rope_fraction = 0.5;
        }) == "model.full_attention");
  CHECK(family([&](ModelShape& s) {
          window(s);
          s.qkv_bias = true;
        }) == "Qwen2ForCausalLM");
  CHECK(family([&](ModelShape& s) {
          skip(s);
          s.qkv_bias = true;
        }) == "model.position.skip");
  llama.qk_norm = true;
  CHECK(family(window) == "Qwen3ForCausalLM");
  CHECK(family(skip) == "model.position.skip");
  CHECK(family([&](ModelShape& s) {
          window(s);
          s.experts = 4;
          s.experts_per_token = 2;
        }) == "model.full_attention");
  // EXAONE 4 rotates where it has a window, and everywhere without any.
  llama.norm_place = NormPlace::output;
  CHECK(family(both) == "Exaone4ForCausalLM");
  CHECK(family([](ModelShape& s) { s.sliding_window = 4; }) == "Exaone4ForCausalLM");
  CHECK(family(window) == "model.position.skip");
  CHECK(family(skip) == "model.position.skip");
  // OLMo 3 scales what it sees everything with.
  llama.qk_norm_whole = true;
  CHECK(family(window) == "Olmo3ForCausalLM");
  CHECK(family(both) == "model.position.skip");
  llama.rope_scaling.type = RopeScalingType::linear;
  CHECK(family(window) == "model.position.window_base");
  llama.window_rope_base = llama.rope_base;
  CHECK(family(window) == "Olmo3ForCausalLM");
  llama.rope_scaling.type = RopeScalingType::none;
  CHECK(family(window) == "model.position.window_base");
}

TEST_CASE("of a model that is almost Gemma 3 what keeps it from being one is named, and no more") {
  ModelShape gemma = small_shape();
  gemma.activation = Activation::geglu;
  gemma.norm = NormType::rmsnorm;
  gemma.norm_place = NormPlace::both;
  gemma.position = PositionType::rope;
  gemma.bias = gemma.qkv_bias = false;
  gemma.embedding_scale = 4;
  gemma.qk_norm = true;
  gemma.sliding_window = 4;
  gemma.full_layers = {1};
  gemma.window_rope_base = 100;
  gemma.attention_scale = 0.5;
  const auto family = [&](const Change& change) { return family_or_key(gemma, change); };
  CHECK(family([](ModelShape&) {}) == "Gemma3ForCausalLM");
  CHECK(family([](ModelShape& s) { s.rope_scaling.type = RopeScalingType::linear; }) ==
        "Gemma3ForCausalLM");
  CHECK(family([](ModelShape& s) { s.window_rope_base = 0; }) == "Gemma3ForCausalLM");
  CHECK(family([](ModelShape& s) {
          s.window_rope_base = 0;
          s.rope_scaling.type = RopeScalingType::linear;
        }) == "model.position.window_base");
  CHECK(family([](ModelShape& s) {
          s.sliding_window = 0;
          s.window_rope_base = 0;
          s.full_layers.clear();
        }) == "Gemma3ForCausalLM");
  CHECK(family([](ModelShape& s) { s.qk_norm_whole = true; }) == "model.qk_norm_whole");
  CHECK(family([](ModelShape& s) { s.attention_cap = 50; }) == "model.attention_cap");
  CHECK(family([](ModelShape& s) { s.logit_cap = 30; }) == "model.logit_cap");
  CHECK(family([](ModelShape& s) { s.qk_norm = false; }) == "model.position.window_base");
  CHECK(family([](ModelShape& s) {
          s.qk_norm = false;
          s.window_rope_base = 0;
          s.attention_cap = 50;
          s.logit_cap = 30;
        }) == "Gemma2ForCausalLM");
  CHECK(family([](ModelShape& s) { s.norm_place = NormPlace::output; }) == "model.norm.place");
  CHECK(family([](ModelShape& s) { s.unrotated_layers = {0}; }) == "model.position.skip");
  CHECK(family([](ModelShape& s) { s.embedding_scale = 1; }) == "model.embedding_scale");
  CHECK(family([](ModelShape& s) { s.qkv_bias = true; }) == "model.bias");
  CHECK(family([](ModelShape& s) { s.norm = NormType::layernorm; }) == "model.norm.type");
  const auto written = [](const ModelShape& shape) {
    return hf_config_of(hf_model_of(shape), {}, "float32");
  };
  CHECK(written(gemma).at("query_pre_attn_scalar") == 4);
  CHECK(written(gemma).at("rope_local_base_freq") == 100);
  gemma.attention_scale = gemma.window_rope_base = 0;
  CHECK(written(gemma).at("query_pre_attn_scalar") == 8);
  CHECK(written(gemma).at("rope_local_base_freq") == 10000);
}
