// What pods, mpirun and jsrun have told, as settings of a launch.
#include "launcher/request/surroundings_settings.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "launcher/request/launch_request.h"

using namespace mtl;

namespace {

using Env = std::map<std::string, std::string>;

// The request of `mtl launch` where the environment is this one.
LaunchRequest requested(const Env& env, const FlagValues& flags, Diagnostics& diagnostics) {
  LaunchGiven given;
  given.flags = flags;
  std::vector<std::string> entries;
  for (const auto& [name, value] : env) entries.push_back(fmt::format("{}={}", name, value));
  std::vector<const char*> pointers;
  for (const std::string& entry : entries) pointers.push_back(entry.c_str());
  pointers.push_back(nullptr);
  given.environment = flags_in_environment(pointers.data(), diagnostics);
  const Surroundings around = surroundings_of(
      [&](const char* name) -> const char* {
        const auto at = env.find(name);
        return at == env.end() ? nullptr : at->second.c_str();
      },
      diagnostics);
  settings_of_surroundings(around, given, diagnostics);
  return resolve_launch({}, given, true, diagnostics);
}

// "member 1/4 x8 at train-master-0:23456"
std::string told(const Env& env, const FlagValues& flags = {}) {
  Diagnostics diagnostics;
  const LaunchRequest r = requested(env, flags, diagnostics);
  if (diagnostics.has_errors()) return diagnostics.all()[0].code;
  if (r.mode == LaunchRequest::Mode::local) return fmt::format("local x{}", r.local_ranks);
  return fmt::format("{} {}/{} x{} at {}:{}", r.elastic ? "elastic" : "member", r.machine_rank,
                     r.max_nodes, r.local_ranks, r.address, r.port);
}

FlagValues flag(const std::string& name, const std::string& text) {
  return {{name, FlagValue{{text}, fmt::format("--{}", name)}}};
}

}  // namespace

TEST_CASE("a pod of a PyTorchJob is a machine") {
  const Env pod = {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                   {"RANK", "1"},
                   {"WORLD_SIZE", "32"},
                   {"MASTER_ADDR", "train-master-0"},
                   {"MASTER_PORT", "23456"},
                   {"PET_NODE_RANK", "1"},
                   {"PET_NPROC_PER_NODE", "8"},
                   {"PET_NNODES", "4"}};
  CHECK(told(pod) == "member 1/4 x8 at train-master-0:23456");
  // What a person says wins.
  CHECK(told(pod, flag("main_process_port", "1000")) == "member 1/4 x8 at train-master-0:1000");
  // Elastic: the endpoint says where, and nobody has a rank yet.
  CHECK(told({{"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
              {"PET_NNODES", "2:4"},
              {"PET_NPROC_PER_NODE", "1"},
              {"PET_RDZV_BACKEND", "c10d"},
              {"PET_RDZV_ENDPOINT", "train-worker-0:23456"}}) ==
        "elastic 0/4 x1 at train-worker-0:23456");
  // One that is alone has nobody to meet.
  CHECK(told({{"PET_NNODES", "1"},
              {"PET_NODE_RANK", "0"},
              {"PET_NPROC_PER_NODE", "2"},
              {"MASTER_ADDR", "train-master-0"}}) == "local x2");
}

TEST_CASE("a pod of a TrainJob is a machine") {
  CHECK(told({{"PET_NNODES", "4"},
              {"PET_NPROC_PER_NODE", "2"},
              {"PET_NODE_RANK", "2"},
              {"PET_MASTER_ADDR", "train-node-0-0.train"},
              {"PET_MASTER_PORT", "29500"},
              {"JOB_COMPLETION_INDEX", "2"}}) == "member 2/4 x2 at train-node-0-0.train:29500");
}

TEST_CASE("the index of a pod counts where its pods are one job") {
  const Env pod = {{"JOB_COMPLETION_INDEX", "3"}, {"MTL_NPROC_PER_NODE", "1"}};
  FlagValues together = flag("num_machines", "4");
  together.merge(flag("main_process_ip", "train-0.train"));
  CHECK(told(pod, together) == "member 3/4 x1 at train-0.train:29500");
  // Jobs of their own.
  CHECK(told(pod) == "local x1");
  Env by_variable = pod;
  by_variable["MTL_NUM_MACHINES"] = std::string("4");
  by_variable["MTL_MAIN_PROCESS_IP"] = std::string("a");
  CHECK(told(by_variable) == "member 3/4 x1 at a:29500");
}

TEST_CASE("one task of mpirun or jsrun on each node is a machine") {
  const Env one_per_node = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                            {"OMPI_MCA_ess_base_jobid", "191561729"},
                            {"MTL_NPROC_PER_NODE", "2"}};
  CHECK(told(one_per_node, flag("main_process_ip", "n1")) == "member 1/2 x2 at n1:21729");
  CHECK(told(one_per_node) == "launch.address");
  Env several = one_per_node;
  several["OMPI_COMM_WORLD_LOCAL_SIZE"] = std::string("2");
  CHECK(told(several) == "surroundings.tasks");
  CHECK(told(several, flag("standalone", "true")) == "local x2");
  CHECK(told({{"LSB_JOBID", "77"},
              {"LSB_MCPU_HOSTS", "batch5 1 c1 42 c2 42"},
              {"JSM_NAMESPACE_RANK", "1"},
              {"JSM_NAMESPACE_SIZE", "2"},
              {"JSM_NAMESPACE_LOCAL_RANK", "0"},
              {"JSM_NAMESPACE_LOCAL_SIZE", "1"},
              {"MTL_NPROC_PER_NODE", "6"}}) == "member 1/2 x6 at c1:20077");
}
