#include "reference_folders.h"

#include <atomic>
#include <cmath>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "runtime/device/make_device.h"
#include "runtime/engine/solo_model.h"
#include "runtime/interchange/export_source.h"
#include "runtime/interchange/hf_config.h"
#include "runtime/interchange/import.h"
#include "runtime/spec/train_spec.h"
#include "support/specs.h"

namespace mtl::test {

namespace fs = std::filesystem;

TrainSpec llama_spec() {
  TrainSpec spec = spec_with({.global_batch = 4, .micro_batch = 0, .steps = 8});
  spec.model.kv_heads = 2;
  spec.model.ffn = 48;
  use_llama_blocks(spec);
  spec.model.position.base = 5000;
  spec.model.max_seq = 64;
  spec.model.tie_embeddings = false;
  spec.model.vocab_pad_to = 64;
  return spec;
}

fs::path reference_folder(const std::string& name) {
  return fs::path(MTL_SOURCE_DIR) / "tests/reference/interchange" / name;
}

ConfigRead read_config(const nlohmann::json& config) {
  Diagnostics diagnostics;
  const HfModel model = model_from_hf_config(config, "c", diagnostics);
  ConfigRead result{model.shape, "", model.architecture, model.mxfp4};
  for (const Diagnostic& d : diagnostics.all()) result.problems += d.what + "\n";
  return result;
}

ConfigRead read_config(const std::string& folder, const nlohmann::json& changes) {
  auto config = nlohmann::json::parse(read_file(reference_folder(folder) / "config.json"));
  for (const auto& [key, value] : changes.items()) {
    if (value.is_null()) {
      config.erase(key);
    } else {
      config[key] = value == "null" ? nlohmann::json() : value;
    }
  }
  return read_config(config);
}

void check_returns(const ModelShape& shape) {
  Diagnostics diagnostics;
  const nlohmann::json written = hf_config_of(hf_model_of(shape), {}, "float32");
  CAPTURE(written.dump());
  CHECK(to_json(model_from_hf_config(written, "", diagnostics).shape) == to_json(shape));
  CHECK(diagnostics.all().empty());
}

void check_import_says(const std::string& name) {
  const Scratch scratch;
  const auto imported =
      import_model({.source = reference_folder(name), .out = scratch / "run", .tokenizer = {}});
  Diagnostics diagnostics;
  const ResolvedSpec resolved = load_spec(
      {.train_yaml = (scratch / "run/train.yaml").string(), .overrides = {"data.train=x"}},
      diagnostics);
  CHECK(diagnostics.all().empty());
  CHECK(to_json(model_shape(resolved.spec, imported.shape.vocab)) == to_json(imported.shape));
}

std::string family_or_keys(ModelShape shape, const Change& change) {
  change(shape);
  try {
    return hf_model_of(shape).architecture;
  } catch (const Error& error) {
    std::string keys;
    for (const std::string& note : error.diagnostics()[0].notes) {
      keys += (keys.empty() ? "" : " ") + note.substr(0, note.find(':'));
    }
    return keys;
  }
}

std::map<std::string, std::string> tensor_bytes(const fs::path& folder) {
  std::map<std::string, std::string> bytes;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    for (const auto& [name, tensor] : read_safetensors(entry.path()).tensors) {
      int64_t elements = 1;
      for (const int64_t d : tensor.shape) elements *= d;
      bytes[name] =
          tensor.file->bytes().substr(static_cast<size_t>(tensor.byte_offset),
                                      static_cast<size_t>(elements * bytes_of(tensor.dtype)));
    }
  }
  return bytes;
}

Scratch::Scratch() {
  static std::atomic<int> count{0};
  path_ = fs::temp_directory_path() /
          fmt::format("mtl-interchange-{}-{}", ::getpid(), count.fetch_add(1));
  fs::remove_all(path_);
  fs::create_directories(path_);
}

Scratch::~Scratch() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

double logits_distance(const fs::path& checkpoint, const std::string& reference) {
  CheckpointReader reader(checkpoint);
  const ModelShape shape = model_shape_from_json(reader.state().at("model"));
  const std::unique_ptr<Device> device = make_cpu_device(1);
  const auto expected =
      nlohmann::json::parse(read_file(reference_folder(reference) / "logits.json"));
  double worst = 0;
  for (size_t i = 0; i < expected.at("prompts").size(); ++i) {
    SoloModel model(shape, *device, shape.max_seq);
    model.load(reader);
    const auto ids = expected.at("prompts")[i].get<std::vector<int32_t>>();
    const auto theirs = expected.at("logits")[i].get<std::vector<double>>();
    const std::vector<float> ours = model.next_logits(ids, 0);
    if (ours.size() != theirs.size()) return INFINITY;
    for (size_t j = 0; j < theirs.size(); ++j) {
      worst = std::max(worst, std::abs(theirs[j] - static_cast<double>(ours[j])));
    }
  }
  return worst;
}

std::map<std::string, std::vector<float>> all_weights(const ForeignModel& model) {
  std::map<std::string, std::vector<float>> weights;
  for (const ParamRow& row : shard_table(model.shape, false)) {
    std::vector<float>& values = weights[row.name];
    values.resize(static_cast<size_t>(row.numel()));
    CheckpointTensor tensor;
    tensor.name = row.name;
    tensor.shape = tensor.local_shape = row.shape;
    tensor.rects = {{Dims(row.shape.size(), 0), Dims(row.shape.size(), 0), row.shape}};
    tensor.data = values.data();
    model.weights.read(tensor);
  }
  return weights;
}

std::map<std::string, std::vector<float>> all_weights(const fs::path& checkpoint) {
  ExportSource source(checkpoint);
  std::map<std::string, std::vector<float>> weights;
  for (const ParamRow& row : shard_table(source.shape(), false)) {
    weights[row.name] = source.read(row.name, row.shape);
  }
  return weights;
}

}  // namespace mtl::test
