#include "runtime/plan/forecast/beside_steps.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mtl {

namespace {

// Multiples of `every` among [from, to]; 0 = it has none.
int64_t multiples(int64_t every, int64_t from, int64_t to) {
  return every > 0 ? to / every - (from - 1) / every : 0;
}

bool falls_on(int64_t every, int64_t step) {
  return every > 0 && step % every == 0;
}

// Multiples of both.
int64_t common_multiples(int64_t a, int64_t b, int64_t from, int64_t to) {
  if (a <= 0 || b <= 0) return 0;
  const int64_t factor = b / std::gcd(a, b);
  return factor > to / a ? 0 : multiples(a * factor, from, to);
}

}  // namespace

int64_t BesideSteps::eval_sequences() const {
  return std::accumulate(eval_sets.begin(), eval_sets.end(), int64_t{0});
}

Occasions occasions(const BesideSteps& run, int64_t from, double step_s) {
  const int64_t last = run.steps;
  if (from > last) return {};
  Occasions all;
  const int64_t saves = multiples(run.save_every, from, last);
  all.saves = saves - (falls_on(run.save_every, last) ? 1 : 0);
  // The time counts from the save before.
  int64_t by_time = 0;
  if (run.save_every_s > 0 && step_s > 0) {
    const auto between = static_cast<double>(run.save_every > 0 ? run.save_every : last - from + 1);
    const double in_between = std::floor(between * step_s / static_cast<double>(run.save_every_s));
    by_time = static_cast<int64_t>(std::min(in_between, between) *
                                   static_cast<double>(run.save_every > 0 ? saves : 1));
    all.saves += by_time;
  }
  if (!run.evaluates()) return all;
  all.evaluations = multiples(run.eval_every, from, last);
  if (!falls_on(run.eval_every, last)) ++all.evaluations;
  if (run.eval_before_save) {
    int64_t both = common_multiples(run.eval_every, run.save_every, from, last);
    if (falls_on(run.save_every, last) && !falls_on(run.eval_every, last)) ++both;
    all.evaluations += saves - both + by_time;
  }
  return all;
}

RunSeconds seconds_of_run(const BesideSteps& run, int64_t from, double steps_s, double step_s,
                          const BesideSeconds& of_one) {
  const Occasions all = occasions(run, from, step_s);
  const auto evaluations = static_cast<double>(all.evaluations);
  RunSeconds seconds;
  seconds.steps = steps_s;
  seconds.evaluations = evaluations * of_one.evaluation;
  seconds.texts = evaluations * of_one.texts;
  seconds.saves = static_cast<double>(all.saves) * of_one.save;
  if (from <= run.steps) seconds.saves += of_one.last_save;
  return seconds;
}

BesideSeconds evaluations_by_steps(const BesideSteps& run, double sequence_s, int64_t seq,
                                   int64_t replicas, double forward_part) {
  BesideSeconds seconds;
  seconds.evaluation = forward_part * sequence_s * static_cast<double>(run.eval_sequences());
  // Replicas share them, and one that has none waits for the others.
  const int64_t texts = (run.texts + replicas - 1) / replicas * replicas;
  seconds.texts = forward_part * sequence_s * static_cast<double>(texts * run.text_tokens) *
                  static_cast<double>(run.text_room) / static_cast<double>(seq);
  return seconds;
}

}  // namespace mtl
