// Who has started a process, from its environment as the launchers set it: each alone, one within
// another, and environments that contradict themselves. The values are those of real ones (SLURM
// 22.05, Open MPI 4.1) where there is such a launcher here.
#include "rendezvous/surroundings.h"

#include <map>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

using namespace mtl;

namespace {

using Env = std::map<std::string, std::string>;

Surroundings seen(const Env& env, Diagnostics& diagnostics) {
  return surroundings_of(
      [&](const char* name) -> const char* {
        const auto at = env.find(name);
        return at == env.end() ? nullptr : at->second.c_str();
      },
      diagnostics);
}

Surroundings seen(const Env& env) {
  Diagnostics diagnostics;
  Surroundings result = seen(env, diagnostics);
  for (const Diagnostic& diagnostic : diagnostics.all()) FAIL_CHECK(diagnostic.what);
  return result;
}

// "srun 3/4 local 1/2 node 1/2"
std::string told(const Surroundings& s) {
  if (!s.task) return fmt::format("{} node {}/{}", launcher_name(s.launcher), s.node, s.nodes);
  return fmt::format("{} {}/{} local {}/{} node {}/{}", launcher_name(s.launcher), s.task->rank,
                     s.task->world, s.task->local_rank, s.task->local_world, s.task->node,
                     s.task->nodes);
}
std::string told(const Env& env) {
  return told(seen(env));
}

Env with(Env a, const Env& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

// sbatch -N2 --ntasks-per-node=2 --gpus-per-node=2
const Env kBatch = {{"ENVIRONMENT", "BATCH"},
                    {"SLURM_JOB_ID", "1234"},
                    {"SLURM_JOB_NODELIST", "n[1-2]"},
                    {"SLURM_NODELIST", "n[1-2]"},
                    {"SLURM_JOB_NUM_NODES", "2"},
                    {"SLURM_NNODES", "2"},
                    {"SLURM_NTASKS", "4"},
                    {"SLURM_NTASKS_PER_NODE", "2"},
                    {"SLURM_TASKS_PER_NODE", "2(x2)"},
                    {"SLURM_JOB_CPUS_PER_NODE", "16(x2)"},
                    {"SLURM_CPUS_ON_NODE", "16"},
                    {"SLURM_GPUS_PER_NODE", "a100:2"},
                    {"SLURM_GPUS_ON_NODE", "2"},
                    {"SLURM_PROCID", "0"},
                    {"SLURM_LOCALID", "0"},
                    {"SLURM_NODEID", "0"}};
// srun in it: task 3.
const Env kStep = with(kBatch, {{"SLURM_STEP_ID", "0"},
                                {"SLURM_STEPID", "0"},
                                {"SLURM_STEP_NUM_TASKS", "4"},
                                {"SLURM_STEP_NUM_NODES", "2"},
                                {"SLURM_STEP_NODELIST", "n[1-2]"},
                                {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                                {"SLURM_PROCID", "3"},
                                {"SLURM_LOCALID", "1"},
                                {"SLURM_NODEID", "1"}});
// srun -N1 -n1 in it: the variables of tasks are stale.
const Env kOneTask = with(kStep, {{"SLURM_NTASKS", "1"},
                                  {"SLURM_NNODES", "1"},
                                  {"SLURM_STEP_NUM_TASKS", "1"},
                                  {"SLURM_STEP_NUM_NODES", "1"},
                                  {"SLURM_STEP_NODELIST", "n2"},
                                  {"SLURM_STEP_TASKS_PER_NODE", "1"},
                                  {"SLURM_PROCID", "0"},
                                  {"SLURM_LOCALID", "0"},
                                  {"SLURM_NODEID", "0"}});
const Env kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "4"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"OMPI_COMM_WORLD_NODE_RANK", "1"},  {"PMIX_RANK", "1"},
    {"PMIX_NAMESPACE", "191561729"},     {"OMPI_MCA_ess_base_jobid", "191561729"}};
const Env kTorchrun = {{"TORCHELASTIC_RUN_ID", "none"},
                       {"RANK", "5"},
                       {"WORLD_SIZE", "8"},
                       {"LOCAL_RANK", "1"},
                       {"LOCAL_WORLD_SIZE", "4"},
                       {"GROUP_RANK", "1"},
                       {"GROUP_WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "10.0.0.1"},
                       {"MASTER_PORT", "29500"},
                       {"TORCHELASTIC_RESTART_COUNT", "2"}};
const Env kPod = {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"}, {"HOSTNAME", "train-worker-0"}};
// PyTorchJob: RANK counts pods, WORLD_SIZE processes.
const Env kPyTorchJob = with(kPod, {{"PYTHONUNBUFFERED", "1"},
                                    {"RANK", "1"},
                                    {"WORLD_SIZE", "32"},
                                    {"MASTER_ADDR", "train-master-0"},
                                    {"MASTER_PORT", "23456"},
                                    {"PET_NODE_RANK", "1"},
                                    {"PET_NPROC_PER_NODE", "8"},
                                    {"PET_NNODES", "4"}});
const Env kTrainJob = with(kPod, {{"PET_NNODES", "4"},
                                  {"PET_NPROC_PER_NODE", "auto"},
                                  {"PET_NODE_RANK", "2"},
                                  {"PET_MASTER_ADDR", "train-node-0-0.train"},
                                  {"PET_MASTER_PORT", "29500"},
                                  {"JOB_COMPLETION_INDEX", "2"}});
const Env kJsrun = {{"LSB_JOBID", "77"},
                    {"LSB_MCPU_HOSTS", "batch5 1 c1 42 c2 42"},
                    {"JSM_NAMESPACE_RANK", "7"},
                    {"JSM_NAMESPACE_SIZE", "12"},
                    {"JSM_NAMESPACE_LOCAL_RANK", "1"},
                    {"JSM_NAMESPACE_LOCAL_SIZE", "6"}};

}  // namespace

TEST_CASE("nobody has started it") {
  CHECK(told(Env{}) == "nobody node -1/0");
  CHECK(told(kPod) == "nobody node -1/0");
  // Half of what others say.
  CHECK(told({{"RANK", "0"}}) == "nobody node -1/0");
  CHECK(told({{"WORLD_SIZE", "8"}, {"MASTER_ADDR", "h"}}) == "nobody node -1/0");
  CHECK(told({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}) == "nobody node -1/0");
}

TEST_CASE("torchrun and its kind") {
  const Surroundings s = seen(kTorchrun);
  CHECK(told(s) == "torchrun 5/8 local 1/4 node 1/2");
  CHECK(s.master_address == "10.0.0.1");
  CHECK(s.master_port == 29500);
  CHECK(s.restarts == 2);
  CHECK(told(with(kTorchrun, {{"MTL_TOKEN_FD", "3"}})) == "mtl launch 5/8 local 1/4 node 1/2");
  CHECK(told({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}}) ==
        "RANK and WORLD_SIZE 1/2 local 0/0 node -1/0");
}

TEST_CASE("the script of sbatch is an allocation") {
  const Surroundings s = seen(kBatch);
  CHECK(told(s) == "srun node 0/2");
  CHECK(s.is_allocation());
  CHECK(s.batch);
  CHECK(s.words == "SLURM job 1234");
  CHECK(s.node_names == std::vector<std::string>{"n1", "n2"});
  CHECK(s.tasks_per_node == std::vector<int>{2, 2});
  CHECK(s.shares.front().gpus_per_node == 2);
  CHECK(s.shares.front().cpus_per_node == 16);
  CHECK(s.master_address == "n1");
  CHECK(s.master_port == 21234);
  REQUIRE(s.ports.size() > 1);
  CHECK(s.ports[1] != s.ports[0]);
  const Surroundings array = seen(with(kBatch, {{"SLURM_ARRAY_JOB_ID", "1230"},
                                                {"SLURM_ARRAY_TASK_ID", "4"},
                                                {"SLURM_RESTART_COUNT", "2"}}));
  CHECK(array.job_id == "1230_4");
  CHECK(array.raw_job_id == "1234");
  CHECK(array.restarts == 2);
}

TEST_CASE("what the batch script's node has is not what every node has") {
  const auto share = [](const Env& env) { return seen(env).shares.at(0); };
  CHECK_FALSE(share(kBatch).cpus_differ);
  CHECK(seen(kBatch).gpus_of_nodes == std::vector<int>{2, 2});
  Env batch = kBatch;
  batch.erase("SLURM_GPUS_PER_NODE");
  batch["SLURM_GPUS_ON_NODE"] = "2";
  CHECK(share(batch).gpus_per_node == 2);
  CHECK(seen(batch).gpus_of_nodes.empty());
  // Where the job has so many in all, even a number that could be shared out evenly need not be.
  for (const char* all : {"4", "a100:4", "a100:3,v100:1"}) {
    CHECK(share(with(batch, {{"SLURM_GPUS", all}})).gpus_per_node == -1);
    CHECK(share(with(batch, {{"SLURM_GPUS", all}})).gpus == 4);
  }
  batch["SLURM_GPUS_PER_TASK"] = "1";
  CHECK(share(batch).gpus_per_node == -1);
  CHECK(share(batch).gpus == 4);
  const Env one = with(batch, {{"SLURM_JOB_NODELIST", "n1"},
                               {"SLURM_JOB_NUM_NODES", "1"},
                               {"SLURM_NNODES", "1"},
                               {"SLURM_TASKS_PER_NODE", "2"}});
  CHECK(seen(one).gpus_of_nodes == std::vector<int>{2});
  const Surroundings::Share uneven =
      share(with(kBatch, {{"SLURM_JOB_CPUS_PER_NODE", "16,8"}, {"SLURM_CPUS_ON_NODE", "16"}}));
  CHECK(uneven.cpus_differ);
  CHECK(uneven.cpus_per_node == -1);
}

TEST_CASE("the nodes of all components of a heterogeneous job are the job's") {
  const Env het = with(kBatch, {{"SLURM_HET_SIZE", "2"},
                                {"SLURM_JOB_ID_HET_GROUP_0", "1234"},
                                {"SLURM_JOB_ID_HET_GROUP_1", "1235"},
                                {"SLURM_JOB_NODELIST_HET_GROUP_0", "n[1-2]"},
                                {"SLURM_JOB_NODELIST_HET_GROUP_1", "big1"},
                                {"SLURM_JOB_NUM_NODES_HET_GROUP_0", "2"},
                                {"SLURM_JOB_NUM_NODES_HET_GROUP_1", "1"},
                                {"SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0", "16(x2)"},
                                {"SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1", "64"},
                                {"SLURM_TASKS_PER_NODE_HET_GROUP_0", "2(x2)"},
                                {"SLURM_GPUS_PER_NODE_HET_GROUP_0", "a100:2"},
                                {"SLURM_GPUS_HET_GROUP_1", "8"}});
  const Surroundings s = seen(het);
  CHECK(told(s) == "srun node 0/3");
  CHECK(s.node_names == std::vector<std::string>{"n1", "n2", "big1"});
  CHECK(s.tasks_per_node == std::vector<int>{2, 2, 1});
  CHECK(s.gpus_of_nodes == std::vector<int>{2, 2, 8});
  REQUIRE(s.shares.size() == 2);
  CHECK(s.shares[0].nodes == 2);
  CHECK(s.shares[0].cpus_per_node == 16);
  CHECK(s.shares[1].nodes == 1);
  CHECK(s.shares[1].cpus_per_node == 64);
  CHECK(s.shares[1].gpus_per_node == 8);
  CHECK(s.master_address == "n1");
  // The variables are those of a job around this one.
  CHECK(seen(with(het, {{"SLURM_JOB_ID_HET_GROUP_0", "1200"}})).shares.size() == 1);
  // A shell of salloc has only those with a number.
  Env shell = het;
  for (const char* name :
       {"SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_PROCID",
        "SLURM_GPUS_ON_NODE", "SLURM_CPUS_ON_NODE", "ENVIRONMENT"}) {
    shell.erase(name);
  }
  CHECK(told(seen(shell)) == "srun node -1/3");
  Env half = het;
  half.erase("SLURM_JOB_NODELIST_HET_GROUP_1");
  Diagnostics diagnostics;
  seen(half, diagnostics);
  REQUIRE(diagnostics.has_errors());
  CHECK(diagnostics.all().front().what.find("SLURM_JOB_NODELIST_HET_GROUP_1 is not set") !=
        std::string::npos);
}

TEST_CASE("the shell of salloc is an allocation") {
  const Env salloc = {{"SLURM_JOB_ID", "5"},
                      {"SLURM_JOB_NODELIST", "n[1-2]"},
                      {"SLURM_JOB_NUM_NODES", "2"},
                      {"SLURM_NNODES", "2"},
                      {"SLURM_NTASKS", "3"},
                      {"SLURM_TASKS_PER_NODE", "2,1"},
                      {"SLURM_JOB_CPUS_PER_NODE", "2,1"}};
  const Surroundings s = seen(salloc);
  CHECK(told(s) == "srun node -1/2");
  CHECK_FALSE(s.batch);
  CHECK(s.shares.front().cpus_per_node == -1);
  CHECK(s.shares.front().cpus_differ);
  CHECK(s.shares.front().gpus_per_node == -1);
  // use_interactive_step: the shell is step 4294967290; a batch script may be 4294967291.
  const Env tasks = {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_NUM_NODES", "1"}};
  for (const char* step : {"4294967290", "4294967291", "4294967292"}) {
    CHECK(told(with(with(salloc, tasks), {{"SLURM_STEP_ID", step}})) == "srun node -1/2");
    CHECK(told(with(with(salloc, tasks), {{"SLURM_STEPID", step}})) == "srun node -1/2");
  }
}

TEST_CASE("numbers of tasks that are not those of the nodes are an error") {
  for (const char* counts : {"2", "2(x3)", "0(x2)", "2,0", "1(x9)"}) {
    CAPTURE(counts);
    Diagnostics diagnostics;
    seen(with(kBatch, {{"SLURM_TASKS_PER_NODE", counts}}), diagnostics);
    REQUIRE(diagnostics.has_errors());
    CHECK(diagnostics.all().front().code == "surroundings.value");
    CHECK(diagnostics.all().front().what ==
          std::string("SLURM_TASKS_PER_NODE=") + counts + " are no tasks for each of 2 nodes");
  }
}

TEST_CASE("a job that was submitted from within a step has that step's variables") {
  const Env outer = {{"SLURM_STEP_ID", "0"},
                     {"SLURM_STEP_NUM_TASKS", "1"},
                     {"SLURM_STEP_NUM_NODES", "1"},
                     {"SLURM_STEP_NODELIST", "n4"},
                     {"SLURM_STEP_TASKS_PER_NODE", "1"}};
  CHECK(told(with(kBatch, outer)) == "srun node 0/2");
  // sbatch without -n leaves also the outer number of tasks.
  CHECK(told(with(with(kBatch, outer), {{"SLURM_NTASKS", "1"}})) == "srun node 0/2");
}

TEST_CASE("a task of srun") {
  const Surroundings s = seen(kStep);
  CHECK(told(s) == "srun 3/4 local 1/2 node 1/2");
  CHECK(s.words == "SLURM job 1234, step 0");
  CHECK(s.node_names == std::vector<std::string>{"n1", "n2"});
  CHECK(s.node == 1);
  CHECK_FALSE(s.is_allocation());
  CHECK_FALSE(s.batch);
  CHECK(s.master_address == "n1");
  // One task in a job of four, and srun --pty bash, which is the same.
  const Surroundings one = seen(kOneTask);
  CHECK(told(one) == "srun 0/1 local 0/1 node 0/1");
  CHECK(one.node_names == std::vector<std::string>{"n2"});
  CHECK(one.tasks_per_node == std::vector<int>{1});
  CHECK(told(with(kOneTask, {{"SLURM_PTY_PORT", "40000"}})) == "srun 0/1 local 0/1 node 0/1");
  // Uneven nodes.
  CHECK(told(with(kStep, {{"SLURM_STEP_TASKS_PER_NODE", "3,1"}, {"SLURM_LOCALID", "0"}})) ==
        "srun 3/4 local 0/1 node 1/2");
  // srun --mpi=pmi2 and pmix say the same again.
  CHECK(told(with(kStep, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}})) == "srun 3/4 local 1/2 node 1/2");
  CHECK(told(with(kStep, {{"PMIX_RANK", "3"}})) == "srun 3/4 local 1/2 node 1/2");
}

