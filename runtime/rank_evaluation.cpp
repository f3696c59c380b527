#include "runtime/rank_evaluation.h"

#include <chrono>

#include "runtime/prompts.h"

namespace mtl {

RankEvaluation::RankEvaluation(const CheckedRun& run, Trainer& trainer, Reporter* reporter)
    : run_(run), trainer_(trainer), reporter_(reporter) {}

void RankEvaluation::run(int64_t step) {
  step_ = step;
  if (run_.corpus.valid->size() > 0) measure_valid_loss();
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
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<Continuation> all =
      continue_prompts(run_.prompts, *run_.corpus.tokenizer, trainer_);
  if (reporter_ == nullptr) return;
  GeneratedReport report{.step = step_, .texts = {}};
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (size_t i = 0; i < all.size(); ++i) {
    report.texts.push_back({.prompt = run_.prompts.texts[i],
                            .text = all[i].text,
                            .tokens = all[i].tokens,
                            .ended = all[i].ended});
  }
  reporter_->generated(report);
}

}  // namespace mtl
