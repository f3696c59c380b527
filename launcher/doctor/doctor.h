// What may keep a run from working on a machine, or on several: each finding is fine, to be thought
// about, or a problem, and says its cure in a line. Reading and judging are apart, so that
// judgements are tested on machines that nobody here has.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "launcher/hosts.h"
#include "launcher/ranks/placement.h"

namespace mtl {

struct Finding {
  enum class Level { ok, warning, problem };
  std::string check;  // stable: "limits.nofile"
  Level level = Level::ok;
  std::string what;
  std::string cure = {};  // empty where all is well
  std::string host = {};  // of several; "" = this one, or all of them
};
const char* level_word(Finding::Level level);  // "ok", "warning", "problem"
bool has_problem(const std::vector<Finding>& findings);

// --- this machine

struct DoctorOptions {
  std::string run_dir = "runs";
  uint16_t port = 0;  // that a job is told to use; 0 = none, then others' usual one is looked at
  bool several_hosts = false;
  int64_t probe_bytes = 32 << 20;  // written to see how fast the disk is
};

struct LimitFacts {
  // Soft and hard; nothing = unlimited.
  std::optional<uint64_t> nofile = {}, nofile_hard = {}, nproc = {}, memlock = {};
  bool rdma = false;  // InfiniBand or RoCE cards are here
};
std::vector<Finding> judge_limits(const LimitFacts& facts);

struct MemoryFacts {
  int64_t total = 0, available = 0;          // of the machine, bytes
  std::optional<int64_t> cgroup_limit = {};  // of the control group; nothing = none
  int64_t cgroup_used = 0;
  int64_t shm_total = -1, shm_free = -1;  // /dev/shm; -1 = not there
  int cores = 1;
  double cpu_quota = 0;  // in cores, 0 = none
};
std::vector<Finding> judge_memory(const MemoryFacts& facts);

struct DiskFacts {
  std::string folder = {};   // that was written to: the run directory's, or the nearest above it
  std::string refusal = {};  // why nothing can be written; empty = it can
  int64_t free_bytes = -1, free_inodes = -1;
  double bytes_per_s = 0;  // with fsync; 0 = not measured
};
std::vector<Finding> judge_disk(const DiskFacts& facts);

struct NameFacts {
  std::string name;
  bool resolves = true, to_loopback = false;
  int addresses = 0;  // that others could reach
  bool several_hosts = false;
};
std::vector<Finding> judge_names(const NameFacts& facts);

// `owner`: who listens there, as far as that can be seen; nothing = it is free.
// `asked_for`: a job is told to use it; `several`: on several machines, which cannot take another.
Finding judge_port(uint16_t port, bool asked_for, bool several,
                   const std::optional<std::string>& owner);

struct DriverFacts {
  bool files = false;             // /dev/nvidiactl
  bool nouveau = false;           // the other driver is loaded
  std::string module = {};        // version of the kernel's part: "580.65.06"; "" = not loaded
  std::string user_library = {};  // of libcuda.so.1; "" = not found
  bool plugin = false;            // libmtl_cuda.so is there
  std::string refusal = {},
              refusal_help = {};          // why it cannot be used; empty = it can, or was not tried
  int cuda_driver = 0, cuda_runtime = 0;  // 13000 = 13.0
  std::string nccl = {}, cudnn = {};      // "2.28.3"; "" = not found
  bool nccl_needed = false;               // more than one GPU
  struct Gpu {
    std::string name, refusal = {};
  };
  std::vector<Gpu> gpus = {};
};
std::vector<Finding> judge_driver(const DriverFacts& facts);
// All but what only CUDA itself says.
DriverFacts read_driver();

// Limits, memory, disk, names, port and clock of this machine.
std::vector<Finding> examine_machine(const DoctorOptions& options, const NodeHardware& hardware);

// What is the same for all hosts of a job, and what a report is to say: ("mtl", "0.1.0") ...
using HostFacts = std::vector<std::pair<std::string, std::string>>;
HostFacts read_host_facts(const NodeHardware& hardware);

// --- several hosts

struct HostReport {
  std::string host;
  HostFacts facts;
  std::vector<Finding> findings;
  std::optional<double> clock_ahead_s;  // of this machine's clock
  double clock_error_s = 0;             // half the time that the question took
};
// Versions that differ, clocks that are apart.
std::vector<Finding> compare_hosts(const std::vector<HostReport>& reports);

struct DoctorFleet {
  std::vector<Host> hosts;
  std::string program;  // mtl on the far side
  std::string ssh_config, ssh_command;
  DoctorOptions options;
};
// Asks `mtl doctor --agent` on every host: its own examination, its clock, and whether it reaches
// the first host on the job's port (or a free one), where nobody listens but we. Findings of hosts
// that cannot be reached stand in their reports.
std::vector<HostReport> examine_hosts(const DoctorFleet& fleet);

inline constexpr const char* kDoctorMagic = "mtl-doctor 1";
// The far side: answers questions on `in`, a JSON object a line, until it ends. `examine` gives
// all findings of that machine.
using Examination = std::function<std::vector<Finding>(const DoctorOptions&)>;
void run_doctor_agent(int in, int out, const HostFacts& facts, const Examination& examine);

nlohmann::ordered_json to_json(const Finding& finding);
Finding finding_from_json(const nlohmann::ordered_json& json);

// --- for bug reports

// What a text is not to tell: the user's name and home, names and addresses of machines, tokens.
struct Secrets {
  std::string user, home;
  std::vector<std::string> hosts;
  std::vector<std::string> values;  // of variables that are secret
};
Secrets read_secrets(const std::vector<std::string>& hosts);
std::string without_secrets(std::string text, const Secrets& secrets);

}  // namespace mtl
