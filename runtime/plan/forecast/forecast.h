// How long a step would take and what it would need, from arithmetic alone: the layout may be any,
// also one that this engine does not run (not_run_here), on a cluster that is not at hand. Held to
// published runs in docs/benchmarks/planner.md.
//
// What is exact: FLOPs, bytes on links, memory of layouts that the engine runs (within alignment).
// What is a model: seconds. Sources of the formulas stand where they are used.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/forecast/beside_steps.h"
#include "runtime/plan/forecast/cluster.h"
#include "runtime/plan/memory/memory.h"
#include "runtime/plan/model_shape.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/recompute.h"
#include "runtime/plan/schedule/schedule.h"

namespace mtl {

// How a run is divided. Data replicas of everything but experts: dp * ep (as in the grid of
// grid.h, where expert ranks have micro-batches of their own).
struct LayoutChoice {
  int tp = 1, pp = 1, chunks = 1, cp = 1, ep = 1, dp = 1;
  bool sequence_parallel = false;
  int zero = 1;  // 0: all states everywhere, 1: optimizer, 2: and gradients, 3: and weights (FSDP)
  int copies = 1;  // of what ZeRO divides (parallel.zero_ranks); a divisor of dp
  // With ZeRO-2 and 3: how many layers are whole together, window by window (parallel.bucket_mb);
  // behind them, or where nothing is said, each alone.
  std::vector<int64_t> window_layers = {};
  // The same of adapters, where the model has them; those above are then of the model's weights.
  std::vector<int64_t> adapter_window_layers = {};
  int64_t micro_batch = 1;
  Recompute recompute;
  // Of every two matrix products one output is kept (torchtitan's selective checkpointing by op);
  // not of this engine.
  bool keep_every_second = false;
  Float8 float8 = {};  // its layers that stay in the compute type are forecast so
  ScheduleKind schedule = ScheduleKind::one_forward_one_backward;  // or gpipe; kind() has all
  // ScheduleShape's.
  bool weights_later = false;
  int group = 0;  // interleaved: micro-batches that take a chunk in turn (parallel.virtual_group)
  bool overlap_data = true;    // gradients travel beside backward,
  bool overlap_gather = true;  // and weights (ZeRO) beside the passes that need them next
  bool overlap_send = true;
  bool overlap_input = true;    // TP reduces the gradient of an input beside the product for dW
  bool overlap_tensor = false;  // TP collectives beside the matrix products, piece by piece
  // Layers of the pp * chunks virtual stages; empty: even, the head weighed where not divisible.
  std::vector<int64_t> layers_of_virtual = {};

