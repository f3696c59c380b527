// mtl launch as a task of srun: one on every node, or several of which one leads.
#include <doctest/doctest.h>

#include "rendezvous/sockets.h"
#include "rendezvous/surroundings.h"
#include "slurm/slurm_run.h"

using namespace mtl::test;
using std::chrono::seconds;

namespace {

const char* const kShow =
    "echo rank=$RANK/$WORLD_SIZE local=$LOCAL_RANK/$LOCAL_WORLD_SIZE on=$SLURMD_NODENAME\n";

// Every rank once, in order of the nodes.
void check_ranks(const std::string& out, int nodes, int each) {
  for (int rank = 0; rank < nodes * each; ++rank) {
    CHECK_MESSAGE(has(out, "rank=" + std::to_string(rank) + "/" + std::to_string(nodes * each) +
                               " local=" + std::to_string(rank % each) + "/" +
                               std::to_string(each) + " on=n" + std::to_string(rank / each + 1)),
                  out);
  }
}

}  // namespace

TEST_CASE("one task of srun on every node is a job without further words") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(4);
  write_text(slurm, "show.sh", kShow);
  const CommandEnd end = slurm.run({"srun", "-N4", "--ntasks-per-node=1", kMtl, "launch",
                                    "--nproc_per_node", "2", "--tee", "3", "--", "sh", "show.sh"});
  CAPTURE(end.err);
  CHECK(end.code == 0);
  check_ranks(end.out, 4, 2);
  CHECK(is_quiet(slurm));
}

TEST_CASE("two tasks of srun on every node are two ranks") {
  const Slurm slurm(3);
  write_text(slurm, "show.sh", kShow);
  const CommandEnd end = slurm.run(
      {"srun", "-N3", "--ntasks-per-node=2", kMtl, "launch", "--tee", "3", "--", "sh", "show.sh"});
  CAPTURE(end.err);
  CHECK(end.code == 0);
  check_ranks(end.out, 3, 2);
  const CommandEnd failed = slurm.run(
      {"srun", "-N2", "--ntasks-per-node=2", kMtl, "launch", "--", "sh", "-c", "exit 42"});
  CHECK(failed.code == 42);
  CHECK(is_quiet(slurm));
}

TEST_CASE("tasks of srun are ranks, also where nodes have more and fewer of them") {
  const Slurm slurm(3);
  write_text(slurm, "corpus.txt", fox_text());
  write_text(slurm, "train.yaml",
             "model: {layers: 1, hidden: 16, heads: 2}\n"
             "train: {steps: 2, seq_len: 16, global_batch: 9}\n"
             "data: {train: corpus.txt}\n"
             "run: {name: uneven}\n");
  const CommandEnd end =
      slurm.run({"srun", "-n", "3", "-N", "2", kMtl, "launch", "--cpu", "train.yaml"});
  CAPTURE(end.err);
  CHECK(end.code == 0);
  CHECK((end.out + end.err).find("3 processes = 3 data") != std::string::npos);
  const CommandEnd test =
      slurm.run({"srun", "-n", "3", "-N", "2", kMtl, "test", "--cpu", "--until", "spawn"});
  CAPTURE(test.err);
  CHECK(test.code == 0);
  CHECK(is_quiet(slurm));
}

TEST_CASE("a port that somebody else has is not where the nodes meet") {
  const Slurm slurm(2);
  write_text(slurm, "show.sh", kShow);
  // The first jobs of this SLURM. Who listens there takes what comes and says nothing.
  std::vector<mtl::Fd> taken;
  for (const int job : {slurm.first_job(), slurm.first_job() + 1}) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      const auto port = static_cast<uint16_t>(mtl::port_of_job(std::to_string(job), attempt));
      try {
        taken.push_back(mtl::net::listen_on("0.0.0.0", port, seconds(1)));
      } catch (const mtl::Error&) {
        // somebody has it already
      }
    }
  }
  for (const bool in_step : {true, false}) {
    const std::vector<std::string> front =
        in_step ? std::vector<std::string>{"srun", "-N2", "--ntasks-per-node=1"}
                : std::vector<std::string>{"salloc", "-Q", "-N2"};
    std::vector<std::string> argv = front;
    argv.insert(argv.end(),
                {kMtl, "launch", "--nproc_per_node", "2", "--tee", "3", "--", "sh", "show.sh"});
    const CommandEnd end = slurm.run(argv);
    CAPTURE(end.err);
    CHECK(end.code == 0);
    check_ranks(end.out, 2, 2);
  }
}

