// How many GPUs each node of a SLURM job has. A job that has asked for so many in all (--gpus=6,
// --gpus-per-task) may get 2, 3 and 1 of them; its variables tell only what the batch script's own
// node has, SLURM's controller the rest.
#pragma once

#include <map>
#include <string>

#include "rendezvous/surroundings.h"

namespace mtl {

// By node, of what `scontrol show job -d` prints of a job, or of all components of one: lines such
// as "Nodes=n[1-2] CPU_IDs=0-3 Mem=0 GRES=gpu:a100:2(IDX:0-1)". Empty where it says nothing of
// nodes.
std::map<std::string, int> gpus_in(const std::string& text);

// Sets gpus_of_nodes, and the GPUs of the shares by it. Where the variables leave it open SLURM is
// asked; where that fails, what they say of this node holds for all that are like it.
void count_gpus(Surroundings& around);

}  // namespace mtl
