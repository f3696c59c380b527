// Adapters on their way to others, of models of every family: merged into the model, or as PEFT has
// them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "reference_folders.h"
#include "runtime/checkpoint/write_parts.h"
#include "runtime/device/make_device.h"
#include "runtime/engine/solo_model.h"
#include "runtime/interchange/export.h"
#include "runtime/interchange/export_source.h"
#include "runtime/interchange/hf_config.h"
#include "runtime/interchange/import.h"
#include "runtime/interchange/init_from.h"
#include "runtime/plan/shard_table.h"
#include "support/layouts.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;
namespace fs = std::filesystem;

namespace adapters_test {

namespace {

constexpr double kAlpha = 6;
constexpr int64_t kRank = 4;

struct WithAdapters {
  fs::path base, checkpoint;  // the model, and the same with adapters that do something
};

// Of a folder of tests/reference/interchange.
// `spread`: of the adapters' elements.
WithAdapters make(const Scratch& scratch, const std::string& folder, bool mlp = true,
                  float spread = 0.3f) {
  const auto imported = import_model(
      {.source = reference_folder(folder), .out = scratch / (folder + "-base"), .tokenizer = {}});
  CheckpointReader reader(imported.checkpoint);
  nlohmann::json state = reader.state();
  ModelShape shape = model_shape_from_json(state.at("model"));
  shape.lora = {.rank = kRank, .alpha = kAlpha, .qkv = true, .proj = true, .up = mlp, .down = mlp};
  state["model"] = to_json(shape);
  // As what exports write, which some families are not (the next case).
  state["base"] = {{"from", "org/base"},
                   {"kind", "Hugging Face " + hf_model_of(shape.without_adapters()).architecture}};
  ExportSource base(imported.checkpoint);
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, spread);
  std::vector<std::vector<float>> values;
  std::vector<CheckpointTensor> tensors;
  for (const ParamRow& row : shard_table(shape, false)) {
    if (is_adapter(row)) {
      std::vector<float>& own = values.emplace_back(static_cast<size_t>(row.numel()));
      for (float& value : own) value = normal(random);
    } else {
      values.push_back(base.read(row.name, row.shape));
    }
    CheckpointTensor tensor;
    tensor.name = row.name;
    tensor.shape = tensor.local_shape = row.shape;
    tensor.rects = {{Dims(row.shape.size(), 0), Dims(row.shape.size(), 0), row.shape}};
    tensor.frozen = row.frozen;
    tensors.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].data = values[i].data();
  const fs::path out = scratch / (folder + "-adapters");
  std::vector<ExtraFile> extras;
  for (const std::string& name : reader.extras()) extras.push_back({name, reader.extra(name)});
  write_new_checkpoint(out, state, extras, {tensors});
  return {imported.checkpoint, out};
}

using Matrix = std::vector<float>;

Matrix floats(const std::string& bytes) {
  Matrix values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// The largest distance of `merged` from W + alpha / rank B A, of W [out, in] or stored the other
// way round.
double distance(const Matrix& w, const Matrix& a, const Matrix& b, const Matrix& merged,
                bool conv1d) {
  const int64_t in = std::ssize(a) / kRank, out = std::ssize(b) / kRank;
  REQUIRE(std::ssize(w) == in * out);
  const auto at = [](const Matrix& m, int64_t i) {
    return static_cast<double>(m[static_cast<size_t>(i)]);
  };
  double worst = 0;
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t i = 0; i < in; ++i) {
      double sum = 0;
      for (int64_t r = 0; r < kRank; ++r) sum += at(b, o * kRank + r) * at(a, r * in + i);
      const int64_t place = conv1d ? i * out + o : o * in + i;
      worst = std::max(worst, std::abs(at(w, place) + kAlpha / kRank * sum - at(merged, place)));
    }
  }
  return worst;
}

std::vector<float> logits_of(const fs::path& checkpoint) {
  CheckpointReader reader(checkpoint);
  const ModelShape shape = model_shape_from_json(reader.state().at("model"));
  const std::unique_ptr<Device> device = make_cpu_device(1);
  SoloModel model(shape, *device, 16);
  model.load(reader);
  return model.next_logits(std::vector<int32_t>{3, 1, 4, 1, 5, 9, 2, 6}, 0);
}

}  // namespace

