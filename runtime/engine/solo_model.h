// The whole model on one rank, for one sequence, in f32 and without gradients: generation.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/comm/queue.h"
#include "runtime/comm/self_world.h"
#include "runtime/model/chunk.h"

namespace mtl {

// Tokens that go through the model at a time: a long prompt takes memory for what is kept of its
// tokens, and for all else of so many only.
inline constexpr int64_t kPassTokens = 512;

// What a SoloModel of that context takes.
MemoryPlan solo_memory(const ModelShape& shape, int64_t context, int64_t pass_tokens = kPassTokens);

class SoloModel {
 public:
  // `device` outlives the model. `context`: tokens that there is memory for, 1 to shape.max_seq.
  SoloModel(const ModelShape& shape, Device& device, int64_t context,
            int64_t pass_tokens = kPassTokens);
  ~SoloModel();
  SoloModel(const SoloModel&) = delete;
  SoloModel& operator=(const SoloModel&) = delete;

  // Hands out every parameter to be filled: its row, its shape in memory, its f32 elements.
  void fill(const std::function<void(const ParamRow& row, const std::vector<int64_t>& shape,
                                     Tensor weights)>& fill_one);
  // The same from a checkpoint.
  void load(CheckpointReader& reader);
  // The logits that follow `ids[past, ...)`; those before `past` were given by earlier calls, and
  // their keys and values are still there. At most `context` ids.
  std::vector<float> next_logits(std::span<const int32_t> ids, int64_t past);

 private:
  const ModelShape shape_;
  Device& device_;
  const int64_t context_tokens_, pass_tokens_;
  std::vector<ParamRow> table_;
  ParamLayout layout_;
  MemoryPlan memory_;
  void* base_ = nullptr;
  Arena arena_;
  Parameters parameters_;
  std::unique_ptr<Communicator> group_ = make_self_communicator();
  CommQueue queue_{false};
  TensorParallel tensor_parallel_{device_, *group_, queue_, false};
  ContextParallel context_parallel_{device_, *group_, {}};
  ExpertParallel expert_parallel_{device_, *group_};
  BlockContext context_;
  Chunk chunk_;
};

}  // namespace mtl
