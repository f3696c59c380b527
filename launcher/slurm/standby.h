// Several tasks of srun on a node of which only one works: it leads, and starts a rank for each;
// the others wait for its end, since SLURM counts them.
#pragma once

#include "common/files.h"
#include "rendezvous/surroundings.h"

namespace mtl {

// The task that leads. While it lives, the others wait; its CPUs are those of all of them, as far
// as SLURM lets it have them.
class LeadTask {
 public:
  explicit LeadTask(const Surroundings& around);

 private:
  Fd listener_;
};

// Waits until the lead task of this node has ended, whatever signals come: SLURM sends them to
// every task, and the lead decides what they mean. Returns at once if it is over already.
void stand_by(const Surroundings& around);

}  // namespace mtl
