// What this node has: NUMA nodes and CPUs from hwloc, GPUs from the driver's files. Nothing here
// starts a process or loads a CUDA library.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <hwloc.h>
#include <map>
#include <sstream>

#include "common/files.h"
#include "common/text.h"
#include "launcher/ranks/placement.h"
#include "launcher/ranks/worker_env.h"

namespace mtl {

namespace {

namespace fs = std::filesystem;

// "GPU UUID: \t GPU-..." -> the value.
std::map<std::string, std::string> read_fields(const fs::path& path) {
  std::ifstream in(path);
  std::map<std::string, std::string> fields;
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t value = line.find_first_not_of(" \t", colon + 1);
    fields[line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1)] =
        value == std::string::npos ? "" : line.substr(value);
  }
  return fields;
}

// All devices that this process may open, in the order of their PCI addresses, which is CUDA's
// wherever the GPUs of a machine are alike.
std::vector<GpuDevice> installed_gpus() {
  std::vector<GpuDevice> gpus;
  std::vector<int> minors;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("nvidia") && is_index(name.substr(6))) {
      minors.push_back(std::stoi(name.substr(6)));
    }
  }
  if (minors.empty()) return gpus;
  std::sort(minors.begin(), minors.end());
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", ignored)) {
    const auto fields = read_fields(entry.path() / "information");
    const auto minor = fields.find("Device Minor");
    // A container sees the files of all GPUs, and has the devices of its own.
    if (minor != fields.end() && is_index(minor->second) &&
        !std::binary_search(minors.begin(), minors.end(), std::stoi(minor->second))) {
      continue;
    }
    GpuDevice gpu;
    gpu.pci = lower(entry.path().filename().string());
    if (const auto uuid = fields.find("GPU UUID"); uuid != fields.end()) gpu.uuid = uuid->second;
    if (const auto model = fields.find("Model"); model != fields.end()) gpu.name = model->second;
    const std::string numa = first_line(fs::path("/sys/bus/pci/devices") / gpu.pci / "numa_node");
    gpu.numa = is_index(numa) ? std::stoi(numa) : -1;
    gpus.push_back(gpu);
  }
  std::sort(gpus.begin(), gpus.end(),
            [](const GpuDevice& a, const GpuDevice& b) { return a.pci < b.pci; });
  if (gpus.size() != minors.size()) gpus.resize(minors.size());  // the driver's files are hidden
  for (size_t i = 0; i < gpus.size(); ++i) gpus[i].id = std::to_string(i);
  return gpus;
}

std::vector<int> members(hwloc_const_bitmap_t set) {
  std::vector<int> bits;
  for (int bit = hwloc_bitmap_first(set); bit >= 0; bit = hwloc_bitmap_next(set, bit)) {
    bits.push_back(bit);
  }
  return bits;
}

// One CPU of each core within `set`, in the order of the cores.
std::vector<int> one_per_core(hwloc_topology_t topology, hwloc_const_bitmap_t set) {
  std::vector<int> cpus;
  hwloc_obj_t core = nullptr;
  while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr) {
    const hwloc_bitmap_t mine = hwloc_bitmap_dup(core->cpuset);
    hwloc_bitmap_and(mine, mine, set);
    if (const int first = hwloc_bitmap_first(mine); first >= 0) cpus.push_back(first);
    hwloc_bitmap_free(mine);
  }
  return cpus.empty() ? members(set) : cpus;
}

std::vector<NumaNode> numa_nodes() {
  hwloc_topology_t topology = nullptr;
  std::vector<NumaNode> nodes;
  if (hwloc_topology_init(&topology) != 0) return nodes;
  // Caches and devices are not asked for: they are most of the time that this takes.
  hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (hwloc_topology_load(topology) == 0) {
    const hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
    if (hwloc_get_cpubind(topology, allowed, HWLOC_CPUBIND_PROCESS) != 0) {
      hwloc_bitmap_copy(allowed, hwloc_topology_get_allowed_cpuset(topology));
    }
    hwloc_obj_t node = nullptr;
    while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr) {
      const hwloc_bitmap_t set = hwloc_bitmap_dup(node->cpuset);
      hwloc_bitmap_and(set, set, allowed);
      nodes.push_back({.os_index = static_cast<int>(node->os_index),
                       .cores = one_per_core(topology, set),
                       .cpus = members(set)});
      hwloc_bitmap_free(set);
    }
    hwloc_bitmap_free(allowed);
  }
  hwloc_topology_destroy(topology);
  return nodes;
}

}  // namespace

std::vector<GpuDevice> visible_gpus(const std::vector<GpuDevice>& installed, const char* mask) {
  if (mask == nullptr) return installed;
  std::vector<GpuDevice> visible;
  std::string text = mask;
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  size_t start = 0;
  while (start < text.size()) {
    const size_t end = std::min(text.find(',', start), text.size());
    const std::string word = text.substr(start, end - start);
    start = end + 1;
    GpuDevice gpu;
    if (is_index(word)) {
      const size_t index = static_cast<size_t>(std::stoi(word));
      if (index >= installed.size()) break;
      gpu = installed[index];
    } else if (word.starts_with("GPU-")) {
      const auto found =
          std::find_if(installed.begin(), installed.end(), [&](const GpuDevice& candidate) {
            // Where the driver's files are hidden, the scheduler is believed.
            return candidate.uuid.empty() || candidate.uuid.starts_with(word);
          });
      if (found == installed.end()) break;
      if (!found->uuid.empty()) gpu = *found;
    } else if (!word.starts_with("MIG-")) {
      break;  // as CUDA: nothing after a word that names no device is visible
    }
    gpu.id = word;
    visible.push_back(gpu);
  }
  return visible;
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ..." -> "580.65.06".
std::string nvidia_driver_version() {
  std::istringstream words(first_line("/proc/driver/nvidia/version"));
  for (std::string word; words >> word;) {
    if (word.find('.') != std::string::npos &&
        word.find_first_not_of("0123456789.") == std::string::npos) {
      return word;
    }
  }
  return {};
}

NodeHardware inspect_hardware(bool topology) {
  NodeHardware hardware;
  hardware.cores = allowed_cores();
  hardware.cpu_quota = cpu_quota();
  hardware.gpus = visible_gpus(installed_gpus(), std::getenv("CUDA_VISIBLE_DEVICES"));
  if (!hardware.gpus.empty()) hardware.driver = nvidia_driver_version();
  if (topology) hardware.numa = numa_nodes();
  return hardware;
}

}  // namespace mtl
