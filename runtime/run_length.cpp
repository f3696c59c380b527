#include "runtime/run_length.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/checkpoint.h"

namespace mtl {

namespace {

// What is left is what is asked for, less what the steps so far have consumed.
int64_t steps_in_all(int64_t samples, const Plan& plan, const Consumed& consumed) {
  const int64_t ahead = consumed.samples - plan.batch.first_sample(consumed.step);
  return std::max(consumed.step,
                  plan.batch.steps_for_samples(std::max<int64_t>(samples - ahead, 0)));
}

void set_steps(CheckedRun& run, int64_t samples, const Consumed& consumed) {
  TrainSpec::Train& train = run.resolved.spec.train;
  train.samples = train.tokens = 0;
  // A longer run may reach phases of the batch that the shorter one did not.
  int64_t steps = 0;
  do {
    steps = train.steps;
    train.steps = std::max(steps, steps_in_all(samples, run.plan, consumed));
    Diagnostics diagnostics;
    run.plan = make_plan(run.resolved, facts_of(run), run.plan.grid.world(), diagnostics);
    diagnostics.throw_if_errors();
  } while (train.steps != steps);
  run.steps_words = fmt::format("for {} samples: {} are consumed, by {} steps of other batches",
                                samples, consumed.samples, consumed.step);
}

std::optional<Consumed> newest_consumed(const std::filesystem::path& dir, const Plan& plan) {
  Diagnostics passed_over;  // has been said
  const std::filesystem::path newest = newest_checkpoint(dir / "checkpoints", passed_over);
  if (newest.empty()) return std::nullopt;
  return consumed_by(CheckpointReader(newest).state(), plan);
}

// Of what the plan counts from the start.
int64_t ahead_of(const Plan& plan, const Consumed& consumed) {
  return consumed.samples - plan.batch.first_sample(consumed.step);
}

}  // namespace

Consumed consumed_by(const nlohmann::json& state, const Plan& plan) {
  const auto step = state.at("step").get<int64_t>();
  return {.step = step, .samples = state.value("samples", plan.batch.first_sample(step))};
}

bool is_complete(const CheckedRun& run, const Consumed& consumed) {
  const int64_t samples = samples_of_run(run.resolved.spec.train);
  return samples > 0 ? consumed.samples >= samples : consumed.step >= run.plan.steps;
}

int64_t samples_to_order(const Plan& plan, const std::filesystem::path& dir) {
  const int64_t planned = plan.batch.first_sample(plan.steps);
  if (dir.empty()) return planned;
  const auto consumed = newest_consumed(dir, plan);
  return planned + (consumed ? std::max<int64_t>(ahead_of(plan, *consumed), 0) : 0);
}

void go_on_from_newest(const std::filesystem::path& dir, CheckedRun& run) {
  if (run.corpus.train == nullptr) return;  // as before
  const auto consumed = newest_consumed(dir, run.plan);
  if (!consumed || ahead_of(run.plan, *consumed) == 0) return;
  if (const int64_t samples = samples_of_run(run.resolved.spec.train); samples > 0) {
    set_steps(run, samples, *consumed);
  }
  // The order that the workers will make.
  const nlohmann::json before = run.corpus.identity();
  Diagnostics diagnostics;
  order_samples(run.corpus, run.resolved, samples_to_order(run.plan, dir), diagnostics);
  diagnostics.throw_if_errors(Exit::data);
  if (run.corpus.identity() == before) return;
  throw Error(Exit::config, {.code = "resume.data",
                             .what = fmt::format(
                                 "cannot resume: {} steps of other batches have consumed {} "
                                 "samples, and data.sampler={} shuffles by how many a run needs",
                                 consumed->step, consumed->samples, run.resolved.spec.data.sampler),
                             .place = run.resolved.place_of("data.sampler"),
                             .help = "keep the batches that the run had, or end it earlier"});
}

}  // namespace mtl