TEST_CASE("USR2 to all tasks of a step stops the run with a checkpoint") {
  const Slurm slurm(2);
  write_recipe(slurm, 100000);
  Command launch = slurm.start(
      {"srun", "-N2", "--ntasks-per-node=2", kMtl, "launch", "train.yaml", "run.name=warned"});
  REQUIRE_MESSAGE(reaches_step(slurm, "warned", 4), launch.err());
  const std::string job = slurm.ask({"squeue", "-h", "-o", "%A"});
  slurm.run({"scancel", "--signal=USR2", job});
  const CommandEnd end = launch.wait(seconds(180));
  CAPTURE(end.err);
  CHECK(end.code == 75);
  CHECK(has(end.err, "stopped with a complete checkpoint"));
  CHECK(is_quiet(slurm));
}

TEST_CASE("USR2 to a program that knows nothing of it is a TERM to its ranks") {
  const Slurm slurm(2);
  // The shell and its sleep are hit, too.
  write_text(slurm, "wait.sh",
             "trap 'echo saved; exit 75' TERM\necho here\nwhile :; do sleep 0.05; done\n");
  Command launch = slurm.start(
      {"salloc", "-Q", "-N2", kMtl, "launch", "--slurm_chain", "none", "--", "sh", "wait.sh"});
  REQUIRE_MESSAGE(launch.says("here", seconds(180)), launch.err());
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  slurm.run({"scancel", "--signal=USR2", slurm.ask({"squeue", "-h", "-o", "%A"})});
  const CommandEnd end = launch.wait(seconds(180));
  CAPTURE(end.err);
  CHECK(end.code == 75);
  CHECK(has(end.out, "saved"));
  CHECK(is_quiet(slurm));
}

TEST_CASE("tasks that contradict the launch are explained with the line to write") {
  const Slurm slurm(2);
  const CommandEnd number = slurm.run({"srun", "-N2", "--ntasks-per-node=2", kMtl, "launch",
                                       "--nproc_per_node", "4", "--", "true"});
  CHECK(number.code == 3);
  CHECK(has(number.err, "slurm.tasks"));
  CHECK(has(number.err, "#SBATCH --ntasks-per-node=1"));
  const CommandEnd gpus = slurm.run(
      {"srun", "-N2", "--ntasks-per-node=4", "--gpus-per-task=1", kMtl, "launch", "--", "true"});
  CAPTURE(gpus.err);
  CHECK(gpus.code == 3);
  CHECK(has(gpus.err, "#SBATCH --ntasks-per-node=1 --gpus-per-node=4"));
  CHECK(is_quiet(slurm));
}

TEST_CASE("a task that is alone stays on its node and says so") {
  const Slurm slurm(2);
  const CommandEnd end = slurm.run({"salloc", "-Q", "-N2", "srun", "-N1", "-n1", kMtl, "launch",
                                    "--nproc_per_node", "2", "--", "sh", "-c", "echo $WORLD_SIZE"});
  CAPTURE(end.err);
  CHECK(end.code == 0);
  CHECK(end.out == "2\n");
  CHECK(has(end.err, "the job has 2"));
}

TEST_CASE("a char model trains under srun with one task per node as locally") {
  const Slurm slurm(4);
  write_recipe(slurm, 5);
  REQUIRE(
      slurm.run({kMtl, "launch", "--num_processes", "8", "train.yaml", "run.name=local"}).code ==
      0);
  const CommandEnd end = slurm.run({"srun", "-N4", "--ntasks-per-node=1", kMtl, "launch",
                                    "--nproc_per_node", "2", "train.yaml", "run.name=step"});
  CAPTURE(end.err);
  CHECK(end.code == 0);
  CHECK(losses(slurm, "step") == losses(slurm, "local"));
  CHECK(losses(slurm, "step").size() == 5);
  CHECK(is_quiet(slurm));
}
