// mtl worker RUN_DIR: one rank of a run, or all of a machine as threads, started by `mtl launch` or
// by any launcher that sets RANK and WORLD_SIZE. Not shown in the overview: nobody types it.
#include "runtime/worker.h"

#include <csignal>

#include "cli/command_line.h"
#include "cli/commands.h"

namespace mtl {

int command_worker(const Arguments& args) {
  std::string run_dir;
  CommandLine line({"worker RUN_DIR"},
                   "Trains one rank of a run. Started by mtl launch, once per rank, with the "
                   "environment of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, "
                   "MASTER_PORT) and MTL_TOKEN_FD, a descriptor that gives the run's token. With "
                   "MTL_RANK_THREADS = WORLD_SIZE this process trains all ranks, each in a "
                   "thread of its own.");
  line.positional("RUN_DIR", run_dir, "the run directory that mtl launch made");
  if (!line.parse(args)) return 0;
  // Whoever reads the progress may die first; that must not end a rank.
  std::signal(SIGPIPE, SIG_IGN);
  return static_cast<int>(run_worker(run_dir));
}

}  // namespace mtl
