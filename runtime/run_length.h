// What a run that goes on has behind it: how many steps, how many sequences, in which order.
// Batches may have been others: another train.global_batch, or as many ranks as there were then
// with train.accumulate.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include <nlohmann/json.hpp>

#include "runtime/run.h"

namespace mtl {

// Of a checkpoint's state; `plan`: of the run, for a version that did not say.
Consumed consumed_by(const nlohmann::json& state, const Plan& plan);

// Of the newest checkpoint of the run in `dir`; nothing where there is none.
struct RunHistory {
  Consumed consumed;
  nlohmann::json data;  // as RunData::identity()
};
std::optional<RunHistory> history_of(const std::filesystem::path& dir, const Plan& plan);

// Where the steps behind `consumed` had other batches, plans anew what is left and says true.
// `diagnostics` gets what make_plan() says.
bool plan_behind(const Consumed& consumed, DataFacts facts, CheckedRun& run,
                 Diagnostics& diagnostics);

// Whether nothing is left to train: by samples, where the run's length is given in them.
bool is_complete(const CheckedRun& run, const Consumed& consumed);

// Where the steps before the newest checkpoint under `dir` had other batches, the plan follows from
// what they have consumed; and if the length of `run` is given in samples or tokens, so do the
// steps that are left: `run` gets them as train.steps, for its workers to read. Throws what
// order_samples() says of the samples that are needed then.
void go_on_from_newest(const std::filesystem::path& dir, CheckedRun& run);

}  // namespace mtl
