// The plan: everything that follows from (train.yaml, vocabulary, world size) before anything runs.
// Immutable; the worker executes it, `mtl plan` prints it, the checkpoint code reads it. Nothing
// recomputes its parts elsewhere.
#pragma once

#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/plan/cost.h"
#include "runtime/plan/grid.h"
#include "runtime/plan/memory.h"
#include "runtime/plan/model_shape.h"
#include "runtime/plan/schedule.h"
#include "runtime/plan/shard_table.h"
#include "runtime/spec/train_spec.h"

namespace mtl {

struct Plan {
  ModelShape model;
  Grid grid{GridSizes{}};
  int64_t micro_batch = 0;
  int64_t micro_batches = 0;  // per rank and step
  int64_t global_batch = 0;
  int64_t seq = 0;
  DType compute = DType::f32;
  std::vector<ParamRow> table;
  std::vector<Program> schedule;  // per stage
  Cost cost;

  ParamLayout layout;  // of every rank
  MemoryPlan memory;   // of every rank
};

// Checks every rule that ties values together (codes mesh.*, batch.*, model.*) and adds what is
// wrong to `diagnostics`, each with the nearest values that work; the plan is meaningful only if
// nothing was added.
Plan make_plan(const ResolvedSpec& resolved, int64_t vocab, int world, Diagnostics& diagnostics);

nlohmann::json to_json(const Plan& plan);

}  // namespace mtl
