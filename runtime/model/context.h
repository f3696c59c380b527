// What a block is given: the device, the tensor-parallel group, and views into the arena. Blocks
// own nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "runtime/device/device.h"
#include "runtime/model/context_parallel.h"
#include "runtime/model/expert_parallel.h"
#include "runtime/model/tensor_parallel.h"
#include "runtime/plan/memory/memory.h"
#include "runtime/plan/model_shape.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

// A planned buffer, of which there may be one per slot.
struct Buffer {
  Tensor tensor;  // of slot 0
  int64_t slot_bytes = 0;
  explicit operator bool() const { return static_cast<bool>(tensor); }
  Tensor in(int slot) const {
    Tensor moved = tensor;
    if (moved.data != nullptr) moved.data = static_cast<char*>(moved.data) + slot * slot_bytes;
    return moved;
  }
};

// The memory of a rank, laid out by the memory plan.
class Arena {
 public:
  // `host`: memory of the plan's host_bytes, if it has any.
  Arena(const MemoryPlan& plan, void* base, void* host = nullptr)
      : plan_(&plan), base_(static_cast<char*>(base)), host_(static_cast<char*>(host)) {}
  // The planned buffer; an empty one if the plan has none of that name.
  Buffer find(const std::string& name) const;
  // As find, but the buffer has to exist.
  Buffer get(const std::string& name) const;
  // Of a buffer that is not in slots; empty, or an error with `at`, if there is none.
  Tensor find_tensor(const std::string& name) const { return find(name).tensor; }
  Tensor tensor(const std::string& name) const { return get(name).tensor; }

 private:
  const MemoryPlan* plan_;
  char *base_, *host_;
};

struct Parameter {
  Tensor weight;        // compute type
  Tensor grad;          // f32; empty where there is none: of what is not trained, in generation
  bool out_in = false;  // a matrix lies as [out, in]
  explicit operator bool() const { return static_cast<bool>(weight); }
};

// The local parameters as views into the flat buffers, by the blocks' names.
class Parameters {
 public:
  Parameters(const std::vector<ParamRow>& table, const ParamLayout& layout, const Arena& arena);
  // And those that are not trained, which have no gradients.
  Parameters(const std::vector<ParamRow>& table, const ParamLayout& layout,
             const ParamLayout& frozen, const Arena& arena);
  // An empty Parameter if the model has none (a bias, say), or if it is on another stage.
  Parameter find(int64_t layer, const std::string& slot) const;

 private:
  void add(const std::vector<ParamRow>& table, const ParamLayout& layout, Tensor weights,
           Tensor grads);
  std::map<std::pair<int64_t, std::string>, Parameter> parameters_;
};

// Where the biases of the experts lie that a row of the shard table says.
Tensor expert_bias(const Arena& arena, const ParamRow& row);

struct BlockContext {
  Device& device;
  const TensorParallel& tp;
  const ContextParallel& cp;
  const ExpertParallel& ep;
  const ModelShape& shape;
  const Arena& arena;
  const Parameters& parameters;
  Recompute recompute = {};
  Buffer dropout = {};  // a DropoutPass per slot; empty without dropout
  // One more for each turn in which tokens go through a layer's experts, by its backward.
  int64_t* expert_turns = nullptr;
};

// Called with what a block has made: its layer, what it is, and the tensor (to find the first value
// that is no number).
using Inspect = std::function<void(int64_t layer, const char* what, Tensor made)>;

// One micro-batch on its way through the model. What else there is of it lies in the buffers of its
// slot: a pass that is equal to an earlier one is the same ops with the same arguments.
struct Pass {
  int64_t sequences = 0;
  int64_t seq = 0;  // tokens of a sequence, or the rank's share of it (cp)
  // Generation: tokens of the one sequence that earlier passes left in the buffers.
  int64_t past = 0;
  int slot = 0;             // where the activations live
  int later = 0;            // where backward leaves what is left for later (Chunk::weight_grads)
  bool training = false;    // dropout applies, of the DropoutPass in the slot
  bool accumulate = false;  // backward adds to the gradients (not the first micro-batch)
  // Forward for backward's sake: the group's output is there already, and what an activation makes
  // in an op of its own is left to backward. Backward: such a forward has been.
  bool again = false;
  bool losses = true;  // false: the head makes none, and is asked for logits (generation)
  // What the head multiplies: so many rows, which "head.rows" names, with as many targets; 0: all.
  int64_t head_rows = 0;
  float loss_scale = 0;  // training: what the loss of a token is multiplied by
  const Inspect* inspect = nullptr;

  int64_t tokens() const { return sequences * seq; }
};

// The pass, for buffers of what is left for later.
inline Pass in_later(Pass pass) {
  pass.slot = pass.later;
  return pass;
}

// The model's, as devices have it.
GatedUnit gated_unit(const ModelShape& shape);

// Whether nobody has kept what the MLP's activation made: backward's op for it writes it again.
bool activates_backward(const PartsAgain& again, const Pass& pass);

// Where dropout is used in a layer: part of its key.
enum class DropoutSite : int64_t { embedding, attention, attention_output, mlp_output };
Dropout dropout_for(const BlockContext& context, const Pass& pass, int64_t layer, DropoutSite site);

// The rows of a planned buffer that this pass works on: the first ones, and as many as it has; a
// pass may be shorter than the plan's micro-batch. `_stream`: of the residual stream, where
// sequence-parallel ranks hold their part.
Tensor rows_of(const Buffer& planned, const Pass& pass);
Tensor stream_rows_of(const BlockContext& context, const Buffer& planned, const Pass& pass);
// The same of a buffer with one value per row.
Tensor values_of(const Buffer& planned, const Pass& pass);
Tensor stream_values_of(const BlockContext& context, const Buffer& planned, const Pass& pass);
// Of a buffer that keeps the rows of earlier passes (generation): the rows of this pass, which lie
// behind those; and all of them.
Tensor rows_behind(const Buffer& planned, const Pass& pass);
Tensor rows_up_to(const Buffer& planned, const Pass& pass);
// As if the pass were that of one rank of context parallelism: what attention's ops work on.
Pass whole_sequences(const BlockContext& context, const Pass& pass);
// Where the rank's part of the residual stream begins among the pass's rows.
int64_t stream_offset(const BlockContext& context, const Pass& pass);

// Rows of the rank's part of the residual stream that follow one another in whole sequences too:
// all of them, or those of one sequence where sequences are divided.
struct StreamRun {
  int64_t first = 0, rows = 0;
  int64_t of_whole = 0;  // the row of whole sequences that is the first of them
};
// The run that begins with row `first` of the part.
StreamRun stream_run(const BlockContext& context, const Pass& pass, int64_t first);

// Device::dropout_backward, Device::bias_dropout_add and Device::add_norm_forward of the rank's
// part of the stream, with the numbers that its elements have on one rank.
void drop_backward(const BlockContext& context, const Pass& pass, const Dropout& dropout,
                   Tensor dout, Tensor dx, float scale = 1);
void add_to_stream(const BlockContext& context, const Pass& pass, ResidualAdd add);
void add_to_stream(const BlockContext& context, const Pass& pass, ResidualAdd add,
                   const LayerNorm& norm);

}  // namespace mtl
