// What the facts about a machine mean (doctor.h): pure.
#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "launcher/doctor/doctor.h"

namespace mtl {

namespace {

using Level = Finding::Level;

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr uint64_t kFewFiles = 1024;
constexpr uint64_t kFewProcesses = 2048;
constexpr uint64_t kLockedForRdma = uint64_t{16} << 30;
constexpr int64_t kSmallShm = int64_t{1} << 30;
constexpr int64_t kLittleMemory = int64_t{1} << 30;
constexpr int64_t kLittleDisk = int64_t{1} << 30, kSomeDisk = int64_t{20} << 30;
constexpr double kSlowDisk = 50e6;  // bytes/s: a checkpoint of 10 GB takes minutes
constexpr double kSkewWarning = 1.0, kSkewProblem = 60.0;  // seconds

std::string gib(double bytes) {
  return bytes >= kGiB ? fmt::format("{:.3g} GiB", bytes / kGiB)
                       : fmt::format("{:.3g} MiB", bytes / 1024 / 1024);
}
std::string gib(int64_t bytes) {
  return gib(static_cast<double>(bytes));
}

std::string limit_words(const std::optional<uint64_t>& limit) {
  return limit ? fmt::format("{}", *limit) : "unlimited";
}

std::string cuda_words(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

const char* level_word(Finding::Level level) {
  if (level == Level::ok) return "ok";
  return level == Level::warning ? "warning" : "problem";
}

bool has_problem(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.level == Level::problem; });
}

std::vector<Finding> judge_limits(const LimitFacts& facts) {
  std::vector<Finding> findings;
  const bool few = facts.nofile && *facts.nofile < kFewFiles;
  const bool can_raise = !facts.nofile_hard || *facts.nofile_hard >= kFewFiles;
  findings.push_back(
      {"limits.nofile",
       few ? (*facts.nofile < kFewFiles / 4 ? Level::problem : Level::warning) : Level::ok,
       fmt::format(
           "open files: {}{}", limit_words(facts.nofile),
           few ? fmt::format(", and a rank with its data and its peers wants {}", kFewFiles) : ""),
       few ? (can_raise
                  ? fmt::format("ulimit -n {}", facts.nofile_hard.value_or(65536))
                  : "raise nofile in /etc/security/limits.conf, or LimitNOFILE= of the service")
           : ""});
  const bool crowded = facts.nproc && *facts.nproc < kFewProcesses;
  findings.push_back({"limits.nproc", crowded ? Level::warning : Level::ok,
                      fmt::format("processes and threads: {}", limit_words(facts.nproc)),
                      crowded ? "ulimit -u unlimited, or nproc in /etc/security/limits.conf" : ""});
  const bool locked = facts.rdma && facts.memlock && *facts.memlock < kLockedForRdma;
  findings.push_back(
      {"limits.memlock", locked ? Level::problem : Level::ok,
       facts.memlock
           ? fmt::format("locked memory: {}{}", gib(static_cast<double>(*facts.memlock)),
                         locked ? ", and RDMA cards are here: NCCL registers its buffers with them"
                                : ", which matters only with RDMA cards")
           : "locked memory: unlimited",
       locked
           ? "ulimit -l unlimited; in Docker: --ulimit memlock=-1; SLURM: PropagateResourceLimits="
             "NONE"
           : ""});
  return findings;
}

std::vector<Finding> judge_memory(const MemoryFacts& facts) {
  std::vector<Finding> findings;
  const bool limited = facts.cgroup_limit && *facts.cgroup_limit < facts.total;
  const int64_t left = limited ? std::min(facts.available, *facts.cgroup_limit - facts.cgroup_used)
                               : facts.available;
  const bool little = left < kLittleMemory;
  findings.push_back(
      {"memory.free", little ? Level::problem : Level::ok,
       fmt::format("memory: {} free of {}{}", gib(left),
                   gib(limited ? *facts.cgroup_limit : facts.total),
                   limited ? fmt::format(" that the control group allows (the machine has {})",
                                         gib(facts.total))
                           : ""),
       little ? (limited ? "give the container or job more memory (--memory, --mem)"
                         : "end what takes it: ps aux --sort=-rss | head")
              : ""});
  const bool narrow = facts.cpu_quota > 0 && facts.cpu_quota < 1;
  findings.push_back(
      {"memory.cores", narrow ? Level::warning : Level::ok,
       fmt::format(
           "cores: {}{}", facts.cores,
           facts.cpu_quota > 0 ? fmt::format(", by a quota of {:.3g}", facts.cpu_quota) : ""),
       narrow ? "give the container more (--cpus): ranks wait for each other" : ""});
  const bool absent = facts.shm_total < 0;
  const bool small = !absent && facts.shm_free < kSmallShm;
  findings.push_back(
      {"memory.shm", absent || small ? Level::warning : Level::ok,
       absent ? "/dev/shm is not there: NCCL and PyTorch's data workers exchange through it"
              : fmt::format("/dev/shm: {} free of {}{}", gib(facts.shm_free), gib(facts.shm_total),
                            small ? "; NCCL and PyTorch's data workers exchange through it (mtl's "
                                    "own ranks do not)"
                                  : ""),
       absent ? "mount it: mount -t tmpfs tmpfs /dev/shm"
       : small
           ? "Docker: --shm-size=8g or --ipc=host; Kubernetes: an emptyDir with medium: Memory; "
             "else: mount -o remount,size=50% /dev/shm, and rm what nobody uses there"
           : ""});
  return findings;
}

std::vector<Finding> judge_disk(const DiskFacts& facts) {
  if (!facts.refusal.empty()) {
    return {{"disk.write", Level::problem,
             fmt::format("runs cannot be written in {}: {}", facts.folder, facts.refusal),
             "start from a folder that is yours and has space, or set run.dir (MTL_RUN__DIR)"}};
  }
  std::vector<Finding> findings;
  const bool full = facts.free_bytes >= 0 && facts.free_bytes < kLittleDisk;
  const bool short_of = facts.free_bytes >= 0 && facts.free_bytes < kSomeDisk;
  findings.push_back(
      {"disk.space",
       full       ? Level::problem
       : short_of ? Level::warning
                  : Level::ok,
       fmt::format("space where runs go ({}): {}", facts.folder,
                   facts.free_bytes < 0 ? "unknown" : gib(facts.free_bytes)),
       short_of ? "free some, or set run.dir (MTL_RUN__DIR): a checkpoint takes 12 bytes for each "
                  "parameter, and three are kept"
                : ""});
  if (facts.free_inodes >= 0 && facts.free_inodes < 1000) {
    findings.push_back({"disk.inodes", Level::problem,
                        fmt::format("{} files more fit on it", facts.free_inodes),
                        "delete small files there, or set run.dir elsewhere"});
  }
  if (facts.bytes_per_s > 0) {
    const bool slow = facts.bytes_per_s < kSlowDisk;
    findings.push_back(
        {"disk.speed", slow ? Level::warning : Level::ok,
         fmt::format("writing with fsync: {:.{}f} MB/s", facts.bytes_per_s / 1e6,
                     facts.bytes_per_s < 1e7 ? 1 : 0),
         slow ? "put runs on a faster disk, or save seldom (checkpoint.every)" : ""});
  }
  return findings;
}

std::vector<Finding> judge_names(const NameFacts& facts) {
  std::vector<Finding> findings;
  Finding name{"network.name", Level::ok, fmt::format("own name: {} resolves", facts.name)};
  if (!facts.resolves) {
    name.level = Level::warning;
    name.what =
        fmt::format("own name: {} does not resolve; PyTorch programs look it up", facts.name);
    name.cure = fmt::format("add it to /etc/hosts: 127.0.1.1 {}", facts.name);
  } else if (facts.to_loopback && facts.several_hosts) {
    name.level = Level::warning;
    name.what = fmt::format("own name: {} leads to a loopback address, which others cannot reach",
                            facts.name);
    name.cure = "give an address, not the name, as --main_process_ip; or correct /etc/hosts";
  }
  findings.push_back(name);
  const bool alone = facts.addresses == 0;
  findings.push_back({"network.address",
                      alone ? (facts.several_hosts ? Level::problem : Level::warning) : Level::ok,
                      alone ? "no address but loopback: no other machine can reach this one"
                            : fmt::format("{} address{} that others can use", facts.addresses,
                                          facts.addresses == 1 ? "" : "es"),
                      alone ? "bring a network interface up: ip link, ip address" : ""});
  return findings;
}

Finding judge_port(uint16_t port, bool asked_for, bool several,
                   const std::optional<std::string>& owner) {
  Finding finding{"network.port", Level::ok, fmt::format("port {}: free", port)};
  if (!owner) return finding;
  const std::string who = owner->empty() ? "somebody else" : *owner;
  const bool fixed = asked_for && several;
  finding.level = fixed ? Level::problem : Level::warning;
  finding.what =
      fmt::format("port {}, {}: taken by {}{}", port,
                  asked_for ? "which the job is to use" : "where accelerate and torchrun meet", who,
                  fixed ? "" : " (mtl takes a free one)");
  finding.cure = asked_for ? "end it, or choose another --main_process_port"
                           : "give programs of others another --main_process_port";
  return finding;
}

std::vector<Finding> judge_driver(const DriverFacts& facts) {
  std::vector<Finding> findings;
  if (!facts.files && facts.module.empty()) {
    findings.push_back(
        {"gpu.driver", facts.nouveau ? Level::warning : Level::ok,
         facts.nouveau ? "GPUs of NVIDIA with the nouveau driver, which has no CUDA"
                       : "no NVIDIA GPU: the CPU computes",
         facts.nouveau ? "install NVIDIA's driver and keep nouveau from loading" : ""});
    return findings;
  }
  if (facts.user_library.empty()) {
    findings.push_back({"gpu.driver", Level::problem,
                        fmt::format("driver {} is loaded, and libcuda.so.1 is not found",
                                    facts.module.empty() ? "(unknown)" : facts.module),
                        "install the driver's libraries of the same version (libcuda1); in a "
                        "container: --gpus all and nvidia-container-toolkit"});
  } else if (!facts.module.empty() && facts.user_library.find('.') != std::string::npos &&
             facts.user_library != facts.module) {
    findings.push_back(
        {"gpu.driver", Level::problem,
         fmt::format("the kernel runs driver {}, and the libraries are of {}", facts.module,
                     facts.user_library),
         "reboot, or reload the nvidia modules: the driver was updated while it ran"});
  } else {
    findings.push_back(
        {"gpu.driver", Level::ok,
         fmt::format("driver {}", facts.module.empty() ? facts.user_library : facts.module)});
  }
  if (!facts.plugin) {
    findings.push_back(
        {"gpu.engine", Level::problem, "there are GPUs, and libmtl_cuda.so is not beside mtl",
         "build or install mtl with its GPU engine (docs/how-to/use-gpus.md), or set "
         "MTL_DEVICE=cpu"});
    return findings;
  }
  if (!facts.refusal.empty()) {
    findings.push_back({"gpu.engine", Level::problem, facts.refusal, facts.refusal_help});
    return findings;
  }
  if (facts.cuda_runtime > 0) {
    // Minor versions of one major version work together (CUDA's minor version compatibility).
    const bool old = facts.cuda_driver / 1000 < facts.cuda_runtime / 1000;
    findings.push_back(
        {"gpu.cuda", old ? Level::problem : Level::ok,
         fmt::format("CUDA {}, and the driver has {}", cuda_words(facts.cuda_runtime),
                     cuda_words(facts.cuda_driver)),
         old ? fmt::format("update the driver to one for CUDA {}", facts.cuda_runtime / 1000)
             : ""});
  }
  for (size_t i = 0; i < facts.gpus.size(); ++i) {
    const bool bad = !facts.gpus[i].refusal.empty();
    findings.push_back({"gpu.device", bad ? Level::problem : Level::ok,
                        fmt::format("GPU {}: {}{}", i, facts.gpus[i].name,
                                    bad ? ": " + facts.gpus[i].refusal : ""),
                        bad ? "leave it out with --gpu_ids, or look at nvidia-smi -q" : ""});
  }
  const bool lacks_nccl = facts.nccl.empty() && facts.nccl_needed;
  findings.push_back({"gpu.nccl", lacks_nccl ? Level::problem : Level::ok,
                      facts.nccl.empty() ? "NCCL: not found" : "NCCL " + facts.nccl,
                      lacks_nccl ? "install libnccl2: several GPUs exchange through it" : ""});
  findings.push_back(
      {"gpu.cudnn", Level::ok,
       facts.cudnn.empty() ? "cuDNN: not found, and not needed by mtl" : "cuDNN " + facts.cudnn});
  return findings;
}

std::vector<Finding> compare_hosts(const std::vector<HostReport>& reports) {
  std::vector<Finding> findings;
  // What has to be the same, and what had better be.
  static const std::pair<const char*, Level> kFacts[] = {
      {"mtl", Level::problem},  {"driver", Level::warning}, {"NCCL", Level::warning},
      {"GPUs", Level::warning}, {"CPU", Level::warning},    {"cores", Level::warning}};
  size_t heard = 0;
  for (const HostReport& report : reports) heard += report.facts.empty() ? 0 : 1;
  for (const auto& [name, level] : kFacts) {
    std::map<std::string, std::vector<std::string>> hosts_of;
    for (const HostReport& report : reports) {
      for (const auto& [fact, value] : report.facts) {
        if (fact == name) hosts_of[value].push_back(report.host);
      }
    }
    if (hosts_of.size() < 2) continue;
    std::vector<std::string> parts;
    for (const auto& [value, hosts] : hosts_of) {
      parts.push_back(fmt::format("{} on {}", value, fmt::join(hosts, ", ")));
    }
    findings.push_back({fmt::format("hosts.{}", name), level,
                        fmt::format("{} differs: {}", name, fmt::join(parts, "; ")),
                        level == Level::problem
                            ? "install the same version everywhere"
                            : "every step waits for the slowest host: leave the odd one out, or "
                              "make it like the others"});
  }
  if (heard > 1 && findings.empty()) {
    findings.push_back({"hosts.versions", Level::ok,
                        fmt::format("{} hosts with the same mtl, driver, GPUs and cores", heard)});
  }
  double low = 0, high = 0, error = 0;
  std::string behind, ahead;
  size_t clocks = 0;
  for (const HostReport& report : reports) {
    if (!report.clock_ahead_s) continue;
    const double skew = *report.clock_ahead_s;
    if (clocks == 0 || skew < low) low = skew, behind = report.host;
    if (clocks == 0 || skew > high) high = skew, ahead = report.host;
    error = std::max(error, report.clock_error_s);
    ++clocks;
  }
  if (clocks > 1) {
    const double apart = high - low;
    const Level level = apart - 2 * error > kSkewProblem   ? Level::problem
                        : apart - 2 * error > kSkewWarning ? Level::warning
                                                           : Level::ok;
    findings.push_back(
        {"hosts.clock", level,
         level == Level::ok
             ? fmt::format("clocks: at most {:.3g} s apart", apart)
             : fmt::format("clocks: {} is {:.3g} s ahead of {}", ahead, apart, behind),
         level == Level::ok ? ""
                            : "run chrony or systemd-timesyncd on both: times in logs mislead"});
  }
  return findings;
}

nlohmann::ordered_json to_json(const Finding& finding) {
  return {{"check", finding.check},
          {"level", level_word(finding.level)},
          {"what", finding.what},
          {"cure", finding.cure},
          {"host", finding.host}};
}

Finding finding_from_json(const nlohmann::ordered_json& json) {
  Finding finding;
  finding.check = json.at("check");
  const std::string level = json.at("level");
  finding.level = level == "ok" ? Level::ok : level == "warning" ? Level::warning : Level::problem;
  finding.what = json.at("what");
  finding.cure = json.at("cure");
  finding.host = json.value("host", "");
  return finding;
}

}  // namespace mtl
