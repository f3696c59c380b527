// gpt-oss: its config.json, experts in fused tensors and in MXFP4, and models of ours that are
// almost one.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "reference_folders.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/interchange/export.h"
#include "runtime/interchange/hf_config.h"
#include "runtime/interchange/import.h"
#include "runtime/interchange/megatron_layout.h"
#include "runtime/interchange/new_folder.h"
#include "runtime/spec/train_spec.h"

using namespace mtl;
using namespace mtl::test;
namespace fs = std::filesystem;

namespace hf_gpt_oss_test {

namespace {

using Layers = std::vector<int64_t>;

// As it is published.
nlohmann::json published(int64_t layers, int64_t experts) {
  auto config = nlohmann::json::parse(R"({
    "architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
    "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2880, "initial_context_length": 4096, "initializer_range": 0.02,
    "intermediate_size": 2880, "max_position_embeddings": 131072, "model_type": "gpt_oss",
    "num_attention_heads": 64, "num_experts_per_tok": 4, "num_key_value_heads": 8,
    "output_router_logits": false, "pad_token_id": 199999,
    "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn",
        "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
                     "original_max_position_embeddings": 4096, "rope_type": "yarn",
                     "truncate": false},
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
    "swiglu_limit": 7.0, "tie_word_embeddings": false, "transformers_version": "4.55.0.dev0",
    "use_cache": true, "vocab_size": 201088})");
  config["num_hidden_layers"] = layers;
  config["num_local_experts"] = experts;
  for (int64_t layer = 0; layer < layers; ++layer) {
    config["layer_types"].push_back(layer % 2 == 0 ? "sliding_attention" : "full_attention");
  }
  return config;
}

int64_t parameters_of(const ModelShape& shape) {
  int64_t count = 0;
  for (const ParamRow& row : shard_table(shape, false)) count += row.numel();
  return count;
}

// A safetensors file that can be changed.
struct Stored {
  std::string dtype;
  Dims shape;
  std::string bytes;
};
using StoredTensors = std::map<std::string, Stored>;

StoredTensors load(const fs::path& path) {
  const std::string file = read_file(path);
  StoredTensors tensors;
  const auto header =
      parse_safetensors_header(file, static_cast<int64_t>(file.size()), path.string());
  for (const SafetensorsEntry& entry : header.entries) {
    tensors[entry.name] = {entry.dtype, entry.shape,
                           file.substr(static_cast<size_t>(header.data_start + entry.begin),
                                       static_cast<size_t>(entry.end - entry.begin))};
  }
  return tensors;
}

void store(const StoredTensors& tensors, const fs::path& path) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({.name = name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  SafetensorsFile file(path, entries);
  for (const auto& [name, tensor] : tensors) file.append(tensor.bytes);
  file.finish();
}

// What opening the folder in MXFP4 says after a change of its tensors.
std::string opened_after(const std::function<void(StoredTensors&)>& change) {
  const Scratch scratch;
  const fs::path folder = scratch / "hf";
  fs::copy(reference_folder("gpt-oss-mxfp4"), folder);
  StoredTensors tensors = load(folder / "model.safetensors");
  change(tensors);
  fs::remove(folder / "model.safetensors");
  store(tensors, folder / "model.safetensors");
  std::string text;
  const std::string code = code_of([&] { all_weights(open_hf_folder(folder)); }, &text);
  if (!code.empty()) CHECK(code == "import.tensor");
  return text;
}

constexpr const char* kExperts = "model.layers.0.mlp.experts.";

// Number `i` of a tensor of bfloat16.
float bf16_at(const Stored& tensor, size_t i) {
  uint16_t half = 0;
  std::memcpy(&half, tensor.bytes.data() + 2 * i, 2);
  const uint32_t bits = uint32_t{half} << 16;
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return value;
}

}  // namespace

