// Hugging Face folders: what transformers wrote gives transformers' logits here, and comes out
// again as it was.
#include <fstream>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "reference_folders.h"
#include "runtime/device/make_device.h"
#include "runtime/interchange/export.h"
#include "runtime/interchange/export_source.h"
#include "runtime/interchange/hf_config.h"
#include "runtime/interchange/import.h"

using namespace mtl;
using namespace mtl::test;
namespace fs = std::filesystem;

namespace {

struct Folder {
  const char *name, *architecture;
  const char* exported = nullptr;  // the architecture, if it is another than it came from
};
const Folder kFolders[] = {{"gpt2", "GPT2LMHeadModel"},
                           {"llama", "LlamaForCausalLM"},
                           {"llama-tied", "LlamaForCausalLM"},
                           {"llama-yarn", "LlamaForCausalLM"},
                           {"gemma", "GemmaForCausalLM"},
                           {"mistral", "MistralForCausalLM"},
                           {"qwen2", "Qwen2ForCausalLM"},
                           {"mixtral", "MixtralForCausalLM"},
                           {"olmoe", "OlmoeForCausalLM"},
                           {"starcoder2", "Starcoder2ForCausalLM"},
                           {"glm", "GlmForCausalLM"},
                           {"glm4", "Glm4ForCausalLM"},
                           {"glm4-moe", "Glm4MoeForCausalLM"},
                           {"glm4-moe-air", "Glm4MoeForCausalLM"},
                           {"seed-oss", "SeedOssForCausalLM", "Qwen2ForCausalLM"},
                           {"seed-oss-biases", "SeedOssForCausalLM"},
                           {"ernie4-5", "Ernie4_5ForCausalLM", "LlamaForCausalLM"},
                           {"exaone4", "Exaone4ForCausalLM"},
                           {"exaone4-windows", "Exaone4ForCausalLM"},
                           {"gemma2", "Gemma2ForCausalLM"},
                           {"gemma3", "Gemma3ForCausalLM"},
                           {"olmo3", "Olmo3ForCausalLM"},
                           {"smollm3", "SmolLM3ForCausalLM"},
                           {"qwen3-windows", "Qwen3ForCausalLM"},
                           {"olmo2", "Olmo2ForCausalLM"},
                           {"phi3", "Phi3ForCausalLM", "LlamaForCausalLM"},
                           {"qwen2-moe", "Qwen2MoeForCausalLM"},
                           {"qwen3-moe", "Qwen3MoeForCausalLM"},
                           {"dots1", "Dots1ForCausalLM"},
                           {"deepseek-v2", "DeepseekV2ForCausalLM"},
                           {"deepseek-v2-groups", "DeepseekV2ForCausalLM"},
                           {"deepseek-v3", "DeepseekV3ForCausalLM"},
                           {"deepseek-v3-dense", "DeepseekV3ForCausalLM"},
                           {"stablelm", "StableLmForCausalLM"},
                           {"stablelm-parallel", "StableLmForCausalLM"},
                           {"cohere", "CohereForCausalLM"},
                           {"cohere2", "Cohere2ForCausalLM"},
                           {"phi", "PhiForCausalLM"},
                           {"granite", "GraniteForCausalLM"},
                           {"granitemoe", "GraniteMoeForCausalLM"},
                           {"granitemoeshared", "GraniteMoeSharedForCausalLM"},
                           {"granite4", "GraniteMoeHybridForCausalLM", "GraniteForCausalLM"},
                           {"gpt-neox", "GPTNeoXForCausalLM"},
                           {"gpt-neox-sequential", "GPTNeoXForCausalLM"}};

}  // namespace

