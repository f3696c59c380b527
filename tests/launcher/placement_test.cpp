// Which GPU, CPUs and threads a rank gets, over made-up nodes; and this machine's own.
#include "launcher/ranks/placement.h"

#include <algorithm>
#include <set>

#include <doctest/doctest.h>

#include "launcher/ranks/worker_env.h"

using namespace mtl;

namespace {

using Ints = std::vector<int>;
using Words = std::vector<std::string>;

// Two sockets of four cores with two hyper-threads each, four GPUs, the first two on socket 1.
NodeHardware big_node() {
  NodeHardware node;
  node.cores = 16;
  node.numa = {{0, {0, 1, 2, 3}, {0, 1, 2, 3, 8, 9, 10, 11}},
               {1, {4, 5, 6, 7}, {4, 5, 6, 7, 12, 13, 14, 15}}};
  for (int i = 0; i < 4; ++i) {
    node.gpus.push_back({.id = std::to_string(i),
                         .pci = "",
                         .numa = i < 2 ? 1 : 0,
                         .uuid = "GPU-" + std::string(8, static_cast<char>('a' + i))});
  }
  return node;
}

struct Placed {
  std::vector<RankPlacement> ranks;
  Words codes;
  std::string words;
};

Placed placed(const NodeHardware& node, const PlacementRequest& request) {
  Diagnostics diagnostics;
  Placed result;
  result.ranks = place_ranks(node, request, diagnostics);
  for (const Diagnostic& diagnostic : diagnostics.all()) {
    result.codes.push_back(diagnostic.code);
    result.words += diagnostic.what + " / " + diagnostic.help + "\n";
  }
  return result;
}

Words ids(const std::vector<GpuDevice>& gpus) {
  Words names;
  for (const GpuDevice& gpu : gpus) names.push_back(gpu.id);
  return names;
}

}  // namespace

TEST_CASE("GPUs that claim to reach each other's memory and do not") {
  const auto node = [](int gpus, const std::string& name) {
    std::vector<GpuDevice> all;
    for (int i = 0; i < gpus; ++i)
      all.push_back({.id = std::to_string(i), .pci = "", .name = name});
    return all;
  };
  const auto rtx = node(2, "NVIDIA GeForce RTX 4090");
  CHECK(lacks_peer_access(rtx, "535.183.01"));
  CHECK(lacks_peer_access(rtx, "550.40.06"));
  CHECK_FALSE(lacks_peer_access(rtx, "550.40.07"));
  CHECK_FALSE(lacks_peer_access(rtx, "580.65.06"));
  CHECK_FALSE(lacks_peer_access(rtx, ""));
  CHECK_FALSE(lacks_peer_access(node(1, "NVIDIA GeForce RTX 4090"), "535.183.01"));
  CHECK_FALSE(lacks_peer_access(node(8, "NVIDIA H100 80GB HBM3"), "535.183.01"));
}

TEST_CASE("without a wish every rank sees what is there and LOCAL_RANK picks") {
  const Placed result = placed(big_node(), {.ranks = 4});
  CHECK(result.codes.empty());
  for (size_t rank = 0; rank < 4; ++rank) {
    CHECK(result.ranks[rank].visible_gpus.empty());
    CHECK(result.ranks[rank].gpu->id == std::to_string(rank));
    CHECK(result.ranks[rank].cpus.empty());
    CHECK(result.ranks[rank].numa == -1);
    CHECK(result.ranks[rank].omp_threads == 4);
  }
  // More ranks than GPUs are no error as long as nobody asks for GPUs.
  CHECK(placed(big_node(), {.ranks = 9}).codes.empty());
  CHECK(placed(big_node(), {.ranks = 40}).ranks[0].omp_threads == 1);
  CHECK(placed(big_node(), {.ranks = 4, .omp_threads = 3}).ranks[0].omp_threads == 3);
  CHECK_FALSE(placed(big_node(), {.ranks = 1, .use_cpu = true}).ranks[0].gpu.has_value());
}

TEST_CASE("gpu_ids count what is visible and name what is not there") {
  Placed result = placed(big_node(), {.ranks = 2, .gpu_ids = "3,1"});
  CHECK(result.codes.empty());
  for (const RankPlacement& rank : result.ranks) CHECK(rank.visible_gpus == Words{"3", "1"});
  CHECK(result.ranks[0].gpu->id == "3");
  CHECK(result.ranks[1].gpu->id == "1");

  // The scheduler gave 2 and 3: number 0 of these is the device that CUDA calls 2.
  NodeHardware node = big_node();
  node.gpus = visible_gpus(node.gpus, "2,3");
  CHECK(placed(node, {.ranks = 1, .gpu_ids = "0"}).ranks[0].visible_gpus == Words{"2"});
  result = placed(node, {.ranks = 1, .gpu_ids = "2"});
  CHECK(result.codes == Words{"placement.gpu_id"});
  CHECK(result.words.find("2 GPUs (2, 3)") != std::string::npos);

  CHECK(placed(big_node(), {.ranks = 1, .gpu_ids = "GPU-cccc"}).ranks[0].gpu->id == "2");
  CHECK(placed(big_node(), {.ranks = 1, .gpu_ids = "GPU-x"}).codes == Words{"placement.gpu_id"});
  CHECK(placed(big_node(), {.ranks = 1, .gpu_ids = "1,GPU-bbbbbbbb"}).codes ==
        Words{"placement.gpu_duplicate"});
}