TEST_CASE("PEFT's adapters beside a family's own tensors make those of the merged model") {
  // Of Phi-3 and GPT-NeoX queries, keys and values are one tensor, of the latter in turns by heads;
  // GPT-2's lie the other way round.
  for (const char* const folder : {"llama", "gpt2", "phi3", "gpt-neox", "glm4", "phi", "cohere",
                                   "gemma2", "olmo2", "deepseek-v2", "deepseek-v3", "glm4-moe",
                                   "qwen2-moe", "mixtral", "gpt-oss", "granite", "starcoder2"}) {
    CAPTURE(folder);
    const Scratch scratch;
    const WithAdapters made = make(scratch, folder);
    const auto exported = [&](const char* name, const fs::path& checkpoint, auto how) {
      how({.checkpoint = checkpoint, .out = scratch / name});
      return tensor_bytes(scratch / name);
    };
    const auto base = exported("base", made.base, export_hf);
    const auto merged = exported("merged", made.checkpoint, export_hf);
    const auto adapters = exported("peft", made.checkpoint, export_peft);
    const auto config = nlohmann::json::parse(read_file(scratch / "peft" / "adapter_config.json"));
    CHECK(config.at("base_model_name_or_path") == "org/base");
    CHECK(config.at("r") == kRank);
    CHECK(config.at("lora_alpha") == kAlpha);
    CHECK(base.size() == merged.size());
    size_t adapted = 0;
    for (const auto& [name, bytes] : base) {
      CAPTURE(name);
      const std::string linear = name.substr(0, name.rfind(".weight"));
      const auto a = adapters.find("base_model.model." + linear + ".lora_A.weight");
      if (a == adapters.end()) {
        CHECK(bytes == merged.at(name));
        continue;
      }
      ++adapted;
      const std::string& b = adapters.at("base_model.model." + linear + ".lora_B.weight");
      CHECK(distance(floats(bytes), floats(a->second), floats(b), floats(merged.at(name)),
                     config.at("fan_in_fan_out")) < 1e-5);
      // PEFT finds the linear by the end of its name.
      size_t targets = 0;
      for (const std::string target : config.at("target_modules")) {
        targets += linear.ends_with("." + target);
      }
      CHECK(targets == 1);
    }
    CHECK(adapters.size() == 2 * adapted);
    CHECK(adapted > 0);
    // And no other module has such a name.
    for (const auto& [name, bytes] : base) {
      const std::string linear = name.substr(0, name.rfind('.'));
      for (const std::string target : config.at("target_modules")) {
        if (!linear.ends_with("." + target)) continue;
        CHECK(adapters.contains("base_model.model." + linear + ".lora_A.weight"));
      }
    }
  }
}

TEST_CASE("adapters have the names of the model that they were trained beside") {
  // A Phi-3 that turns whole heads goes out as a Llama.
  const Scratch scratch;
  const WithAdapters made = make(scratch, "llama");
  const auto exported = [&](const std::string& name, const nlohmann::json& base) {
    CheckpointReader reader(made.checkpoint);
    nlohmann::json state = reader.state();
    state["base"] = base;
    if (base.is_null()) state.erase("base");
    const fs::path checkpoint = scratch / (name + "-checkpoint");
    std::vector<std::vector<float>> values;
    std::vector<CheckpointTensor> tensors;
    for (const ParamRow& row : shard_table(model_shape_from_json(state.at("model")), false)) {
      CheckpointTensor tensor;
      tensor.name = row.name;
      tensor.shape = tensor.local_shape = row.shape;
      tensor.rects = {{Dims(row.shape.size(), 0), Dims(row.shape.size(), 0), row.shape}};
      values.emplace_back(static_cast<size_t>(row.numel()));
      tensor.data = values.back().data();
      reader.read(tensor);
      tensor.frozen = row.frozen;
      tensors.push_back(std::move(tensor));
    }
    write_new_checkpoint(checkpoint, state, {}, {tensors});
    return export_peft({.checkpoint = checkpoint, .out = scratch / name});
  };
  const std::string layer = "base_model.model.model.layers.0.";
  CHECK(exported("llama", {{"from", "a"}, {"kind", "Hugging Face LlamaForCausalLM"}})
            .warnings.empty());
  CHECK(
      exported("phi3", {{"from", "a"}, {"kind", "Hugging Face Phi3ForCausalLM"}}).warnings.empty());
  const auto apart = tensor_bytes(scratch / "llama"), fused = tensor_bytes(scratch / "phi3");
  const auto second = [&](const char* linear) {
    return apart.at(layer + "self_attn." + linear + ".lora_B.weight");
  };
  CHECK(fused.at(layer + "self_attn.qkv_proj.lora_B.weight") ==
        second("q_proj") + second("k_proj") + second("v_proj"));
  CHECK(fused.at(layer + "self_attn.qkv_proj.lora_A.weight") ==
        apart.at(layer + "self_attn.v_proj.lora_A.weight"));
  CHECK(fused.contains(layer + "mlp.gate_up_proj.lora_A.weight"));

  // Of whose model nobody knows the names.
  for (const nlohmann::json& base : {nlohmann::json(), nlohmann::json{{"from", "runs/x"}},
                                     nlohmann::json{{"kind", "Megatron"}}}) {
    const ExportReport report = exported("other" + base.dump().substr(0, 6), base);
    REQUIRE(report.warnings.size() == 1);
    CHECK(report.warnings[0].code == "export.base");
    fs::remove_all(scratch / ("other" + base.dump().substr(0, 6)));
    fs::remove_all(scratch / ("other" + base.dump().substr(0, 6) + "-checkpoint"));
  }
  CHECK(refusal_of([&] {
          exported("pictures", {{"kind", "Hugging Face Gemma3ForConditionalGeneration"}});
        }).code == "export.family");
}