TEST_CASE("imported models give the logits of transformers and are exported as they came") {
  for (const auto& [name, architecture, other] : kFolders) {
    CAPTURE(std::string(name));
    const Scratch scratch;
    const ImportReport imported =
        import_model({.source = reference_folder(name), .out = scratch / "run", .tokenizer = {}});
    CHECK(imported.kind == std::string("Hugging Face ") + architecture);
    CHECK(logits_distance(imported.checkpoint, name) <= 1e-4);

    const ExportReport exported =
        export_hf({.checkpoint = imported.checkpoint, .out = scratch / "hf"});
    CHECK(exported.kind == (other != nullptr ? other : architecture));
    CHECK(exported.parameters == imported.parameters);
    const ForeignModel theirs = open_hf_folder(reference_folder(name));
    const ForeignModel ours = open_hf_folder(scratch / "hf");
    CHECK(all_weights(ours) == all_weights(theirs));
    CHECK(to_json(ours.shape) == to_json(theirs.shape));
    CHECK(ours.warnings.empty());
    CHECK(theirs.warnings.empty());

    // Once more: the same bytes.
    import_model({.source = scratch / "hf", .out = scratch / "run2", .tokenizer = {}});
    export_hf({.checkpoint = scratch / "run2/checkpoints/step-00000000", .out = scratch / "hf2"});
    for (const char* file : {"config.json", "generation_config.json", "model.safetensors"}) {
      CHECK(read_file(scratch / "hf" / file) == read_file(scratch / "hf2" / file));
    }
  }
}

TEST_CASE("a Phi-3 of which parts of heads are rotated goes out as one, matrices in one again") {
  const Scratch scratch;
  const fs::path folder = scratch / "phi";
  fs::copy(reference_folder("phi3"), folder);
  auto config = nlohmann::json::parse(read_file(folder / "config.json"));
  config["partial_rotary_factor"] = 0.75;
  std::ofstream(folder / "config.json") << config.dump();
  const auto imported = import_model({.source = folder, .out = scratch / "run", .tokenizer = {}});
  const auto exported =
      export_hf({.checkpoint = imported.checkpoint, .out = scratch / "hf", .dtype = DType::bf16});
  CHECK(exported.kind == "Phi3ForCausalLM");
  CHECK(tensor_bytes(scratch / "hf") == tensor_bytes(folder));
  const auto written = nlohmann::json::parse(read_file(scratch / "hf" / "config.json"));
  CHECK(written.at("partial_rotary_factor") == 0.75);
  CHECK(written.at("pad_token_id").is_null());
  CHECK(to_json(open_hf_folder(scratch / "hf").shape) == to_json(open_hf_folder(folder).shape));
}

TEST_CASE("norms of Gemma are 1 more than its files say, and go out as they came") {
  const Scratch scratch;
  const auto imported =
      import_model({.source = reference_folder("gemma"), .out = scratch / "run", .tokenizer = {}});
  const auto weights = all_weights(imported.checkpoint);
  double mean = 0;
  for (const float weight : weights.at("model.norm.weight")) mean += weight / 32;
  CHECK(mean == doctest::Approx(1).epsilon(0.2));
  export_hf({.checkpoint = imported.checkpoint, .out = scratch / "hf"});
  CHECK(tensor_bytes(scratch / "hf") == tensor_bytes(reference_folder("gemma")));
  const std::string yaml = read_file(scratch / "run" / "train.yaml");
  CHECK(yaml.find("\n  activation: geglu\n") != std::string::npos);
  CHECK(yaml.find("\n  embedding_scale: 5.656854249492381\n") != std::string::npos);
}

