// runtime/plan/cluster: machines as numbers.
#include "runtime/plan/forecast/cluster.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <doctest/doctest.h>

using namespace mtl;

TEST_CASE("types of GPU are found by the names that people use") {
  for (const std::string& name : cluster_types()) {
    const Cluster* one = find_cluster(name);
    REQUIRE(one != nullptr);
    CHECK(one->name == name);
    CHECK(one->gpu.bf16 > 0);
    CHECK(one->gpu.memory_rate > 0);
    CHECK(one->gpu.host_rate > 0);
    CHECK(one->near_rate > one->nic_rate);
  }
  CHECK(find_cluster("h100")->name == "h100-80g");
  CHECK(find_cluster("H100-80GB")->name == "h100-80g");
  CHECK(find_cluster("NVIDIA H200")->name == "h200");
  CHECK(find_cluster("a100_40g")->gpu.memory_bytes == 40e9);
  CHECK(find_cluster("nvidia h200")->name == "h200");
  CHECK(find_cluster("h101") == nullptr);
  CHECK(find_cluster("NVIDIA GeForce RTX 4090")->name == "rtx4090");
  CHECK(find_cluster("NVIDIA H100 PCIe") == nullptr);  // of no machine in the table
}

TEST_CASE("GPUs without NVLink reach each other over PCIe") {
  const Cluster& cards = *find_cluster("rtx4090");
  CHECK(cards.gpu.nvlink_rate == 0);
  const GroupLink near = group_link(cards, 4, 1, 8);
  CHECK_FALSE(near.between_nodes);
  CHECK(near.rate == doctest::Approx(31.5e9 * 0.44).epsilon(0.01));
  // Those that read each other's memory are faster than those that go through the host's.
  const Cluster& newer = *find_cluster("rtx-pro-6000");
  CHECK(group_link(newer, 8, 1, 8).rate == doctest::Approx(38e9).epsilon(0.02));
  CHECK(group_link(newer, 8, 1, 8).rate > 1.3 * group_link(*find_cluster("rtx5090"), 8, 1, 8).rate);
  // The machine's one NIC is every GPU's.
  CHECK(group_link(cards, 16, 1, 16).rate < near.rate);
}

TEST_CASE("a group within a node uses NVLink and one over nodes all NICs of its ranks") {
  const Cluster& dgx = *find_cluster("h100-80g");
  const GroupLink near = group_link(dgx, 8, 1, 64);
  CHECK_FALSE(near.between_nodes);
  CHECK(near.rate == doctest::Approx(450e9 * 0.78));
  const GroupLink far = group_link(dgx, 64, 8, 512);  // one rank per node
  CHECK(far.between_nodes);
  CHECK(far.rate == doctest::Approx(50e9 * 0.85));
  CHECK(group_link(dgx, 16, 4, 64).rate == doctest::Approx(2 * 50e9 * 0.85));
  // Eight ranks of a node bring eight NICs, and then NVLink is what limits.
  CHECK(group_link(dgx, 16, 1, 64).rate == doctest::Approx(8 * 50e9 * 0.85));
  CHECK(group_link(*find_cluster("gb200"), 64, 1, 64).between_nodes == false);
}

TEST_CASE("groups that straddle nodes go as fast as the slowest of them") {
  const Cluster& dgx = *find_cluster("h100-80g");
  const double nic = 50e9 * 0.85;
  // 5..9 are on two nodes, 5 6 7 | 8 9, and some group has one rank on a node: 35..39 | 40.
  const GroupLink five = group_link(dgx, 5, 1, 40);
  CHECK(five.between_nodes);
  CHECK(five.rate == doctest::Approx(nic));
  CHECK_FALSE(group_link(dgx, 5, 1, 5).between_nodes);
  CHECK_FALSE(group_link(dgx, 4, 2, 64).between_nodes);
  CHECK(group_link(dgx, 3, 2, 12).rate == doctest::Approx(nic));
  // 0..7 | 8 9.
  CHECK(group_link(dgx, 10, 1, 80).rate == doctest::Approx(2 * nic));
  CHECK(group_link(dgx, 6, 2, 24).rate == doctest::Approx(2 * nic));
  CHECK(all_to_all_time(dgx, 5, 1, 40, 1e9) > 4 * all_to_all_time(dgx, 5, 1, 5, 1e9));
  // By counting, over all groups.
  for (const int stride : {1, 2, 4}) {
    for (int ranks = 2; ranks <= 24; ++ranks) {
      if (stride > std::gcd(8, ranks * stride)) continue;  // some node has one or none
      int fewest = ranks;
      for (int first = 0; first < 8 * ranks * stride; first += ranks * stride) {
        std::map<int, int> on_node;
        for (int i = 0; i < ranks; ++i) ++on_node[(first + i * stride) / 8];
        for (const auto& [node, members] : on_node) fewest = std::min(fewest, members);
      }
      CAPTURE(stride);
      CAPTURE(ranks);
      const GroupLink link = group_link(dgx, ranks, stride, 8 * ranks * stride);
      CHECK(link.between_nodes == (fewest < ranks));
      if (link.between_nodes)
        CHECK(link.rate == doctest::Approx(std::min(450e9 * 0.78, fewest * nic)));
    }
  }
}

TEST_CASE("collectives take what rings take") {
  GroupLink link{.ranks = 4, .rate = 1e9, .alpha = 0};
  CHECK(gather_time(link, 4e9) == doctest::Approx(3));
  CHECK(all_reduce_time(link, 4e9) == doctest::Approx(6));
  link.ranks = 1;
  CHECK(gather_time(link, 4e9) == 0);
  const Cluster& dgx = *find_cluster("h100-80g");
  // Between nodes only what leaves the node goes over the own NIC.
  const double eight = all_to_all_time(dgx, 8, 1, 64, 1e9);
  CHECK(all_to_all_time(dgx, 64, 1, 64, 1e9) > 4 * eight);
  const double far = 1e9 / (50e9 * 0.85) + 8e-6;
  CHECK(send_time(dgx, 2, 8, 16, 1e9) == doctest::Approx(far));
  CHECK(send_time(dgx, 2, 4, 8, 1e9) < far / 5);
  // Four stages of four on two nodes: it is the way in the middle that the others wait for.
  CHECK(send_time(dgx, 4, 4, 16, 1e9) == doctest::Approx(far));
}
