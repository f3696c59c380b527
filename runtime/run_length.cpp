#include "runtime/run_length.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/data/samples.h"

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
  // The order that the workers will make.
  const nlohmann::json before = run.corpus.identity();
  Diagnostics diagnostics;
  order_samples(run.corpus, run.resolved, run.plan.batch.first_sample(run.plan.steps), diagnostics);
  diagnostics.throw_if_errors(Exit::data);
  if (run.corpus.identity() == before) return;
  throw Error(Exit::config,
              {.code = "resume.data",
               .what = fmt::format("cannot resume: {} steps of other batches have consumed {} "
                                   "samples, and data.sampler={} shuffles by the number of steps",
                                   consumed.step, consumed.samples, run.resolved.spec.data.sampler),
               .place = run.resolved.place_of("data.sampler"),
               .help = "keep the batches that the run had, or give its length in train.steps"});
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

void go_on_from_newest(const std::filesystem::path& dir, CheckedRun& run) {
  if (run.corpus.train == nullptr) return;  // as before
  Diagnostics passed_over;                  // has been said
  const std::filesystem::path newest = newest_checkpoint(dir / "checkpoints", passed_over);
  if (newest.empty()) return;
  const CheckpointReader reader(newest);
  const Consumed consumed = consumed_by(reader.state(), run.plan);
  if (consumed.samples == run.plan.batch.first_sample(consumed.step)) return;
  if (const int64_t samples = samples_of_run(run.resolved.spec.train); samples > 0) {
    set_steps(run, samples, consumed);
  }
  const BatchSchedule& batch = run.plan.batch;
  const int64_t needed =
      consumed.samples + batch.first_sample(run.plan.steps) - batch.first_sample(consumed.step);
  if (needed <= run.corpus.train->size()) return;
  throw Error(
      Exit::data,
      {.code = "data.exhausted",
       .what = fmt::format("the run needs {} samples, of which {} are consumed by {} steps "
                           "of other batches, and the order of its data has {}",
                           needed, consumed.samples, consumed.step, run.corpus.train->size()),
       .place = run.resolved.place_of("data.sampler"),
       .help = "keep the batches that the run had, end it earlier, or begin a new one with "
               "data.sampler=random, whose order never ends"});
}

}  // namespace mtl
