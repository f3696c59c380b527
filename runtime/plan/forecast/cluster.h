// Machines that are not at hand, as numbers: what a GPU (or a CPU rank) reaches, and how fast ranks
// reach each other within a node and between nodes. What plans and simulations of runs are made of.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan/forecast/gpus.h"

namespace mtl {

// What kernels reach, as shares of the data sheet's peaks.
struct KernelShares {
  double matmul, fp8;                            // large products
  double attention_forward, attention_backward;  // of the bf16 peak
};

struct Cluster {
  std::string name;   // "h100-80g"
  std::string title;  // "H100 80 GB"
  GpuModel gpu;       // data sheet: peaks, memory and its rate
  bool cpu = false;   // ranks are threads of CPUs; gpu.fp32 and bf16 are measured rates
  int multiprocessors = 1;
  int gpus_per_node = 8;  // and NICs: each GPU has its own share of them
  // The links of a node: NVLink, or PCIe where its GPUs have none.
  int near_domain = 8;    // ranks that they connect; >= gpus_per_node for racks
  double near_rate = 0;   // bytes/s per GPU and direction
  double near_alpha = 0;  // s per step of a collective
  double nic_rate = 0;    // bytes/s per GPU and direction
  double nic_alpha = 0;
  // What software gets out of it, as a share of the data sheet.
  double matmul_share = 0.7;  // large matrix products, sustained (clock under load)
  double fp8_share = 0.6;     // the same with fp8 inputs
  double attention_forward = 0.5, attention_backward = 0.4;  // fused kernels, of the bf16 peak
  double memory_share = 0.85;
  double near_share = 0.78, nic_share = 0.85;  // of a ring over large messages
  double host_share = 0.8;                     // of PCIe, in both directions at once; not measured
  // Bytes/s that a node writes to where checkpoints lie: what a file system that many share often
  // gives; not measured.
  double file_rate = 1e9;
  double kernel_s = 4e-6;  // per kernel: the least time between two that follow each other
  // The share of its multiprocessors that a collective takes from what computes beside it.
  double overlap_cost = 0.12;
  double clock = 1;  // against the data sheet: a lower power limit
  // What others report of their kernels, in runs on many of these GPUs.
  std::optional<KernelShares> others;
};
// The machines as others use them; where nothing is known of that, as they are.
Cluster with_kernels_of_others(const Cluster& cluster);

// The types that --gpu-type knows, in the order of their age.
std::vector<std::string> cluster_types();
// By a name of cluster_types() or by the one that the catalogue has for its GPU ("h100", "NVIDIA
// H200"), whatever the case; null if there is none. Machines of eight, as NVIDIA sells them (DGX),
// unless said otherwise in the table.
const Cluster* find_cluster(std::string_view name);

// Ranks on one machine's CPUs, from rates measured on it, of one rank while all of them run; and
// from the bytes that each may take (0 = not known: anything fits).
Cluster cpu_cluster(double matmul_flops, double memory_rate, int ranks, double rank_bytes = 0);

// How `ranks` ranks that stand `stride` apart reach each other, in the slowest of such groups of
// `world` ranks: those that do not divide a domain of fast links straddle where one ends.
struct GroupLink {
  int ranks = 1;
  bool between_nodes = false;
  double rate = 0;   // bytes/s that a rank puts on its ring
  double alpha = 0;  // s per step
};
GroupLink group_link(const Cluster& cluster, int ranks, int stride, int world);

// Seconds, n bytes being the whole tensor (the n of the ring formulas, anchors of NCCL's tests):
// all-gather and reduce-scatter n (k-1)/k over the rate, all-reduce twice that.
double gather_time(const GroupLink& link, double bytes);
double all_reduce_time(const GroupLink& link, double bytes);
// `bytes` are what a rank sends to all others together; over nodes each GPU has its own NIC only.
double all_to_all_time(const Cluster& cluster, int ranks, int stride, int world, double bytes);
// From one of `ranks` to the next of them, over the slowest of such ways.
double send_time(const Cluster& cluster, int ranks, int stride, int world, double bytes);

}  // namespace mtl