TEST_CASE("mpirun of Open MPI and MPICH and MVAPICH") {
  const Surroundings s = seen(kOpenMpi);
  CHECK(told(s) == "mpirun 1/4 local 1/2 node 0/2");
  CHECK(s.words == "Open MPI");
  CHECK(s.step_id == "191561729");
  CHECK(s.master_address.empty());
  CHECK(told({{"PMI_RANK", "2"},
              {"PMI_SIZE", "4"},
              {"MPI_LOCALRANKID", "0"},
              {"MPI_LOCALNRANKS", "2"}}) == "mpirun 2/4 local 0/2 node 1/2");
  CHECK(told({{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}}) == "mpirun 2/4 local 0/0 node -1/0");
  CHECK(told({{"MV2_COMM_WORLD_RANK", "1"},
              {"MV2_COMM_WORLD_SIZE", "2"},
              {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
              {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}}) == "mpirun 1/2 local 1/2 node 0/1");
  // --map-by node: ranks alternate, so a rank's node does not follow.
  CHECK(told(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "0"}})) ==
        "mpirun 1/4 local 0/2 node -1/0");
}

TEST_CASE("jsrun and LSF") {
  const Surroundings s = seen(kJsrun);
  CHECK(told(s) == "jsrun 7/12 local 1/6 node 1/2");
  CHECK(s.node_names == std::vector<std::string>{"c1", "c2"});
  CHECK(s.master_address == "c1");
  CHECK(s.master_port == port_of_job("77", 0));
  // It sets Open MPI's variables, too.
  CHECK(told(with(kJsrun, {{"OMPI_COMM_WORLD_RANK", "7"},
                           {"OMPI_COMM_WORLD_SIZE", "12"},
                           {"PMIX_RANK", "7"}})) == "jsrun 7/12 local 1/6 node 1/2");
  const Surroundings script = seen({{"LSB_JOBID", "77"}, {"LSB_MCPU_HOSTS", "h1 8 h2 8"}});
  CHECK(told(script) == "jsrun node -1/2");
  CHECK(script.words == "LSF job 77");
  CHECK(told({{"LSB_JOBID", "77"}, {"LSB_MCPU_HOSTS", "h1 1 h2 1"}}) == "jsrun node -1/2");
}

