// Windows and rotations by layer, as config.json says them in one way or another.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "reference_folders.h"
#include "runtime/interchange/foreign_model.h"
#include "runtime/interchange/hf_config.h"

using namespace mtl;
using namespace mtl::test;
namespace fs = std::filesystem;

namespace hf_windows_test {

namespace {

using Layers = std::vector<int64_t>;

}  // namespace

TEST_CASE("Qwen's windows begin behind a number of layers, or are listed") {
  const nlohmann::json on = {{"use_sliding_window", true},
                             {"sliding_window", 8},
                             {"num_hidden_layers", 4},
                             {"layer_types", nullptr}};
  const auto with = [&](const nlohmann::json& changes) {
    nlohmann::json all = on;
    all.update(changes);
    return read_config("qwen2", all);
  };
  CHECK(with(nlohmann::json::object()).shape.sliding_window ==
        0);  // as many layers as there are see everything
  ConfigRead some = with({{"max_window_layers", 2}});
  CHECK(some.problems == "");
  CHECK(some.shape.sliding_window == 8);
  CHECK(some.shape.full_layers == Layers{0, 1});
  check_returns(some.shape);
  some = with({{"layer_types",
                {"full_attention", "sliding_attention", "full_attention", "sliding_attention"}}});
  CHECK(some.shape.full_layers == Layers{0, 2});
  check_returns(some.shape);
  CHECK(with({{"max_window_layers", 0}}).shape.full_layers.empty());
  CHECK(with({{"max_window_layers", 0}}).shape.sliding_window == 8);
  CHECK(with({{"max_window_layers", 0}, {"use_sliding_window", false}}).shape.sliding_window == 0);
  CHECK(with({{"layer_types", {"sliding_attention"}}}).problems ==
        "c: 'layer_types' is no list of 4 values, one for each layer\n");
  CHECK(with({{"layer_types", "sliding_attention"}}).problems ==
        "c: 'layer_types' is no list of 4 values, one for each layer\n");
  CHECK(with({{"layer_types",
               {"full_attention", "linear_attention", "full_attention", "full_attention"}}})
            .problems == "c: 'layer_types' has \"linear_attention\"\n");
}

TEST_CASE("families that transformers gives one window take no other in some layers") {
  const nlohmann::json some = {{"sliding_window", 8},
                               {"layer_types", {"sliding_attention", "full_attention"}}};
  const nlohmann::json none = {{"sliding_window", 8},
                               {"layer_types", {"full_attention", "full_attention"}}};
  const std::string refused = "c: some layers have a sliding window and some have none\n";
  for (const char* folder : {"mistral", "mixtral", "phi3", "starcoder2"}) {
    CAPTURE(std::string(folder));
    CHECK(read_config(folder, some).problems == refused);
    CHECK(read_config(folder, none).problems == refused);
    CHECK(read_config(folder, {{"sliding_window", 0}}).problems.find("'sliding_window' is 0") !=
          std::string::npos);
  }
  for (const int below : {1, 2}) {
    CHECK(read_config(
              "qwen2-moe",
              {{"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", below}})
              .problems == refused);
  }
}

TEST_CASE("SmolLM3's list of layers counts, whatever its switch says") {
  const ConfigRead read = read_config("smollm3", {{"use_sliding_window", false}});
  CHECK(read.problems == "");
  CHECK(read.shape.sliding_window == 4);
  CHECK(read.shape.full_layers == Layers{1});
  CHECK(read_config("smollm3", {{"use_sliding_window", false}, {"layer_types", nullptr}})
            .shape.sliding_window == 0);
}

TEST_CASE("Gemma 2 caps scores and logits, unless it says that it does not") {
  ConfigRead gemma = read_config("gemma2", {});
  CHECK(gemma.problems == "");
  CHECK(gemma.shape.full_layers == Layers{1});
  CHECK(gemma.shape.attention_cap == 2);
  CHECK(gemma.shape.logit_cap == 3);
  CHECK_FALSE(gemma.shape.qk_norm);
  check_returns(gemma.shape);
  const nlohmann::json silent = {{"attn_logit_softcapping", nullptr},
                                 {"final_logit_softcapping", nullptr},
                                 {"layer_types", nullptr},
                                 {"num_hidden_layers", 5}};
  gemma = read_config("gemma2", silent);
  CHECK(gemma.shape.attention_cap == 50);
  CHECK(gemma.shape.logit_cap == 30);
  CHECK(gemma.shape.full_layers == Layers{1, 3});
  gemma = read_config("gemma2",
                      {{"attn_logit_softcapping", "null"}, {"final_logit_softcapping", "null"}});
  CHECK(gemma.shape.attention_cap == 0);
  CHECK(gemma.shape.logit_cap == 0);
  check_returns(gemma.shape);
  CHECK(read_config("gemma2", {{"attn_logit_softcapping", 0.0}}).problems != "");
}

TEST_CASE("Gemma 3's windows rotate on their own") {
  ConfigRead gemma = read_config("gemma3", {});
  CHECK(gemma.problems == "");
  CHECK(gemma.shape.full_layers == Layers{1});
  CHECK(gemma.shape.window_rope_base == 100);
  CHECK(gemma.shape.rope_base == 50000);
  CHECK(gemma.shape.attention_scale == doctest::Approx(0.2236068));
  CHECK(gemma.shape.embedding_scale == doctest::Approx(5.6568542));
  CHECK(gemma.shape.tie_embeddings);
  check_returns(gemma.shape);
  // What its first files said: a pattern, and no list.
  const nlohmann::json first = {{"layer_types", nullptr}, {"num_hidden_layers", 7}};
  gemma = read_config("gemma3", first);
  CHECK(gemma.shape.full_layers == Layers{5});
  nlohmann::json third = first;
  third["sliding_window_pattern"] = 3;
  CHECK(read_config("gemma3", third).shape.full_layers == Layers{2, 5});
  CHECK(read_config("gemma3", {{"query_pre_attn_scalar", 12}}).shape.attention_scale == 0);
  CHECK(read_config("gemma3", {{"head_dim", nullptr}}).shape.head_dim == 256);
  // transformers 5 has an object for each kind of layers.
  const nlohmann::json kinds = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 7000.0}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 70.0}}}};
  const nlohmann::json newer = {{"rope_scaling", nullptr},
                                {"rope_theta", nullptr},
                                {"rope_local_base_freq", nullptr},
                                {"rope_parameters", kinds}};
  gemma = read_config("gemma3", newer);
  CHECK(gemma.problems == "");
  CHECK(gemma.shape.rope_base == 7000);
  CHECK(gemma.shape.rope_scaling.factor == 8);
  CHECK(gemma.shape.window_rope_base == 70);
  nlohmann::json scaled = newer;
  scaled["rope_parameters"]["sliding_attention"]["rope_type"] = "yarn";
  CHECK(read_config("gemma3", scaled)
            .problems.starts_with("c: rotary positions of layers with a window"));
  CHECK(read_config("llama", newer)
            .problems.starts_with("c: layers of the kind 'full_attention' have"));
  // Without any window, and with none.
  gemma = read_config("gemma3", {{"layer_types", {"full_attention", "full_attention"}}});
  CHECK(gemma.shape.sliding_window == 0);
  CHECK(gemma.shape.window_rope_base == 0);
  check_returns(gemma.shape);
  CHECK(read_config("gemma3", {{"sliding_window", "null"}})
            .problems.starts_with("c: 'sliding_window' is"));
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    CHECK(read_config("gemma3", {{cap, 30.0}}).problems ==
          std::string("c: '") + cap + "' is given, which Gemma 2 has\n");
  }
  CHECK(read_config("gemma3", {{"use_bidirectional_attention", true}}).problems != "");
  CHECK(read_config("gemma3", {{"hidden_activation", "gelu"}}).problems != "");
  CHECK(read_config("gemma3", {{"attention_bias", true}}).problems != "");
}

