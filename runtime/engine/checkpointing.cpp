#include "runtime/engine/checkpointing.h"

#include <nlohmann/json.hpp>

#include "runtime/checkpoint/checkpoint.h"

namespace mtl {

namespace {

std::vector<CheckpointTensor> tensors_of(const ParameterState& parameter) {
  auto tensor = [&](const char* suffix, Tensor data, bool optimizer) {
    CheckpointTensor entry;
    entry.name = parameter.row->name + suffix;
    entry.dtype = DType::f32;
    entry.shape = parameter.row->shape;
    entry.local_shape = parameter.local_shape;
    entry.rects = parameter.rects;
    entry.data = data.data;
    entry.optimizer = optimizer;
    return entry;
  };
  return {tensor("", parameter.master, false), tensor(".exp_avg", parameter.exp_avg, true),
          tensor(".exp_avg_sq", parameter.exp_avg_sq, true)};
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

}  // namespace

std::vector<Diagnostic> save_checkpoint(const std::filesystem::path& dir,
                                        const nlohmann::json& state, int64_t keep_last,
                                        Trainer& trainer, const Plan& plan, Communicator& world) {
  const Coord& coord = trainer.coord();
  const auto dp = static_cast<size_t>(plan.grid.sizes()[Axis::dp]);
  std::vector<CheckpointTensor> mine;
  const std::vector<ParameterState> parameters = trainer.state();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const AxisSet replicated = parameters[i].row->replicated_over;
    if (replicated.has(Axis::tp) && coord[Axis::tp] != 0) continue;
    if (replicated.has(Axis::dp) && static_cast<size_t>(coord[Axis::dp]) != i % dp) continue;
    for (CheckpointTensor& tensor : tensors_of(parameters[i])) mine.push_back(std::move(tensor));
  }
  // Rank 0 clears what an interrupted attempt at the same step left, before anybody writes.
  if (world.rank() == 0) prepare_checkpoint_dir(dir);
  world.barrier();
  const std::string written = to_json(write_shards(dir, world.rank(), mine)).dump();
  const std::vector<std::string> parts = gather(written, world);
  std::vector<Diagnostic> warnings;
  if (world.rank() == 0) {
    std::vector<ChunkRecord> chunks;
    for (const std::string& part : parts) {
      for (ChunkRecord& chunk : chunks_from_json(nlohmann::json::parse(part))) {
        chunks.push_back(std::move(chunk));
      }
    }
    warnings = commit_checkpoint(dir, chunks, state, keep_last);
  }
  world.barrier();
  return warnings;
}

void load_checkpoint(const std::filesystem::path& dir, Trainer& trainer) {
  CheckpointReader reader(dir);
  for (const ParameterState& parameter : trainer.state()) {
    for (CheckpointTensor& tensor : tensors_of(parameter)) reader.read(tensor);
  }
  trainer.weights_changed();
}

}  // namespace mtl
