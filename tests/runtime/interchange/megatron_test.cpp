// Megatron's torch directories: joined over TP and PP they are the models that they were cut from.
#include <fstream>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "reference_folders.h"
#include "runtime/interchange/export.h"
#include "runtime/interchange/import.h"
#include "runtime/interchange/torch_file.h"

using namespace mtl;
using namespace mtl::test;
namespace fs = std::filesystem;

TEST_CASE("a Megatron directory is the model that it was cut from") {
  for (const auto& [name, original] :
       {std::pair("megatron-llama", "llama"), std::pair("megatron-gpt2", "gpt2"),
        std::pair("megatron-stablelm", "stablelm"), std::pair("megatron-smollm3", "smollm3")}) {
    CAPTURE(name);
    const ForeignModel joined = open_foreign_model(reference_folder(name));
    const ForeignModel whole = open_foreign_model(reference_folder(original));
    CHECK(joined.kind == "Megatron");
    CHECK(to_json(joined.shape) == to_json(whole.shape));
    CHECK(all_weights(joined) == all_weights(whole));
    const Scratch scratch;
    const auto imported =
        import_model({.source = reference_folder(name), .out = scratch / "run", .tokenizer = {}});
    CHECK(logits_distance(imported.checkpoint, original) <= 1e-4);
  }
}

TEST_CASE("the split that is exported has the tensors of Megatron's own files") {
  const Scratch scratch;
  const auto imported = import_model(
      {.source = reference_folder("megatron-llama"), .out = scratch / "run", .tokenizer = {}});
  const ExportReport report = export_megatron_split(
      {.checkpoint = imported.checkpoint, .out = scratch / "split", .tp = 2, .pp = 2});
  CHECK(report.files == 4);
  size_t compared = 0;
  for (int tp = 0; tp < 2; ++tp) {
    for (int pp = 0; pp < 2; ++pp) {
      const auto ours = read_safetensors(
          scratch / fmt::format("split/pytorch_model_tp_{}_pp_{}.safetensors", tp, pp));
      const TorchFile theirs(
          reference_folder("megatron-llama") /
          fmt::format("iter_0000500/mp_rank_{:02}_{:03}/model_optim_rng.pt", tp, pp));
      const Pickle& pickle = theirs.pickle();
      const Pickle::Value* const model = pickle.find(theirs.root(), "model");
      REQUIRE(model != nullptr);
      for (size_t i = 0; i < model->items.size(); i += 2) {
        const std::string name(pickle[model->items[i]].text);
        std::string other;
        const auto tensor = theirs.tensor(model->items[i + 1], other);
        if (!tensor || name.find("word_emb") != std::string::npos ||
            name == "output_layer.weight") {
          continue;  // padded otherwise
        }
        const auto found = ours.tensors.find(name);
        if (found == ours.tensors.end()) {
          CHECK(name.find("layer_norm_weight") != std::string::npos);
          continue;
        }
        ForeignWeights both;
        const Rect all{Dims(tensor->shape.size(), 0), tensor->shape};
        both.add("ours", tensor->shape, {.rect = all, .source = found->second, .at = all.offset});
        both.add("theirs", tensor->shape, {.rect = all, .source = *tensor, .at = all.offset});
        std::vector<float> values[2];
        for (const auto& [which, into] :
             {std::pair("ours", &values[0]), std::pair("theirs", &values[1])}) {
          into->resize(static_cast<size_t>(*volume(tensor->shape)));
          CheckpointTensor read;
          read.name = which;
          read.shape = read.local_shape = tensor->shape;
          read.rects = {{all.offset, all.offset, all.extent}};
          read.data = into->data();
          both.read(read);
        }
        CHECK(values[0] == values[1]);
        ++compared;
      }
    }
  }
  CHECK(compared == 4 * 4 + 2);  // qkv, proj, fc1, fc2; the final norm on two ranks
  CHECK(code_of([&] {
          export_megatron_split({.checkpoint = imported.checkpoint, .out = scratch / "x", .tp = 3});
        }) == "export.split");
}

