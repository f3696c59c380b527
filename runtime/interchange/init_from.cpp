#include "runtime/interchange/init_from.h"

#include <map>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/step_dirs.h"
#include "runtime/engine/checkpointing.h"
#include "runtime/interchange/foreign_model.h"
#include "runtime/plan/shape_settings.h"

namespace mtl {

namespace fs = std::filesystem;

struct InitialWeights::Impl {
  std::optional<CheckpointReader> reader;
  std::optional<ForeignModel> foreign;
  std::map<std::string, std::vector<int64_t>> shapes;  // there, by name
};

InitialWeights::InitialWeights(const std::string& path)
    : path_(path), impl_(std::make_unique<Impl>()) {
  const fs::path folder(path);
  fs::path checkpoint = folder;
  if (!fs::exists(folder / "manifest.json") && fs::is_directory(folder / kCheckpoints)) {
    Diagnostics passed_over;
    checkpoint = newest_checkpoint(folder / kCheckpoints, passed_over);
    passed_over.throw_if_errors(Exit::data);
  }
  if (!checkpoint.empty() && fs::exists(checkpoint / "manifest.json")) {
    impl_->reader.emplace(checkpoint);
    shape_ = model_shape_from_json(impl_->reader->state().at("model"));
  } else if (is_foreign_model(folder)) {
    impl_->foreign = open_foreign_model(folder);
    shape_ = impl_->foreign->shape;
  } else {
    throw Error(
        Exit::data,
        {.code = "init.missing",
         .what = path + (fs::exists(folder) ? " holds no model" : " is not there"),
         .help =
             "init.from is a run of mtl (or its name) or a checkpoint, a Hugging Face folder, or a "
             "Megatron checkpoint in torch format"});
  }
  for (const ParamRow& row : shard_table(shape_, false)) impl_->shapes[row.name] = row.shape;
}

InitialWeights::~InitialWeights() = default;

void InitialWeights::check(const ModelShape& model,
                           const std::function<Place(const std::string& key)>& place_of,
                           Diagnostics& diagnostics) const {
  const nlohmann::json here = to_json(model), there = to_json(shape_);
  const auto differs = [&](const char* key, const std::string& mine, const std::string& theirs) {
    diagnostics.add(
        {.code = "init.mismatch",
         .what = fmt::format("{} is {} here, {} in the model of init.from", key, mine, theirs),
         .place = place_of(key),
         .notes = {"init.from is " + path_},
         .help = "give the model the shape of the one it starts from"});
  };
  for (const auto& [field, key] : kShapeSettings) {
    const nlohmann::json mine = here.value(field, nlohmann::json());
    const nlohmann::json theirs = there.value(field, nlohmann::json());
    const auto shown = [](const nlohmann::json& value) {
      return value.is_null() ? std::string("not set") : value.dump();
    };
    if (mine == theirs) continue;
    // Weights go on to a longer context under a scaling that they did not have.
    if (field == std::string_view("rope_scaling") && !mine.is_null()) {
      diagnostics.add({.code = "init.scaling",
                       .what = fmt::format("{} is {} here, {} in the model of init.from", key,
                                           shown(mine), shown(theirs)),
                       .place = place_of(key),
                       .notes = {"init.from is " + path_},
                       .help = "nothing, if its context is to grow: training adapts its weights "
                               "to the new rotations",
                       .severity = Diagnostic::Severity::warning});
      continue;
    }
    differs(key, shown(mine), shown(theirs));
  }
  if (model.vocab > shape_.vocab) {
    differs("data.tokenizer.type", fmt::format("of {} tokens", model.vocab),
            fmt::format("of {}", shape_.vocab));
  }
  if (model.position == PositionType::learned && model.max_seq > shape_.max_seq) {
    differs("model.max_seq", std::to_string(model.max_seq), std::to_string(shape_.max_seq));
  }
}

void InitialWeights::read(CheckpointTensor& tensor) const {
  const auto found = impl_->shapes.find(tensor.name);
  if (found != impl_->shapes.end()) tensor.shape = found->second;
  if (impl_->reader) {
    impl_->reader->read(tensor);
  } else {
    impl_->foreign->weights.read(tensor);
  }
}

void load_initial_weights(const std::string& path, Trainer& trainer) {
  const InitialWeights weights(path);
  for (const ParameterState& parameter : trainer.state()) {
    CheckpointTensor tensor;
    tensor.name = parameter.row->name;
    tensor.shape = parameter.row->shape;
    tensor.local_shape = parameter.local_shape;
    tensor.rects = parameter.rects;
    tensor.first = parameter.part.first;
    point_at(tensor, trainer.device(), parameter.master);
    weights.read(tensor);
  }
  trainer.weights_changed();
}

}  // namespace mtl
