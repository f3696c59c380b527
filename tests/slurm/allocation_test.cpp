// mtl launch inside a SLURM job: what it sees there, and that it runs on all of its nodes.

#include <doctest/doctest.h>

#include "slurm/slurm_run.h"

using namespace mtl::test;

namespace {

// By hand, on one machine: the same layout.
std::map<int, std::string> local_losses(const Slurm& slurm, const std::string& name, int ranks) {
  const CommandEnd end = slurm.run(
      {kMtl, "launch", "--num_processes", std::to_string(ranks), "train.yaml", "run.name=" + name});
  CAPTURE(end.err);
  REQUIRE(end.code == 0);
  return losses(slurm, name);
}

// What a rank says of where it is, and of the GPUs that it sees.
void write_show(const Slurm& slurm) {
  write_text(slurm, "show.sh",
             "echo rank=$RANK/$WORLD_SIZE local=$LOCAL_RANK/$LOCAL_WORLD_SIZE on=$SLURMD_NODENAME "
             "gpus=$CUDA_VISIBLE_DEVICES.\n");
}

}  // namespace

TEST_CASE("a char model trains on four nodes of an sbatch job as it does locally") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(4);
  write_recipe(slurm, 6);
  const auto wanted = local_losses(slurm, "local", 8);
  REQUIRE(wanted.size() == 6);
  const std::string job =
      submit(slurm, "job.sh", {"-N4"},
             "exec " + kMtl + " launch --nproc_per_node 2 train.yaml run.name=job");
  CHECK(slurm.reaches(job, {"COMPLETED", "FAILED"}));
  const std::string said = file_text(slurm.work() / "job.sh.out");
  CAPTURE(said);
  CHECK(slurm.state(job) == "COMPLETED");
  CHECK(losses(slurm, "job") == wanted);
  CHECK(is_quiet(slurm));
}

TEST_CASE("salloc and a program see every node once and MASTER_ADDR is one for all") {
  const Slurm slurm(4);
  write_text(slurm, "show.sh",
             "echo rank=$RANK/$WORLD_SIZE local=$LOCAL_RANK/$LOCAL_WORLD_SIZE group=$GROUP_RANK "
             "on=$SLURMD_NODENAME master=$MASTER_ADDR:$MASTER_PORT step=$SLURM_STEP_ID\n");
  const CommandEnd end = slurm.run({"salloc", "-N3", "--ntasks-per-node=2", kMtl, "launch", "--tee",
                                    "3", "--", "sh", "show.sh"});
  CAPTURE(end.out);
  CAPTURE(end.err);
  CHECK(end.code == 0);
  for (int rank = 0; rank < 6; ++rank) {
    const std::string line = "rank=" + std::to_string(rank) +
                             "/6 local=" + std::to_string(rank % 2) +
                             "/2 group=" + std::to_string(rank / 2) + " on=n" +
                             std::to_string(rank / 2 + 1) + " master=";
    CHECK(has(end.out, line));
  }
  CHECK(has(end.out, "n1:0| "));  // people know the nodes by SLURM's names
  CHECK_FALSE(has(end.out, "step=0"));
  CHECK(is_quiet(slurm));
}

TEST_CASE("a program that the nodes have not is named by all of them, and is the job's exit code") {
  const Slurm slurm(3);
  for (int i = 0; i < 3; ++i) {
    const CommandEnd end =
        slurm.run({"salloc", "-Q", "-N3", kMtl, "launch", "--cpu", "--", "nosuch"});
    CAPTURE(end.err);
    CHECK(end.code == 127);
    CHECK(has(end.err, "error[launch.program_missing]: n1, n2, n3: there is no program 'nosuch'"));
    // srun ended the others because the first had failed.
    CHECK_FALSE(has(end.err, "slurm.srun"));
  }
}

