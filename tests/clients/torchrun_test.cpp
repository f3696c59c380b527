// mtl worker as a rank of torchrun.
#include "cli/tiny_run.h"
#include "clients/clients.h"

using namespace mtl::test;

TEST_CASE("torchrun starts the ranks of a train.yaml and they train the same") {
  auto env = torch_environment();
  env["OMP_NUM_THREADS"] = "1";
  const Shell shell;
  write_recipe(shell, 10);
  // PyTorch 1.13 on Python 3.11 cannot start anything without redirecting (its Std.NONE).
  const Outcome outcome =
      shell.run({"/usr/bin/python3", "-m", "torch.distributed.run", "--redirects", "1", "--tee",
                 "1", "--log_dir", "log", "--no_python", "--nproc_per_node", "2", MTL_PROGRAM,
                 "worker", "train.yaml", "run.dir=torchrun"},
                env);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  const auto losses = losses_below(shell.dir() / "torchrun/tiny");
  CHECK(losses.size() > 0);
  CHECK(losses == losses_of_launch(shell));
}