TEST_CASE("Megatron's split says how rotary positions are scaled, or is refused") {
  const Scratch scratch;
  const auto split_of = [&](const std::string& name, const nlohmann::json& scaling) {
    fs::copy(reference_folder("llama"), scratch / name);
    const fs::path file = scratch / name / "config.json";
    auto config = nlohmann::json::parse(read_file(file));
    config["rope_scaling"] = scaling;
    fs::remove(file);
    std::ofstream(file) << config;
    const auto imported =
        import_model({.source = scratch / name, .out = scratch / (name + "-run"), .tokenizer = {}});
    export_megatron_split({.checkpoint = imported.checkpoint, .out = scratch / (name + "-split")});
    return nlohmann::json::parse(read_file(scratch / (name + "-split/model-split.json")))
        .at("args");
  };
  const nlohmann::json linear = split_of("linear", {{"type", "linear"}, {"factor", 4.0}});
  CHECK(linear.at("rotary_seq_len_interpolation_factor") == 4);
  CHECK(linear.at("use_rope_scaling") == false);
  CHECK(linear.at("rotary_percent") == 1);
  const auto partial =
      import_model({.source = reference_folder("stablelm"), .out = scratch / "p", .tokenizer = {}});
  export_megatron_split({.checkpoint = partial.checkpoint, .out = scratch / "p-split"});
  const auto said = nlohmann::json::parse(read_file(scratch / "p-split/model-split.json"));
  CHECK(said.at("args").at("rotary_percent") == 0.25);
  CHECK(said.at("args").at("rotary_seq_len_interpolation_factor") == 2);
  nlohmann::json llama3 = {{"rope_type", "llama3"},
                           {"factor", 32.0},
                           {"low_freq_factor", 1.0},
                           {"high_freq_factor", 4.0},
                           {"original_max_position_embeddings", 8192}};
  CHECK(split_of("llama3", llama3).at("rope_scaling_factor") == 32);
  llama3["high_freq_factor"] = 5.0;
  std::string text;
  CHECK(code_of([&] { split_of("other", llama3); }, &text) == "export.split");
  CHECK(text.find("Llama 3.1's own numbers") != std::string::npos);
  CHECK(code_of(
            [&] {
              split_of("yarn", {{"type", "yarn"}, {"factor", 4.0}});
            },
            &text) == "export.split");
  CHECK(text.find("scaled as 'yarn'") != std::string::npos);
}

TEST_CASE("the split of a model whose layers differ says how") {
  const Scratch scratch;
  const auto args_of = [&](const char* folder) {
    const auto imported = import_model(
        {.source = reference_folder(folder), .out = scratch / folder, .tokenizer = {}});
    const fs::path split = scratch / (std::string(folder) + "-split");
    export_megatron_split({.checkpoint = imported.checkpoint, .out = split});
    return nlohmann::json::parse(read_file(split / "model-split.json")).at("args");
  };
  const nlohmann::json smollm3 = args_of("smollm3");
  CHECK(smollm3.at("window_size") == nlohmann::json({3, 0}));
  CHECK(smollm3.at("window_attn_skip_freq") == nlohmann::json({1, 0}));
  CHECK(smollm3.at("no_rope_freq") == nlohmann::json({0, 1}));
  const nlohmann::json mistral = args_of("mistral");
  CHECK(mistral.at("window_size") == nlohmann::json({3, 0}));
  for (const char* other : {"window_attn_skip_freq", "no_rope_freq", "softmax_scale"}) {
    CHECK_FALSE(mistral.contains(other));
  }
  CHECK_FALSE(args_of("llama").contains("window_size"));
}

TEST_CASE(
    "without its fused kernel Megatron's GELU is the exact one, here and in the split of it") {
  const Scratch scratch;
  const fs::path copy = scratch / "copy";
  fs::copy(reference_folder("megatron-gpt2"), copy, fs::copy_options::recursive);
  CHECK(open_foreign_model(copy).shape.activation == Activation::gelu_tanh);
  // The value in the pickle, behind its key: true and false are a byte each.
  const fs::path first = copy / "release/mp_rank_00_000/model_optim_rng.pt";
  std::string bytes = read_file(first);
  const size_t value = bytes.find('\x88', bytes.find("bias_gelu_fusion"));
  REQUIRE(value < bytes.size());
  bytes[value] = '\x89';
  std::ofstream(first, std::ios::binary) << bytes;
  CHECK(open_foreign_model(copy).shape.activation == Activation::gelu_exact);
  const auto imported = import_model({.source = copy, .out = scratch / "run", .tokenizer = {}});
  export_megatron_split({.checkpoint = imported.checkpoint, .out = scratch / "split"});
  const auto args = nlohmann::json::parse(read_file(scratch / "split/model-split.json")).at("args");
  CHECK(args.at("openai_gelu") == false);
  CHECK(args.at("bias_gelu_fusion") == false);
}

TEST_CASE("Megatron directories that cannot be read say why") {
  const Scratch scratch;
  const fs::path copy = scratch / "copy";
  fs::copy(reference_folder("megatron-llama"), copy, fs::copy_options::recursive);
  CHECK(code_of([&] { open_foreign_model(copy); }) == "");
  CHECK(code_of([&] { open_foreign_model(copy / "iter_0000500"); }) == "");
  fs::rename(copy / "iter_0000500/mp_rank_01_001", copy / "kept");
  CHECK(code_of([&] { open_foreign_model(copy); }) == "import.missing");
  // A rank's file in another's place.
  fs::copy(copy / "iter_0000500/mp_rank_01_000", copy / "iter_0000500/mp_rank_01_001",
           fs::copy_options::recursive);
  CHECK(code_of([&] { open_foreign_model(copy); }) == "import.tensor");
  fs::remove_all(copy / "iter_0000500");
  fs::create_directories(copy / "iter_0000500");
  std::ofstream(copy / "iter_0000500/metadata.json") << "{}";
  std::string text;
  CHECK(code_of([&] { open_foreign_model(copy); }, &text) == "import.family");
  CHECK(text.find("torch_dist") != std::string::npos);
  fs::create_directories(copy / "iter_0000500/mp_rank_00_000_000");
  CHECK(code_of([&] { open_foreign_model(copy); }, &text) == "import.family");
  CHECK(code_of([&] { open_foreign_model(scratch / "nothing"); }) == "import.missing");
}
