// The topology of this machine: PCI paths from sysfs, NVLinks from the driver's management library,
// opened at run time with declarations of our own (nvml.h is not part of the CUDA toolkit).
#include <algorithm>
#include <cstdio>
#include <dlfcn.h>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "common/files.h"
#include "launcher/doctor/topology.h"

namespace mtl {

namespace {

namespace fs = std::filesystem;

// The names are those of nvml.h. Functions return 0 for success.
struct PciInfo {  // nvmlPciInfo_t
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
constexpr unsigned kMostNvlinks = 18;  // NVML_NVLINK_MAX_LINKS
constexpr int kRemoteSwitch = 2;       // NVML_NVLINK_DEVICE_TYPE_SWITCH

class NvlinkReader {
 public:
  NvlinkReader() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    find("nvmlInit_v2", init_);
    find("nvmlShutdown", shutdown_);
    find("nvmlDeviceGetHandleByPciBusId_v2", by_pci_);
    find("nvmlDeviceGetNvLinkState", state_);
    find("nvmlDeviceGetNvLinkRemotePciInfo_v2", remote_);
    find("nvmlDeviceGetNvLinkRemoteDeviceType", remote_type_);
    ready_ = init_ != nullptr && by_pci_ != nullptr && state_ != nullptr && remote_ != nullptr &&
             init_() == 0;
  }
  // The library stays open: it has threads of its own.
  ~NvlinkReader() {
    if (ready_ && shutdown_ != nullptr) shutdown_();
  }
  NvlinkReader(const NvlinkReader&) = delete;
  NvlinkReader& operator=(const NvlinkReader&) = delete;

  // Active links of a GPU: by the PCI address of the GPU at the other end, "" for a switch.
  std::map<std::string, int> links_of(const std::string& pci) const {
    std::map<std::string, int> links;
    void* gpu = nullptr;
    if (!ready_ || by_pci_(pci.c_str(), &gpu) != 0) return links;
    for (unsigned link = 0; link < kMostNvlinks; ++link) {
      unsigned active = 0;
      if (state_(gpu, link, &active) != 0 || active == 0) continue;
      int type = 0;
      if (remote_type_ != nullptr && remote_type_(gpu, link, &type) == 0 && type == kRemoteSwitch) {
        ++links[""];
        continue;
      }
      PciInfo other{};
      if (remote_(gpu, link, &other) != 0) continue;
      ++links[fmt::format("{:04x}:{:02x}:{:02x}.0", other.domain, other.bus, other.device)];
    }
    return links;
  }

 private:
  template <typename Function>
  void find(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
  }

  void* library_;
  bool ready_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*by_pci_)(const char*, void**) = nullptr;
  int (*state_)(void*, unsigned, unsigned*) = nullptr;
  int (*remote_)(void*, unsigned, PciInfo*) = nullptr;
  int (*remote_type_)(void*, unsigned, int*) = nullptr;
};

int number_in(const fs::path& path) {
  const std::string text = first_line(path);
  int value = -1;
  return std::sscanf(text.c_str(), "%d", &value) == 1 ? value : -1;
}

struct PciPlace {
  std::string path;  // in sysfs, resolved; "" = unknown
  std::string pci;
};

// Network cards that are hardware: those of InfiniBand and RoCE by their verbs names, the others by
// their interfaces.
void add_network_cards(Topology& topology, std::vector<PciPlace>& places) {
  std::error_code ignored;
  std::set<std::string> seen;
  std::map<std::string, std::string> cards;  // by name, so that the order is the same each time
  for (const char* folder : {"/sys/class/infiniband", "/sys/class/net"}) {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      const fs::path device = fs::canonical(entry.path() / "device", ignored);
      if (ignored || device.empty()) {
        ignored.clear();
        continue;
      }
      found[entry.path().filename()] = device.string();
    }
    for (const auto& [name, path] : found) {
      // One card has a name in each folder, and may have several interfaces.
      if (!seen.insert(path).second) continue;
      const fs::path driver = fs::canonical(fs::path(path) / "driver", ignored);
      topology.devices.push_back(
          {.name = fmt::format("NIC{}", cards.size()),
           .gpu = false,
           .what = driver.empty() ? name : fmt::format("{} ({})", name, driver.filename().string()),
           .numa = number_in(fs::path(path) / "numa_node"),
           .cpus = first_line(fs::path(path) / "local_cpulist")});
      cards[topology.devices.back().name] = path;
      places.push_back({path, fs::path(path).filename()});
    }
  }
}

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  std::istringstream in(path);
  for (std::string part; std::getline(in, part, '/');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

// "0000:3b:00.0".
bool is_pci_function(const std::string& part) {
  unsigned domain, bus, device, function;
  char end;
  return std::sscanf(part.c_str(), "%x:%x:%x.%x%c", &domain, &bus, &device, &function, &end) == 4;
}

}  // namespace

