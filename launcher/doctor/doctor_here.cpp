// Reading what doctor.h judges: limits, memory, disk, names, ports, clock and driver of this
// machine. Nothing is started or loaded.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <netdb.h>
#include <sstream>
#include <unistd.h>

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/utsname.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/file_field.h"
#include "common/files.h"
#include "common/version.h"
#include "launcher/doctor/doctor.h"
#include "launcher/system/reserved_port.h"
#include "rendezvous/network.h"

namespace mtl {

namespace {

namespace fs = std::filesystem;
using Level = Finding::Level;
using Clock = std::chrono::steady_clock;

constexpr uint16_t kUsualPort = 29500;
constexpr double kLongProbe = 2;  // seconds: long enough to know that a disk is slow

// "MemTotal:  123 kB" -> bytes; -1 = not there.
int64_t meminfo(const std::string& key) {
  const std::string value = file_field("/proc/meminfo", key + ':', ':');
  return value.empty() ? -1 : std::atoll(value.c_str()) * 1024;
}

std::optional<uint64_t> soft_limit(int which, bool hard = false) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(which), &limit) != 0) return std::nullopt;
  const rlim_t value = hard ? limit.rlim_max : limit.rlim_cur;
  if (value == RLIM_INFINITY) return std::nullopt;
  return value;
}

LimitFacts read_limits() {
  LimitFacts facts;
  facts.nofile = soft_limit(RLIMIT_NOFILE);
  facts.nofile_hard = soft_limit(RLIMIT_NOFILE, true);
  facts.nproc = soft_limit(RLIMIT_NPROC);
  facts.memlock = soft_limit(RLIMIT_MEMLOCK);
  std::error_code ignored;
  facts.rdma = fs::exists("/sys/class/infiniband", ignored) &&
               !fs::is_empty("/sys/class/infiniband", ignored);
  return facts;
}

// Of this process's control group, of version 2 or 1: what `name2` or `name1` holds.
std::optional<int64_t> cgroup_number(const char* name2, const char* name1) {
  std::ifstream in("/proc/self/cgroup");
  std::vector<fs::path> places;
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      // The nearest limit above counts, and a container sees its own group as the root.
      for (fs::path at = path;; at = at.parent_path()) {
        places.push_back(fs::path("/sys/fs/cgroup" + at.string()) / name2);
        if (at == at.parent_path()) break;
      }
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      places.push_back(fs::path("/sys/fs/cgroup/memory" + path) / name1);
      places.push_back(fs::path("/sys/fs/cgroup/memory") / name1);
    }
  }
  for (const fs::path& place : places) {
    const std::string text = first_line(place);
    if (text.empty() || text == "max") continue;
    const int64_t value = std::atoll(text.c_str());
    // Version 1 writes "no limit" as a number near 2^63.
    if (value > 0 && value < int64_t{1} << 60) return value;
  }
  return std::nullopt;
}

MemoryFacts read_memory(const NodeHardware& hardware) {
  MemoryFacts facts;
  facts.total = meminfo("MemTotal");
  facts.available = meminfo("MemAvailable");
  facts.cgroup_limit = cgroup_number("memory.max", "memory.limit_in_bytes");
  if (facts.cgroup_limit) {
    facts.cgroup_used = cgroup_number("memory.current", "memory.usage_in_bytes").value_or(0);
  }
  facts.cores = hardware.cores;
  facts.cpu_quota = hardware.cpu_quota;
  struct statvfs info {};
  if (statvfs("/dev/shm", &info) == 0) {
    facts.shm_total = static_cast<int64_t>(info.f_blocks * info.f_frsize);
    facts.shm_free = static_cast<int64_t>(info.f_bavail * info.f_frsize);
  }
  return facts;
}

DiskFacts read_disk(const DoctorOptions& options) {
  DiskFacts facts;
  std::error_code ignored;
  fs::path folder = fs::absolute(options.run_dir, ignored);
  while (!fs::exists(folder, ignored) && folder.has_relative_path()) folder = folder.parent_path();
  facts.folder = folder.string();
  struct statvfs space {};
  if (statvfs(folder.c_str(), &space) == 0) {
    facts.free_bytes = static_cast<int64_t>(space.f_bavail * space.f_frsize);
    if (space.f_files > 0) facts.free_inodes = static_cast<int64_t>(space.f_favail);
  }
  const fs::path probe = folder / fmt::format(".mtl-doctor-{}", getpid());
  const Fd file(open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) {
    facts.refusal = std::strerror(errno);
    return facts;
  }
  // What cannot be compressed away.
  std::vector<uint64_t> block(size_t{1} << 17);
  uint64_t state = 0x9e3779b97f4a7c15u;
  for (uint64_t& word : block) word = state = state * 6364136223846793005u + 1442695040888963407u;
  const size_t size = block.size() * sizeof(uint64_t);
  const auto begin = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  int64_t written = 0;
  while (written < options.probe_bytes && facts.refusal.empty() && elapsed() < kLongProbe) {
    const ssize_t some = write(file.get(), block.data(), size);
    if (some < 0 && errno == EINTR) continue;
    if (some < 0) facts.refusal = std::strerror(errno);
    written += std::max<ssize_t>(some, 0);
  }
  if (facts.refusal.empty() && fsync(file.get()) != 0) facts.refusal = std::strerror(errno);
  if (facts.refusal.empty()) facts.bytes_per_s = static_cast<double>(written) / elapsed();
  fs::remove(probe, ignored);
  return facts;
}