TEST_CASE("the same tensors in shards and in other types") {
  const Scratch scratch;
  const auto imported =
      import_model({.source = reference_folder("llama"), .out = scratch / "run", .tokenizer = {}});
  const auto whole = all_weights(imported.checkpoint);
  export_hf({.checkpoint = imported.checkpoint, .out = scratch / "one"});
  const auto report = export_hf(
      {.checkpoint = imported.checkpoint, .out = scratch / "many", .max_shard_bytes = 10'000});
  CHECK(report.files > 4);
  const auto index =
      nlohmann::json::parse(read_file(scratch / "many/model.safetensors.index.json"));
  CHECK(index.at("metadata").at("total_size") == report.bytes);
  CHECK(index.at("weight_map").size() == whole.size());
  CHECK(tensor_bytes(scratch / "many") == tensor_bytes(scratch / "one"));
  CHECK(all_weights(open_hf_folder(scratch / "many")) == whole);
  // The reference's values are ones that bfloat16 holds.
  export_hf({.checkpoint = imported.checkpoint, .out = scratch / "bf16", .dtype = DType::bf16});
  CHECK(all_weights(open_hf_folder(scratch / "bf16")) == whole);
  CHECK(fs::file_size(scratch / "bf16/model.safetensors") <
        fs::file_size(scratch / "one/model.safetensors") * 6 / 10);
  export_hf({.checkpoint = imported.checkpoint, .out = scratch / "fp16", .dtype = DType::f16});
  const auto halves = all_weights(open_hf_folder(scratch / "fp16"));
  for (const auto& [name, values] : whole) {
    for (size_t i = 0; i < values.size(); ++i) {
      REQUIRE(halves.at(name)[i] == doctest::Approx(values[i]).epsilon(1e-3));
    }
  }
}

TEST_CASE("a folder is there whole or not at all") {
  const Scratch scratch;
  const auto imported =
      import_model({.source = reference_folder("llama"), .out = scratch / "run", .tokenizer = {}});
  CHECK(code_of([&] {
          import_model(
              {.source = reference_folder("llama"), .out = scratch / "run", .tokenizer = {}});
        }) == "export.exists");
  // A checkpoint whose bytes have changed: found while the folder is being written.
  for (const auto& entry : fs::directory_iterator(imported.checkpoint)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-3, std::ios::end);
    file.put('\x55');
  }
  CHECK(code_of([&] { export_hf({.checkpoint = imported.checkpoint, .out = scratch / "hf"}); }) ==
        "ckpt.checksum");
  size_t left = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(scratch / "")) ++left;
  CHECK(left == 1);  // the run
}

