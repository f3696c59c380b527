// mtl env: what a bug report needs to say about a machine. Nothing is started (but python3 with
// --python), and nothing secret is shown.
#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <ifaddrs.h>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "common/error.h"
#include "common/file_field.h"
#include "common/files.h"
#include "common/terminal.h"
#include "common/version.h"
#include "launcher/ranks/placement.h"
#include "launcher/settings/launch_config.h"
#include "launcher/settings/launch_config_place.h"
#include "launcher/settings/secret.h"
#include "runtime/device/load_cuda.h"
#include "runtime/device/nvml.h"

namespace mtl {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string size_words(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.4g} {}", bytes, units[unit]);
}

Json build_facts() {
  Json facts;
  facts["version"] = version();
#ifdef NDEBUG
  facts["build"] = "release";
#else
  facts["build"] = "debug";
#endif
#ifdef __clang__
  facts["compiler"] = fmt::format("clang {}", __clang_version__);
#else
  facts["compiler"] = fmt::format("gcc {}", __VERSION__);
#endif
  std::error_code ignored;
  facts["program"] = fs::read_symlink("/proc/self/exe", ignored).string();
  return facts;
}

Json system_facts() {
  Json facts;
  facts["os"] = file_field("/etc/os-release", "PRETTY_NAME", '=');
  utsname name{};
  if (uname(&name) == 0) {
    facts["kernel"] = fmt::format("{} {} {}", name.sysname, name.release, name.machine);
    facts["host"] = name.nodename;
  }
  facts["user"] = geteuid() == 0 ? "root" : "not root";
  return facts;
}

Json cpu_facts(const NodeHardware& hardware) {
  Json facts;
  facts["model"] = file_field("/proc/cpuinfo", "model name", ':');
  facts["cores_to_use"] = hardware.cores;
  if (hardware.cpu_quota > 0) facts["quota_cores"] = hardware.cpu_quota;
  std::istringstream flags(file_field("/proc/cpuinfo", "flags", ':'));
  static const std::set<std::string> interesting = {"avx2",        "fma",         "avx512f",
                                                    "avx512_vnni", "avx512_bf16", "avx512_fp16",
                                                    "amx_tile",    "amx_bf16",    "amx_int8"};
  std::string isa;
  for (std::string flag; flags >> flag;) {
    if (interesting.count(flag) != 0) isa += (isa.empty() ? "" : " ") + flag;
  }
  facts["isa"] = isa;
  for (const NumaNode& node : hardware.numa) {
    facts["numa"].push_back(fmt::format("node {}: {} cores, {} CPUs", node.os_index,
                                        node.cores.size(), node.cpus.size()));
  }
  return facts;
}

Json memory_facts() {
  Json facts;
  for (const char* key : {"MemTotal", "MemAvailable", "SwapTotal"}) {
    const std::string text = file_field("/proc/meminfo", key, ':');
    if (!text.empty()) facts[key] = size_words(std::atof(text.c_str()) * 1024);
  }
  std::string path = "/sys/fs/cgroup";
  // "0::/user.slice/..." of cgroup v2.
  if (const std::string own = file_field("/proc/self/cgroup", "0::", ':'); own.starts_with(":/")) {
    path += own.substr(1);
  }
  for (const char* name : {"memory.max", "memory.high", "pids.max", "cpu.max"}) {
    const std::string text = first_line(fs::path(path) / name);
    if (!text.empty()) facts[std::string("cgroup ") + name] = text;
  }
  struct statvfs info {};
  if (statvfs("/dev/shm", &info) == 0) {
    const double block = static_cast<double>(info.f_frsize);
    facts["/dev/shm"] =
        fmt::format("{}, {} free", size_words(static_cast<double>(info.f_blocks) * block),
                    size_words(static_cast<double>(info.f_bavail) * block));
  }
  return facts;
}