  int world() const { return tp * pp * cp * ep * dp; }
  int replicas() const { return dp * ep; }
  ScheduleKind kind() const {
    return chunks > 1 && schedule != ScheduleKind::gpipe ? ScheduleKind::interleaved : schedule;
  }
  int in_turn() const { return group > pp ? group : pp; }
};

// What its pipeline executes in a step of so many micro-batches.
ScheduleShape schedule_shape(const LayoutChoice& layout, int64_t micro_batches);

// Bytes moved per element to bring a linear's operands into FP8, the pass for the largest magnitude
// (read 2) included.
struct Float8Bytes {
  double x = 6, dy = 6;  // read 2, write 1 along each way
  double x_again = 0;    // backward
  // Less, where the op that makes a tensor leaves its largest magnitude.
  double found = 0;
};

// What the software that runs it does, where that decides seconds or bytes.
struct Software {
  bool flash_attention = true;      // else scores are written to memory, and not halved by the mask
  int64_t tensor_core_head = 0;     // wider heads go without tensor cores on a GPU; 0: none do
  bool heads_have_kernels = false;  // on Hopper and later attention's rate is that of our kernels
  double elementwise = 1;           // traffic of element-wise operations against fused ones
  double logits_bytes = 12;         // moved per logit, forward and backward
  bool head_in_forward = false;     // the head's gradients are made where its logits are
  double grad_bytes = 4;            // of a gradient on the wire
  double main_grad_bytes = 4;       // of a gradient in memory
  bool async_tensor = true;         // the reduction of dX runs beside the product for dW
  bool dropout = false;
  double kernels = 1;  // of a layer, against a fused implementation
  Float8Bytes float8 = {};
  // What goes into a linear in FP8 is kept as its copy along the tokens, made forward: 1 byte more
  // then, and none again. Not of what is gathered, made again, or kept anyway.
  bool keeps_float8_x = false;
  // The same of experts' two linears: what goes down is weighted and rounded once more.
  Float8Bytes float8_up = {}, float8_down = {};
  // Experts over several ranks: memory for Workload::ep_room times an even share of the rows, and
  // each TP rank sends whole ones; else for the even share, and each sends its part.
  bool expert_room = false;
  bool exchanges_heads = false;  // context parallelism as runs_context() says; else in rings
  bool whole_masters = true;     // also where weights in bf16 are a half of them
  bool torch_fsdp = false;       // weights in memory are the fp32 masters; outputs of stages kept
};
Software software_mtl();
// Bytes of a parameter's fp32 master beside its weight in the compute type.
double master_bytes(const Software& software, DType compute);

struct Workload {
  ModelShape model;
  int64_t seq = 0;
  int64_t global_batch = 0;  // sequences per step: of the largest, which is what is forecast
  // Of the run's other steps: layouts must divide them too.
  std::vector<int64_t> other_batches = {};
  int64_t logits_rows = MemoryNeeds().logits_rows;
  double ep_room = TrainSpec().parallel.ep_room;
  double total_tokens = 0;  // of the run; 0 = unknown
  BesideSteps beside = {};  // what the run does beside its steps; without steps: nothing is known
  DType compute = DType::bf16;
  OptimizerKind optimizer = OptimizerKind::adamw;
  int64_t muon_steps = 5;          // as optimizer.muon.steps
  bool offload = false;            // as optimizer.offload=cpu
  DType grad_reduce = DType::f32;  // of gradients on the wire, where ZeRO keeps shards
};

// Seconds of a step on the busiest stage; they add up to `total`.
struct StepTime {
  double matmul = 0, attention = 0, memory_bound = 0;  // forward and backward
  double recompute = 0;                                // forward again
  double tensor = 0, context = 0, expert = 0;          // exposed communication
  double pipeline = 0, data = 0;
  double bubble = 0;  // and what uneven stages wait for the busiest
  double optimizer = 0;
  double total = 0;
  double exposed() const { return tensor + context + expert + pipeline + data; }
};

// Bytes of the rank that needs most.
struct MemoryForecast {
  double weights = 0, gradients = 0, optimizer = 0, activations = 0, scratch = 0;
  double total = 0;
  double on_host = 0;  // beside it: the optimizer's state, where it is offloaded
  double nccl = 0;     // beside it: nccl_memory(), of who knows the machines
  int stage = 0;
};

// Bytes that a rank of the busiest stage puts on its links in a step.
struct LinkForecast {
  double tensor = 0, context = 0, expert = 0, pipeline = 0, data = 0;
};

struct Forecast {
  LayoutChoice layout;
  StepTime time;
  MemoryForecast memory;
  LinkForecast links;
  int64_t micro_batches = 0;
  double tokens_per_s = 0, tokens_per_s_gpu = 0;
  // Of the dense peak of the compute type (bf16's for fp8 too). mfu: causal attention counted half;
  // mfu_full: counted whole (PaLM's convention, and the Megatron papers'); hfu: as mfu_full, with
  // what recompute does again.
  double mfu = 0, mfu_full = 0, hfu = 0;
  RunSeconds run;                  // to total_tokens
  double days = 0, gpu_hours = 0;  // the same, all together
  bool fits = false;
  std::vector<std::string> not_run;  // what of it this engine does not run yet
};

// What this engine does not run of a layout, or not on such machines: "context parallelism of more
// ranks than heads", "FP8 on a GPU that multiplies none".
std::vector<std::string> not_run_here(const ModelShape& model, const LayoutChoice& layout,
                                      const Cluster& cluster);
// Whether this engine runs its context parallelism, an exchange of tokens for heads: the heads
// divide, and sequences come one at a time.
bool runs_context(const ModelShape& model, const LayoutChoice& layout);
// Whether it is forecast as such an exchange; else as ring attention, also where nobody runs it.
bool exchanges_heads(const ModelShape& model, const LayoutChoice& layout, const Software& software);
// Why a layout is impossible for the model and batch; empty if it is not.
std::string impossible(const Workload& work, const LayoutChoice& layout);

// Memory of a rank by category, of the stage that needs most. Layouts that the engine runs: the
// arena of memory.h within 2 %.
MemoryForecast forecast_memory(const Workload& work, const LayoutChoice& layout,
                               const Software& software = software_mtl());
// What NCCL keeps on a rank's GPU for its groups, about; of the rank that has most of them.
double nccl_memory(const ModelShape& model, const LayoutChoice& layout, const Cluster& cluster);
// What a GPU has for the arena and NCCL: what is sold, less the driver's, CUDA's and its libraries'
// own (1 GB), and 2 % that is not usable. What a rank on CPUs may take; infinite where that is not
// known.
double usable_memory(const Cluster& cluster);
// Bytes of it that a rank needs: on GPUs with NCCL's; on CPUs, what is offloaded lies in the same
// memory.
double needed_memory(const MemoryForecast& memory, const Cluster& cluster);

// Seconds of the chunks of one stage for one micro-batch, communication inside a layer included.
struct ChunkTimes {
  double forward = 0, backward = 0;
  double weight_grads = 0;  // of backward: what ZB-H1 leaves for later
};
struct StageTimes {
  std::vector<ChunkTimes> chunks;
  StepTime parts;      // of one micro-batch through all chunks: matmul ... expert
  LinkForecast links;  // likewise, but for `data`
  double forward() const;
  double backward() const;
  double weight_grads() const;
};
std::vector<StageTimes> stage_times(const Workload& work, const LayoutChoice& layout,
                                    const Cluster& cluster,
                                    const Software& software = software_mtl());
// To the next stage, one micro-batch and chunk.
double stage_send_time(const Workload& work, const LayoutChoice& layout, const Cluster& cluster);

// What happens once per step on a stage, and how much of it the passes hide.
struct StepEnd {
  double data = 0;  // exposed
  double optimizer = 0;
  double bytes = 0;  // on the wire per rank
};
StepEnd step_end(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                 const Software& software, const std::vector<ChunkRange>& chunks,
                 const StageTimes& times);

// What training waits for at one evaluation and one checkpoint of work.beside; `time` is that of
// forecast(). Passes are forward ones; what ZeRO-3 gathers for them is exposed as in a step. Files
// are written at Cluster::file_rate, beside training or not.
BesideSeconds beside_seconds(const Workload& work, const LayoutChoice& layout,
                             const Cluster& cluster, const Software& software,
                             const StepTime& time);

// `simulate_schedule`: the bubble from the instruction lists rather than from (p - 1) / (m v), or
// ZB-H1's formula. The layout must be possible.
Forecast forecast(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                  const Software& software = software_mtl(), bool simulate_schedule = false);
// The same of this program with the kernels that others report of runs on many such GPUs
// (Cluster::others), where the layout is on several nodes.
std::optional<Forecast> forecast_at_scale(const Workload& work, const LayoutChoice& layout,
                                          const Cluster& cluster);

// FLOPs of a token, attention counted whole, and with what is done again.
double full_flops_per_token(const ModelShape& model, int64_t seq);
double hardware_flops_per_token(const ModelShape& model, int64_t seq, const LayoutChoice& layout);

// From a plan that was made: the same model and layout.
Workload workload_of(const Plan& plan);
LayoutChoice layout_of(const Plan& plan);

}  // namespace mtl