TEST_CASE("GPUs of the allocation give the ranks and explicit flags win") {
  const Slurm slurm(4);
  const auto dry = [&](std::vector<std::string> flags) {
    std::vector<std::string> argv = {"salloc", "-Q",     "-N2",       "--gpus-per-node=4",
                                     kMtl,     "launch", "--dry-run", "--json"};
    argv.insert(argv.end(), flags.begin(), flags.end());
    argv.insert(argv.end(), {"--", "true"});
    const CommandEnd end = slurm.run(argv);
    CAPTURE(end.err);
    REQUIRE(end.code == 0);
    return json::parse(end.out);
  };
  const json plain = dry({});
  CHECK(plain["mode"] == "allocation");
  CHECK(plain["ranks"].size() == 8);
  REQUIRE(plain["srun"].size() == 1);
  CHECK(plain["srun"][0][0] == "srun");
  const std::string srun = plain["srun"].dump();
  for (const char* option : {"--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=4",
                             "--kill-on-bad-exit=1", "--mpi=none", "--unbuffered"}) {
    CHECK_MESSAGE(has(srun, option), srun);
  }
  CHECK(dry({"--nproc_per_node", "3"})["ranks"].size() == 6);
  CHECK(dry({"--cpu"})["ranks"].size() == 2);
  CHECK(dry({"--num_machines", "1", "--nproc_per_node", "2"})["ranks"].size() == 2);
  CHECK(dry({"--standalone", "--nproc_per_node", "2"})["mode"] == "local");
  CHECK(dry({"--via", "local", "--nproc_per_node", "2"})["mode"] == "local");
  CHECK(dry({"--hosts", "a,b"})["mode"] == "hosts");
  const json elastic = dry({"--nnodes", "1:2"});
  CHECK(has(elastic["srun"].dump(), "--no-kill"));
  CHECK(has(elastic["srun"].dump(), "--kill-on-bad-exit=0"));
  const CommandEnd many =
      slurm.run({"salloc", "-Q", "-N2", kMtl, "launch", "--num_machines", "3", "--", "true"});
  CHECK(many.code == 3);
  CHECK(has(many.err, "#SBATCH --nodes=3"));
}

TEST_CASE("nodes that were given different numbers of CPUs or GPUs are all used") {
  const Slurm slurm(2);
  write_text(slurm, "show.sh",
             "echo rank=$RANK/$WORLD_SIZE on=$SLURMD_NODENAME cpus=$SLURM_CPUS_ON_NODE "
             "gpus=$CUDA_VISIBLE_DEVICES.\n");
  const auto said = [&](const std::string& name, const std::vector<std::string>& options) {
    const std::string job =
        submit(slurm, name, options, "exec " + kMtl + " launch --tee 3 -- sh show.sh");
    CHECK(slurm.reaches(job, {"COMPLETED", "FAILED"}));
    return file_text(slurm.work() / (name + ".out"));
  };
  const std::string tasks = said("tasks.sh", {"-N2", "--ntasks=3", "-c2"});
  CAPTURE(tasks);
  CHECK(has(tasks, "rank=1/3 on=n1 cpus=4"));
  CHECK(has(tasks, "rank=2/3 on=n2 cpus=2"));
  CHECK_FALSE(has(tasks, "cpu binding"));
  const std::string by_task = said("by_task.sh", {"-N2", "--ntasks=3", "--gpus-per-task=1"});
  CAPTURE(by_task);
  CHECK(has(by_task, "rank=1/3 on=n1 cpus=2 gpus=0,1."));
  CHECK(has(by_task, "rank=2/3 on=n2 cpus=1 gpus=0."));
  const std::string gpus = said("gpus.sh", {"-N2", "--gpus=3"});
  CAPTURE(gpus);
  CHECK(has(gpus, "on=n1 cpus=1 gpus=0,1."));
  CHECK(has(gpus, "on=n2 cpus=1 gpus=0."));
  CHECK(is_quiet(slurm));
}

TEST_CASE("a rank for each GPU where three nodes have 2, 3 and 1 of six") {
  const Slurm slurm(3);
  write_show(slurm);
  // What others use leaves so many.
  std::vector<std::string> others;
  const std::map<std::string, std::string> used = {{"n1", "6"}, {"n2", "5"}, {"n3", "7"}};
  for (const auto& [node, gpus] : used) {
    others.push_back(
        submit(slurm, "other-" + node, {"-w", node, "--gres=gpu:" + gpus}, "sleep 1000"));
    CHECK(slurm.reaches(others.back(), {"RUNNING"}));
  }
  const std::string job = submit(slurm, "job.sh", {"-N3", "--gpus=6"},
                                 kMtl + " launch --dry-run --json -- true > plan.json\nexec " +
                                     kMtl + " launch --tee 3 -- sh show.sh");
  CHECK(slurm.reaches(job, {"COMPLETED", "FAILED"}));
  const std::string said = file_text(slurm.work() / "job.sh.out");
  CAPTURE(said);
  CHECK(slurm.state(job) == "COMPLETED");
  CHECK(has(said, "rank=1/6 local=1/2 on=n1 gpus=6,7."));
  CHECK(has(said, "rank=4/6 local=2/3 on=n2 gpus=5,6,7."));
  CHECK(has(said, "rank=5/6 local=0/1 on=n3 gpus=7."));
  // It is known before anything starts.
  CHECK(json::parse(file_text(slurm.work() / "plan.json"))["ranks"].size() == 6);
  slurm.ask({"scancel", others[0], others[1], others[2]});
  CHECK(is_quiet(slurm));
}

