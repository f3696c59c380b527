#include "runtime/rank_saves.h"

#include <chrono>
#include <ctime>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/version.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/step_dirs.h"
#include "runtime/engine/checkpointing.h"
#include "runtime/run_directory.h"

namespace mtl {

RankSaves::RankSaves(const std::filesystem::path& run_dir, int fence, int64_t newest,
                     const CheckedRun& run, Trainer& trainer, Communicator& all_ranks,
                     Reporter* reporter, TimeLimit& time_limit, TimeLeft& time_left,
                     nlohmann::json base)
    : run_dir_(run_dir),
      fence_(fence),
      run_(run),
      trainer_(trainer),
      all_ranks_(all_ranks),
      reporter_(reporter),
      time_limit_(time_limit),
      time_left_(time_left),
      base_(std::move(base)),
      times_(std::chrono::seconds(run.resolved.spec.checkpoint.every_time),
             SaveTimes::Time::clock::now()),
      saver_(trainer, run.plan, all_ranks, run.resolved.spec.checkpoint.async,
             [this] { check_fence(run_dir_, fence_); }),
      newest_(newest),
      complete_(newest) {}

bool RankSaves::is_due(int64_t step) const {
  return times_.due(step, SaveTimes::Time::clock::now());
}

void RankSaves::step_done(int64_t done, bool anybody_writing) {
  saver_.step_done(anybody_writing);
  report(done);
}

nlohmann::json RankSaves::state_of_run(const Here& here) {
  nlohmann::json metrics = {{"loss", here.loss}};
  if (here.valid_loss) metrics["valid_loss"] = *here.valid_loss;
  const Plan& plan = run_.plan;
  const TrainSpec& spec = run_.resolved.spec;
  const GridSizes& sizes = plan.grid.sizes();
  nlohmann::json layout = {{"world", plan.grid.world()}, {"zero", spec.parallel.zero}};
  for (int i = 0; i < kAxes; ++i) {
    layout[axis_name(static_cast<Axis>(i))] = sizes[static_cast<Axis>(i)];
  }
  nlohmann::json state = {
      {"step", here.step},
      {"samples", trainer_.first_sample(here.step)},
      {"tokens", trainer_.first_sample(here.step) * plan.seq},
      {"optimizer", spec.optimizer.type},
      {"seed", spec.train.seed},
      {"mtl", version()},
      {"time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
      {"layout", std::move(layout)},
      {"metrics", std::move(metrics)},
      {"model", to_json(plan.model)},
      {"data", run_.corpus.identity()}};
  if (!base_.is_null()) state["base"] = base_;
  if (!here.evaluation_left.empty()) state[kEvaluationLeft] = here.evaluation_left;
  return state;
}

void RankSaves::begin(const Here& here) {
  SaveRequest request;
  request.attempt = {checkpoint_path(run_dir_ / kCheckpoints, here.step), fence_};
  if (all_ranks_.rank() == 0) {
    request.state = state_of_run(here);
    request.extras = {{kTokenizerFile, run_.corpus.tokenizer->to_json().dump() + "\n"}};
  }
  request.keep = keep_rules(run_.resolved.spec.checkpoint);
  // Rules change between two starts, and a disk that took nothing has what they do not keep.
  if (!std::exchange(begun_, true) || times_.failures() > 0) request.newest = complete_;
  newest_ = here.step;
  times_.began(SaveTimes::Time::clock::now());
  saver_.begin(std::move(request));
}

void RankSaves::save(const Here& here) {
  saver_.finish();
  report(here.step);
  begin(here);
  report(here.step);
}

void RankSaves::save_and_wait(const Here& here) {
  save(here);
  if (!saver_.finish()) {
    report(here.step);
    begin(here);
  }
  const bool saved = saver_.finish();
  std::optional<SaveOutcome> outcome = report(here.step);
  if (saved) return;
  if (saver_.failed_here() && outcome && outcome->failure) {
    throw Error(Exit::environment, *outcome->failure);
  }
  all_ranks_.barrier();  // until the rank that failed has left
}

void RankSaves::evaluated(const Here& here) {
  if (all_ranks_.rank() != 0) return;
  nlohmann::json metrics = nlohmann::json::object();
  if (here.valid_loss) metrics["valid_loss"] = *here.valid_loss;
  check_fence(run_dir_, fence_);
  try {
    complete_evaluation({checkpoint_path(run_dir_ / kCheckpoints, here.step), fence_}, metrics,
                        keep_rules(run_.resolved.spec.checkpoint));
  } catch (const Error& error) {
    if (error.exit() != Exit::environment) throw;
    // Ranks that go on from there do it once more.
    reporter_->warning("checkpoint_untidy", here.step, error.diagnostics().front());
  }
}

std::string RankSaves::save_before_divergence(const Here& here) {
  const bool written = saver_.finish();
  report(here.step);
  if (written && newest_ == here.step && here.step > 0) {
    return fmt::format("the state before it is the checkpoint of step {}", here.step);
  }
  if (here.step == 0) return "nothing is saved: it is the first step";
  if (!state_is_finite(trainer_, all_ranks_)) {
    return "the state before it is not saved: it has numbers that are not finite, from a step "
           "before";
  }
  begin(here);
  const bool saved = saver_.finish();
  report(here.step);
  return saved ? fmt::format("the state before it is saved as the checkpoint of step {}", here.step)
               : "the state before it could not be saved";
}

// Of a save that has ended meanwhile. It is said once that a disk does not take checkpoints, and
// once that it does again.
std::optional<SaveOutcome> RankSaves::report(int64_t done) {
  std::optional<SaveOutcome> outcome = saver_.take_outcome();
  if (!outcome || reporter_ == nullptr) return outcome;
  const std::optional<StepName> name = parse_step_name(outcome->attempt.dir.filename().string());
  const int64_t step = name ? name->step : done;
  if (outcome->failure) {
    Diagnostic warning = *outcome->failure;
    warning.what = fmt::format("checkpoint of step {} not written: {}", step, warning.what);
    warning.help = "free space or repair the file system; training goes on, and it is tried again";
    reporter_->warning("checkpoint_failed", step, warning, times_.failures() == 0);
    times_.failed(done);
    return outcome;
  }
  times_.succeeded();
  complete_ = step;
  time_limit_.saved(outcome->busy_s);
  time_left_.saved(outcome->busy_s);
  for (const Diagnostic& warning : outcome->warnings) {
    reporter_->warning("checkpoint_untidy", step, warning);
  }
  reporter_->checkpoint(step, outcome->attempt.dir);
  return outcome;
}

}  // namespace mtl