Json gpu_facts(const NodeHardware& hardware) {
  Json facts;
  facts["driver"] = first_line("/proc/driver/nvidia/version");
  facts["visible"] = hardware.gpus.size();
  for (const GpuDevice& gpu : hardware.gpus) {
    facts["gpus"].push_back(fmt::format(
        "{} {} {} NUMA {}", gpu.id, gpu.name.empty() ? "(unknown)" : gpu.name, gpu.pci, gpu.numa));
  }
  return facts;
}

// What a GPU does now: ", 3 GiB in use, 98 % busy, 690 of 700 W, 1830 of 1980 MHz, 61 C"; "" where
// the driver does not say.
std::string words_of(const GpuReading& reading) {
  std::string words;
  const auto add = [&](const std::string& part) { words += ", " + part; };
  const auto of = [](const auto& most) {
    return most ? fmt::format(" of {:.0f}", static_cast<double>(*most)) : "";
  };
  if (reading.memory_used) {
    add(size_words(static_cast<double>(*reading.memory_used)) + " in use");
  }
  if (reading.busy_percent) add(fmt::format("{} % busy", *reading.busy_percent));
  if (reading.power_w) add(fmt::format("{:.0f}{} W", *reading.power_w, of(reading.power_limit_w)));
  if (reading.clock_mhz) {
    add(fmt::format("{}{} MHz", *reading.clock_mhz, of(reading.max_clock_mhz)));
  }
  if (reading.temperature_c) add(fmt::format("{} C", *reading.temperature_c));
  if (reading.slowed != 0) {
    add(fmt::format("slowed down by {}", fmt::join(throttle_words(reading.slowed), ", ")));
  }
  return words;
}

// What the GPU engine says of this machine: its GPUs, or why there is none to use.
Json engine_facts() {
  Json facts;
  if (!has_cuda_library()) {
    facts["libmtl_cuda.so"] = fmt::format("not in {}", fmt::join(cuda_library_places(), " or "));
    return facts;
  }
  try {
    const CudaFacts found = load_cuda().facts(false);
    facts["cuda"] =
        fmt::format("{}.{}, the driver's {}.{}", found.runtime / 1000, found.runtime % 1000 / 10,
                    found.driver / 1000, found.driver % 1000 / 10);
    facts["devices"] = Json::array();
    const std::unique_ptr<Nvml> nvml = Nvml::open();
    for (size_t i = 0; i < found.devices.size(); ++i) {
      const CudaDeviceFacts& gpu = found.devices[i];
      facts["devices"].push_back(fmt::format(
          "{}: {}, {}, sm_{}{}, {} multiprocessors, {} {}{}{}", i, gpu.name,
          size_words(static_cast<double>(gpu.memory_bytes)), gpu.major, gpu.minor,
          gpu.multiprocessors, gpu.pci, gpu.uuid, nvml ? words_of(nvml->read(gpu.uuid)) : "",
          gpu.refusal.empty() ? "" : ": " + gpu.refusal));
    }
  } catch (const Error& error) {
    const Diagnostic& why = error.diagnostics().front();
    facts["unusable"] = why.what;
    facts["code"] = why.code;
    facts["help"] = why.help;
  }
  return facts;
}

// Where the loader would look, without loading anything.
Json library_facts() {
  std::vector<std::string> folders;
  if (const char* path = std::getenv("LD_LIBRARY_PATH")) {
    std::istringstream words(path);
    for (std::string folder; std::getline(words, folder, ':');) folders.push_back(folder);
  }
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/local/cuda/lib64", "/usr/lib64",
                             "/usr/lib/aarch64-linux-gnu", "/usr/local/lib", "/usr/lib"}) {
    folders.emplace_back(folder);
  }
  Json facts = Json::object();
  for (const char* name : {"libcuda.so.1", "libcudart.so", "libcublasLt.so", "libcudnn.so",
                           "libnccl.so.2", "libnvidia-ml.so.1", "libibverbs.so.1"}) {
    facts[name] = "not found";
    for (const std::string& folder : folders) {
      std::error_code ignored;
      std::vector<std::string> matches;
      for (const auto& entry : fs::directory_iterator(folder, ignored)) {
        if (entry.path().filename().string().starts_with(name)) {
          matches.push_back(entry.path().string());
        }
      }
      if (matches.empty()) continue;
      std::sort(matches.begin(), matches.end());
      const fs::path target = fs::weakly_canonical(matches.front(), ignored);
      facts[name] = target.empty() ? matches.front() : target.string();
      break;
    }
  }
  return facts;
}

