// What a job asks a scheduler for. In a train.yaml: launch.slurm.partition,
// launch.kubernetes.image.
#include "launcher/launch_flags_table.h"

namespace mtl {

std::vector<LaunchFlag> launch_slurm_flags() {
  using K = FlagKind;
  using G = FlagGroup;
  return {
      {.name = "slurm_partition",
       .kind = K::text,
       .group = G::slurm,
       .value = "NAME",
       .help = "partition of the job"},
      {.name = "slurm_chain",
       .kind = K::choice,
       .group = G::slurm,
       .value = "requeue|dependency|none",
       .help =
           "what follows when the job stops with a complete checkpoint because its time is over "
           "or it is preempted: the same job again, a next job after it, or nothing",
       .built_in = "requeue"},
      {.name = "slurm_srun",
       .kind = K::list,
       .group = G::slurm,
       .value = "OPTION",
       .help =
           "also for srun, which starts an agent on every node: --network=...; may be repeated"},
  };
}

std::vector<LaunchFlag> launch_kubernetes_flags() {
  using K = FlagKind;
  using G = FlagGroup;
  return {
      {.name = "kubernetes_image",
       .kind = K::text,
       .group = G::kubernetes,
       .value = "IMAGE",
       .help = "container image with mtl (or the program) in it"},
  };
}

}  // namespace mtl
