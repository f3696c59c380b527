// What srun is called with to start the agents of a job, and the words between it and them.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/job/job.h"
#include "launcher/request/launch_surroundings.h"
#include "launcher/slurm/chain.h"
#include "launcher/slurm/control.h"
#include "launcher/slurm/gpus.h"
#include "launcher/slurm/step.h"
#include "support/temp_dir.h"
#include "support/variable.h"

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
  request.allocation.shares = {{.nodes = nodes}};
  request.min_nodes = request.max_nodes = nodes;
  return request;
}

std::string line_of(const LaunchRequest& request, const std::string& folder = "/work/me") {
  std::string lines;
  for (const AgentStep& step : agent_steps(request, folder, {"/opt/mtl", "agent"})) {
    lines += fmt::format("{}{}", lines.empty() ? "" : "\n", fmt::join(step.argv, " "));
  }
  return lines;
}

}  // namespace

TEST_CASE("srun: a fixed number of nodes ends together and an elastic one does not") {
  LaunchRequest request = request_of(4);
  request.allocation.shares = {{.nodes = 4, .gpus_per_node = 8, .cpus_per_node = 96}};
  CHECK(line_of(request) ==
        "srun --nodes=4 --ntasks=4 --ntasks-per-node=1 --cpus-per-task=96 --gpus-per-node=8 "
        "--kill-on-bad-exit=1 --mpi=none --unbuffered --export=ALL /opt/mtl agent");
  request.min_nodes = 3;
  CHECK(line_of(request).find("--no-kill --kill-on-bad-exit=0 --wait=0") != std::string::npos);
  request.config.use_cpu = true;  // what is said of GPUs may then be of the first node alone
  CHECK(line_of(request).find("--gpus") == std::string::npos);
}

TEST_CASE("srun: fewer nodes than the job has are named") {
  LaunchRequest request = request_of(4);
  request.allocation.gpus_of_nodes = {2, 3, 1, 2};
  request.allocation.shares = {{.nodes = 4, .gpus = 8}};
  CHECK(line_of(request).find("--ntasks-per-node=1 --gpus=8") != std::string::npos);
  request.hosts.resize(2);
  CHECK(line_of(request).find("--nodelist=n1,n2 --gpus=5") != std::string::npos);
  request.allocation.gpus_of_nodes.clear();
  CHECK(line_of(request).find("--gpus") == std::string::npos);
}

TEST_CASE("srun: each component of a heterogeneous job has its own options") {
  LaunchRequest request = request_of(3);
  request.allocation.shares = {{.nodes = 2, .gpus_per_node = 2, .cpus_per_node = 8},
                               {.nodes = 1, .gpus = 8, .cpus_differ = true}};
  const std::string rest =
      "--kill-on-bad-exit=1 --mpi=none --unbuffered --export=ALL /opt/mtl agent";
  CHECK(line_of(request) ==
        "srun --het-group=0 --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=8 "
        "--gpus-per-node=2 " +
            rest +
            "\nsrun --het-group=1 --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpu-bind=none "
            "--gpus=8 " +
            rest);
  // Without the first two nodes.
  request.hosts.erase(request.hosts.begin(), request.hosts.begin() + 2);
  CHECK(line_of(request).starts_with("srun --het-group=1 --nodes=1 "));
  CHECK(line_of(request).find("\nsrun") == std::string::npos);
  CHECK(agent_steps(request, "", {"agent"}).front().nodes == 1);
}

TEST_CASE("scontrol tells how many GPUs each node of a job has") {
  using Counts = std::map<std::string, int>;
  CHECK(gpus_in("JobId=3 NumNodes=3 NodeList=n[1-3]\n   JOB_GRES=gpu:6\n"
                "     Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:4(IDX:0-3)\n"
                "     Nodes=n[2-3] CPU_IDs=0-1,4 Mem=0 GRES=gpu:1(IDX:0)\n   MinCPUsNode=1\n") ==
        Counts{{"n1", 4}, {"n2", 1}, {"n3", 1}});
  CHECK(gpus_in("  Nodes=a CPU_IDs=0 Mem=0 GRES=gpu:a100:2(IDX:0,3),gpu:v100:1(IDX:1),shard:8\n"
                "  Nodes=b CPU_IDs=0 Mem=0 GRES=\n  Nodes=c CPU_IDs=0 Mem=0 GRES=mps:100\n") ==
        Counts{{"a", 3}, {"b", 0}, {"c", 0}});
  CHECK(gpus_in("JobId=3 NumNodes=3\n").empty());
  CHECK(gpus_in("     Nodes=n1 CPU_IDs=0 Mem=0 GRES_IDX=gpu(IDX:0-1)\n").empty());
}

TEST_CASE("SLURM is asked for GPUs where they count, and a node without one is named") {
  const test::TempDir dir;
  const std::string script =
      dir.file("scontrol",
               "#!/bin/sh\n: > \"$0.asked\"\necho '   Nodes=n1 GRES=gpu:2(IDX:0-1)'\n"
               "echo '   Nodes=n2 GRES='\n");
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  const test::Variable path("PATH", dir.path().string() + ":/usr/bin:/bin");
  const test::Variable conf("SLURM_CONF", "/dev/null"), id("SLURM_JOB_ID", "7");
  const test::Variable list("SLURM_JOB_NODELIST", "n[1-2]"), count("SLURM_JOB_NUM_NODES", "2");
  const test::Variable gpus("SLURM_GPUS", "2");
  const auto resolved = [](const char* flag, const char* text, Diagnostics& diagnostics) {
    LaunchGiven given;
    given.flags[flag] = FlagValue{{text}, std::string("--") + flag};
    read_surroundings(given, diagnostics);
    return resolve_launch({}, given, true, diagnostics);
  };
  Diagnostics on_cpu;
  CHECK(resolved("cpu", "true", on_cpu).hosts.size() == 2);
  CHECK_FALSE(std::filesystem::exists(dir / "scontrol.asked"));
  Diagnostics on_gpus;
  resolved("num_machines", "2", on_gpus);
  CHECK(std::filesystem::exists(dir / "scontrol.asked"));
  std::string said;
  for (const Diagnostic& one : on_gpus.all()) said += one.code + ": " + one.what + "\n";
  CHECK_MESSAGE(said.find("launch.nodes: --num_machines asks for 2 nodes, and SLURM job 7 has 1 "
                          "with GPUs: n2 has none") != std::string::npos,
                said);
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
