#include "runtime/engine/checkpointing.h"

#include <nlohmann/json.hpp>

namespace mtl {

void point_at(CheckpointTensor& tensor, Device& device, Tensor elements) {
  tensor.data = elements.data;
  if (device.host_memory()) return;
  tensor.count = elements.numel();
  tensor.fetch = [&device, elements](int64_t at, int64_t n, void* to) {
    device.copy_to_host(to, elements.slice(at, n));
  };
  tensor.store = [&device, elements](int64_t at, int64_t n, const void* from) {
    device.copy_from_host(elements.slice(at, n), from);
  };
}

namespace {

std::vector<CheckpointTensor> tensors_of(const ParameterState& parameter, Device& device) {
  auto tensor = [&](const std::string& suffix, Tensor data, bool optimizer) {
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

// Every rank's text, in rank order.
std::vector<std::string> gather(const std::string& mine, Communicator& world) {
  auto length = static_cast<int32_t>(mine.size());
  world.all_reduce(Tensor(&length, DType::i32, {1}), Reduce::max);
  const auto slot = static_cast<size_t>(length);
  std::string all(slot * static_cast<size_t>(world.size()), ' ');  // JSON may end in spaces
  std::copy(mine.begin(), mine.end(), all.begin() + static_cast<ptrdiff_t>(slot) * world.rank());
  const Tensor whole(all.data(), DType::u8, {static_cast<int64_t>(all.size())});
  world.all_gather(whole.slice(world.rank() * int64_t{length}, length), whole);
  std::vector<std::string> parts;
  for (int rank = 0; rank < world.size(); ++rank) {
    parts.push_back(all.substr(slot * static_cast<size_t>(rank), slot));
  }
  return parts;
}

std::vector<Diagnostic> save(const CheckpointAttempt& attempt, const nlohmann::json& state,
                             int64_t keep_last, Trainer& trainer, const Plan& plan,
                             Communicator& world, const std::function<void()>& still_ours) {
  // With ZeRO-1 each replica has its own part; else they take turns.
  const auto dp = static_cast<size_t>(plan.grid.sizes()[Axis::dp]);
  const auto replica = static_cast<size_t>(trainer.coord()[Axis::dp]);
  const bool divided = plan.stages.front().layout.shards > 1;
  std::vector<CheckpointTensor> mine;
  const std::vector<ParameterState> parameters = trainer.state();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].counts || (!divided && replica != i % dp)) continue;
    for (CheckpointTensor& tensor : tensors_of(parameters[i], trainer.device()))
      mine.push_back(std::move(tensor));
  }
  // Rank 0 makes the folder, before anybody writes.
  if (world.rank() == 0) {
    if (still_ours) still_ours();
    prepare_checkpoint(attempt);
  }
  world.barrier();
  const std::string written = to_json(write_shards(attempt, world.rank(), mine)).dump();
  const std::vector<std::string> parts = gather(written, world);
  std::vector<Diagnostic> warnings;
  if (world.rank() == 0) {
    std::vector<ChunkRecord> chunks;
    for (const std::string& part : parts) {
      for (ChunkRecord& chunk : chunks_from_json(nlohmann::json::parse(part))) {
        chunks.push_back(std::move(chunk));
      }
    }
    nlohmann::json whole = state;
    whole["engine"] = trainer.progress();
    // Again, now that the folder is there: from here on it goes when the fence does.
    if (still_ours) still_ours();
    warnings = commit_checkpoint(attempt, chunks, whole, keep_last);
  }
  world.barrier();
  return warnings;
}

}  // namespace

std::vector<Diagnostic> save_checkpoint(const CheckpointAttempt& attempt,
                                        const nlohmann::json& state, int64_t keep_last,
                                        Trainer& trainer, const Plan& plan, Communicator& world,
                                        const std::function<void()>& still_ours) {
  try {
    return save(attempt, state, keep_last, trainer, plan, world, still_ours);
  } catch (const Error& error) {
    if (still_ours && error.diagnostics().front().code.starts_with("ckpt.")) still_ours();
    throw;
  }
}

void load_checkpoint(const std::filesystem::path& dir, Trainer& trainer) {
  CheckpointReader reader(dir);
  for (const ParameterState& parameter : trainer.state()) {
    for (CheckpointTensor& tensor : tensors_of(parameter, trainer.device())) reader.read(tensor);
  }
  trainer.weights_changed();
  const nlohmann::json& state = reader.state();
  const auto step = state.value("step", int64_t{0});
  trainer.restore_progress(state.value("engine", nlohmann::json::object()), step,
                           state.value("samples", trainer.first_sample(step)));
}

}  // namespace mtl
