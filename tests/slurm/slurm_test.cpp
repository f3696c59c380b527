// The SLURM of the tests is a real one.
#include "support/slurm.h"

#include <doctest/doctest.h>

using namespace mtl::test;

TEST_CASE("four nodes run a step each and leave nothing") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(4);
  const CommandEnd end = slurm.run({"srun", "-N4", "--gpus-per-node=2", "sh", "-c",
                                    "echo $SLURMD_NODENAME $SLURM_NODEID $CUDA_VISIBLE_DEVICES"});
  CAPTURE(end.err);
  CHECK(end.code == 0);
  for (const char* line : {"n1 0 0,1", "n2 1 0,1", "n3 2 0,1", "n4 3 0,1"}) {
    CHECK(end.out.find(line) != std::string::npos);
  }
  CHECK(slurm.processes().empty());
}
