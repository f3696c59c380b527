// What srun is called with to start the agents of a job, and the words between it and them.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/job.h"
#include "launcher/slurm/chain.h"
#include "launcher/slurm/control.h"
#include "launcher/slurm/step.h"
#include "support/temp_dir.h"

using namespace mtl;

namespace {

LaunchRequest request_of(int nodes) {
  LaunchRequest request;
  request.mode = LaunchRequest::Mode::allocation;
  for (int i = 1; i <= nodes; ++i) {
    Host host;
    host.name = fmt::format("n{}", i);
    request.hosts.push_back(host);
    request.allocation.node_names.push_back(host.name);
  }
  request.allocation.nodes = nodes;
  request.min_nodes = request.max_nodes = nodes;
  return request;
}

std::string line_of(const LaunchRequest& request, const std::string& folder = "/work/me") {
  return fmt::format("{}", fmt::join(srun_arguments(request, folder, {"/opt/mtl", "agent"}), " "));
}

}  // namespace

TEST_CASE("srun: a fixed number of nodes ends together and an elastic one does not") {
  LaunchRequest request = request_of(4);
  request.allocation.cpus_per_node = 96;
  request.allocation.gpus_per_node = 8;
  CHECK(line_of(request) ==
        "srun --nodes=4 --ntasks=4 --ntasks-per-node=1 --cpus-per-task=96 --gpus-per-node=8 "
        "--kill-on-bad-exit=1 --mpi=none --unbuffered --export=ALL /opt/mtl agent");
  request.min_nodes = 3;
  CHECK(line_of(request).find("--no-kill --kill-on-bad-exit=0 --wait=0") != std::string::npos);
}

TEST_CASE("srun: fewer nodes than the job has are named") {
  LaunchRequest request = request_of(2);
  request.allocation.nodes = 4;
  CHECK(line_of(request).find("--nodelist=n1,n2") != std::string::npos);
}

TEST_CASE("srun: options of the user come last and containers get the working directory") {
  LaunchRequest request = request_of(2);
  request.slurm["srun"] = {"--network=sn_all", "--mpi=pmix"};
  CHECK(line_of(request).ends_with("--network=sn_all --mpi=pmix /opt/mtl agent"));
  request.slurm.clear();
  request.slurm["container"] = {"nvcr.io#nvidia/pytorch:24.05"};
  CHECK(line_of(request).find("--container-image=nvcr.io#nvidia/pytorch:24.05 "
                              "--container-mounts=/work/me:/work/me --container-workdir=/work/me "
                              "/opt/mtl agent") != std::string::npos);
  request.slurm["container_mounts"] = {"/data:/data:ro,/work"};
  CHECK(line_of(request).find("--container-mounts=/data:/data:ro,/work ") != std::string::npos);
  request.slurm["container_runtime"] = {"apptainer"};
  request.slurm["srun"] = {"--qos=high"};
  CHECK(line_of(request).ends_with(
      "--qos=high apptainer exec --nv --bind /data:/data:ro --bind /work --pwd /work/me "
      "nvcr.io#nvidia/pytorch:24.05 /opt/mtl agent"));
  request.config.use_cpu = true;
  CHECK(line_of(request).find("--nv") == std::string::npos);
  request.slurm["container_runtime"] = {"docker"};
  CHECK_THROWS_AS(line_of(request), Error);
}

TEST_CASE("an agent's call comes back as it went and nothing else is one") {
  const AgentCall call{.token = "t0k\"en", .port = 23456, .addresses = {"10.0.0.1", "fd00::1"}};
  std::string line = encode_agent_call(call);
  REQUIRE(line.ends_with('\n'));
  line.pop_back();
  CHECK(line.find('\n') == std::string::npos);
  const auto back = decode_agent_call(line);
  REQUIRE(back);
  CHECK(back->token == call.token);
  CHECK(back->port == call.port);
  CHECK(back->addresses == call.addresses);
  for (const char* other : {"", "mtl-agent 1", "mtl-agent 1 {", "mtl-agent 2 {}", "hello",
                            "mtl-agent 1 {\"token\":\"\",\"port\":1,\"addresses\":[]}",
                            "mtl-agent 1 {\"token\":\"x\",\"port\":70000000,\"addresses\":3}"}) {
    CHECK_FALSE(decode_agent_call(other));
  }
}

TEST_CASE("a chain counts the jobs that ended at the same step in a row") {
  const test::TempDir folder;
  const auto file = folder.path() / "chain.jsonl";
  CHECK(jobs_at_step(file, "1", 40) == 1);
  CHECK(jobs_at_step(file, "1", 40) == 2);
  CHECK(jobs_at_step(file, "1", 60) == 1);
  CHECK(jobs_at_step(file, "2", 60) == 2);
  CHECK(jobs_at_step(file, "2", 60) == 3);
  CHECK(jobs_at_step(folder.path() / "no" / "where", "1", 1) == 1);
}

TEST_CASE("a chain that cannot go on says why") {
  Surroundings around;
  around.job_id = "12_3";
  CHECK(array_task(around) == "3");
  CHECK_FALSE(continue_job(around, "none", "").trouble);
  const ChainLink successor = continue_job(around, "dependency", "");
  REQUIRE(successor.trouble);
  CHECK(successor.trouble->code == "slurm.successor");
  const char* path = std::getenv("PATH");
  const std::string before = path != nullptr ? path : "";
  setenv("PATH", "/nowhere", 1);
  const ChainLink requeue = continue_job(around, "requeue", "");
  setenv("PATH", before.c_str(), 1);
  REQUIRE(requeue.trouble);
  CHECK(requeue.trouble->code == "slurm.requeue");
  CHECK(requeue.trouble->notes.front() == "there is no such program in PATH");
}

TEST_CASE("fields of scontrol are found by their whole names") {
  CHECK(control_field("NodeName=n1 Arch=x NodeAddr=10.0.0.1 Os=a", "NodeAddr") == "10.0.0.1");
  CHECK(control_field("XNodeAddr=1\n   NodeAddr=2\n", "NodeAddr") == "2");
  CHECK(control_field("NodeName=n1", "NodeAddr").empty());
  CHECK(control_field("JobId=1 JobName=my own job Reason=None Command=(null)", "JobName") ==
        "my own job");
  CHECK(control_field("JobId=1 Reason=None Command=(null)", "Reason").empty());
  CHECK(control_field("JobId=1 Command=/a b/job.sbatch", "Command") == "/a b/job.sbatch");
}