// A folder with the text part of a Gemma 3 inside one that sees pictures.
void save_inside(const fs::path& folder, const std::string& text_names, const std::string& others) {
  fs::create_directories(folder);
  const fs::path from = reference_folder("gemma3");
  nlohmann::json text = nlohmann::json::parse(read_file(from / "config.json"));
  for (const char* taken_anyway : {"model_type", "architectures", "num_attention_heads"}) {
    text.erase(taken_anyway);
  }
  text["num_attention_heads"] = 4;
  const nlohmann::json config = {{"model_type", "gemma3"},
                                 {"architectures", {"Gemma3ForConditionalGeneration"}},
                                 {"text_config", text},
                                 {"vision_config", {{"hidden_size", 8}}},
                                 {"mm_tokens_per_image", 256}};
  std::ofstream(folder / "config.json") << config.dump();
  std::string bytes = read_file(from / "model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  std::string data = bytes.substr(8 + length);
  nlohmann::json renamed;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::string rest = name.substr(std::string("model.").size());
    renamed[text_names + rest] = entry;
  }
  for (const char* name : {"vision_tower.weight", "multi_modal_projector.weight"}) {
    renamed[others + name] = {
        {"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {data.size(), data.size() + 4}}};
    data += std::string(4, '\0');
  }
  const std::string text_of_header = renamed.dump();
  length = text_of_header.size();
  bytes.assign(reinterpret_cast<const char*>(&length), 8);
  std::ofstream(folder / "model.safetensors", std::ios::binary) << bytes << text_of_header << data;
}

TEST_CASE("of a Gemma 3 that sees pictures the text part is read") {
  const auto whole = all_weights(open_hf_folder(reference_folder("gemma3")));
  for (const auto& [text_names, others] :
       {std::pair("language_model.model.", ""), std::pair("model.language_model.", "model.")}) {
    const Scratch scratch;
    save_inside(scratch / "hf", text_names, others);
    const ForeignModel inside = open_hf_folder(scratch / "hf");
    CHECK(all_weights(inside) == whole);
    REQUIRE(inside.warnings.size() == 1);
    CHECK(inside.warnings[0].what.find("its text part alone is read") != std::string::npos);
  }
  // What the published files leave out.
  const nlohmann::json small = {
      {"model_type", "gemma3"},
      {"text_config",
       {{"hidden_size", 2560}, {"num_hidden_layers", 34}, {"sliding_window", 1024}}}};
  Diagnostics diagnostics;
  const ModelShape shape = model_from_hf_config(small, "c", diagnostics).shape;
  CHECK_FALSE(diagnostics.has_errors());
  CHECK(shape.vocab == 262'208);
  CHECK(shape.heads == 8);
  CHECK(shape.kv_heads == 4);
  CHECK(shape.full_layers == Layers{5, 11, 17, 23, 29});
  // A config without texts.
  model_from_hf_config({{"model_type", "gemma3"}}, "c", diagnostics);
  CHECK(diagnostics.has_errors());
}

TEST_CASE("OLMo 3 scales no layers with a window") {
  ConfigRead olmo = read_config("olmo3", {});
  CHECK(olmo.problems == "");
  CHECK(olmo.shape.full_layers == Layers{1});
  CHECK(olmo.shape.rope_scaling.type == RopeScalingType::yarn);
  CHECK(olmo.shape.window_rope_base == 5000);
  check_returns(olmo.shape);
  olmo = read_config("olmo3", {{"rope_scaling", nullptr},
                               {"layer_types", nullptr},
                               {"num_hidden_layers", 9},
                               {"sliding_window", nullptr}});
  CHECK(olmo.shape.sliding_window == 4096);
  CHECK(olmo.shape.full_layers == Layers{3, 7});
  CHECK(olmo.shape.window_rope_base == 0);
  check_returns(olmo.shape);
  olmo = read_config("olmo3", {{"layer_types", {"full_attention", "full_attention"}}});
  CHECK(olmo.shape.sliding_window == 0);
  CHECK(olmo.shape.window_rope_base == 0);
  check_returns(olmo.shape);
}

TEST_CASE("EXAONE 4 rotates where it has a window, or everywhere") {
  ConfigRead exaone = read_config("exaone4-windows", {});
  CHECK(exaone.shape.full_layers == Layers{1});
  CHECK(exaone.shape.unrotated_layers == Layers{1});
  check_returns(exaone.shape);
  exaone = read_config("exaone4-windows", {{"layer_types", nullptr}, {"num_hidden_layers", 9}});
  CHECK(exaone.shape.full_layers == Layers{3, 7});
  // A word for the pattern stands beside the list that was made of it.
  exaone = read_config("exaone4-windows", {{"sliding_window_pattern", "LG"}});
  CHECK(exaone.problems == "");
  CHECK(exaone.shape.full_layers == Layers{1});
  exaone = read_config("exaone4-windows", {{"sliding_window", "null"}});
  CHECK(exaone.shape.full_layers.empty());
  CHECK(exaone.shape.unrotated_layers.empty());
  check_returns(exaone.shape);
  exaone = read_config("exaone4-windows", {{"layer_types", {"full_attention", "full_attention"}}});
  CHECK(exaone.shape.position == PositionType::none);
}

TEST_CASE("SmolLM3 does not rotate in every fourth layer, or in those that are listed") {
  ConfigRead smol = read_config("smollm3", {});
  CHECK(smol.problems == "");
  CHECK(smol.shape.full_layers == Layers{1});
  CHECK(smol.shape.unrotated_layers == Layers{1});
  check_returns(smol.shape);
  const nlohmann::json four = {
      {"no_rope_layers", nullptr}, {"layer_types", nullptr}, {"num_hidden_layers", 9}};
  smol = read_config("smollm3", four);
  CHECK(smol.shape.unrotated_layers == Layers{3, 7});
  // Without a list its windows are those of the layers that do not rotate.
  CHECK(smol.shape.full_layers == Layers{0, 1, 2, 4, 5, 6, 8});
  check_returns(smol.shape);
  nlohmann::json none = four;
  none["use_sliding_window"] = false;
  none["no_rope_layer_interval"] = 5;
  smol = read_config("smollm3", none);
  CHECK(smol.shape.unrotated_layers == Layers{4});
  CHECK(smol.shape.sliding_window == 0);
  check_returns(smol.shape);
  CHECK(read_config("smollm3", {{"no_rope_layers", {1, 2}}}).problems ==
        "c: 'no_rope_layers' has 2\n");
  CHECK(read_config("smollm3", {{"no_rope_layers", {1}}}).problems ==
        "c: 'no_rope_layers' is no list of 2 values, one for each layer\n");
  CHECK(read_config("smollm3", {{"no_rope_layers", {0, 0}}}).shape.position == PositionType::none);
  CHECK(read_config("smollm3", {{"attention_bias", true}}).problems != "");
}

}  // namespace hf_windows_test
