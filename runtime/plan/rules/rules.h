// Every rule that ties values of the configuration together, each with a clear error.
#pragma once

#include "runtime/plan/batch.h"
#include "runtime/plan/model_shape.h"
#include "runtime/plan/plan.h"

namespace mtl {

// The values that follow from the settings once the rules hold.
struct Layout {
  GridSizes sizes;
  bool sequence_parallel = false;
  int64_t micro_batch = 0;
  BatchSchedule batch;
  int64_t steps = 0;
  std::vector<int64_t> layers_of_virtual;  // stages * chunks of them
  ScheduleShape schedule;                  // without micro-batches
};

// Adds what is wrong to `diagnostics`; the result is meaningful only if nothing was added.
Layout check_rules(const ResolvedSpec& resolved, const ModelShape& model, const DataFacts& data,
                   int world, Diagnostics& diagnostics);

}  // namespace mtl
