#include "runtime/rank_evaluation.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "runtime/prompts.h"

namespace mtl {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

RankEvaluation::RankEvaluation(const CheckedRun& run, std::function<bool()> stop, Trainer& trainer,
                               Reporter* reporter, TimeLeft& time_left)
    : run_(run),
      stop_(std::move(stop)),
      trainer_(trainer),
      reporter_(reporter),
      time_left_(time_left) {}

bool RankEvaluation::run(int64_t step) {
  return go_on(step, Unevaluated::all, {});
}

bool RankEvaluation::go_on(int64_t step, Unevaluated rest, std::optional<double> valid_loss) {
  rest_ = rest;
  if (rest_ == Unevaluated::all) {
    if (run_.corpus.valid->size() > 0 && !measure_valid_loss(step)) return false;
  } else {
    valid_loss_ = valid_loss;
  }
  step_ = step;
  rest_ = Unevaluated::texts;
  if (!run_.prompts.texts.empty() && !generate(step)) return false;
  rest_ = Unevaluated::nothing;
  return true;
}

bool RankEvaluation::measure_valid_loss(int64_t step) {
  const auto begin = Clock::now();
  // So that a batch that grows does not change what is compared.
  const int64_t batch = run_.plan.batch.largest();
  const int64_t wanted = run_.resolved.spec.train.eval.iters * batch;
  const auto batches = [&](int64_t samples) { return (samples + batch - 1) / batch; };
  std::vector<RunData::ValidSet> sets = run_.corpus.valid_sets;
  if (sets.empty()) sets.push_back({.name = "", .samples = run_.corpus.valid});
  std::vector<SetLoss> losses;
  LossSum all;
  int64_t behind = 0, done = 0;  // batches: of the sets before, and of this one too
  const auto go_on = [&](int64_t samples) {
    done = behind + samples / batch;
    return all_go_on();
  };
  const auto size_of = [&](const RunData::ValidSet& set) {
    return batches(wanted > 0 ? std::min(set.samples->size(), wanted) : set.samples->size());
  };
  for (const RunData::ValidSet& set : sets) {
    const std::optional<LossSum> one = trainer_.losses(*set.samples, wanted, go_on);
    if (!one) {
      int64_t in_all = 0;
      for (const RunData::ValidSet& each : sets) in_all += size_of(each);
      left(step, fmt::format("evaluation after step {}", step),
           fmt::format("{} of {} batches", done, in_all));
      return false;
    }
    behind += size_of(set);
    losses.push_back({set.name, one->mean()});
    all = {.loss = all.loss + one->loss, .tokens = all.tokens + one->tokens};
  }
  if (run_.corpus.valid_sets.empty()) losses.clear();
  valid_sets_ = std::move(losses);
  valid_loss_ = all.mean();
  if (reporter_ != nullptr) reporter_->eval(step, *valid_loss_, valid_sets_);
  time_left_.evaluated(seconds_since(begin));
  return true;
}

bool RankEvaluation::generate(int64_t step) {
  const auto begin = Clock::now();
  int64_t done = 0;
  const auto go_on = [&](int64_t tokens) {
    done = tokens;
    return all_go_on();
  };
  const std::optional<std::vector<Continuation>> all =
      continue_prompts(run_.prompts, *run_.corpus.tokenizer, trainer_, go_on);
  if (!all) {
    left(step, fmt::format("texts after step {}", step),
         fmt::format("{} of {} tokens", done, run_.prompts.tokens));
    return false;
  }
  const double seconds = seconds_since(begin);
  time_left_.wrote_texts(seconds);
  if (reporter_ == nullptr) return true;
  GeneratedReport report{.step = step, .texts = {}};
  report.seconds = seconds;
  for (size_t i = 0; i < all->size(); ++i) {
    report.texts.push_back({.prompt = run_.prompts.texts[i],
                            .text = (*all)[i].text,
                            .tokens = (*all)[i].tokens,
                            .ended = (*all)[i].ended});
  }
  reporter_->generated(report);
  return true;
}

bool RankEvaluation::all_go_on() {
  return !trainer_.requests_of_all({.stop = stop_()}).stop;
}

void RankEvaluation::left(int64_t step, const std::string& what, const std::string& done) {
  if (reporter_ == nullptr) return;
  reporter_->warning(
      "evaluation_left", step,
      {.code = "eval.left",
       .what = fmt::format("{} left behind {}: the run is asked to stop", what, done),
       .help = "the run that goes on does it before its next step"});
}

}  // namespace mtl
