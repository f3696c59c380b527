// Bytes per rank, buffer by buffer. The engine allocates one arena laid out by this plan, so the
// number before the run is the number in the run. Activations are declared here as data, per block;
// blocks look their buffers up by name. What recompute drops is decided here too: a buffer that is
// made again shares its memory with those of other layers. In generation all but queries, keys and
// values do, which later passes read.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/dtype.h"
#include "runtime/plan/float8.h"
#include "runtime/plan/memory/expert_rows.h"
#include "runtime/plan/model_shape.h"
#include "runtime/plan/param_layout.h"
#include "runtime/plan/recompute.h"
#include "runtime/plan/schedule/pipeline.h"

namespace mtl {

enum class MemoryCategory { weights, gradients, optimizer, activations, scratch };
inline constexpr int kMemoryCategories = 5;
const char* category_name(MemoryCategory category);

struct BufferPlan {
  std::string name;  // "master", "layer3.attn.qkv", "scratch.dlogits"
  MemoryCategory category = MemoryCategory::activations;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  int64_t offset = 0;  // bytes from the start of the arena, a multiple of 256; of slot 0
  int64_t bytes = 0;
  bool in_slot = false;  // there is one per slot, MemoryPlan::slot_bytes apart
  bool later = false;    // there is one per slot of these, MemoryPlan::later_bytes apart
  bool on_host = false;  // `offset` is from the start of the host's part
};

struct MemoryPlan {
  std::vector<BufferPlan> buffers;
  // What forward keeps for backward, once per micro-batch and chunk that are under way.
  int64_t slots = 1;
  int64_t slot_bytes = 0;
  // What backward leaves for later (Op::weight_grads), once per micro-batch that waits for it.
  int64_t later_slots = 0;
  int64_t later_bytes = 0;
  int64_t total_bytes = 0;
  // In the host's memory, where the device reaches it: no part of the above, nor of a category.
  int64_t host_bytes = 0;
  std::vector<int64_t> category_bytes = std::vector<int64_t>(kMemoryCategories, 0);
  int64_t bytes_of_category(MemoryCategory category) const {
    return category_bytes[static_cast<size_t>(category)];
  }
  // nullptr if there is none (a bias of a model without biases, say).
  const BufferPlan* find(const std::string& name) const;
  std::unordered_map<std::string, size_t> index;
};

enum class OptimizerKind { adamw, adam, sgd, lion, muon };
// Moments of a parameter; of Muon's matrices one (matrices.h).
constexpr int moments_of(OptimizerKind optimizer) {
  return optimizer == OptimizerKind::sgd || optimizer == OptimizerKind::lion ? 1 : 2;
}

// What Muon needs on a rank of a stage beside weights and gradients (matrices.h), in elements.
struct MatrixNeeds {
  int64_t others = 0;   // of all other parameters, in shards: they have second moments
  int64_t parts = 0;    // of matrices, that are on their way to those that orthogonalize them
  int64_t arrived = 0;  // of one matrix, from all ranks
  int64_t whole = 0;    // of the largest parameter that this is done to
  int64_t columns = 0;  // of the largest of those whose columns TP divides
  int64_t segment = 0;  // of the largest matrix that is one of several in a parameter
  int64_t matrix = 0;   // of the largest one
  int64_t gram = 0;     // its smaller dimension squared, at most
};

// What the buffers of a rank depend on; all ranks of a stage have the same.
struct MemoryNeeds {
  std::vector<ChunkRange> chunks = {};
  int64_t micro_batch = 1;  // sequences
  int64_t seq = 1;
  int64_t micro_batches = 1;  // per step, at most
  int64_t slots = 1;
  int64_t later = 0;  // slots of what backward leaves for later; 0: it leaves nothing
  int tp = 1;
  int cp = 1;          // ranks that divide the tokens of a sequence
  int ep = 1;          // ranks that divide the experts
  double ep_room = 1;  // as parallel.ep_room
  bool sequence_parallel = false;
  DType compute = DType::f32;
  Float8 float8 = {};
  OptimizerKind optimizer = OptimizerKind::adamw;
  MatrixNeeds matrices = {};  // with OptimizerKind::muon
  bool offload = false;       // the optimizer's state lies on the host
  // Elements of weights that are not trained, and of the rank's shards of them with ZeRO-3.
  int64_t frozen = 0, frozen_shards = 0;
  Recompute recompute = {};
  int64_t logits_rows = 8192;  // tokens whose logits are there at a time, at most
  bool training = true;        // false = generation: no gradients, optimizer or backward
  int64_t context = 0;         // generation: tokens that attention sees; seq are those of a pass
  bool first_keys = false;     // no attention across the documents of a sequence
  bool position_ids = false;   // positions that begin anew with each document
  int64_t share() const { return seq / cp; }  // of a sequence, on this rank
  int64_t tokens() const { return micro_batch * share(); }
  int64_t rows_of_experts(const ModelShape& shape) const {
    return expert_rows(shape, tokens(), ep, ep_room);
  }
};

// The name of a buffer that a layer's block saves: "layer3.attn.qkv".
std::string layer_buffer(int64_t layer, const char* name);
// The numbers of a step in the buffer "loss_sum" (f64): where each begins. The first kExchanged are
// sums that all ranks exchange; the others are made on each rank from what it has received.
struct StepSums {
  static constexpr int64_t kLoss = 0;      // of the targets that count
  static constexpr int64_t kRequests = 1;  // stop, checkpoint, saving
  static constexpr int64_t kCounted = 4;   // the targets that count
  static constexpr int64_t kTurns = 5;     // that divided experts have taken, in all layers
  static constexpr int64_t kRouter = 6;    // aux and z loss of a mixture of experts
  static constexpr int64_t kExchanged = 8;
  static constexpr int64_t kAllRequests = 8;  // of all ranks
  static constexpr int64_t kNorm = 11;        // of the gradients
  static constexpr int64_t kFactor = 12;      // f32: what the update multiplies them by
  static constexpr int64_t kAll = 13;
};
// Tables of the optimizer, in bytes: a parameter's piece in the flat buffers, and the partial sums
// of squares that belong to a row of the shard table (the device's Piece and ElementRange).
inline constexpr int64_t kPieceBytes = 64;
inline constexpr int64_t kRangeBytes = 16;
// Gradients of a bucket that are rounded into memory of their own before they travel; the others
// are rounded in place (engine/gradients.cpp).
inline constexpr int64_t kRoundedAside = int64_t{1} << 16;
// Biases of the experts of all layers, which all ranks have, f32, and the tokens that they get in a
// step, f64; both [layers, experts].
inline constexpr const char* kExpertBias = "expert_bias";
inline constexpr const char* kExpertCounts = "expert_counts";
// Rotary frequencies, of all layers or of those that ModelShape::window_rope_base is not for, and
// of those that it is for (engine/rope_table.h).
inline constexpr const char* kRopeTable = "rope";
inline constexpr const char* kWindowRopeTable = "rope.window";
// Latents of queries, and of keys and values, that a layer keeps: before their norm, and behind it
// (".rstd", ".normed").
inline constexpr const char* kQueryLatent = "attn.q_latent";
inline constexpr const char* kKeyLatent = "attn.kv_latent";
// Where Q, K and V are made again, also what of the keys is rotated, and queries that have no
// latent (else these are scratch).
inline constexpr const char* kRotaryKey = "attn.rotary_key";
inline constexpr const char* kQueries = "attn.queries";
// What a GPU's attention may use for its partial results in backward: memory of other phases.
inline constexpr const char* kAttentionRoom = "attn.room";
// What backward of a layer leaves for later, beside what forward has kept: gradients of what its
// linears made. Of the stream behind a block; of blocks side by side there is one, attention's.
inline constexpr const char* kAttentionStreamLater = "attn.later_dstream";
inline constexpr const char* kMlpStreamLater = "mlp.later_dstream";
inline constexpr const char* kQkvLater = "attn.later_dqkv";
// In place of the last one, of what latent attention makes it of.
inline constexpr const char* kQueriesLater = "attn.later_dqueries";
inline constexpr const char* kPairsLater = "attn.later_dpairs";
inline constexpr const char* kLatentsLater = "attn.later_dlatents";
inline constexpr const char* kQueryLatentLater = "attn.later_dq_latent";
inline constexpr const char* kBeforeActLater = "mlp.later_dbefore_act";
// Of a mixture also: of the experts' rows, times their weights; of the router; and of the block
// that all tokens go through.
inline constexpr const char* kWeightedLater = "mlp.later_dweighted";
inline constexpr const char* kLogitsLater = "mlp.later_dlogits";
inline constexpr const char* kSharedBeforeActLater = "mlp.later_dshared_before_act";
inline constexpr const char* kSharedGateLater = "mlp.later_dshared_gate";
// Of weights that are not trained; and scratch of adapters (model/adapter.h).
inline constexpr const char* kFrozen = "frozen";
inline constexpr const char* kFrozenShards = "frozen_shards";
inline constexpr const char* kAdapterX = "adapter.x";
inline constexpr const char* kAdapterDy = "adapter.dy";
inline constexpr const char* kAdapterDx = "adapter.dx";
// Where chunk `chunk` leaves its output for the next virtual stage.
inline constexpr const char* kChunkOutput = "chunk.output";
// The stream behind layer `layer`: the input of the next one, of the head, or the chunk's output.
std::string stream_after(const ModelShape& shape, const ChunkRange& chunk, int64_t layer);

// Tokens whose logits are there at a time: `tokens` in as few parts as hold at most `most` (but for
// whole tiles), all alike.
int64_t logits_rows(int64_t tokens, int64_t most);

// Scratch that lives only during one phase (head, a block's backward, the update) shares its memory
// with that of the other phases.
MemoryPlan memory_plan(const ModelShape& shape, const ParamLayout& layout, const MemoryNeeds& needs,
                       size_t table_rows);

}  // namespace mtl
