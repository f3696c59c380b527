// How the GPUs and network cards of a machine are connected, and what follows for a layout: read
// from this machine (sysfs, the driver's management library) or from a saved `nvidia-smi topo -m`.
// The judgements are pure; the words for each kind of link are nvidia-smi's.
#pragma once

#include <string>
#include <vector>

#include "common/error.h"
#include "launcher/ranks/placement.h"

namespace mtl {

// From near to far, as `nvidia-smi topo -m` explains them.
enum class LinkKind {
  self,     // X
  nvlink,   // NV#: so many bonded links
  pix,      // at most one PCIe bridge
  pxb,      // several PCIe bridges, not the host bridge
  phb,      // a host bridge: the CPU
  node,     // between host bridges of one NUMA node
  sys,      // between NUMA nodes
  unknown,  // nothing is known of one of them
};
struct DeviceLink {
  LinkKind kind = LinkKind::unknown;
  int nvlinks = 0;
};
std::string link_word(const DeviceLink& link);  // "NV12", "PIX"; "?" where unknown

struct TopologyDevice {
  std::string name;  // "GPU0", "NIC3"
  bool gpu = false;
  std::string what = {};  // "NVIDIA H200", "mlx5_0 (mlx5_core)"; "" = unknown
  int numa = -1;          // -1 = unknown
  std::string cpus = {};  // near ones: "0-31,64-95"; "" = unknown
};

// `links` is square and symmetric, by index into `devices`; GPUs come first.
struct Topology {
  std::string source;  // "this machine", a file
  std::vector<TopologyDevice> devices;
  std::vector<std::vector<DeviceLink>> links;
  size_t gpus() const;
};

// The table, with or without what surrounds it (colours, legends, affinity columns); `name` for
// messages. Throws Error (Exit::data) topo.format with the line.
Topology parse_topo_matrix(const std::string& text, const std::string& name);

// Of two PCI devices by their resolved paths in sysfs
// ("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0") and NUMA nodes (-1 = unknown).
LinkKind pci_link(const std::string& a, const std::string& b, int numa_a, int numa_b);

// The GPUs that CUDA_VISIBLE_DEVICES lets through and the network cards that are hardware.
Topology inspect_topology(const NodeHardware& hardware);

// Groups of GPUs, by index. Every GPU is in one group of each list, alone if need be.
struct TopologyFacts {
  std::vector<std::vector<size_t>> islands;   // each pair linked by NVLink
  std::vector<std::vector<size_t>> switches;  // each pair behind the same PCIe switch (PIX, PXB)
  std::vector<std::vector<size_t>> numa;      // by NUMA node; empty where it is unknown
  bool islands_linked = false;                // some pair of two islands has NVLink, too
  // Sizes of tensor parallel groups, each a divisor of the GPUs: on links that are fast enough for
  // an exchange in every layer, and those that only work where a model fits no other way.
  std::vector<int> tp_wise, tp_slow;
  // The order of GPUs in which ranks that follow each other are near each other, where it is not
  // that of the machine (for --gpu_ids); else empty.
  std::vector<size_t> order;
  std::vector<std::vector<size_t>> nics;  // of each GPU: the nearest, by index into devices
};
TopologyFacts judge_topology(const Topology& topology);
// Whether some group has more than one member.
bool has_pair(const std::vector<std::vector<size_t>>& groups);

// The facts as rows of (what, sentence), and what to do about them.
struct TopologyRow {
  std::string what, text;
};
std::vector<TopologyRow> topology_words(const Topology& topology, const TopologyFacts& facts);

}  // namespace mtl