TEST_CASE("all components of a heterogeneous job are used") {
  const Slurm slurm(4);
  write_show(slurm);
  const std::string job = submit(slurm, "job.sh", {},
                                 "#SBATCH -N1 --gpus-per-node=2\n#SBATCH hetjob\n"
                                 "#SBATCH -N2 --ntasks=3 --gpus-per-task=1\nexec " +
                                     kMtl + " launch --tee 3 -- sh show.sh");
  CHECK(slurm.reaches(job, {"COMPLETED", "FAILED"}));
  const std::string said = file_text(slurm.work() / "job.sh.out");
  CAPTURE(said);
  CHECK(slurm.state(job) == "COMPLETED");
  CHECK(has(said, "rank=1/5 local=1/2 on=n1 gpus=0,1."));
  CHECK(has(said, "rank=3/5 local=1/2 on=n2 gpus=0,1."));
  CHECK(has(said, "rank=4/5 local=0/1 on=n3 gpus=0."));
  // A shell, a component without GPUs, and a rank that fails in the second step.
  const CommandEnd shell = slurm.run({"salloc", "-Q", "-N1", ":", "-N1", "--gres=gpu:2", kMtl,
                                      "launch", "--tee", "3", "--", "sh", "show.sh"});
  CAPTURE(shell.out);
  CAPTURE(shell.err);
  CHECK(shell.code == 0);
  CHECK(has(shell.err, "launch.node_unused"));
  CHECK(has(shell.out, "rank=1/2 local=1/2 on=n2 gpus=0,1."));
  const CommandEnd failing = slurm.run({"salloc", "-Q", "-N1", ":", "-N2", kMtl, "launch", "--",
                                        "sh", "-c", "[ $RANK = 2 ] && exit 42; sleep 1000"});
  CAPTURE(failing.err);
  CHECK(failing.code == 42);
  CHECK(has(failing.err, "n3"));
  const CommandEnd task =
      slurm.run({"salloc", "-Q", "-N1", ":", "-N2", "srun", kMtl, "launch", "--", "true"});
  CHECK(task.code == 0);
  CHECK(has(task.err, "the job has 3: without srun in front, or with srun --het-group=0-1"));
  CHECK(is_quiet(slurm));
}

TEST_CASE("what a rank says and how it ends comes back from the nodes") {
  const Slurm slurm(2);
  write_text(slurm, "fail.sh", "[ $RANK = 1 ] || sleep 1000\necho no such luck >&2\nexit 42\n");
  const CommandEnd end = slurm.run({"salloc", "-N2", kMtl, "launch", "--", "sh", "fail.sh"});
  CAPTURE(end.err);
  CHECK(end.code == 42);
  CHECK(has(end.err, "n2"));
  CHECK(has(end.err, "no such luck"));
  CHECK(is_quiet(slurm));
}

TEST_CASE("srun that cannot start the agents is quoted") {
  const Slurm slurm(2);
  const CommandEnd missing = slurm.run(
      {"salloc", "-N2", kMtl, "launch", "--remote_program", "/nowhere/mtl", "--", "true"});
  CAPTURE(missing.err);
  CHECK(missing.code == 4);
  CHECK(has(missing.err, "slurm.srun"));
  CHECK(has(missing.err, "/nowhere/mtl"));
  CHECK(has(missing.err, "same path on every node"));
  const CommandEnd option =
      slurm.run({"salloc", "-N2", kMtl, "launch", "--slurm_srun=--no-such-option", "--", "true"});
  CHECK(option.code == 4);
  CHECK(has(option.err, "no-such-option"));
  CHECK(is_quiet(slurm));
}

TEST_CASE("the token is in no argument and in no variable") {
  const Slurm slurm(2);
  write_text(slurm, "look.sh",
             "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -ao 'agent --connect "
             "[^/]*' | head -1\nenv | grep -ci token || true\n");
  const CommandEnd end = slurm.run({"salloc", "-N2", kMtl, "launch", "--", "sh", "look.sh"});
  CAPTURE(end.out);
  CHECK(has(end.out, "agent --connect --dead_after 5"));
  CHECK(has(end.out, "\n0\n"));
}
