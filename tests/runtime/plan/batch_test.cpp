#include "runtime/plan/batch.h"

#include <doctest/doctest.h>

using namespace mtl;

namespace {

// The answers of a schedule agree with a run that counts.
void check_by_counting(const BatchSchedule& schedule, int64_t steps) {
  int64_t consumed = 0;
  int64_t next_samples = 0;  // the smallest count not asked for yet
  for (int64_t step = 0; step < steps; ++step) {
    CAPTURE(step);
    REQUIRE(schedule.first_sample(step) == consumed);
    for (; next_samples <= consumed; ++next_samples) {
      REQUIRE(schedule.steps_for_samples(next_samples) == step);
    }
    consumed += schedule.at(step).global_batch;
  }
}

}  // namespace

TEST_CASE("a ramp of the global batch by step") {
  const BatchSchedule ramp = ramp_by_step({{0, 8}, {10, 16}, {15, 64}}, 2, 4);
  CHECK(ramp.phases() == std::vector<BatchPhase>{{0, 0, 8, 1}, {10, 80, 16, 2}, {15, 160, 64, 8}});
  CHECK(ramp.at(0).global_batch == 8);
  CHECK(ramp.at(9).global_batch == 8);
  CHECK(ramp.at(10).global_batch == 16);
  CHECK(ramp.at(1'000'000).global_batch == 64);
  check_by_counting(ramp, 30);
  check_by_counting(ramp_by_step({{0, 24}}, 4, 3), 20);
}

TEST_CASE("accumulation by step begins with one micro-batch where nothing is said") {
  CHECK(accumulate_by_step({{0, 8}, {4, 4}, {8, 1}}, 2, 3).phases() ==
        std::vector<BatchPhase>{{0, 0, 48, 8}, {4, 192, 24, 4}, {8, 288, 6, 1}});
  const BatchSchedule late = accumulate_by_step({{5, 3}}, 2, 1);
  CHECK(late.phases() == std::vector<BatchPhase>{{0, 0, 2, 1}, {5, 10, 6, 3}});
  check_by_counting(late, 20);
}

TEST_CASE("accumulation by epoch where epochs are whole steps") {
  // 96 sequences: 2 steps of 48, then 4 of 24, then 16 of 6.
  const BatchSchedule schedule = accumulate_by_epoch({{0, 8}, {4, 4}, {8, 1}}, 2, 3, 96);
  CHECK(schedule.phases() ==
        std::vector<BatchPhase>{{0, 0, 48, 8}, {8, 384, 24, 4}, {24, 768, 6, 1}});
  check_by_counting(schedule, 40);
}

TEST_CASE("a step that straddles the border of an epoch belongs to the phase before") {
  // Steps of 8 start at 0 and 8; the second crosses the border at 10, so the phase begins at 16.
  const BatchSchedule schedule = accumulate_by_epoch({{0, 4}, {1, 1}}, 2, 1, 10);
  CHECK(schedule.phases() == std::vector<BatchPhase>{{0, 0, 8, 4}, {2, 16, 2, 1}});
  check_by_counting(schedule, 20);
}

TEST_CASE("phases that no step starts in are left out") {
  // Epochs 1 and 2 begin at 3 and 6, both within the first step.
  CHECK(accumulate_by_epoch({{0, 8}, {1, 4}, {2, 2}}, 1, 1, 3).phases() ==
        std::vector<BatchPhase>{{0, 0, 8, 8}, {1, 8, 2, 2}});
  // An epoch that is not reached within 2^63 sequences.
  CHECK(accumulate_by_epoch({{0, 2}, {INT64_MAX / 2, 4}}, 1, 1, 3).phases().size() == 1);
  CHECK(ramp_by_step({{0, 4}, {INT64_MAX / 2, 8}}, 1, 1).phases().size() == 1);
}

TEST_CASE("a run that goes on counts epochs by what it has consumed") {
  const std::map<int64_t, int64_t> accumulate = {{0, 8}, {2, 4}, {4, 1}};
  // The same batches as ever: what follows is what it would have been.
  const BatchSchedule whole = accumulate_by_epoch(accumulate, 2, 1, 40);
  for (const int64_t step : {0, 3, 5, 9, 14, 15, 16, 30}) {
    CAPTURE(step);
    const BatchSchedule rest =
        accumulate_by_epoch(accumulate, 2, 1, 40, {step, whole.first_sample(step)});
    for (int64_t next = step; next < 60; ++next) {
      REQUIRE(rest.at(next).global_batch == whole.at(next).global_batch);
      REQUIRE(rest.first_sample(next) == whole.first_sample(next));
    }
    CHECK(rest.largest() == whole.largest());
  }
  // Ten steps of 2 and now 16 a step: epoch 2 begins with the first step at or behind sample 80.
  const BatchSchedule larger = accumulate_by_epoch(accumulate, 2, 1, 40, {10, 20});
  CHECK(larger.first_sample(10) == 20);
  CHECK(larger.at(13).global_batch == 16);
  CHECK(larger.first_sample(14) == 84);
  CHECK(larger.at(14).global_batch == 8);
  // Two steps of 64: in epoch 3 at once.
  const BatchSchedule smaller = accumulate_by_epoch(accumulate, 2, 1, 40, {2, 128});
  CHECK(smaller.first_sample(2) == 128);
  CHECK(smaller.at(2).global_batch == 8);
  CHECK(smaller.first_sample(6) == 160);
  CHECK(smaller.at(6).global_batch == 2);
  CHECK(smaller.largest() == 16);
  CHECK(smaller.steps_for_samples(100) < 2);  // they are behind it
  CHECK(smaller.steps_for_samples(160) == 6);
  CHECK(smaller.steps_for_samples(161) == 7);
}

TEST_CASE("a batch by step goes on behind what was consumed") {
  const BatchSchedule ramp = ramp_by_step({{0, 8}, {10, 16}}, 2, 4).behind({5, 100});
  CHECK(ramp.first_sample(5) == 100);
  CHECK(ramp.first_sample(10) == 140);
  CHECK(ramp.first_sample(11) == 156);
  CHECK(ramp.steps_for_samples(156) == 11);
  CHECK(ramp.until(7).phases() == std::vector<BatchPhase>{{0, 60, 8, 1}});
}