TEST_CASE("the published gpt-oss, in all their fields") {
  const ConfigRead small = read_config(published(24, 32));
  CHECK(small.problems == "");
  CHECK(small.architecture == "GptOssForCausalLM");
  CHECK(small.mxfp4);
  const ModelShape& shape = small.shape;
  CHECK(shape.activation == Activation::quick_geglu);
  CHECK(shape.glu_offset == 1);
  CHECK(shape.glu_clamp == 7);
  CHECK(shape.attention_sinks);
  CHECK(shape.bias);
  CHECK(shape.qkv_bias);
  CHECK(shape.norm == NormType::rmsnorm);
  CHECK(shape.norm_eps == 1e-5);
  CHECK(shape.head_dim == 64);
  CHECK(shape.kv_heads == 8);
  CHECK(shape.experts == 32);
  CHECK(shape.experts_per_token == 4);
  CHECK(shape.moe_scores.normalize);
  CHECK(!shape.moe_scores.sigmoid);
  CHECK(shape.sliding_window == 128);
  CHECK(shape.full_layers == Layers{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23});
  CHECK(shape.rope_base == 150'000);
  CHECK(shape.rope_scaling.type == RopeScalingType::yarn);
  CHECK(shape.rope_scaling.factor == 32);
  CHECK(shape.rope_scaling.original_max_seq == 4096);
  CHECK(!shape.rope_scaling.truncate);
  CHECK(rope_amplitude(shape.rope_scaling) == doctest::Approx(0.1 * std::log(32.0) + 1));
  CHECK(!shape.tie_embeddings);
  CHECK(parameters_of(shape) == 20'914'757'184);
  check_returns(shape);

  const ConfigRead large = read_config(published(36, 128));
  CHECK(large.problems == "");
  CHECK(parameters_of(large.shape) == 116'829'156'672);
  check_returns(large.shape);
}

TEST_CASE("what a config of gpt-oss does not say is what transformers takes") {
  const ConfigRead whole = read_config(published(36, 128));
  const ConfigRead bare =
      read_config(nlohmann::json{{"model_type", "gpt_oss"}, {"vocab_size", 201'088}});
  CHECK(bare.problems == "");
  CHECK(to_json(bare.shape) == to_json(whole.shape));
  CHECK(!bare.mxfp4);

  const auto changed = [](const nlohmann::json& changes) {
    nlohmann::json config = published(4, 32);
    config.update(changes);
    return read_config(config);
  };
  CHECK(changed({{"rope_scaling", nullptr}}).shape.rope_scaling.type == RopeScalingType::none);
  CHECK(changed({{"num_key_value_heads", nullptr}}).shape.kv_heads == 64);
  CHECK(changed({{"head_dim", nullptr}}).shape.head_dim == 45);
  const ModelShape full =
      changed({{"layer_types", std::vector<std::string>(4, "full_attention")}}).shape;
  CHECK(full.sliding_window == 0);
  check_returns(full);
  // transformers 5 says it in one object.
  nlohmann::json later = published(4, 32);
  later["rope_parameters"] = later["rope_scaling"];
  later["rope_parameters"]["rope_theta"] = 150'000;
  later.erase("rope_scaling");
  later.erase("rope_theta");
  CHECK(read_config(later).problems == "");
  CHECK(to_json(read_config(later).shape) == to_json(read_config(published(4, 32)).shape));

  const auto has = [&](const nlohmann::json& changes, const char* what) {
    const std::string problems = changed(changes).problems;
    CAPTURE(problems);
    CHECK(problems.find(what) != std::string::npos);
    CHECK(std::count(problems.begin(), problems.end(), '\n') == 1);
  };
  has({{"attention_bias", false}}, "'attention_bias' is false: experts have biases");
  has({{"hidden_act", "gelu"}}, "'hidden_act' is 'gelu'");
  has({{"swiglu_limit", 5.0}}, "transformers takes 7 where weights are not MXFP4");
  CHECK(changed({{"swiglu_limit", 5.0}}).shape.glu_clamp == 5);
  has({{"swiglu_limit", 0}}, "'swiglu_limit' is 0");
  has({{"sliding_window", nullptr}}, "'sliding_window' is null");
  has({{"num_local_experts", 2}}, "'num_experts_per_tok' is 4 of 2 experts");
  has({{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}}}, "'dynamic'");
  has({{"layer_types", std::vector<std::string>(4, "chunked_attention")}}, "\"chunked_attention\"");
  has({{"intermediate_size", 2890}}, "the widths 2880 and 2890 have no groups of 32");
  has({{"quantization_config", {{"quant_method", "gptq"}}}}, "quantised weights");
  has({{"quantization_config", {{"quant_method", "mxfp4"}, {"bits", 3}}}},
      "'bits' of 'quantization_config' is not known here");
}

TEST_CASE("experts of gpt-oss come out of fused tensors and go into them again") {
  const Scratch scratch;
  const auto imported = import_model(
      {.source = reference_folder("gpt-oss"), .out = scratch / "run", .tokenizer = {}});
  CHECK(imported.kind == "Hugging Face GptOssForCausalLM");
  // Both written there in another way: gates and ups in turns, inputs before outputs.
  const auto ours = all_weights(imported.checkpoint);
  const StoredTensors theirs = load(reference_folder("gpt-oss") / "model.safetensors");
  const auto number = [&](const std::string& name, size_t i) {
    float value = 0;
    std::memcpy(&value, theirs.at(name).bytes.data() + 4 * i, 4);
    return value;
  };
  constexpr size_t kHidden = 16, kFfn = 24, kExpert = 3, kUnit = 7, kIn = 5;
  const std::string base = "model.layers.1.mlp.experts.", third = base + "3.";
  const size_t up_row = (kExpert * kHidden + kIn) * 2 * kFfn;
  CHECK(ours.at(third + "gate_proj.weight")[kUnit * kHidden + kIn] ==
        number(base + "gate_up_proj", up_row + 2 * kUnit));
  CHECK(ours.at(third + "up_proj.weight")[kUnit * kHidden + kIn] ==
        number(base + "gate_up_proj", up_row + 2 * kUnit + 1));
  CHECK(ours.at(third + "up_proj.bias")[kUnit] ==
        number(base + "gate_up_proj_bias", kExpert * 2 * kFfn + 2 * kUnit + 1));
  CHECK(ours.at(third + "down_proj.weight")[kIn * kFfn + kUnit] ==
        number(base + "down_proj", (kExpert * kFfn + kUnit) * kHidden + kIn));
  CHECK(ours.at(third + "down_proj.bias")[kIn] ==
        number(base + "down_proj_bias", kExpert * kHidden + kIn));
  CHECK(ours.at("model.layers.0.self_attn.sinks").size() == 4);
  CHECK(ours.at("model.layers.0.mlp.router.bias").size() == 4);

  const auto exported = export_hf({.checkpoint = imported.checkpoint, .out = scratch / "hf"});
  CHECK(exported.kind == "GptOssForCausalLM");
  CHECK(exported.parameters == imported.parameters);
  CHECK(tensor_bytes(scratch / "hf") == tensor_bytes(reference_folder("gpt-oss")));
  const ForeignModel back = open_hf_folder(scratch / "hf");
  CHECK(back.warnings.empty());
  CHECK(to_json(back.shape) == to_json(open_hf_folder(reference_folder("gpt-oss")).shape));
  // In files of one tensor each, and in half the bytes: the values are ones that bfloat16 holds.
  export_hf({.checkpoint = imported.checkpoint,
             .out = scratch / "bf16",
             .dtype = DType::bf16,
             .max_shard_bytes = 100});
  CHECK(all_weights(open_hf_folder(scratch / "bf16")) == ours);
  const auto written = nlohmann::json::parse(read_file(scratch / "hf" / "config.json"));
  CHECK(!written.contains("quantization_config"));
  CHECK(written.at("layer_types") == nlohmann::json({"sliding_attention", "full_attention"}));
  CHECK(written.at("swiglu_limit") == 7.0);
  CHECK(written.at("pad_token_id").is_null());
  CHECK(written.at("rope_scaling").at("truncate") == false);
}

TEST_CASE("gpt-oss gives the logits of transformers") {
  for (const char* name : {"gpt-oss", "gpt-oss-mxfp4"}) {
    CAPTURE(std::string(name));
    const Scratch scratch;
    const auto imported =
        import_model({.source = reference_folder(name), .out = scratch / "run", .tokenizer = {}});
    CHECK(logits_distance(imported.checkpoint, name) <= 1e-4);
  }
}

TEST_CASE("experts in MXFP4 are the numbers that transformers makes of them") {
  const Scratch scratch;
  const fs::path folder = reference_folder("gpt-oss-mxfp4");
  const auto imported = import_model({.source = folder, .out = scratch / "run", .tokenizer = {}});
  CHECK(imported.warnings.size() == 1);  // it has no tokenizer
  export_hf({.checkpoint = imported.checkpoint, .out = scratch / "hf"});
  const StoredTensors there = load(folder / "decoded.safetensors"),
                      here = load(scratch / "hf" / "model.safetensors");
  REQUIRE(there.size() == 2);
  for (const auto& [name, decoded] : there) {
    CAPTURE(name);
    const Stored& written = here.at(name);
    REQUIRE(written.shape == decoded.shape);
    int64_t other = 0, smallest = 0;
    for (size_t i = 0; i < written.bytes.size() / 4; ++i) {
      float value = 0;
      std::memcpy(&value, written.bytes.data() + 4 * i, 4);
      other += value != bf16_at(decoded, i);
      smallest += value != 0 && std::abs(value) < 1e-36f;
    }
    CHECK(other == 0);
    CHECK(smallest > 20);
  }
  CHECK(here.size() + 2 == load(folder / "model.safetensors").size());

  // Any part of a parameter, from the upper half of a byte on, too.
  const ForeignModel model = open_hf_folder(folder);
  const std::string name = std::string(kExperts) + "2.down_proj.weight";
  const std::vector<float> whole = all_weights(model).at(name);
  for (const int64_t first : {int64_t{1}, int64_t{31}, int64_t{77}}) {
    const Dims shape = {32, 64};
    std::vector<float> values(100);
    CheckpointTensor part;
    part.name = name;
    part.shape = part.local_shape = shape;
    part.first = first;
    part.rects = clip_to_range({{{0, 0}, {0, 0}, shape}}, shape, first, std::ssize(values));
    part.data = values.data();
    model.weights.read(part);
    CHECK(std::equal(values.begin(), values.end(), whole.begin() + first));
  }
}

TEST_CASE("experts in MXFP4 that do not fit are refused with what is wrong") {
  CHECK(opened_after([](StoredTensors&) {}) == "");
  const std::string up = std::string(kExperts) + "gate_up_proj",
                    down = std::string(kExperts) + "down_proj";
  const auto has = [](const std::string& text, const std::string& what) {
    CAPTURE(text);
    CHECK(text.find(what) != std::string::npos);
  };
  has(opened_after([&](StoredTensors& all) { all.erase(up + "_scales"); }),
      "missing: " + up + "_scales [3, 128, 1]");
  has(opened_after([&](StoredTensors& all) { all.erase(down + "_blocks"); }),
      "missing: " + down + "_blocks [3, 32, 2, 16]");
  // Of other sizes, though of as many bytes.
  has(opened_after([&](StoredTensors& all) {
        all.at(down + "_scales").shape = {3, 64, 1};
      }),
      down + "_scales is [3, 64, 1], and by config.json it is [3, 32, 2]");
  has(opened_after([&](StoredTensors& all) {
        all.at(up + "_blocks").shape = {3, 128, 16};
      }),
      up + "_blocks is [3, 128, 16], and by config.json it is [3, 128, 1, 16]");
  has(opened_after([&](StoredTensors& all) { all.at(up + "_scales").dtype = "I8"; }),
      up + "_scales is of type I8, and MXFP4 is of U8");
  has(opened_after([&](StoredTensors& all) {
        Stored& scales = all.at(up + "_scales");
        scales.dtype = "F32";
        scales.bytes.resize(scales.bytes.size() * 4);
      }),
      up + "_scales is of type F32, and MXFP4 is of U8");
  // Plain ones beside a config that says otherwise.
  has(opened_after([&](StoredTensors& all) {
        all[up] = {"BF16", {3, 32, 128}, std::string(3 * 32 * 128 * 2, '\0')};
      }),
      "unexpected: " + up);
  // A scale that is no number, and one that makes an infinite one.
  has(opened_after([&](StoredTensors& all) { all.at(up + "_scales").bytes[5] = '\xff'; }),
      "32 are NaN or infinite");
  has(opened_after([&](StoredTensors& all) {
        all.at(up + "_scales").bytes[5] = '\xfe';
        for (size_t i = 0; i < 16; ++i) all.at(up + "_blocks").bytes[5 * 16 + i] = '\x7f';
      }),
      "are NaN or infinite");

  // The other way round: packed weights of a config that says nothing of it.
  const Scratch scratch;
  fs::copy(reference_folder("gpt-oss-mxfp4"), scratch / "hf");
  auto config = nlohmann::json::parse(read_file(scratch / "hf" / "config.json"));
  config.erase("quantization_config");
  std::ofstream(scratch / "hf" / "config.json") << config.dump();
  std::string text;
  CHECK(code_of([&] { open_hf_folder(scratch / "hf"); }, &text) == "import.tensor");
  has(text, "missing: " + up + " [3, 32, 128]");
  has(text, "unexpected: " + up + "_blocks");
}

TEST_CASE("of a model that is almost gpt-oss what keeps it from being one is named, and no more") {
  const ModelShape shape = read_config(published(4, 32)).shape;
  const auto family = [&](const Change& change) { return family_or_keys(shape, change); };
  CHECK(family([](ModelShape&) {}) == "GptOssForCausalLM");
  CHECK(family([](ModelShape& s) { s.attention_sinks = false; }) == "model.attention_sinks");
  CHECK(family([](ModelShape& s) { s.activation = Activation::swiglu; }) == "model.activation");
  CHECK(family([](ModelShape& s) { s.glu_offset = 0; }) == "model.glu_offset");
  CHECK(family([](ModelShape& s) { s.glu_clamp = 0; }) == "model.glu_clamp");
  CHECK(family([](ModelShape& s) { s.bias = s.qkv_bias = false; }) == "model.bias");
  CHECK(family([](ModelShape& s) { s.norm = NormType::layernorm; }) == "model.norm.type");
  CHECK(family([](ModelShape& s) { s.norm_place = NormPlace::both; }) == "model.norm.place");
  CHECK(family([](ModelShape& s) { s.position = PositionType::none; }) == "model.position.type");
  CHECK(family([](ModelShape& s) { s.rope_fraction = 0.5; }) == "model.position.fraction");
  CHECK(family([](ModelShape& s) { s.unrotated_layers = {1}; }) == "model.position.skip");
  CHECK(family([](ModelShape& s) { s.window_rope_base = 1e4; }) == "model.position.window_base");
  CHECK(family([](ModelShape& s) { s.qk_norm = true; }) == "model.qk_norm");
  CHECK(family([](ModelShape& s) { s.attention_scale = 1; }) == "model.attention_scale");
  CHECK(family([](ModelShape& s) { s.attention_cap = 5; }) == "model.attention_cap");
  CHECK(family([](ModelShape& s) { s.logit_cap = 5; }) == "model.logit_cap");
  CHECK(family([](ModelShape& s) { s.embedding_scale = 5; }) == "model.embedding_scale");
  CHECK(family([](ModelShape& s) { s.experts = 0; }) == "model.moe.experts");
  CHECK(family([](ModelShape& s) { s.moe_scores.normalize = false; }) == "model.moe.normalize");
  CHECK(family([](ModelShape& s) { s.moe_scores.scale = 2; }) == "model.moe.scale");
  CHECK(family([](ModelShape& s) { s.shared_ffn = 64; }) == "model.moe.shared_ffn");
  CHECK(family([](ModelShape& s) { s.dense_layers = {0}; }) == "model.moe.dense_layers");
  CHECK(family([](ModelShape& s) {
          s.moe_scores.sigmoid = true;
          s.expert_bias = true;
        }) == "model.moe.score model.moe.expert_bias");
  CHECK(family([](ModelShape& s) { s.tie_embeddings = true; }) == "GptOssForCausalLM");
  CHECK(family([](ModelShape& s) { s.rope_scaling = {}; }) == "GptOssForCausalLM");

  // Models that have one thing of it alone.
  const ModelShape llama = read_config("llama", {}).shape;
  const std::string rest = "model.bias model.moe.experts";
  CHECK(family_or_keys(llama, [](ModelShape& s) { s.attention_sinks = true; }) ==
        "model.activation model.glu_offset model.glu_clamp " + rest);
  CHECK(family_or_keys(llama, [](ModelShape& s) { s.activation = Activation::quick_geglu; }) ==
        "model.attention_sinks model.glu_offset model.glu_clamp " + rest);
  CHECK(family_or_keys(llama, [](ModelShape& s) { s.glu_clamp = 7; }) ==
        "model.attention_sinks model.activation model.glu_offset " + rest);
  CHECK(family_or_keys(llama, [](ModelShape&) {}) == "LlamaForCausalLM");
  const ModelShape mixtral = read_config("mixtral", {}).shape;
  CHECK(family_or_keys(mixtral, [](ModelShape& s) { s.bias = s.qkv_bias = true; }) ==
        "model.attention_sinks model.activation model.glu_offset model.glu_clamp");
  const ModelShape latent = read_config("deepseek-v3", {}).shape;
  CHECK(family_or_keys(latent, [](ModelShape& s) { s.attention_sinks = true; }) ==
        "model.attention_sinks");
  CHECK(family_or_keys(latent, [](ModelShape& s) { s.glu_clamp = 7; }) == "model.glu_clamp");
}

TEST_CASE("what gpt-oss has is not laid out for Megatron") {
  const ModelShape llama = read_config("llama", {}).shape;
  const auto obstacle = [&](const Change& change) {
    ModelShape shape = llama;
    change(shape);
    const std::string why = megatron_obstacle(shape, 1);
    return why.substr(0, why.find(' ', 10));
  };
  CHECK(obstacle([](ModelShape&) {}) == "");
  CHECK(obstacle([](ModelShape& s) { s.attention_sinks = true; }) == "scores of no");
  for (const Change& change :
       {Change([](ModelShape& s) { s.activation = Activation::quick_geglu; }),
        Change([](ModelShape& s) { s.glu_offset = 1; }),
        Change([](ModelShape& s) { s.glu_clamp = 7; })}) {
    CHECK(obstacle(change) == "gates are SwiGLU's");
  }
}

}  // namespace hf_gpt_oss_test
