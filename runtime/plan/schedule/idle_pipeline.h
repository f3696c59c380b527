// A pipeline whose stages wait for each other most of the time, because nobody has divided the
// batch.
#pragma once

#include "runtime/plan/plan.h"

namespace mtl {

// Adds a warning schedule.idle where steps have fewer micro-batches than the pipeline has stages,
// and says which train.micro_batch makes more of them. For a run that gives no train.micro_batch:
// who has given one has seen the plan.
void warn_of_idle_pipeline(const Plan& plan, const ResolvedSpec& resolved,
                           Diagnostics& diagnostics);

}  // namespace mtl