Json network_facts() {
  std::map<std::string, std::vector<std::string>> interfaces;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return Json::object();
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    auto& addresses = interfaces[entry->ifa_name];
    if (entry->ifa_addr == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = "";
    if (entry->ifa_addr->sa_family == AF_INET) {
      inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(entry->ifa_addr)->sin_addr, text,
                sizeof text);
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(entry->ifa_addr)->sin6_addr, text,
                sizeof text);
    }
    if (*text != '\0') addresses.emplace_back(text);
    if ((entry->ifa_flags & IFF_UP) == 0 && addresses.empty()) addresses.emplace_back("down");
  }
  Json facts = Json::object();
  for (const auto& [name, addresses] : interfaces) {
    facts[name] = addresses.empty() ? "no address" : fmt::format("{}", fmt::join(addresses, " "));
  }
  return facts;
}

Json limit_facts() {
  Json facts;
  const std::pair<const char*, int> limits[] = {{"open files", RLIMIT_NOFILE},
                                                {"processes", RLIMIT_NPROC},
                                                {"locked memory", RLIMIT_MEMLOCK},
                                                {"core file", RLIMIT_CORE},
                                                {"stack", RLIMIT_STACK}};
  for (const auto& [name, which] : limits) {
    rlimit limit{};
    if (getrlimit(static_cast<__rlimit_resource>(which), &limit) != 0) continue;
    const auto words = [](rlim_t value) {
      return value == RLIM_INFINITY ? std::string("unlimited") : std::to_string(value);
    };
    facts[name] = fmt::format("{} (at most {})", words(limit.rlim_cur), words(limit.rlim_max));
  }
  return facts;
}

Json variable_facts() {
  static const std::array<std::string_view, 31> prefixes = {
      "MTL_",      "PET_",       "CUDA_",       "NCCL_",   "OMP_",        "GOMP_", "KMP_",
      "MKL_",      "OMPI_",      "PMI",         "SLURM_",  "ACCELERATE_", "FSDP_", "MEGATRON_",
      "HF_",       "TORCH",      "KUBERNETES_", "MASTER_", "PYTHONPATH",  "LD_",   "PATH",
      "RANK",      "LOCAL_RANK", "WORLD_SIZE",  "NVIDIA_", "PARALLELISM", "GLOO_", "DEEPSPEED_",
      "XDG_CACHE", "TMPDIR",     "DNNL_"};
  std::map<std::string, std::string> sorted;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string name(text.substr(0, equals));
    if (std::none_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); })) {
      continue;
    }
    sorted[name] = is_secret(name) ? "set" : std::string(text.substr(equals + 1));
  }
  Json facts = Json::object();
  for (const auto& [name, value] : sorted) facts[name] = value;
  return facts;
}

Json config_facts() {
  Json facts;
  const char* named = std::getenv("MTL_CONFIG_FILE");
  std::string path = named != nullptr && *named != '\0' ? named : default_launch_config_path();
  if (path.empty()) path = own_config_path();
  facts["path"] = path;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    facts["content"] = "no such file";
    return facts;
  }
  std::string content;
  try {
    std::istringstream lines(read_file(path, 1 << 16));
    for (std::string line; std::getline(lines, line);) {
      const std::string key = line.substr(0, line.find(':'));
      content += is_secret(key) && key.size() < line.size() ? key + ": set\n" : line + '\n';
    }
  } catch (const Error& error) {
    content = error.diagnostics()[0].what;
  }
  facts["content"] = content;
  return facts;
}

