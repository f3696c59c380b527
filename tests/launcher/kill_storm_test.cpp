// SIGKILL to a random process of a job at a random moment: nothing is left, and the right thing is
// said where somebody is left to say it. build/bench/kill_storm does this for longer.
#include "launcher/kill_storm.h"

#include <doctest/doctest.h>

TEST_CASE("a storm of kills leaves nothing and names the right one") {
  std::random_device seed;
  const unsigned number = seed();
  CAPTURE(number);
  std::mt19937 random(number);
  mtl::test::Storm storm;
  while (storm.rounds < 40) mtl::test::storm_round(storm, random);
  for (const std::string& wrong : storm.wrong) FAIL_CHECK(wrong);
  CHECK(storm.rounds == 40);
}
