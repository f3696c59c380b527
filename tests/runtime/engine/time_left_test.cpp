// How long a run will take from here on.
#include "runtime/engine/time_left.h"

#include <doctest/doctest.h>

#include "support/specs.h"

using namespace mtl;

namespace {

// Of 4 sequences of 16 tokens each.
Plan plan_of_steps(int64_t steps) {
  ResolvedSpec resolved;
  resolved.spec = test::spec_with(
      {.layers = 1, .hidden = 32, .heads = 2, .global_batch = 4, .seq_len = 16, .steps = steps});
  Diagnostics diagnostics;
  Plan plan = make_plan(resolved, {.vocab = 16}, 1, diagnostics);
  diagnostics.throw_if_errors();
  return plan;
}

}  // namespace

TEST_CASE("the time that is left follows what steps, evaluations and saves have taken") {
  const Plan plan = plan_of_steps(100);
  TimeLeft left(plan, {.steps = 100,
                       .eval_every = 10,
                       .eval_sets = {12},
                       .texts = 1,
                       .text_tokens = 8,
                       .text_room = 16,
                       .save_every = 50});
  left.step_done(100, 4);  // it builds caches
  left.step_done(4, 4);
  CHECK(left.sequence_s() == 1);
  // 60 steps; evaluations at 40, 50 ... 100 that nobody has measured: a third of 12 and of 8
  // sequences.
  const double steps = 4 * 60;
  CHECK(left.behind(40) == doctest::Approx(steps + 7 * (4 + 8.0 / 3)));
  left.evaluated(2);
  left.wrote_texts(1);
  CHECK(left.behind(40) == doctest::Approx(steps + 7 * (2 + 1)));
  CHECK(left.behind(41) == doctest::Approx(steps - 4 + 6 * (2 + 1)));
  // The save at 50 is waited for only as long as others were, and the last one until it is there.
  left.saved(30);
  CHECK(left.behind(40) == doctest::Approx(steps + 7 * 3 + 30));
  left.waited_for_save(5);
  CHECK(left.behind(40) == doctest::Approx(steps + 7 * 3 + 5 + 30));
  CHECK(left.behind(100) == doctest::Approx(3 + 30));
  // Later ones count, more than earlier ones.
  left.evaluated(12);
  left.evaluated(12);
  CHECK(left.behind(100) > 1 + 30 + 7);
  CHECK(left.behind(100) < 1 + 30 + 12);
}

TEST_CASE("saves that are written between steps are waited for as long as they take") {
  const Plan plan = plan_of_steps(100);
  BesideSteps beside;
  beside.steps = 100;
  beside.save_every = 50;
  beside.async = false;
  TimeLeft left(plan, beside);
  left.step_done(4, 4);
  CHECK(left.behind(40) == doctest::Approx(4 * 60));
  left.saved(7);
  CHECK(left.behind(40) == doctest::Approx(4 * 60 + 2 * 7));
}