TEST_CASE("pods of Kubernetes") {
  const Surroundings master = seen(with(kPyTorchJob, {{"RANK", "0"}, {"PET_NODE_RANK", "0"}}));
  CHECK(told(master) == "Kubernetes node 0/4");
  const Surroundings s = seen(kPyTorchJob);
  CHECK(told(s) == "Kubernetes node 1/4");
  CHECK(s.processes_per_node == "8");
  CHECK(s.master_address == "train-master-0");
  CHECK(s.master_port == 23456);
  CHECK(s.words == "pod 1 (train-worker-0)");
  // Elastic: who comes gets a rank.
  CHECK(told(with(kPod, {{"PET_NNODES", "2:4"}, {"PET_RDZV_ENDPOINT", "train-worker-0:23456"}})) ==
        "Kubernetes node -1/0");
  // Old ones have no PET_*, Volcano has none either.
  CHECK(told(with(kPod, {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "m"}})) ==
        "Kubernetes node 1/4");
  const Surroundings train = seen(kTrainJob);
  CHECK(told(train) == "Kubernetes node 2/4");
  CHECK(train.master_address == "train-node-0-0.train");
  CHECK(train.master_port == 29500);
  CHECK(train.processes_per_node == "auto");
  // An Indexed Job and a JobSet say the index only.
  CHECK(told(with(kPod, {{"JOB_COMPLETION_INDEX", "3"}})) == "Kubernetes node 3/0");
}