TEST_CASE("fewer GPUs than ranks is an error with both numbers where GPUs are asked for") {
  Placed result = placed(big_node(), {.ranks = 5, .need_gpu = true});
  CHECK(result.codes == Words{"placement.gpu_count"});
  CHECK(result.words.find("5 ranks") != std::string::npos);
  CHECK(result.words.find("4 GPUs visible") != std::string::npos);
  result = placed(big_node(), {.ranks = 3, .gpu_ids = "0,1"});
  CHECK(result.codes == Words{"placement.gpu_count"});
  CHECK(result.words.find("2 GPUs in gpu_ids") != std::string::npos);
  CHECK(placed({}, {.ranks = 1, .need_gpu = true}).codes == Words{"placement.gpu_count"});
  CHECK(placed(big_node(), {.ranks = 4, .need_gpu = true}).codes.empty());
  CHECK(placed({}, {.ranks = 2, .use_cpu = true, .need_gpu = true}).codes.empty());
}

TEST_CASE("numa binding follows the GPU's node and without GPUs spreads evenly") {
  Placed result = placed(big_node(), {.ranks = 4, .binding = Binding::numa});
  const Ints low = {0, 1, 2, 3, 8, 9, 10, 11}, high = {4, 5, 6, 7, 12, 13, 14, 15};
  CHECK(result.ranks[0].numa == 1);
  CHECK(result.ranks[0].cpus == high);
  CHECK(result.ranks[1].cpus == high);
  CHECK(result.ranks[2].cpus == low);
  CHECK(result.ranks[3].numa == 0);

  result = placed(big_node(), {.ranks = 3, .use_cpu = true, .binding = Binding::numa});
  CHECK(result.ranks[0].numa == 0);
  CHECK(result.ranks[1].numa == 0);
  CHECK(result.ranks[2].numa == 1);
}

TEST_CASE("core binding gives each rank cores of its own on its node") {
  Placed result = placed(big_node(), {.ranks = 4, .binding = Binding::core});
  CHECK(result.ranks[0].cpus == Ints{4, 5});
  CHECK(result.ranks[1].cpus == Ints{6, 7});
  CHECK(result.ranks[2].cpus == Ints{0, 1});
  CHECK(result.ranks[3].cpus == Ints{2, 3});
  // More ranks than cores share.
  result = placed(big_node(), {.ranks = 16, .use_cpu = true, .binding = Binding::core});
  std::multiset<int> used;
  for (const RankPlacement& rank : result.ranks) {
    REQUIRE(rank.cpus.size() == 1);
    used.insert(rank.cpus[0]);
  }
  for (int core = 0; core < 8; ++core) CHECK(used.count(core) == 2);
}

TEST_CASE("a GPU whose node has no CPU for this process leaves its rank unbound and says so") {
  NodeHardware node = big_node();
  node.numa[1].cpus.clear();
  node.numa[1].cores.clear();
  const Placed result = placed(node, {.ranks = 4, .binding = Binding::numa});
  CHECK(result.codes == Words{"placement.numa"});
  CHECK(result.ranks[0].cpus.empty());
  CHECK(result.ranks[0].numa == -1);
  CHECK(result.ranks[2].numa == 0);
}

TEST_CASE("CUDA_VISIBLE_DEVICES is read as CUDA reads it") {
  const auto installed = big_node().gpus;
  CHECK(ids(visible_gpus(installed, nullptr)).size() == 4);
  CHECK(visible_gpus(installed, "").empty());
  CHECK(visible_gpus(installed, "-1").empty());
  CHECK(ids(visible_gpus(installed, "3, 0")) == Words{"3", "0"});
  CHECK(ids(visible_gpus(installed, "1,9,2")) == Words{"1"});
  CHECK(ids(visible_gpus(installed, "GPU-bbbbbbbb,0")) == Words{"GPU-bbbbbbbb", "0"});
  CHECK(visible_gpus(installed, "GPU-bbbb")[0].numa == 1);
  CHECK(ids(visible_gpus(installed, "MIG-1/2/3")) == Words{"MIG-1/2/3"});
  CHECK(ids(visible_gpus(installed, "GPU-zzz,0")).empty());
}

TEST_CASE("this machine is plausible") {
  const NodeHardware quick = inspect_hardware(false);
  CHECK(quick.numa.empty());
  CHECK(quick.cores == allowed_cores());
  const NodeHardware node = inspect_hardware(true);
  CHECK(node.gpus.size() == quick.gpus.size());
  REQUIRE_FALSE(node.numa.empty());
  std::set<int> cpus;
  for (const NumaNode& numa : node.numa) {
    CHECK(numa.os_index >= 0);
    CHECK(numa.cores.size() <= numa.cpus.size());
    for (int cpu : numa.cpus) CHECK(cpus.insert(cpu).second);
    for (int core : numa.cores) CHECK(std::count(numa.cpus.begin(), numa.cpus.end(), core) == 1);
  }
  CHECK(static_cast<int>(cpus.size()) >= node.cores);
}
