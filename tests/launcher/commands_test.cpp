// What each rank of a node executes.
#include "launcher/ranks/commands.h"

#include <cstdlib>

#include <doctest/doctest.h>

#include "launcher/agent/program.h"
#include "launcher/processes.h"

using namespace mtl;

namespace {

NodeLayout second_node() {
  NodeLayout layout;
  layout.num_nodes = 2;
  layout.node_rank = 1;
  layout.world = 5;
  layout.first_rank = 3;
  layout.local_ranks = 2;
  return layout;
}

}  // namespace

TEST_CASE("a program of somebody: a command per rank of the node") {
  JobProgram program;
  program.argv = {"prog", "x"};
  program.env = {{"A", "1"}, {"ROLE_NAME", "mine"}};
  std::vector<RankPlacement> placement(2);
  placement[1].visible_gpus = {"2", "3"};
  placement[1].cpus = {4, 5};
  placement[1].numa = 1;
  placement[1].omp_threads = 7;
  const auto commands = node_commands(program, {}, second_node(), placement, "/tmp/e");
  REQUIRE(commands.size() == 2);
  const WorkerCommand& last = commands[1];
  CHECK(last.rank == 4);
  CHECK(last.local_rank == 1);
  CHECK(last.ranks == 1);
  CHECK(last.argv == std::vector<std::string>{"prog", "x"});
  CHECK(last.cpus == std::vector<int>{4, 5});
  CHECK(last.numa == 1);
  CHECK(last.env.at("RANK") == "4");
  CHECK(last.env.at("OMP_NUM_THREADS") == "7");
  CHECK(last.env.at("CUDA_VISIBLE_DEVICES") == "2,3");
  CHECK(last.env.at("A") == "1");
  CHECK(last.env.at("ROLE_NAME") == "mine");
  CHECK(last.env.at("TORCHELASTIC_ERROR_FILE") == last.error_file.string());
  CHECK(last.error_file.string() == "/tmp/e/rank-00004.error.json");
  CHECK(commands[0].env.count("CUDA_VISIBLE_DEVICES") == 0);
  CHECK(commands[0].env.at("NODE_RANK") == "1");
  CHECK(commands[0].env.count("MTL_TOKEN_FD") == 0);
  CHECK(node_commands(program, {}, second_node(), {}, "")[0].error_file.empty());
}

TEST_CASE("a worker of ours: token, progress of rank 0 only, threads in one process") {
  JobProgram program;
  program.argv = {"mtl", "worker", "dir"};
  program.is_ours = true;
  program.takes_signals = true;
  NodeLayout layout;
  layout.world = layout.local_ranks = 3;
  auto commands = node_commands(program, {}, layout, {}, "");
  REQUIRE(commands.size() == 3);
  for (const WorkerCommand& command : commands) {
    CHECK(command.env.at("MTL_TOKEN_FD") == std::to_string(kTokenFd));
    CHECK((command.env.count("MTL_PROGRESS_FD") == 1) == (command.rank == 0));
    CHECK(command.takes_signals);
  }
  program.threads = true;
  commands = node_commands(program, {}, layout, {}, "");
  REQUIRE(commands.size() == 1);
  CHECK(commands[0].ranks == 3);
  CHECK(commands[0].env.at("MTL_RANK_THREADS") == "3");
  CHECK(commands[0].env.count("MTL_TOKEN_FD") == 0);
}

TEST_CASE("what is inherited from where the job started yields to what the launch decides") {
  JobProgram program;
  program.argv = {"x"};
  program.inherited = {{"OMP_NUM_THREADS", "7"}, {"NCCL_DEBUG", "INFO"}, {"HF_HOME", "/inherited"}};
  program.env = {{"HF_HOME", "/asked"}};
  NodeLayout layout;
  layout.omp_threads = 3;
  const auto commands = node_commands(program, {}, layout, {}, "");
  REQUIRE(commands.size() == 1);
  CHECK(commands[0].env.at("OMP_NUM_THREADS") == "3");
  CHECK(commands[0].env.at("NCCL_DEBUG") == "INFO");
  CHECK(commands[0].env.at("HF_HOME") == "/asked");
}

TEST_CASE("variables that describe a scheduler's process are taken out of the environment") {
  for (const char* name : {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "PMIX_RANK",
                           "OMPI_COMM_WORLD_RANK", "SLURM_JOB_ID"}) {
    setenv(name, "1", 1);
  }
  JobProgram program;
  program.argv = {"sh"};
  program.env = {{"PMIX_RANK", "kept"}};  // asked for with --env
  const auto commands = node_commands(program, {}, {}, {}, "");
  const Launch launch = prepare_launch(commands[0]);
  const auto has = [&](const std::string& entry) {
    return std::any_of(launch.env.begin(), launch.env.end(),
                       [&](const std::string& text) { return text.starts_with(entry); });
  };
  CHECK_FALSE(has("SLURM_PROCID="));
  CHECK_FALSE(has("SLURM_STEP_NUM_TASKS="));
  CHECK_FALSE(has("OMPI_COMM_WORLD_RANK="));
  CHECK(has("PMIX_RANK=kept"));
  CHECK(has("SLURM_JOB_ID=1"));  // of the job, not of a process
  for (const char* name : {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "PMIX_RANK",
                           "OMPI_COMM_WORLD_RANK", "SLURM_JOB_ID"}) {
    unsetenv(name);
  }
}