TEST_CASE("a model with adapters generates as the one that they are merged into") {
  for (const char* const folder : {"llama", "gpt2", "deepseek-v2", "qwen2-moe", "gpt-neox"}) {
    CAPTURE(folder);
    const Scratch scratch;
    const WithAdapters made = make(scratch, folder);
    export_hf({.checkpoint = made.checkpoint, .out = scratch / "merged"});
    const auto back =
        import_model({.source = scratch / "merged", .out = scratch / "back", .tokenizer = {}});
    const std::vector<float> base = logits_of(made.base), adapted = logits_of(made.checkpoint),
                             merged = logits_of(back.checkpoint);
    CHECK(relative_error(adapted, merged) < 1e-5);
    CHECK(relative_error(adapted, base) > 0.05);
  }
}

TEST_CASE("a run that starts from a model with adapters has them merged, in every layout") {
  const Scratch scratch;
  const WithAdapters made = make(scratch, "llama", false);
  const auto expected = all_weights(made.checkpoint);
  TrainSpec spec = llama_spec();
  for (const int64_t rank : {0, 3}) {
    spec.lora.rank = rank;
    for (const Layout layout : {Layout{}, Layout{.tp = 2, .dp = 2}, Layout{.pp = 2}}) {
      GlobalTensors masters;
      run_layout(spec, 96, layout, [&](RankContext& context) {
        context.trainer.initialise();
        load_initial_weights(made.checkpoint.string(), context.trainer);
        collect(context.trainer, Which::master, masters);
      });
      for (const auto& [name, values] : expected) {
        CAPTURE(name);
        CHECK(masters.at(name) == values);
      }
      CHECK((masters.size() > expected.size()) == (rank > 0));
    }
  }
}

TEST_CASE("of a merged weight a shard that begins within a row has its own elements") {
  const Scratch scratch;
  const WithAdapters made = make(scratch, "llama");
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  const std::vector<float> whole = all_weights(made.checkpoint).at(name);
  constexpr int64_t kFirst = 163, kCount = 400;
  std::vector<float> part(kCount + 1, -7);
  CheckpointTensor tensor;
  tensor.name = name;
  tensor.shape = tensor.local_shape = {32, 48};
  tensor.rects = clip_to_range({{{0, 0}, {0, 0}, {32, 48}}}, {32, 48}, kFirst, kCount);
  tensor.first = kFirst;
  tensor.data = part.data();
  InitialWeights(made.checkpoint.string()).read(tensor);
  CHECK(std::equal(part.begin(), part.end() - 1, whole.begin() + kFirst));
  CHECK(part.back() == -7);
}

TEST_CASE("a weight that fp16 has no number for does not become infinite beside adapters") {
  const Scratch scratch;
  // As large as the products of such adapters.
  const WithAdapters made = make(scratch, "llama", false, 200);
  TrainSpec spec = llama_spec();
  spec.lora.rank = 3;
  const auto start = [&] {
    run_layout(spec, 96, {}, [&](RankContext& context) {
      context.trainer.initialise();
      load_initial_weights(made.checkpoint.string(), context.trainer);
    });
  };
  spec.precision.dtype = "fp16";
  const Diagnostic refused = refusal_of(start, Exit::data);
  CHECK(refused.code == "init.range");
  CHECK(refused.help.find("bf16") != std::string::npos);
  spec.precision.dtype = "bf16";
  start();
}

TEST_CASE("a model without adapters has none for PEFT") {
  const Scratch scratch;
  const auto imported =
      import_model({.source = reference_folder("llama"), .out = scratch / "run", .tokenizer = {}});
  const auto refused =
      refusal_of([&] { export_peft({.checkpoint = imported.checkpoint, .out = scratch / "peft"}); },
                 Exit::usage);
  CHECK(refused.code == "export.no_adapters");
  CHECK_FALSE(fs::exists(scratch / "peft"));
}

}  // namespace adapters_test
