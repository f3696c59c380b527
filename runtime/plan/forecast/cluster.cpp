#include "runtime/plan/forecast/cluster.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "common/text.h"

namespace mtl {

namespace {

constexpr double kGb = 1e9;

struct Row {
  const char *name, *title, *gpu;
  int multiprocessors, per_node, domain;
  double nic;           // GB/s per GPU and direction
  double memory, rate;  // GB and GB/s where they differ from the GPU's; 0 = the same
  double matmul, fp8, attention_forward, attention_backward;
  double watts_share;  // power limit against the data sheet's
  double pcie_share;   // of its PCIe's rate that a ring reaches, where there is no NVLink
};

// Data sheets: multiprocessors of each model (V100: 2020-01; A100: 2021-06; H100: 2022-10; H200:
// 2024-11; DGX B200: 2024-03; GB200 NVL72: 2024-03); NVLink is what the catalogue of GPUs says of
// the model. NICs: DGX-1V and DGX-2 class 4 x 100 Gb/s, DGX A100 8 x 200 Gb/s, DGX H100 and later 8
// x 400 Gb/s, GB200 400 Gb/s per GPU. h100-96g-500w is the Grand Teton of torchtitan's tables:
// HBM2e, 2.4 TB/s, 500 of 700 W.
//
// The H100's shares are those of this program on an H200, the same GPU with other memory, as far as
// its power limit is concerned: `matmul` and `fp8` calibrated on one step each, of Llama 3 8B's
// layers with sequences of 2048 (docs/benchmarks/gpu-h200.md), attention as measured alone before
// its backward was one kernel: what that has won since is what the next card was slower by. Later
// generations take them. The A100's `matmul` is calibrated on a published row (docs/benchmarks/
// planner.md), 530 B with selective recompute of arXiv 2205.05198, its attention is that of
// FlashAttention-2 (arXiv 2307.08691) for causal masks and heads of 128.
//
// GPUs without NVLink reach each other over PCIe. A ring of eight was measured at 28 of 63 GB/s
// where GeForce drivers send everything through the host's memory (RTX 5090: NVIDIA/nccl issue
// 1639), and at 38 to 41 where GPUs read each other's (RTX PRO 6000: the measurements collected in
// voipmonitor/rtx6kpro). Three more constants are calibrated on llmq's benchmarks of Qwen2.5: the
// `matmul` of the RTX 4090 on 1.5B (it clocks higher than its data sheet says, and sums in f32 at
// half the rate that its power would allow), `matmul` and `fp8` of the RTX PRO 6000 on 7B. The RTX
// 5090 takes the RTX 4090's, and servers' GPUs, which their power limits, what Megatron-Core
// reaches on H100s. Machines of eight with a NIC of 100 Gb/s; with L40S of 400 Gb/s (Amazon's
// g6e.48xlarge; g5 and g6 have 100).
constexpr Row kRows[] = {
    {"v100", "V100 32 GB", "", 80, 8, 8, 6.25, 32, 900, 0.72, 0, 0.45, 0.35, 1, 0},
    {"a100-40g", "A100 40 GB", "a100-40gb", 108, 8, 8, 25, 0, 0, 0.80, 0, 0.60, 0.52, 1, 0},
    {"a100-80g", "A100 80 GB", "a100", 108, 8, 8, 25, 0, 0, 0.752, 0, 0.60, 0.52, 1, 0},
    {"a10", "A10 24 GB", "a10", 72, 8, 8, 1.5625, 0, 0, 0.53, 0, 0.50, 0.42, 1, 0.60},
    {"l4", "L4 24 GB", "l4", 58, 8, 8, 1.5625, 0, 0, 0.53, 0.50, 0.50, 0.42, 1, 0.60},
    {"l40s", "L40S 48 GB", "l40s", 142, 8, 8, 6.25, 0, 0, 0.53, 0.50, 0.50, 0.42, 1, 0.60},
    {"rtx4090", "RTX 4090 24 GB", "rtx4090", 128, 8, 8, 1.5625, 0, 0, 1.06, 1.06, 0.80, 0.70, 1,
     0.44},
    {"h100-80g", "H100 80 GB", "h100", 132, 8, 8, 50, 0, 0, 0.705, 0.66, 0.60, 0.40, 1, 0},
    {"h100-96g-500w", "H100 96 GB (500 W)", "h100", 132, 8, 8, 50, 96, 2400, 0.705, 0.66, 0.60,
     0.40, 500.0 / 700.0, 0},
    {"h200", "H200 141 GB", "h200", 132, 8, 8, 50, 0, 0, 0.705, 0.66, 0.60, 0.40, 1, 0},
    {"b200", "B200 180 GB", "b200", 148, 8, 8, 50, 0, 0, 0.705, 0.66, 0.60, 0.40, 1, 0},
    {"gb200", "GB200 186 GB", "b200", 148, 4, 72, 50, 186, 8000, 0.705, 0.66, 0.60, 0.40, 1, 0},
    {"rtx5090", "RTX 5090 32 GB", "rtx5090", 170, 8, 8, 1.5625, 0, 0, 1.06, 1.06, 0.80, 0.70, 1,
     0.44},
    {"rtx-pro-6000", "RTX PRO 6000 96 GB", "rtx-pro-6000", 188, 8, 8, 1.5625, 0, 0, 0.80, 0.74,
     0.60, 0.50, 1, 0.60},
};

// Of an H100: `matmul` calibrated on the 177 B row of Megatron-Core's table; attention as measured
// by FlashAttention-3's paper (arXiv 2407.08608) of FlashAttention-2 and cuDNN for causal masks and
// heads of 128; fp8: half of the peak, as cuBLASLt reaches with scaled inputs.
constexpr KernelShares kOthersOnH100 = {0.53, 0.50, 0.50, 0.42};

std::vector<Cluster> make_clusters() {
  std::vector<Cluster> all;
  for (const Row& row : kRows) {
    Cluster one;
    one.name = row.name;
    one.title = row.title;
    if (const GpuModel* gpu = find_gpu(row.gpu)) one.gpu = *gpu;
    if (one.name == "v100") {  // no bf16: its peak is fp16's; not a GPU that kernels are made for
      one.gpu.name = "Tesla V100-SXM2-32GB";
      one.gpu.major = 7;
      one.gpu.fp16 = one.gpu.bf16 = 125e12;
      one.gpu.fp32 = 15.7e12;
      one.gpu.nvlink_rate = 300e9;
      one.gpu.host_rate = 15.75e9;  // PCIe 3.0 x 16
    }
    if (one.name == "gb200") {
      one.gpu.bf16 = one.gpu.fp16 = 2500e12;
      one.gpu.fp8 = 5000e12;
    }
    if (row.memory > 0) one.gpu.memory_bytes = row.memory * kGb;
    if (row.rate > 0) one.gpu.memory_rate = row.rate * kGb;
    one.multiprocessors = row.multiprocessors;
    one.gpus_per_node = row.per_node;
    one.near_domain = row.domain;
    one.near_rate = one.gpu.nvlink_rate / 2;
    one.near_alpha = 3e-6;
    if (row.pcie_share > 0) {
      one.near_rate = one.gpu.host_rate;
      one.near_share = row.pcie_share;
    }
    one.nic_rate = row.nic * kGb;
    one.nic_alpha = 8e-6;
    one.matmul_share = row.matmul;
    one.fp8_share = row.fp8;
    one.attention_forward = row.attention_forward;
    one.attention_backward = row.attention_backward;
    if (one.gpu.major >= 9 && one.gpu.nvlink_rate > 0) one.others = kOthersOnH100;
    // Power is about f V^2 and V about f: the clock goes with the cube root.
    one.clock = std::cbrt(row.watts_share);
    all.push_back(one);
  }
  return all;
}

const std::vector<Cluster>& clusters() {
  static const std::vector<Cluster> all = make_clusters();
  return all;
}

}  // namespace

std::vector<std::string> cluster_types() {
  std::vector<std::string> names;
  for (const Cluster& one : clusters()) names.push_back(one.name);
  return names;
}

const Cluster* find_cluster(std::string_view name) {
  std::string wanted = lower(name);
  std::replace(wanted.begin(), wanted.end(), '_', '-');
  for (const Cluster& one : clusters()) {
    if (one.name == wanted || one.name + "b" == wanted) return &one;
  }
  const GpuModel* gpu = find_gpu(name);
  if (gpu == nullptr) return nullptr;
  for (const Cluster& one : clusters()) {
    if (one.gpu.name == gpu->name) return &one;
  }
  return nullptr;
}

Cluster with_kernels_of_others(const Cluster& cluster) {
  Cluster same = cluster;
  if (!cluster.others) return same;
  same.matmul_share = cluster.others->matmul;
  same.fp8_share = cluster.others->fp8;
  same.attention_forward = cluster.others->attention_forward;
  same.attention_backward = cluster.others->attention_backward;
  return same;
}

Cluster cpu_cluster(double matmul_flops, double memory_rate, int ranks, double rank_bytes) {
  Cluster one;
  one.name = "cpu";
  one.title = "CPU rank";
  one.cpu = true;
  one.gpu.name = "cpu";
  one.gpu.bf16 = one.gpu.fp16 = one.gpu.fp32 = matmul_flops;
  one.gpu.memory_rate = memory_rate;
  one.gpu.memory_bytes = rank_bytes;
  one.gpus_per_node = one.near_domain = std::max(1, ranks);
  // Ranks of one machine write into each other's memory: every byte is read and written.
  one.near_rate = one.nic_rate = memory_rate / 2;
  one.near_alpha = one.nic_alpha = 2e-6;
  one.matmul_share = one.memory_share = one.near_share = one.nic_share = 1;
  one.attention_forward = one.attention_backward = 0.3;
  one.kernel_s = 2e-6;
  one.overlap_cost = 1;  // whoever moves bytes does not compute
  return one;
}

namespace {

// Groups lie one behind the other, each over `ranks * stride` neighbours.
bool all_near(const Cluster& cluster, int ranks, int stride, int world) {
  if (world <= cluster.near_domain) return true;
  return cluster.near_domain % (static_cast<int64_t>(ranks) * stride) == 0;
}

// The fewest members of a group that are on one node: groups and nodes begin together at every
// multiple of both, and in between a node has pieces of as many neighbours as divide both.
int fewest_on_node(const Cluster& cluster, int ranks, int stride) {
  const auto neighbours = static_cast<int64_t>(ranks) * stride;
  const auto piece = std::gcd<int64_t, int64_t>(cluster.gpus_per_node, neighbours);
  return static_cast<int>(std::clamp<int64_t>(piece / stride, 1, ranks));
}

}  // namespace

GroupLink group_link(const Cluster& cluster, int ranks, int stride, int world) {
  GroupLink link;
  link.ranks = ranks;
  const double fast = cluster.near_rate * cluster.near_share;
  if (all_near(cluster, ranks, stride, world)) {
    link.rate = fast;
    link.alpha = cluster.near_alpha;
    return link;
  }
  // Each rank of the group on a node brings its own NIC, and the rings use all of them.
  const int on_node = fewest_on_node(cluster, ranks, stride);
  link.between_nodes = true;
  link.rate = std::min(fast, on_node * cluster.nic_rate * cluster.nic_share);
  link.alpha = cluster.nic_alpha;
  return link;
}

namespace {

// Steps that follow each other: of a ring for a few ranks, of trees for many.
double steps_of(int ranks) {
  return std::min<double>(ranks - 1, 2 * std::log2(static_cast<double>(ranks)) + 2);
}

}  // namespace

double gather_time(const GroupLink& link, double bytes) {
  if (link.ranks <= 1) return 0;
  const double k = link.ranks;
  return bytes * (k - 1) / k / link.rate + steps_of(link.ranks) * link.alpha;
}

double all_reduce_time(const GroupLink& link, double bytes) {
  return 2 * gather_time(link, bytes);
}

double all_to_all_time(const Cluster& cluster, int ranks, int stride, int world, double bytes) {
  if (ranks <= 1) return 0;
  const bool near = all_near(cluster, ranks, stride, world);
  const int on_node = near ? ranks : fewest_on_node(cluster, ranks, stride);
  const double far = static_cast<double>(ranks - on_node) / ranks;
  const double by_nic = bytes * far / (cluster.nic_rate * cluster.nic_share);
  const double by_near = bytes * (on_node - 1) / ranks / (cluster.near_rate * cluster.near_share);
  return std::max(by_nic, by_near) + (near ? cluster.near_alpha : cluster.nic_alpha) * 2;
}

double send_time(const Cluster& cluster, int ranks, int stride, int world, double bytes) {
  return all_near(cluster, ranks, stride, world)
             ? bytes / (cluster.near_rate * cluster.near_share) + cluster.near_alpha
             : bytes / (cluster.nic_rate * cluster.nic_share) + cluster.nic_alpha;
}

}  // namespace mtl
