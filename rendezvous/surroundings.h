// Who has started this process, and what that says about its job: its place among ranks or nodes,
// or an allocation in which nothing runs yet. Read from the environment alone; nothing is asked.
//
// A process inherits the variables of every launcher above it, so the innermost counts. From inner
// to outer, the first that is there wins:
//
//   mtl            MTL_TOKEN_FD or MTL_RANK_THREADS of our own agent, RANK and WORLD_SIZE beside it
//   torchelastic   TORCHELASTIC_RUN_ID with RANK, WORLD_SIZE: torchrun, accelerate
//   by hand        RANK and WORLD_SIZE, but not PyTorchJob's (PET_* beside them, or a pod without
//                  LOCAL_RANK: RANK is the pod's index there)
//   mpi            OMPI_COMM_WORLD_*, MV2_COMM_WORLD_* or PMI_* of mpirun; inside an srun step too,
//                  since mpirun's daemons are such a step. PMI_* that only repeats what srun or
//                  jsrun says is theirs, as is Open MPI's under jsrun.
//   slurm step     SLURM_STEP_NUM_TASKS, a step id below 0xfffffff0, and as many tasks and nodes as
//                  SLURM_NTASKS and SLURM_NNODES say: the one proof of srun. (SLURM_PROCID is 0 in
//                  a batch script too, SLURM_NTASKS_PER_NODE is stale in a step, and a job that is
//                  submitted from within a step has all SLURM_STEP_* of that other step.)
//   lsf            JSM_NAMESPACE_* of jsrun; LSB_JOBID without them: an allocation
//   kubernetes     PET_* of PyTorchJob and TrainJob, RANK and WORLD_SIZE in a pod,
//                  JOB_COMPLETION_INDEX of an Indexed Job or JobSet
//   slurm          SLURM_JOB_ID without a step: the script of sbatch, the shell of salloc
//
// Lightning's environments look at the same variables in the order torchelastic, SLURM, LSF, MPI,
// which takes an mpirun inside sbatch for srun.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"

namespace mtl {

enum class Launcher { none, mtl, torchelastic, hand, mpi, slurm, lsf, kubernetes };
const char* launcher_name(Launcher launcher);  // for people: "srun", "mpirun", "torchrun" ...

inline constexpr int kMostComponents = 128;  // of a heterogeneous job: SLURM has no more

struct Surroundings {
  Launcher launcher = Launcher::none;
  std::string words;  // for people: "SLURM job 1234, step 0", "Open MPI", "pod 2 of train"

  // One of several processes started together: filled for a task of srun, mpirun, jsrun, torchrun.
  // A single task, too (world 1). Not for a pod: what runs there may be a rank or a whole node.
  struct Task {
    int rank = 0;
    int world = 1;
    int local_rank = 0;
    int local_world = 1;  // 0 = not known
    int node = 0;         // -1 = not known
    int nodes = 1;        // 0 = not known
  };
  std::optional<Task> task;

  // The nodes of the job, where their names or their number are known; of a task those of its step.
  int nodes = 0;                        // 0 = not known
  int node = -1;                        // this process's, -1 = none of them or not known
  std::vector<std::string> node_names;  // in the order of their rank; empty = not known
  std::vector<int> tasks_per_node;      // of each node, as asked; empty = not known
  std::vector<int> gpus_of_nodes;       // of each node; empty = not known

  // What nodes that were asked for together have.
  struct Share {
    int nodes = 0;
    int gpus_per_node = -1;  // as asked of the scheduler; -1 = not known, or not the same of all
    int cpus_per_node = -1;  // the same
    int gpus = -1;           // of all nodes together, where each may have another number
    bool cpus_differ = false;
  };
  // SLURM: one, or those of a heterogeneous job's components, whose nodes follow one another.
  std::vector<Share> shares;
  std::string processes_per_node;  // PET_NPROC_PER_NODE: "8", "gpu", "auto"; "" = not said

  // Where the ranks or nodes meet, where the launcher says it or it follows: the first node, and a
  // port made from the job's id. `ports`: others to try in turn when that one is taken.
  std::string master_address;
  int master_port = 0;  // 0 = not known
  std::vector<int> ports;

  std::string job_id;      // "1234", an array's task "1230_4"; a pod's job name
  std::string raw_job_id;  // SLURM_JOB_ID, also of an array's task
  std::string step_id;     // of a step; the same for all ranks of one start, another for the next
  int restarts = 0;        // SLURM_RESTART_COUNT, restarts of a pod's job
  bool batch = false;      // the script of sbatch itself (not salloc)

  // SLURM: an allocation whose nodes nobody has started anything on yet.
  bool is_allocation() const { return launcher == Launcher::slurm && !task; }
};

// `variable`: the value of a variable, nullptr if it is not set. What contradicts itself (ranks
// beyond the world, a list that is none) is an error in `diagnostics` (code surroundings.value).
Surroundings surroundings_of(const std::function<const char*(const char*)>& variable,
                             Diagnostics& diagnostics);
Surroundings surroundings_here(Diagnostics& diagnostics);  // of this process's environment

// 20000 .. 29999 from a job's id: the same on every node, other jobs mostly elsewhere. `attempt` 0,
// 1, ... are the ports to try in turn.
int port_of_job(const std::string& job_id, int attempt);

}  // namespace mtl
