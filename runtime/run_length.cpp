#include "runtime/run_length.h"

#include <fmt/format.h>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/step_dirs.h"

namespace mtl {

Consumed consumed_by(const nlohmann::json& state, const Plan& plan) {
  const auto step = state.at("step").get<int64_t>();
  return {.step = step, .samples = state.value("samples", plan.batch.first_sample(step))};
}

std::optional<RunHistory> history_of(const std::filesystem::path& dir, const Plan& plan) {
  Diagnostics passed_over;  // has been said
  const std::filesystem::path newest = newest_checkpoint(dir / kCheckpoints, passed_over);
  if (newest.empty()) return std::nullopt;
  const nlohmann::json state = CheckpointReader(newest).state();
  return RunHistory{.consumed = consumed_by(state, plan),
                    .data = state.value("data", nlohmann::json::object())};
}

bool plan_behind(const Consumed& consumed, DataFacts facts, CheckedRun& run,
                 Diagnostics& diagnostics) {
  if (consumed.samples == run.plan.batch.first_sample(consumed.step)) return false;
  facts.consumed = consumed;
  run.plan = make_plan(run.resolved, facts, run.plan.grid.world(), diagnostics);
  return true;
}

bool is_complete(const CheckedRun& run, const Consumed& consumed) {
  const int64_t samples = samples_of_run(run.resolved.spec.train);
  return samples > 0 ? consumed.samples >= samples : consumed.step >= run.plan.steps;
}

void go_on_from_newest(const std::filesystem::path& dir, CheckedRun& run) {
  if (run.corpus.train == nullptr) return;  // as before
  const std::optional<RunHistory> history = history_of(dir, run.plan);
  if (!history) return;
  const Consumed& consumed = history->consumed;
  Diagnostics diagnostics;
  if (!plan_behind(consumed, facts_of(run), run, diagnostics)) return;
  diagnostics.throw_if_errors();
  TrainSpec::Train& train = run.resolved.spec.train;
  if (const int64_t samples = samples_of_run(train); samples > 0) {
    train.samples = train.tokens = 0;
    train.steps = run.plan.steps;
    run.steps_words = fmt::format("for {} samples: {} are consumed, by {} steps of other batches",
                                  samples, consumed.samples, consumed.step);
  }
  order_samples(run.corpus, run.resolved, run.plan.batch.first_sample(run.plan.steps), diagnostics,
                history->data);
  diagnostics.throw_if_errors(Exit::data);
}

}  // namespace mtl
