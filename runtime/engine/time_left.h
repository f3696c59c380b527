// How long a run will take from here on, by what its steps, evaluations, texts and saves have taken
// of late. What has not been yet is judged by the steps (evaluations_by_steps), or left out: saves.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "runtime/plan/forecast/beside_steps.h"
#include "runtime/plan/plan.h"

namespace mtl {

class TimeLeft {
 public:
  TimeLeft(const Plan& plan, BesideSteps beside) : plan_(plan), beside_(std::move(beside)) {}

  // By the sequence, since not all steps are equally long. The first step builds caches; it would
  // spoil the estimate for a long time.
  void step_done(double seconds, int64_t sequences) {
    const double one = seconds / static_cast<double>(sequences);
    sequence_s_ = steps_ < 2 ? one : 0.95 * sequence_s_ + 0.05 * one;
    ++steps_;
  }
  void evaluated(double seconds) { add(evaluation_s_, seconds); }
  void wrote_texts(double seconds) { add(texts_s_, seconds); }
  // `seconds` that training stood still for a checkpoint that it does not end with.
  void waited_for_save(double seconds) { add(save_s_, seconds); }
  // Until it was on the disk, had nothing else happened.
  void saved(double seconds) { add(saving_s_, seconds); }

  double sequence_s() const { return sequence_s_; }
  // After step `step` (from 1), before the evaluation and the save that may be due at it.
  double behind(int64_t step) const {
    BesideSeconds one = evaluations_by_steps(beside_, sequence_s_, plan_.seq, plan_.grid.replicas(),
                                             forward_part(plan_.model));
    one.evaluation = evaluation_s_.value_or(one.evaluation);
    one.texts = texts_s_.value_or(one.texts);
    one.last_save = saving_s_.value_or(0);
    one.save = save_s_.value_or(beside_.async ? 0 : one.last_save);
    const auto left =
        static_cast<double>(plan_.batch.first_sample(plan_.steps) - plan_.batch.first_sample(step));
    const auto of_step = static_cast<double>(plan_.batch.at(step - 1).global_batch);
    return seconds_of_run(beside_, step, sequence_s_ * left, sequence_s_ * of_step, one).total();
  }

 private:
  // The newest counts most.
  static void add(std::optional<double>& mean, double value) {
    mean = mean ? 0.7 * *mean + 0.3 * value : value;
  }

  const Plan& plan_;
  const BesideSteps beside_;
  int64_t steps_ = 0;
  double sequence_s_ = 0;
  std::optional<double> evaluation_s_, texts_s_, save_s_, saving_s_;
};

}  // namespace mtl