TEST_CASE("the innermost launcher counts") {
  CHECK(told(with(kStep, kTorchrun)) == "torchrun 5/8 local 1/4 node 1/2");  // torchrun in srun
  CHECK(told(with(kBatch, kOpenMpi)) == "mpirun 1/4 local 1/2 node 0/2");    // mpirun in sbatch
  CHECK(told(with(kOneTask, kOpenMpi)) == "mpirun 1/4 local 1/2 node 0/2");  // mpirun in a step
  CHECK(told(with(kBatch, kJsrun)) == "jsrun 7/12 local 1/6 node 1/2");
  CHECK(told(with(kPyTorchJob, kTorchrun)) == "torchrun 5/8 local 1/4 node 1/2");
  CHECK(told(with(kTrainJob, kOpenMpi)) == "mpirun 1/4 local 1/2 node 0/2");
  // Our agent takes SLURM_STEP_* from its workers, but not those of the job.
  CHECK(told(with(kBatch, with(kTorchrun, {{"MTL_TOKEN_FD", "3"}}))) ==
        "mtl launch 5/8 local 1/4 node 1/2");
  // The job of an outer launcher is known all the same.
  const Surroundings mpi = seen(with(kBatch, kOpenMpi));
  CHECK(mpi.job_id == "1234");
  // What scripts export before srun, without RANK, misleads nobody.
  CHECK(told(with(kStep, {{"WORLD_SIZE", "4"}, {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}})) ==
        "srun 3/4 local 1/2 node 1/2");
}

