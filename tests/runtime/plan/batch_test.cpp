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
