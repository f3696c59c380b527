#include "reference_folders.h"

#include <atomic>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "runtime/device/make_device.h"
#include "runtime/engine/solo_model.h"
#include "runtime/interchange/export_source.h"

namespace mtl::test {

namespace fs = std::filesystem;

fs::path reference_folder(const std::string& name) {
  return fs::path(MTL_SOURCE_DIR) / "tests/reference/interchange" / name;
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
