// mtl worker as a rank of another launcher, on several machines: the ranks meet in the run's folder
// and then over the network.
#include "cluster/tiny_run.h"

using namespace mtl::test;

TEST_CASE_FIXTURE(Machines, "ranks on several machines meet in the run's folder") {
  Cluster cluster(3);
  const TinyRun tiny(cluster, 10);
  const CommandEnd launched = tiny.trained("launched", {"--num_processes", "3"});
  REQUIRE_MESSAGE(launched.code == 0, launched.err);
  bool pods = false;
  SUBCASE("by hand, with an address that leads nowhere") {}
  SUBCASE("a pod for each rank") {
    pods = true;
  }
  std::vector<Command> ranks;
  for (const int rank : {2, 1, 0}) {
    std::map<std::string, std::string> env = {{"OMP_NUM_THREADS", "1"}};
    const std::string number = std::to_string(rank);
    if (pods) {
      env.insert({{"PET_NNODES", "3"}, {"PET_NODE_RANK", number}, {"PET_NPROC_PER_NODE", "1"}});
    } else {
      env.insert({{"WORLD_SIZE", "3"}, {"RANK", number}, {"MASTER_ADDR", "nobody.invalid"}});
    }
    ranks.push_back(cluster.start(
        rank + 1,
        {MTL_PROGRAM, "worker", "train.yaml", "run.dir=" + (cluster.work() / "ranks").string()},
        env));
  }
  for (Command& rank : ranks) {
    const CommandEnd end = rank.wait(kPatience);
    CHECK_MESSAGE(end.code == 0, end.err);
  }
  CHECK(tiny.losses("ranks").size() == 10);
  CHECK(tiny.losses("ranks") == tiny.losses("launched"));
  CHECK_NOTHING_LEFT(cluster);
}