TEST_CASE("what changes the mathematics is read or refused") {
  const auto problems = [](const char* name, const nlohmann::json& changes) {
    auto config = nlohmann::json::parse(read_file(reference_folder(name) / "config.json"));
    config.update(changes);
    Diagnostics diagnostics;
    model_from_hf_config(config, "config.json", diagnostics);
    std::string codes;
    for (const Diagnostic& d : diagnostics.all()) {
      codes += d.severity == Diagnostic::Severity::error ? d.code : "warning";
      codes += " ";
      CAPTURE(d.what);
      CHECK_FALSE(d.help.empty());
    }
    return codes;
  };
  CHECK(problems("llama", nlohmann::json::object()) == "");
  CHECK(problems("llama", {{"hidden_act", "gelu"}}) == "import.config ");
  // What is no number, none at all, or too many of them.
  CHECK(problems("llama", {{"hidden_size", "32"}}).starts_with("import.config "));
  CHECK(problems("llama", {{"num_attention_heads", 0}}).starts_with("import.config "));
  CHECK(problems("llama", {{"rms_norm_eps", "small"}}).starts_with("import.config "));
  CHECK(problems("llama", {{"num_hidden_layers", 200'000}}).starts_with("import.config "));
  CHECK(problems("llama", {{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}}}) ==
        "import.config import.config import.config ");
  CHECK(problems("llama", {{"attention_bias", true}}) == "import.config ");
  CHECK(problems("llama", {{"attention_bias", true}, {"mlp_bias", true}}) == "");
  CHECK(problems("llama", {{"quantization_config", {{"bits", 4}}}}) == "import.config ");
  for (const char* mixture : {"qwen2-moe", "qwen3-moe"}) {
    CAPTURE(std::string(mixture));
    CHECK(problems(mixture, nlohmann::json::object()) == "");
    // Layers without experts.
    CHECK(problems(mixture, {{"decoder_sparse_step", 2}}) == "");
    CHECK(problems(mixture, {{"decoder_sparse_step", 3}}) == "import.config ");
    CHECK(problems(mixture, {{"mlp_only_layers", {0}}}) == "");
    CHECK(problems(mixture, {{"mlp_only_layers", {0, 1}}}) == "import.config ");
    CHECK(problems(mixture, {{"mlp_only_layers", 0}}) == "import.config ");
    CHECK(problems(mixture, {{"mlp_only_layers", nullptr}}) == "");
    CHECK(problems(mixture, {{"num_experts", 0}}) == "import.config import.config ");
    CHECK(problems(mixture, {{"num_experts_per_tok", 7}}) == "import.config ");
    CHECK(problems(mixture, {{"num_experts_per_tok", 1}, {"norm_topk_prob", true}}) == "warning ");
    CHECK(problems(mixture, {{"num_experts_per_tok", 1}, {"norm_topk_prob", false}}) == "");
  }
  CHECK(problems("qwen3-moe", {{"attention_bias", true}}) == "import.config ");
  CHECK(problems("stablelm", nlohmann::json::object()) == "");
  CHECK(problems("stablelm", {{"use_parallel_residual", true}}) == "");
  CHECK(problems("stablelm", {{"qk_layernorm", true}}) == "import.config ");
  CHECK(problems("stablelm", {{"head_dim", 8}}) == "");
  CHECK(problems("stablelm", {{"head_dim", 16}}) == "import.config ");
  CHECK(problems("stablelm", {{"hidden_dropout", 0.1}}) == "");
  CHECK(problems("gpt-neox", nlohmann::json::object()) == "");
  CHECK(problems("gpt-neox", {{"hidden_act", "gelu_fast"}}) == "");
  CHECK(problems("gpt-neox", {{"hidden_act", "relu"}}) == "import.config ");
  CHECK(problems("gpt-neox", {{"attention_bias", false}}) == "import.config ");
  CHECK(problems("gpt-neox", {{"rotary_pct", 0.3}}) == "");                // 2 of 8
  CHECK(problems("gpt-neox", {{"rotary_pct", 0.4}}) == "import.config ");  // 3
  CHECK(problems("gpt-neox", {{"num_attention_heads", 3}}) == "import.config import.config ");
  CHECK(problems("gpt-neox", {{"rope_theta", 100}}) == "import.config ");
  CHECK(problems("gpt-neox", {{"partial_rotary_factor", 0.25}}) == "import.config ");
  CHECK(problems("gpt-neox", {{"use_parallel_residual", nullptr}}) == "");
  CHECK(problems("gpt2", {{"activation_function", "gelu"}}) == "");
  CHECK(problems("gpt2", {{"activation_function", "relu"}}) == "import.config ");
  CHECK(problems("dots1", nlohmann::json::object()) == "");
  CHECK(problems("dots1", {{"scoring_func", "noaux_tc"}, {"use_sliding_window", false}}) == "");
  CHECK(problems("dots1", {{"attention_bias", true}}) == "import.config ");
  CHECK(problems("dots1", {{"n_shared_experts", nullptr}}) == "import.config ");
  CHECK(problems("dots1", {{"n_shared_experts", 0}}) == "import.config ");
  CHECK(problems("dots1", {{"first_k_dense_replace", 2}}) == "import.config ");
  CHECK(problems("dots1", {{"first_k_dense_replace", 0}}) == "");
  CHECK(problems("dots1", {{"moe_layer_freq", 2}}) == "import.config ");
  CHECK(problems("dots1", {{"routed_scaling_factor", 0}}) == "import.config ");
  CHECK(problems("dots1", {{"n_group", 3}}) == "import.config ");
  CHECK(problems("dots1", {{"topk_group", 5}}) == "import.config ");
  CHECK(problems("dots1", {{"n_group", 1}, {"topk_group", 0}}) == "import.config ");
  CHECK(problems("dots1", {{"topk_group", 1}}) == "import.config ");  // of two experts
  CHECK(problems("dots1", {{"n_group", 8}, {"topk_group", 4}}) == "import.config ");  // of one
  CHECK(problems("dots1", {{"num_experts_per_tok", 1}, {"n_group", 1}}) == "warning ");
  CHECK(problems("olmo2", {{"attention_bias", true}}) == "import.config ");
  CHECK(problems("glm4", {{"attention_bias", nullptr}}) == "");
  CHECK(problems("glm4", {{"partial_rotary_factor", 0.4}}) == "");                // 4 of 12
  CHECK(problems("glm4", {{"partial_rotary_factor", 0.3}}) == "import.config ");  // 3
  CHECK(problems("starcoder2", {{"norm_type", "layer_norm"}, {"residual_dropout", 0.1}}) == "");
  CHECK(problems("starcoder2", {{"hidden_act", "silu"}}) == "import.config ");
  CHECK(problems("starcoder2", {{"num_attention_heads", 5}}) == "import.config import.config ");
  CHECK(problems("olmoe", {{"clip_qkv", 8.0}}) == "import.config ");
  CHECK(problems("olmoe", {{"clip_qkv", nullptr}}) == "");
  CHECK(problems("olmoe", {{"num_experts", 0}}) == "import.config import.config ");
  CHECK(problems("exaone4", {{"sliding_window", nullptr}}) == "");
  CHECK(problems("exaone4", {{"sliding_window", 8}}) == "");
  CHECK(problems("qwen2-moe", {{"shared_expert_intermediate_size", 0}}) == "import.config ");
  CHECK(problems("phi3", nlohmann::json::object()) == "");
  CHECK(problems("phi3", {{"attention_bias", true}}) == "import.config ");
  CHECK(problems("phi3", {{"partial_rotary_factor", 0.75}}) == "");
  // Of factors for another number of pairs.
  CHECK(problems("phi3", {{"rope_scaling",
                           {{"type", "longrope"}, {"short_factor", {1}}, {"long_factor", {2}}}}}) ==
        "import.config import.config ");
  CHECK(problems("llama", {{"partial_rotary_factor", 0.5}}) == "import.config ");
  CHECK(problems("llama", {{"num_key_value_heads", 3}}) == "import.config ");
  CHECK(problems("llama", {{"num_hidden_layers", 1e300}}) == "import.config ");
  for (const char* type : {"llama", "gpt-neox", "glm4"}) {
    CHECK(problems(type, {{"num_attention_heads", 1 << 20}, {"hidden_size", 1 << 23}}) ==
          "import.config ");
  }
  CHECK(problems("llama", {{"hidden_size", -4}}) == "import.config ");
  CHECK(problems("llama", {{"num_attention_heads", 0}}) == "import.config ");
  CHECK(problems("llama", {{"logit_softcapping", 30.0}}) == "warning ");
  // Close relatives of what is here, and what nobody here has heard of.
  for (const char* type : {"gemma3n_text", "olmo", "phimoe", "bloom"}) {
    CAPTURE(std::string(type));
    CHECK(problems("llama", {{"model_type", type}}) == "import.family ");
  }
  CHECK(problems("gemma", nlohmann::json::object()) == "");
  CHECK(problems("gemma", {{"attention_bias", true}}) == "import.config ");
  CHECK(problems("gemma", {{"hidden_activation", "gelu"}}) == "import.config ");
  CHECK(problems("gemma", {{"hidden_activation", "gelu"}, {"hidden_act", "silu"}}) ==
        "import.config ");
  CHECK(problems("gemma", {{"hidden_activation", nullptr}, {"hidden_act", "silu"}}) ==
        "import.config ");
  // What the first files said and did not mean.
  CHECK(problems("gemma", {{"hidden_activation", nullptr}, {"hidden_act", "gelu"}}) == "");
  CHECK(problems("llama", {{"architectures", {"LlamaForSequenceClassification"}}}) ==
        "import.family ");
  CHECK(problems("llama", {{"architectures", {"LlamaModel"}}}) == "");
  CHECK(problems("gpt2", {{"activation_function", "relu"}}) == "import.config ");
  CHECK(problems("gpt2", {{"scale_attn_weights", false}}) == "import.config ");
  CHECK(problems("gpt2", {{"scale_attn_by_inverse_layer_idx", true}}) == "import.config ");
  // One expert alone can be run, not trained.
  CHECK(problems("mixtral", {{"num_experts_per_tok", 1}}) == "warning ");
  CHECK(problems("mixtral", {{"num_experts_per_tok", 0}}) == "import.config ");
  CHECK(problems("mixtral", {{"num_experts_per_tok", 1000}}) == "import.config ");

  nlohmann::json config;
  Diagnostics none;
  // Of Qwen3's mixtures newer versions say no number of layers without a window, and read none.
  config = nlohmann::json::parse(read_file(reference_folder("qwen3-moe") / "config.json"));
  config.update({{"use_sliding_window", true}, {"sliding_window", 8}});
  CHECK(problems("qwen3-moe", config) == "import.config ");
  config.erase("max_window_layers");
  CHECK(model_from_hf_config(config, "", none).shape.sliding_window == 8);
  // And of Qwen2's they read that number the other way round.
  config = nlohmann::json::parse(read_file(reference_folder("qwen2-moe") / "config.json"));
  HfModel mixture = model_from_hf_config(config, "", none);
  CHECK(!hf_config_of(mixture, {}, "float32").contains("layer_types"));
  mixture.shape.sliding_window = 8;
  const nlohmann::json written = hf_config_of(mixture, {}, "float32");
  CHECK(written.at("layer_types") == nlohmann::json({"sliding_attention", "sliding_attention"}));
  CHECK(model_from_hf_config(written, "", none).shape.sliding_window == 8);
  // Dense layers of Qwen's: there and back.
  config = nlohmann::json::parse(read_file(reference_folder("qwen3-moe") / "config.json"));
  config.update(
      {{"num_hidden_layers", 6}, {"decoder_sparse_step", 2}, {"mlp_only_layers", {3, 4}}});
  mixture = model_from_hf_config(config, "", none);
  CHECK(mixture.shape.dense_layers == std::vector<int64_t>{0, 2, 3, 4});
  CHECK(mixture.shape.ffn == 12);
  CHECK(mixture.shape.dense_layer_ffn == 24);
  CHECK(to_json(model_from_hf_config(hf_config_of(mixture, {}, "float32"), "", none).shape) ==
        to_json(mixture.shape));
  // dots.llm1's windows begin at a layer, as Qwen's.
  config = nlohmann::json::parse(read_file(reference_folder("dots1") / "config.json"));
  config.erase("layer_types");
  config["sliding_window"] = 8;
  CHECK(model_from_hf_config(config, "", none).shape.sliding_window == 0);
  config["max_window_layers"] = 0;
  mixture = model_from_hf_config(config, "", none);
  CHECK(mixture.shape.sliding_window == 8);
  CHECK(to_json(model_from_hf_config(hf_config_of(mixture, {}, "float32"), "", none).shape) ==
        to_json(mixture.shape));
  CHECK(!none.has_errors());
  config = nlohmann::json::parse(read_file(reference_folder("llama") / "config.json"));
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 4.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 3.0},
                            {"original_max_position_embeddings", 32}};
  config["head_dim"] = 16;
  Diagnostics diagnostics;
  const HfModel model = model_from_hf_config(config, "config.json", diagnostics);
  CHECK(model.shape.rope_scaling.factor == 4.0);
  CHECK(model.shape.rope_scaling.original_max_seq == 32);
  CHECK(model.shape.head_dim == 16);
  CHECK(to_json(model_from_hf_config(hf_config_of(model, {}, "float32"), "", diagnostics).shape) ==
        to_json(model.shape));
  // Gemma is tied, and its heads have a width of their own, unless it says otherwise.
  config = nlohmann::json::parse(read_file(reference_folder("gemma") / "config.json"));
  config.erase("head_dim");
  HfModel gemma = model_from_hf_config(config, "", diagnostics);
  CHECK(gemma.shape.tie_embeddings);
  CHECK(gemma.shape.head_dim == 256);
  CHECK(gemma.shape.embedding_scale == doctest::Approx(5.656854249492381).epsilon(1e-15));
  config["tie_word_embeddings"] = false;
  gemma = model_from_hf_config(config, "", diagnostics);
  CHECK_FALSE(gemma.shape.tie_embeddings);
  CHECK(to_json(model_from_hf_config(hf_config_of(gemma, {}, "float32"), "", diagnostics).shape) ==
        to_json(gemma.shape));
  // Phi-3 has no window unless it says so.
  config = nlohmann::json::parse(read_file(reference_folder("phi3") / "config.json"));
  config.erase("sliding_window");
  CHECK(model_from_hf_config(config, "", diagnostics).shape.sliding_window == 0);
  config["sliding_window"] = 5;
  const HfModel phi = model_from_hf_config(config, "", diagnostics);
  CHECK(phi.shape.sliding_window == 5);
  CHECK(hf_model_of(phi.shape).architecture == "MistralForCausalLM");
  config = nlohmann::json::parse(read_file(reference_folder("mistral") / "config.json"));
  CHECK(model_from_hf_config(config, "", diagnostics).shape.sliding_window == 4);
  config.erase("sliding_window");
  CHECK(model_from_hf_config(config, "", diagnostics).shape.sliding_window == 4096);
  CHECK(!diagnostics.has_errors());
}

TEST_CASE("numbers of config.json that mean nothing are refused by name") {
  const auto refused = [](const char* name, const nlohmann::json& changes) {
    auto config = nlohmann::json::parse(read_file(reference_folder(name) / "config.json"));
    config.update(changes);
    Diagnostics diagnostics;
    model_from_hf_config(config, "config.json", diagnostics);
    std::string whats;
    for (const Diagnostic& d : diagnostics.all()) whats += d.what + "\n";
    return whats;
  };
  const nlohmann::json llama3 = {{"rope_type", "llama3"},
                                 {"factor", 8.0},
                                 {"low_freq_factor", 1.0},
                                 {"high_freq_factor", 4.0},
                                 {"original_max_position_embeddings", 8192}};
  CHECK(refused("llama", {{"rope_scaling", llama3}}) == "");
  for (const auto& [key, value] : {std::pair<const char*, double>{"rms_norm_eps", 0},
                                   {"rms_norm_eps", -1e-5},
                                   {"rms_norm_eps", 1e300},
                                   {"rope_theta", 0},
                                   {"rope_theta", -10000}}) {
    CAPTURE(std::string(key));
    CHECK(refused("llama", {{key, value}}).starts_with(fmt::format("config.json: '{}' is ", key)));
  }
  CHECK(refused("gpt2", {{"layer_norm_epsilon", 0}}).starts_with("config.json: 'layer_norm_eps"));
  for (const auto& [key, value] : {std::pair<const char*, double>{"factor", 0},
                                   {"factor", -8},
                                   {"low_freq_factor", 0},
                                   {"low_freq_factor", 4},
                                   {"original_max_position_embeddings", 1e300},
                                   {"original_max_position_embeddings", 0},
                                   {"rope_theta", 0}}) {
    CAPTURE(std::string(key));
    nlohmann::json scaling = llama3;
    scaling[key] = value;
    CHECK(refused("llama", {{"rope_scaling", scaling}})
              .starts_with(fmt::format("config.json: '{}'", key)));
  }
}

TEST_CASE("weights that are not finite are refused by name") {
  for (const uint32_t bits : {0x7fc00000U, 0x7f800000U, 0xff800000U}) {
    const Scratch scratch;
    fs::copy(reference_folder("llama"), scratch / "hf");
    fs::permissions(scratch / "hf/model.safetensors", fs::perms::owner_write,
                    fs::perm_options::add);
    const auto there = read_safetensors(scratch / "hf/model.safetensors");
    const StridedTensor& norm = there.tensors.at("model.norm.weight");
    REQUIRE(norm.dtype == DType::f32);
    std::fstream file(scratch / "hf/model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(norm.byte_offset + 4);
    file.write(reinterpret_cast<const char*>(&bits), sizeof bits);
    file.close();
    std::string text;
    CHECK(code_of(
              [&] {
                import_model({.source = scratch / "hf", .out = scratch / "run", .tokenizer = {}});
              },
              &text) == "import.tensor");
    CHECK(text.find("model.norm.weight': of the numbers read, 1 ") != std::string::npos);
    CHECK(!fs::exists(scratch / "run"));
  }
}

TEST_CASE("export: a weight that fp16 cannot hold is an error, and does not become infinite") {
  const std::vector<float> values = {1, 1e5F};
  CHECK(to_dtype(values, DType::bf16, "w").size() == 4);
  CHECK(to_dtype({65504}, DType::f16, "w") == "\xFF\x7B");
  try {
    to_dtype(values, DType::f16, "w");
    FAIL("written");
  } catch (const Error& error) {
    CHECK(error.diagnostics()[0].code == "ckpt.range");
    CHECK(error.diagnostics()[0].what.starts_with("'w' has a weight of 1"));
  }
}