TEST_CASE("what contradicts itself is an error") {
  const auto wrong = [](const Env& env) {
    Diagnostics diagnostics;
    seen(env, diagnostics);
    if (diagnostics.all().empty()) return std::string("nothing");
    CHECK(diagnostics.all()[0].code == "surroundings.value");
    CHECK_FALSE(diagnostics.all()[0].help.empty());
    return diagnostics.all()[0].what;
  };
  CHECK(wrong(with(kStep, {{"SLURM_PROCID", "4"}})) ==
        "SLURM_PROCID=4 is beyond SLURM_STEP_NUM_TASKS=4: ranks count from 0");
  CHECK(wrong(with(kStep, {{"SLURM_LOCALID", "2"}})).starts_with("SLURM_LOCALID=2 is beyond"));
  CHECK(wrong(with(kStep, {{"SLURM_STEP_TASKS_PER_NODE", "2(x3)"}})) ==
        "SLURM_STEP_TASKS_PER_NODE=2(x3) are not SLURM_STEP_NUM_TASKS=4");
  CHECK(wrong(with(kStep, {{"SLURM_STEP_NODELIST", "n[1"}})).starts_with("SLURM_STEP_NODELIST: "));
  CHECK(wrong(with(kBatch, {{"SLURM_JOB_NODELIST", "n[1-3]"}})) ==
        "SLURM_JOB_NUM_NODES=2, but SLURM_JOB_NODELIST=n[1-3] are 3");
  CHECK(wrong(with(kBatch, {{"SLURM_TASKS_PER_NODE", "many"}})) ==
        "SLURM_TASKS_PER_NODE=many is no list of numbers of tasks");
  CHECK(wrong(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "one"}})) ==
        "OMPI_COMM_WORLD_RANK=one is not a number that fits");
  CHECK(wrong(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "5"}})) ==
        "OMPI_COMM_WORLD_LOCAL_SIZE=5 is beyond OMPI_COMM_WORLD_SIZE=4");
  CHECK(wrong(with(kTorchrun, {{"RANK", "8"}})) ==
        "RANK=8 is beyond WORLD_SIZE=8: ranks count from 0");
  CHECK(wrong(with(kTorchrun, {{"MASTER_PORT", "70000"}})) == "MASTER_PORT=70000 is no port");
  CHECK(wrong({{"RANK", "0"}, {"WORLD_SIZE", "0"}}) == "WORLD_SIZE=0: a job of no ranks");
  CHECK(wrong(with(kTrainJob, {{"PET_NODE_RANK", "4"}})) == "pod 4 of 4 pods: they count from 0");
  // export RANK=$SLURM_PROCID in the batch script: everybody is rank 0.
  CHECK(wrong(with(kStep, {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "n1"}})) ==
        "RANK=0 of WORLD_SIZE=4, but this is rank 3 of 4 that srun has started (SLURM_PROCID): "
        "RANK is the same in several of them");
  CHECK(wrong(with(kStep, {{"RANK", "3"}, {"WORLD_SIZE", "4"}})) == "nothing");
  CHECK(wrong(with(kOpenMpi, {{"RANK", "0"}, {"WORLD_SIZE", "4"}})).starts_with("RANK=0 of"));
  // Left over from something else: each of them would train by itself.
  CHECK(wrong(with(kStep, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}))
            .starts_with("RANK=0 of WORLD_SIZE=1"));
  CHECK(wrong(with(kOpenMpi, {{"RANK", "0"}, {"WORLD_SIZE", "2"}})).starts_with("RANK=0 of"));
  // A task that starts several by hand.
  CHECK(wrong(with(kStep, {{"RANK", "5"}, {"WORLD_SIZE", "16"}})) == "nothing");
}

TEST_CASE("ports of jobs") {
  CHECK(port_of_job("1234", 0) == 21234);
  CHECK(port_of_job("11234", 0) == 21234);
  for (const char* job : {"1", "99999", "1230_4", "train-node-0", ""}) {
    std::map<int, int> ports;
    for (int attempt = 0; attempt < 16; ++attempt) {
      const int port = port_of_job(job, attempt);
      CHECK(port >= 20000);
      CHECK(port <= 29999);
      ++ports[port];
    }
    CHECK(ports.size() == 16);
  }
  CHECK(port_of_job("train-a", 0) != port_of_job("train-b", 0));
}
