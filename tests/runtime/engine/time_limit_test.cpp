// When a run that may last only so long has to stop.
#include "runtime/engine/time_limit.h"

#include <doctest/doctest.h>

using namespace mtl;
using std::chrono::seconds;

namespace time_limit_test {

TEST_CASE("a time limit leaves room for what is still to come, as long as it has lasted so far") {
  const TimeLimit::Time begin{};
  TimeLimit limit(seconds(100), begin);
  CHECK_FALSE(limit.is_over({.steps_s = 20}, begin + seconds(80)));
  CHECK(limit.is_over({.steps_s = 21}, begin + seconds(80)));
  limit.saved(30);
  limit.saved(10);  // the longest counts
  CHECK_FALSE(limit.is_over({.steps_s = 20}, begin + seconds(50)));
  CHECK(limit.is_over({.steps_s = 20}, begin + seconds(51)));
  CHECK(limit.is_over({.steps_s = 20, .saves = 2}, begin + seconds(21)));
  limit.evaluated(5);
  CHECK_FALSE(limit.is_over({.steps_s = 20, .evaluations = 2}, begin + seconds(40)));
  CHECK(limit.is_over({.steps_s = 20, .evaluations = 2}, begin + seconds(41)));
}

TEST_CASE("no time limit is never over, and one of an older job is over at once") {
  const TimeLimit::Time now{};
  CHECK_FALSE(TimeLimit(seconds(0), now).is_over({.steps_s = 1e9}, now + seconds(1'000'000)));
  CHECK(TimeLimit(seconds(100), now - seconds(101)).is_over({}, now));
}

}  // namespace time_limit_test