NameFacts read_names(const DoctorOptions& options) {
  NameFacts facts;
  facts.name = host_name();
  facts.several_hosts = options.several_hosts;
  addrinfo* list = nullptr;
  facts.resolves = getaddrinfo(facts.name.c_str(), nullptr, nullptr, &list) == 0;
  if (list != nullptr) freeaddrinfo(list);
  facts.to_loopback = facts.resolves && resolves_to_loopback(facts.name);
  for (const LocalAddress& address : local_addresses()) facts.addresses += !address.is_loopback;
  return facts;
}

// Whether the port can be bound: nothing = it can; else who has it.
std::optional<std::string> owner_of_port(uint16_t port) {
  const Fd socket_fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  // Connections of a job that has just ended are no reason to refuse.
  setsockopt(socket_fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  const bool bound =
      bind(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      listen(socket_fd.get(), 1) == 0;
  if (bound) return std::nullopt;
  return errno == EACCES ? "the system: ports below 1024 are root's" : port_owner(port);
}

Finding judge_clock() {
  timex facts{};
  const int state = adjtimex(&facts);
  const bool known = state >= 0;
  const bool synchronised = known && state != TIME_ERROR && (facts.status & STA_UNSYNC) == 0;
  return {"clock.sync", synchronised || !known ? Level::ok : Level::warning,
          !known         ? "clock: unknown whether it is synchronised"
          : synchronised ? "clock: synchronised"
                         : "clock: nothing synchronises it, as far as the kernel knows",
          synchronised || !known ? ""
                                 : "run chrony or systemd-timesyncd (in a container: on its host)"};
}

std::vector<std::string> library_folders() {
  std::vector<std::string> folders;
  if (const char* path = std::getenv("LD_LIBRARY_PATH")) {
    std::istringstream words(path);
    for (std::string folder; std::getline(words, folder, ':');) folders.push_back(folder);
  }
  for (const char* folder :
       {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/cuda/lib64",
        "/usr/lib64", "/usr/local/nvidia/lib64", "/usr/local/lib", "/usr/lib"}) {
    folders.emplace_back(folder);
  }
  return folders;
}

// The version in the name of the file that a library's name leads to: libnccl.so.2 -> "2.28.3".
// "found" where it says none; empty where it is not there.
std::string library_version(const std::string& name) {
  for (const std::string& folder : library_folders()) {
    std::error_code ignored;
    const fs::path target = fs::canonical(fs::path(folder) / name, ignored);
    if (ignored || target.empty()) continue;
    const std::string file = target.filename();
    const size_t at = file.find(".so.");
    return at == std::string::npos ? "found" : file.substr(at + 4);
  }
  return {};
}

}  // namespace

DriverFacts read_driver() {
  DriverFacts facts;
  std::error_code ignored;
  facts.files = fs::exists("/dev/nvidiactl", ignored);
  facts.nouveau = fs::exists("/sys/module/nouveau", ignored);
  facts.module = nvidia_driver_version();
  facts.user_library = library_version("libcuda.so.1");
  facts.nccl = library_version("libnccl.so.2");
  facts.cudnn = library_version("libcudnn.so.9");
  return facts;
}

std::vector<Finding> examine_machine(const DoctorOptions& options, const NodeHardware& hardware) {
  std::vector<Finding> all;
  const auto add = [&](const std::vector<Finding>& some) {
    all.insert(all.end(), some.begin(), some.end());
  };
  add(judge_limits(read_limits()));
  add(judge_memory(read_memory(hardware)));
  add(judge_disk(read_disk(options)));
  add(judge_names(read_names(options)));
  const uint16_t port = options.port > 0 ? options.port : kUsualPort;
  all.push_back(judge_port(port, options.port > 0, options.several_hosts, owner_of_port(port)));
  all.push_back(judge_clock());
  return all;
}

HostFacts read_host_facts(const NodeHardware& hardware) {
  utsname name{};
  uname(&name);
  std::vector<std::string> gpus;
  for (const GpuDevice& gpu : hardware.gpus) gpus.push_back(gpu.name.empty() ? "GPU" : gpu.name);
  const std::string module = nvidia_driver_version(), nccl = library_version("libnccl.so.2");
  return {
      {"mtl", version()},
      {"system", file_field("/etc/os-release", "PRETTY_NAME", '=')},
      {"kernel", fmt::format("{} {} {}", name.sysname, name.release, name.machine)},
      {"CPU", file_field("/proc/cpuinfo", "model name", ':')},
      {"cores", fmt::format("{}", hardware.cores)},
      {"memory", fmt::format("{:.3g} GiB", static_cast<double>(meminfo("MemTotal")) / (1 << 30))},
      {"driver", module.empty() ? "none" : module},
      {"GPUs", gpus.empty() ? "none" : fmt::format("{}", fmt::join(gpus, ", "))},
      {"NCCL", nccl.empty() ? "none" : nccl}};
}

}  // namespace mtl
