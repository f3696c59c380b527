// SIGKILL to a random process of a job, however it was started: nothing is left, and the right
// thing is said where somebody is left to say it. build/bench/kill_storm does this for longer.
#include "cluster/storm.h"

TEST_CASE_FIXTURE(mtl::test::Machines, "a storm of kills over all ways of starting") {
  std::random_device seed;
  const unsigned number = seed();
  CAPTURE(number);
  std::mt19937 random(number);
  mtl::test::ClusterStorm storm;
  mtl::test::Cluster cluster(2);
  while (storm.rounds < 20) mtl::test::storm_round(storm, cluster, random);
  for (const std::string& wrong : storm.wrong) FAIL_CHECK(wrong);
}
