// How long a run is that goes on with other batches than it had: another train.global_batch, or as
// many ranks as there are now with train.accumulate.
#pragma once

#include <cstdint>
#include <filesystem>

#include "runtime/run.h"

namespace mtl {

// Of a checkpoint's state.
struct Consumed {
  int64_t step = 0, samples = 0;
};
Consumed consumed_by(const nlohmann::json& state, const Plan& plan);

// Samples 0 to this, not included, that a run which goes on in `dir` ("": a new one) may read: more
// than its plan says where the steps before its newest checkpoint had larger batches.
int64_t samples_to_order(const Plan& plan, const std::filesystem::path& dir);

// Whether nothing is left to train: by samples, where the run's length is given in them.
bool is_complete(const CheckedRun& run, const Consumed& consumed);

// Where the length is given in samples or tokens and the steps before the newest checkpoint under
// `dir` had other batches, the steps that are left follow from what they have consumed: `run` gets
// them as train.steps, for its workers to read. Throws Error resume.data (Exit::config) where the
// order of the data would be another then, and what order_samples() says.
void go_on_from_newest(const std::filesystem::path& dir, CheckedRun& run);

}  // namespace mtl
