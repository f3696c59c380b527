#include "runtime/rank_evaluation.h"

#include <chrono>

#include "runtime/prompts.h"

namespace mtl {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

RankEvaluation::RankEvaluation(const CheckedRun& run, Trainer& trainer, Reporter* reporter,
                               TimeLeft& time_left)
    : run_(run), trainer_(trainer), reporter_(reporter), time_left_(time_left) {}

void RankEvaluation::run(int64_t step) {
  step_ = step;
  if (run_.corpus.valid->size() > 0) {
    const auto begin = Clock::now();
    measure_valid_loss();
    time_left_.evaluated(seconds_since(begin));
  }
  if (!run_.prompts.texts.empty()) generate();
}

void RankEvaluation::measure_valid_loss() {
  // So that a batch that grows does not change what is compared.
  const int64_t batch = run_.plan.batch.largest();
  const int64_t wanted = run_.resolved.spec.train.eval.iters * batch;
  valid_sets_.clear();
  LossSum all;
  for (const RunData::ValidSet& set : run_.corpus.valid_sets) {
    const LossSum one = trainer_.losses(*set.samples, wanted);
    valid_sets_.push_back({set.name, one.mean()});
    all = {.loss = all.loss + one.loss, .tokens = all.tokens + one.tokens};
  }
  if (valid_sets_.empty()) all = trainer_.losses(*run_.corpus.valid, wanted);
  valid_loss_ = all.mean();
  if (reporter_ != nullptr) reporter_->eval(step_, *valid_loss_, valid_sets_);
}

void RankEvaluation::generate() {
  const auto begin = Clock::now();
  const std::vector<Continuation> all =
      continue_prompts(run_.prompts, *run_.corpus.tokenizer, trainer_);
  const double seconds = seconds_since(begin);
  time_left_.wrote_texts(seconds);
  if (reporter_ == nullptr) return;
  GeneratedReport report{.step = step_, .texts = {}};
  report.seconds = seconds;
  for (size_t i = 0; i < all.size(); ++i) {
    report.texts.push_back({.prompt = run_.prompts.texts[i],
                            .text = all[i].text,
                            .tokens = all[i].tokens,
                            .ended = all[i].ended});
  }
  reporter_->generated(report);
}

}  // namespace mtl
