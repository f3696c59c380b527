// Reading back what to_json(Plan) has written: the plan.json of a run, which may be of another
// version. Throws nlohmann::json::exception where it is.
#pragma once

#include <nlohmann/json.hpp>

#include "runtime/plan/batch.h"

namespace mtl {

// `batch`: that member of the document. Without phases where those there begin with no step 0 or do
// not ascend.
BatchSchedule batch_from_json(const nlohmann::json& batch);

}  // namespace mtl
