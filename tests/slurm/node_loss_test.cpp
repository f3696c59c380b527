// Nodes of a SLURM job that die, and jobs whose time is over.
#include <doctest/doctest.h>

#include "slurm/slurm_run.h"

using namespace mtl::test;
using std::chrono::seconds;

namespace {

// From a shell of salloc. The job itself ends only when SLURM has noticed that a node is gone.
Command elastic(const Slurm& slurm, const std::string& name, const std::string& nodes) {
  return slurm.start({"salloc", "-Q", "-N4", "--no-kill", kMtl, "launch", "--nproc_per_node", "2",
                      "--nnodes", nodes, "train.yaml", "run.name=" + name});
}

// A node with a rank.
int node_at_work(const Slurm& slurm) {
  const std::string conf = "SLURM_CONF=" + (slurm.dir() / "slurm.conf").string();
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc", gone)) {
    const std::string environment = file_text(entry.path() / "environ");
    const std::string name = "SLURMD_NODENAME=n";
    const size_t at = environment.find(name);
    if (at == std::string::npos || !has(environment, conf)) continue;
    if (has(file_text(entry.path() / "cmdline"), "worker")) {
      return std::stoi(environment.substr(at + name.size()));
    }
  }
  return 0;
}

}  // namespace

TEST_CASE("a killed node of 3 to 4 is missed by nobody") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  Slurm slurm(4);
  write_recipe(slurm, 600);
  Command launch = elastic(slurm, "fewer", "3:4");
  REQUIRE_MESSAGE(reaches_step(slurm, "fewer", 10), launch.err());
  slurm.kill_node(3);
  const CommandEnd end = launch.wait(seconds(240));
  CAPTURE(end.err);
  CHECK(end.code == 0);
  CHECK(losses(slurm, "fewer").size() == 600);
  CHECK(has(end.err, "n3 was lost"));
  CHECK(has(end.err, "going on without n3"));
  CHECK(is_quiet(slurm));
}

TEST_CASE("a spare node takes the place of one that is killed") {
  Slurm slurm(4);
  write_recipe(slurm, 600);
  Command launch = elastic(slurm, "spare", "2:3");
  REQUIRE_MESSAGE(reaches_step(slurm, "spare", 10), launch.err());
  // Who came last waits; any of the others may be lost.
  const int node = node_at_work(slurm);
  REQUIRE(node > 0);
  slurm.kill_node(node);
  const CommandEnd end = launch.wait(seconds(240));
  CAPTURE(end.out);
  CAPTURE(end.err);
  CHECK(end.code == 0);
  // Its agent may still have told of a worker or a keeper that was killed before it.
  const std::string name = "n" + std::to_string(node);
  const bool told =
      has(end.err, "going on without " + name) || has(end.err, name + ": the process");
  CHECK(told);
  // Three nodes again: the layout is that of the beginning.
  const std::string all = end.out + end.err;
  const std::string layout = "6 processes";
  CHECK(all.find(layout) != std::string::npos);
  CHECK(all.rfind(layout) != all.find(layout));
  CHECK(is_quiet(slurm));
}

TEST_CASE("a killed node of a fixed number ends the run and is named") {
  Slurm slurm(3);
  write_recipe(slurm, 100000);
  Command launch = slurm.start({"salloc", "-Q", "-N3", "--no-kill", kMtl, "launch",
                                "--nproc_per_node", "2", "train.yaml", "run.name=fixed"});
  REQUIRE_MESSAGE(reaches_step(slurm, "fixed", 5), launch.err());
  slurm.kill_node(2);
  const CommandEnd end = launch.wait(seconds(180));
  CAPTURE(end.err);
  CHECK(end.code == 1);
  CHECK(has(end.err, "error[launch.node_lost]: node 1 (n2) was lost"));
  CHECK(is_quiet(slurm));
}

TEST_CASE("a batch job that loses a node of a fixed number is queued again") {
  Slurm slurm(3);
  write_recipe(slurm, 100000);
  // SLURM signals the whole job, and by chance before the answer is here: now always.
  write_text(slurm, "scontrol", "#!/bin/sh\n/usr/bin/scontrol \"$@\" || exit\nsleep 0.5\n");
  fs::permissions(slurm.work() / "scontrol", fs::perms::owner_all);
  const std::string job =
      submit(slurm, "job.sh", {"-N3", "--requeue", "--no-kill"},
             "PATH=$PWD:$PATH exec " + kMtl + " launch train.yaml run.name=again");
  const auto said = [&] { return file_text(slurm.work() / "job.sh.out"); };
  REQUIRE_MESSAGE(reaches_step(slurm, "again", 5), said());
  slurm.kill_node(3);
  for (int i = 0; i < 3600 && !has(said(), "is queued again"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  CAPTURE(said());
  CHECK(has(said(), "error[launch.node_lost]: node 2 (n3) was lost"));
  CHECK(has(said(), "SLURM job " + job + " is queued again"));
  CHECK(is_quiet(slurm));
}

TEST_CASE("the time limit: a warning before it and the job is queued again") {
  Slurm slurm(2);
  write_recipe(slurm, 100000);
  const std::string job =
      submit(slurm, "job.sh", {"-N2", "--requeue", "--time=1", "--signal=B:USR2@50"},
             "exec " + kMtl + " launch train.yaml run.name=timed");
  const auto said = [&] { return file_text(slurm.work() / "job.sh.out"); };
  REQUIRE_MESSAGE(reaches_step(slurm, "timed", 1), said());
  CHECK(slurm.reaches(job, {"PENDING"}, seconds(240)));
  CAPTURE(said());
  CHECK(has(said(), "SIGUSR2: asked the job to stop"));
  CHECK(has(said(), "stopped with a complete checkpoint"));
  CHECK(has(said(), "is queued again"));
  CHECK(is_quiet(slurm));
}

TEST_CASE("PyTorch's DistributedDataParallel on four nodes needs no MASTER_ADDR") {
  Slurm slurm(4);
  if (slurm.run({"/usr/bin/python3", "-c", "import torch"}).code != 0) {
    MESSAGE("no PyTorch here");
    return;
  }
  const std::string script = std::string(MTL_SOURCE_DIR) + "/tests/clients/ddp.py";
  const std::map<std::string, std::string> env = {{"GLOO_SOCKET_IFNAME", "lo"}};
  const auto steps = [](const std::string& out) {
    std::string lines;
    std::istringstream in(out);
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with("step ")) lines += line + "\n";
    }
    return lines;
  };
  const CommandEnd here = slurm.run(
      {kMtl, "launch", "--num_processes", "4", "--no_python", "--", "/usr/bin/python3", script},
      env);
  CAPTURE(here.err);
  REQUIRE(here.code == 0);
  const CommandEnd end =
      slurm.run({"salloc", "-Q", "-N4", kMtl, "launch", "--", "/usr/bin/python3", script}, env);
  CAPTURE(end.err);
  CHECK(end.code == 0);
  CHECK(steps(end.out) == steps(here.out));
  CHECK(steps(end.out).size() > 100);
  CHECK(is_quiet(slurm));
}