Json program_facts() {
  Json facts = Json::object();
  const char* variable = std::getenv("PATH");
  for (const char* name : {"python3", "ssh", "srun", "sbatch", "kubectl", "mpirun", "nvidia-smi"}) {
    facts[name] = "not found";
    std::istringstream folders(variable != nullptr ? variable : "");
    for (std::string folder; std::getline(folders, folder, ':');) {
      const std::string path = folder + '/' + name;
      if (access(path.c_str(), X_OK) != 0) continue;
      facts[name] = path;
      break;
    }
  }
  return facts;
}

// Takes seconds: torch is a large library.
Json python_facts() {
  static constexpr const char* kScript =
      "python3 -c \"import sys\nprint('python', sys.version.split()[0])\n"
      "for name in ('torch', 'accelerate', 'deepspeed', 'transformers', 'numpy'):\n"
      "  try:\n    m = __import__(name)\n    print(name, m.__version__)\n"
      "    if name == 'torch': print('torch-cuda', m.version.cuda)\n"
      "  except Exception as e: print(name, 'not found' if isinstance(e, ImportError) else e)\n"
      "\" 2>/dev/null";
  Json facts = Json::object();
  FILE* pipe = popen(kScript, "r");
  if (pipe == nullptr) return facts;
  char line[512];
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    std::string text = line;
    while (!text.empty() && text.back() == '\n') text.pop_back();
    const size_t space = text.find(' ');
    if (space != std::string::npos) facts[text.substr(0, space)] = text.substr(space + 1);
  }
  pclose(pipe);
  if (facts.empty()) facts["python3"] = "does not run";
  return facts;
}

std::string value_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// `columns`: of a terminal; 0 = lines are not broken, which is what a bug report wants.
std::string text_of(const Json& facts, int columns) {
  constexpr int kValues = 21;
  std::string text;
  const auto add = [&](const std::string& name, const std::string& value) {
    const std::string left = fmt::format("  {:<18} ", name);
    const int start = display_width(left);
    const bool fits = columns <= 0 || start + display_width(value) <= columns;
    text += left + (fits ? value : wrap_text(value, columns, kValues, start)) + '\n';
  };
  for (const auto& [section, entries] : facts.items()) {
    text += fmt::format("{}{}\n", text.empty() ? "" : "\n", section);
    for (const auto& [name, value] : entries.items()) {
      if (value.is_array()) {
        for (const Json& item : value) add(name, value_text(item));
        continue;
      }
      std::istringstream lines(value_text(value));
      std::string line;
      std::getline(lines, line);
      add(name, line.empty() ? "none" : line);
      while (std::getline(lines, line)) add("", line);
    }
  }
  return text;
}

}  // namespace

int command_env(const Arguments& args) {
  bool json = false, python = false;
  CommandLine line({"env [options]"},
                   "Prints what a bug report needs to say about this machine: versions, CPU, "
                   "memory, GPUs, libraries, network, limits, the settings that mtl and PyTorch "
                   "read. Secrets are not shown.");
  line.example("mtl env > env.txt", "for a bug report");
  line.example("mtl env --json | jq .gpu", "for programs");
  line.flag("json", json, "one JSON document");
  line.flag("python", python, "also the versions of python3's torch and accelerate (slow)");
  if (!line.parse(args)) return 0;

  const NodeHardware hardware = inspect_hardware(true);
  Json facts;
  facts["mtl"] = build_facts();
  facts["system"] = system_facts();
  facts["cpu"] = cpu_facts(hardware);
  facts["memory"] = memory_facts();
  facts["gpu"] = gpu_facts(hardware);
  facts["gpu engine"] = engine_facts();
  facts["libraries"] = library_facts();
  facts["network"] = network_facts();
  facts["limits"] = limit_facts();
  facts["programs"] = program_facts();
  if (python) facts["python"] = python_facts();
  facts["variables"] = variable_facts();
  facts["config"] = config_facts();
  // Names of files and variables may hold any bytes.
  const Terminal terminal = inspect_terminal(STDOUT_FILENO);
  const std::string text = json ? facts.dump(2, ' ', false, Json::error_handler_t::replace) + '\n'
                                : text_of(facts, terminal.is_tty ? terminal.columns : 0);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace mtl
