// The JSON of a run's reports: what goes down the progress pipe, into metrics.jsonl and
// status.json. One record is one line.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/metrics/event_file.h"
#include "runtime/metrics/reporter.h"

namespace mtl {

using Json = nlohmann::ordered_json;

// What the key of a validation set's loss begins with; its name follows.
inline const std::string kSetLoss = "valid_loss/";

// One line without line break. Text that is not UTF-8 (a path, say) is kept readable rather than
// refused; numbers that are not finite become null.
std::string json_line(const Json& json);

// The members of a metrics line, and of a "step" record.
Json step_json(const StepReport& report, const std::string& time);
// The report in a "step" record; what is missing or not a number is NaN or 0. Why GPUs run slower
// is not read: nobody shows it.
StepReport step_from_json(const Json& record);

// The members of an event that tells of one, and of status.json.
Json straggler_json(const StragglerReport& report);

// The numbers of a metrics line as TensorBoard groups them: "train/loss", "speed/mfu",
// "gpu/power_w".
std::vector<TaggedScalar> tagged_scalars(const Json& line);

}  // namespace mtl
