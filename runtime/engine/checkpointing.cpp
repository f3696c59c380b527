#include "runtime/engine/checkpointing.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "runtime/plan/memory/saved_parts.h"

namespace mtl {

void point_at(CheckpointTensor& tensor, Device& device, Tensor elements) {
  tensor.data = elements.data;
  tensor.count = elements.numel();
  if (device.host_memory()) return;
  tensor.fetch = [&device, elements](int64_t at, int64_t n, void* to) {
    device.copy_to_host(to, elements.slice(at, n));
  };
  tensor.store = [&device, elements](int64_t at, int64_t n, const void* from) {
    device.copy_from_host(elements.slice(at, n), from);
  };
}

void point_at(CheckpointTensor& tensor, Device& device, const Masters& masters) {
  if (masters.whole) return point_at(tensor, device, masters.whole);
  tensor.count = masters.numel();
  tensor.from_any_thread = device.host_memory();
  tensor.fetch = [&device, masters](int64_t at, int64_t n, void* to) {
    masters.read(device, at, n, static_cast<float*>(to));
  };
  tensor.store = [&device, masters](int64_t at, int64_t n, const void* from) {
    masters.write(device, at, n, static_cast<const float*>(from));
  };
}

namespace {

// As they are read: of what is not trained f32 too, whatever it is kept in.
std::vector<CheckpointTensor> tensors_of(const ParameterState& parameter, Device& device) {
  auto tensor = [&](const std::string& suffix, const auto& data, bool optimizer) {
    CheckpointTensor entry;
    entry.name = parameter.row->name + suffix;
    entry.dtype = DType::f32;
    entry.shape = parameter.row->shape;
    entry.local_shape = parameter.local_shape;
    entry.rects = parameter.rects;
    entry.first = parameter.part.first;
    point_at(entry, device, data);
    entry.optimizer = optimizer;
    return entry;
  };
  std::vector<CheckpointTensor> tensors = {tensor("", parameter.master, false)};
  for (const auto& [name, moment] : parameter.moments) {
    tensors.push_back(tensor(std::string(".") + name, moment, true));
  }
  return tensors;
}

}  // namespace

std::vector<CheckpointTensor> saved_tensors(Trainer& trainer, const Plan& plan) {
  const StagePlan& stage = plan.stages[static_cast<size_t>(trainer.coord()[Axis::pp])];
  const ParamLayout& layout = stage.layout;
  const Holders holders = plan.grid.holders(trainer.coord());
  std::vector<CheckpointTensor> mine;
  const std::vector<ParameterState> parameters = trainer.state();
  const size_t trained = layout.params.size(), all = trained + stage.frozen.params.size();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (i >= trained && i < all) continue;  // these are frozen_tensors()
    // Behind the parameters of the layouts: experts' biases, which all ranks have.
    const bool saves = i >= all || rank_saves(layout, i, holders);
    if (!parameters[i].counts || !saves) continue;
    for (CheckpointTensor& tensor : tensors_of(parameters[i], trainer.device()))
      mine.push_back(std::move(tensor));
  }
  return mine;
}

std::vector<CheckpointTensor> frozen_tensors(Trainer& trainer, const Plan& plan) {
  const StagePlan& stage = plan.stages[static_cast<size_t>(trainer.coord()[Axis::pp])];
  const Holders holders = plan.grid.holders(trainer.coord());
  const std::vector<ParameterState> parameters = trainer.state();
  std::vector<CheckpointTensor> mine;
  for (size_t i = 0; i < stage.frozen.params.size(); ++i) {
    const ParameterState& parameter = parameters[stage.layout.params.size() + i];
    if (!parameter.counts || !rank_saves(stage.frozen, i, holders)) continue;
    CheckpointTensor tensor = tensors_of(parameter, trainer.device()).front();
    const Masters& master = parameter.master;
    const Tensor weights = master.whole ? master.whole : master.weights;
    tensor.dtype = weights.dtype;
    tensor.fetch = nullptr;
    tensor.store = nullptr;
    point_at(tensor, trainer.device(), weights);
    tensor.frozen = true;
    mine.push_back(std::move(tensor));
  }
  return mine;
}

bool state_is_finite(Trainer& trainer, Communicator& world) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  std::vector<float> piece;
  const auto finite = [&](const Masters& all) {
    for (int64_t at = 0; at < all.numel(); at += kPiece) {
      const int64_t count = std::min(kPiece, all.numel() - at);
      piece.resize(static_cast<size_t>(count));
      all.read(trainer.device(), at, count, piece.data());
      if (!std::all_of(piece.begin(), piece.end(), [](float x) { return std::isfinite(x); })) {
        return false;
      }
    }
    return true;
  };
  int32_t bad = 0;
  for (const ParameterState& parameter : trainer.state()) {
    if (parameter.row->frozen) continue;
    if (!finite(parameter.master)) bad = 1;
    for (const auto& [name, moment] : parameter.moments) {
      if (!finite({.whole = moment})) bad = 1;
    }
  }
  world.all_reduce(Tensor(&bad, DType::i32, {1}), Reduce::max);
  return bad == 0;
}

void load_checkpoint(const std::filesystem::path& dir, Trainer& trainer) {
  CheckpointReader reader(dir);
  std::vector<CheckpointTensor> wanted;
  for (const ParameterState& parameter : trainer.state()) {
    for (CheckpointTensor& tensor : tensors_of(parameter, trainer.device())) {
      wanted.push_back(std::move(tensor));
    }
  }
  reader.read(wanted);
  trainer.weights_changed();
  const nlohmann::json& state = reader.state();
  const auto step = state.value("step", int64_t{0});
  trainer.restore_progress(state.value("engine", nlohmann::json::object()), step,
                           state.value("samples", trainer.first_sample(step)));
}

}  // namespace mtl