LinkKind pci_link(const std::string& a, const std::string& b, int numa_a, int numa_b) {
  if (a.empty() || b.empty()) return LinkKind::unknown;
  const std::vector<std::string> one = parts_of(a), other = parts_of(b);
  size_t common = 0;
  while (common < one.size() && common < other.size() && one[common] == other[common]) ++common;
  // Bridges above a device in what is not common, and whether anything common is below a host
  // bridge ("pci0000:00").
  const auto functions = [&](const std::vector<std::string>& parts, size_t from) {
    return std::count_if(parts.begin() + static_cast<std::ptrdiff_t>(from), parts.end(),
                         is_pci_function);
  };
  const bool shared_bridge =
      std::any_of(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(common), is_pci_function);
  const bool shared_host =
      std::any_of(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(common),
                  [](const std::string& part) { return part.starts_with("pci"); });
  if (functions(one, 0) == 0 || functions(other, 0) == 0) return LinkKind::unknown;
  if (shared_bridge) {
    // A switch has a port above each device: two functions below the port that leads to both.
    return functions(one, common) <= 2 && functions(other, common) <= 2 ? LinkKind::pix
                                                                        : LinkKind::pxb;
  }
  if (shared_host) return LinkKind::phb;
  return numa_a == numa_b ? LinkKind::node : LinkKind::sys;
}

Topology inspect_topology(const NodeHardware& hardware) {
  Topology topology{.source = "this machine", .devices = {}, .links = {}};
  std::vector<PciPlace> places;
  std::error_code ignored;
  for (size_t i = 0; i < hardware.gpus.size(); ++i) {
    const GpuDevice& gpu = hardware.gpus[i];
    const fs::path device = fs::path("/sys/bus/pci/devices") / gpu.pci;
    topology.devices.push_back({.name = fmt::format("GPU{}", i),
                                .gpu = true,
                                .what = gpu.name,
                                .numa = gpu.numa,
                                .cpus = first_line(device / "local_cpulist")});
    const fs::path resolved = gpu.pci.empty() ? fs::path() : fs::canonical(device, ignored);
    places.push_back({resolved.string(), gpu.pci});
  }
  add_network_cards(topology, places);
  const size_t count = topology.devices.size();
  topology.links.assign(count, std::vector<DeviceLink>(count));
  for (size_t a = 0; a < count; ++a) {
    topology.links[a][a] = {LinkKind::self, 0};
    for (size_t b = 0; b < a; ++b) {
      const DeviceLink link = {pci_link(places[a].path, places[b].path, topology.devices[a].numa,
                                        topology.devices[b].numa),
                               0};
      topology.links[a][b] = topology.links[b][a] = link;
    }
  }
  if (hardware.gpus.size() < 2) return topology;
  const NvlinkReader nvlink;
  std::vector<std::map<std::string, int>> links;
  for (size_t gpu = 0; gpu < hardware.gpus.size(); ++gpu) {
    links.push_back(nvlink.links_of(places[gpu].pci));
  }
  for (size_t a = 0; a < links.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      // A switch gives each pair all the links that the two have to it.
      const auto direct = links[a].find(places[b].pci);
      const auto up = links[a].find(""), down = links[b].find("");
      int bonded = direct != links[a].end() ? direct->second : 0;
      if (up != links[a].end() && down != links[b].end()) {
        bonded = std::min(up->second, down->second);
      }
      if (bonded > 0) {
        topology.links[a][b] = topology.links[b][a] = {LinkKind::nvlink, bonded};
      }
    }
  }
  return topology;
}

}  // namespace mtl
