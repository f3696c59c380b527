// What a block is given: the device, the tensor-parallel group, and views into the arena. Blocks
// own nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/plan/memory.h"
#include "runtime/plan/model_shape.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

// The memory of a rank, laid out by the memory plan.
class Arena {
 public:
  Arena(const MemoryPlan& plan, void* base) : plan_(&plan), base_(static_cast<char*>(base)) {}
  // The planned buffer; an empty tensor if the plan has none of that name.
  Tensor find(const std::string& name) const;
  // As find, but the buffer has to exist.
  Tensor get(const std::string& name) const;

 private:
  const MemoryPlan* plan_;
  char* base_;
};

struct Parameter {
  Tensor weight;  // compute type
  Tensor grad;    // f32; empty without gradients (generation)
  explicit operator bool() const { return static_cast<bool>(weight); }
};

// The local parameters as views into the flat buffers.
class Parameters {
 public:
  Parameters(const std::vector<ParamRow>& table, const ParamLayout& layout, const Arena& arena);
  // An empty Parameter if the model has none (a bias, say).
  Parameter find(int64_t layer, const std::string& slot) const;

 private:
  const std::vector<ParamRow>* table_;
  std::vector<Parameter> parameters_;
};

struct BlockContext {
  Device& device;
  Communicator& tp;  // the tensor-parallel group; of one rank when tp = 1
  const ModelShape& shape;
  const Arena& arena;
  const Parameters& parameters;
  uint64_t seed = 0;

  // Sums partial results of a row-parallel matmul.
  void reduce(Tensor x) const {
    if (tp.size() > 1) tp.all_reduce(x);
  }
};

// One micro-batch on its way through the model.
struct Pass {
  int64_t sequences = 0;
  int64_t seq = 0;
  int64_t past =
      0;  // tokens of the one sequence that earlier passes left in the buffers (generation)
  int64_t step = 0;            // of training, for dropout
  int64_t first_sequence = 0;  // of this micro-batch in the global batch
  bool training = false;       // dropout applies
  bool accumulate = false;     // backward adds to the gradients (not the first micro-batch)
  int64_t tokens() const { return sequences * seq; }
  int64_t first_row() const { return first_sequence * seq; }
};

// Where dropout is used in a layer: part of its key.
enum class DropoutSite : int64_t { embedding, attention, attention_output, mlp_output };
Dropout dropout_for(const BlockContext& context, const Pass& pass, int64_t layer, DropoutSite site);

// The rows of a planned buffer that this pass works on; a pass may be shorter than the plan's
// micro-batch.
Tensor rows_of(Tensor planned, const Pass& pass);
// The same of a buffer with one value per row.
Tensor values_of(Tensor planned, const Pass& pass);
// The rows of this pass and of the passes before it.
Tensor rows_up_to(Tensor planned, const Pass& pass);

}  // namespace mtl
