// What a run does beside its steps: how often, and how long that takes.
#include "runtime/plan/forecast/beside_steps.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

using namespace mtl;

namespace {

// Step by step, as the training loop goes.
Occasions counted(const BesideSteps& run, int64_t from) {
  Occasions all;
  for (int64_t step = from; step <= run.steps; ++step) {
    const bool last = step == run.steps;
    const bool saves = run.save_every > 0 && step % run.save_every == 0;
    const bool due = last || (run.eval_every > 0 && step % run.eval_every == 0);
    if (run.evaluates() && (due || (saves && run.eval_before_save))) ++all.evaluations;
    if (saves && !last) ++all.saves;
  }
  return all;
}

}  // namespace

TEST_CASE("evaluations and checkpoints that are left are those of the training loop") {
  for (const int64_t steps : {1, 12, 100}) {
    for (const int64_t eval : {0, 1, 4, 10, 25, 1000}) {
      for (const int64_t save : {0, 1, 6, 10, 50, 1000}) {
        for (const int best : {0, 1, 2}) {
          BesideSteps run;
          run.steps = steps;
          run.eval_every = eval;
          run.save_every = save;
          run.eval_before_save = best == 1;
          if (best < 2) run.eval_sets = {16};
          for (const int64_t from : {int64_t{1}, steps / 2 + 1, steps}) {
            CAPTURE(fmt::format("{} steps from {}, eval {}, save {}, best {}", steps, from, eval,
                                save, best));
            const Occasions all = occasions(run, from, 1), wanted = counted(run, from);
            CHECK(all.evaluations == wanted.evaluations);
            CHECK(all.saves == wanted.saves);
          }
          CHECK(occasions(run, steps + 1, 1).evaluations == 0);
        }
      }
    }
  }
  // Numbers of steps whose common multiple is no number any more.
  BesideSteps run;
  run.steps = 100;
  run.eval_sets = {1};
  run.eval_before_save = true;
  run.eval_every = INT64_MAX - 1;
  run.save_every = INT64_MAX - 2;
  CHECK(occasions(run, 1, 1).evaluations == 1);
}

TEST_CASE("checkpoints by time come between those by steps, and never more often than steps") {
  BesideSteps run;
  run.steps = 1000;
  run.save_every_s = 60;
  CHECK(occasions(run, 1, 0.6).saves == 10);
  CHECK(occasions(run, 501, 0.6).saves == 5);
  CHECK(occasions(run, 1, 0).saves == 0);  // nobody knows yet
  CHECK(occasions(run, 1, 1e9).saves == 1000);
  run.save_every = 100;  // in 50 seconds
  CHECK(occasions(run, 1, 0.5).saves == 9);
  CHECK(occasions(run, 1, 1.3).saves == 9 + 10 * 2);
  run.eval_sets = {1};
  run.eval_before_save = true;
  CHECK(occasions(run, 1, 1.3).evaluations == 10 + 10 * 2);
}

TEST_CASE("what is left takes the steps, and as often as they come evaluations and checkpoints") {
  BesideSteps run;
  run.steps = 100;
  run.eval_every = 30;
  run.eval_sets = {32, 8};
  run.texts = 3;
  run.text_tokens = 10;
  run.text_room = 16;
  run.save_every = 50;
  const BesideSeconds one = {.evaluation = 5, .texts = 2, .save = 1, .last_save = 20};
  const RunSeconds all = seconds_of_run(run, 1, 200, 2, one);
  CHECK(all.steps == 200);
  CHECK(all.evaluations == 4 * 5);
  CHECK(all.texts == 4 * 2);
  CHECK(all.saves == 1 + 20);
  CHECK(all.total() == 249);
  CHECK(seconds_of_run(run, 91, 20, 2, one).total() == 20 + 5 + 2 + 20);
  CHECK(seconds_of_run(run, 101, 0, 2, one).total() == 0);
  // A third of 3 s a sequence; texts, on two replicas each, of 16 of 32 tokens.
  const BesideSeconds guess = evaluations_by_steps(run, 3, 32, 2);
  CHECK(guess.evaluation == doctest::Approx(40));
  CHECK(guess.texts == doctest::Approx(4 * 10 * 0.5));
  CHECK(guess.last_save == 0);
}
