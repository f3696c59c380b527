// The plan: everything that follows from (train.yaml, the data's facts, world size) before anything
// runs. Immutable; the worker executes it, `mtl plan` prints it, the checkpoint code reads it.
// Nothing recomputes its parts elsewhere.
#pragma once

#include <map>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/device/kernel_scratch.h"
#include "runtime/plan/batch.h"
#include "runtime/plan/cost.h"
#include "runtime/plan/float8.h"
#include "runtime/plan/grid.h"
#include "runtime/plan/memory/memory.h"
#include "runtime/plan/model_shape.h"
#include "runtime/plan/recompute.h"
#include "runtime/plan/schedule/pipeline.h"
#include "runtime/plan/schedule/schedule.h"
#include "runtime/plan/shard_table.h"
#include "runtime/plan/traffic.h"
#include "runtime/spec/train_spec.h"

namespace mtl {

// What the plan has to know of the data.
struct DataFacts {
  int64_t vocab = 0;       // token ids are 0..vocab-1
  int64_t sequences = 0;   // of train.seq_len in one epoch; 0 = unknown (no epochs)
  Consumed consumed = {};  // of it, by a run that goes on
};

// What the ranks of one pipeline stage have in common; the experts in `layout` are those of the
// first along ep.
struct StagePlan {
  std::vector<ChunkRange> chunks;
  ParamLayout layout;  // of what is trained
  ParamLayout frozen;  // of what is not (RowsOf::frozen): weights alone
  MemoryPlan memory;
  KernelNeeds kernels;   // what kernels of a GPU take beside the arena: gpu_memory.h
  StageTraffic traffic;  // of a step with the most micro-batches
  // In host memory, beside the arena: what a rank copies to write a checkpoint while training goes
  // on (checkpoint.async); 0 = it does not.
  int64_t snapshot_bytes = 0;
  int64_t host_bytes() const { return snapshot_bytes + memory.host_bytes; }
};

// The schedule of a step with so many micro-batches.
struct StepSchedule {
  ScheduleShape shape;
  std::vector<Program> programs;  // per stage
  ScheduleFacts facts;            // stages weighed by their FLOPs
};

struct Plan {
  ModelShape model;
  Grid grid{GridSizes{}};
  int64_t micro_batch = 0;  // sequences
  int64_t logits_rows = 0;  // tokens whose logits are there at a time, at most
  int64_t seq = 0;
  int64_t steps = 0;  // of the whole run
  BatchSchedule batch;
  DType compute = DType::f32;
  DType grad_reduce = DType::f32;  // of gradients that travel between replicas to their shards
  Float8 float8;                   // beside bf16
  bool sequence_parallel = false;
  double ep_room = 1;  // as parallel.ep_room
  Recompute recompute;
  OptimizerKind optimizer = OptimizerKind::adamw;
  int64_t muon_steps = 5;  // as optimizer.muon.steps
  bool offload = false;    // the optimizer's state lies on the host
  std::vector<ParamRow> table;
  std::vector<StagePlan> stages;
  std::map<int64_t, StepSchedule> schedules;  // by micro-batches per step, all that occur
  Cost cost;

  // What a rank has: that of its stage, with its own experts, and with what it sends of matrices.
  StagePlan stage_of(int rank) const;
  // Tokens of a sequence on a rank.
  int64_t share() const { return seq / grid.sizes()[Axis::cp]; }
  // The step with the most micro-batches decides what memory is needed.
  const StepSchedule& largest() const { return schedules.rbegin()->second; }
  // Of a pass without a step that has room for so many tokens of a sequence, which are no more than
  // seq: those that all ranks can share.
  int64_t tokens_of_pass(int64_t room) const;
  int64_t tokens_of_step(int64_t step) const { return batch.at(step).global_batch * seq; }
  // Of the rank that needs most, and of all ranks together.
  int64_t peak_bytes() const;
  int64_t total_bytes() const;
  // What all ranks have on the host beside it: copies for checkpoints, offloaded state.
  int64_t host_bytes() const;
};

// Checks every rule that ties values together (codes mesh.*, batch.*, model.*, lr.*, recompute.*,
// schedule.*) and adds what is wrong to `diagnostics`, each with the nearest values that work; the
// plan is meaningful only if nothing was added.
Plan make_plan(const ResolvedSpec& resolved, const DataFacts& data, int world,
               Diagnostics& diagnostics);

// Sequences of a run whose length is given in samples or tokens; 0: it is given in steps.
int64_t samples_of_run(const TrainSpec::Train& train);

// "fp32", "bf16", "fp16": as train.yaml calls a compute type.
const char* compute_name(DType compute);
// "adamw": as optimizer.type.
const char* optimizer_name(OptimizerKind kind);

nlohmann::json to_json(const Plan& plan);

}  // namespace mtl
