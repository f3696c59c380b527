// What follows from all layers of a launch together, and what contradicts itself there.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <unistd.h>

#include <sys/stat.h>

#include <fmt/format.h>

#include "common/files.h"
#include "common/shell_word.h"
#include "launcher/request/launch_resolver.h"
#include "launcher/settings/train_settings.h"

namespace mtl {

namespace {

constexpr int kMeetingPort = 29500;  // torchrun's and accelerate's
constexpr int kManyRanks = 256;      // of a node, where nobody knows yet how many

bool is_foreign_device(const std::string& type) {
  static const std::set<std::string> types = {"MULTI_NPU",    "MULTI_MLU", "MULTI_SDAA",
                                              "MULTI_MUSA",   "MULTI_XPU", "MULTI_HPU",
                                              "MULTI_NEURON", "XLA"};
  return types.count(type) != 0;
}

// Of a program on GPUs: what accelerate does not start with --cpu.
bool is_engine(const std::string& type) {
  return type == "FSDP" || type == "DEEPSPEED" || type == "MEGATRON_LM" || type == "MULTI_GPU";
}

}  // namespace

void LaunchResolver::finish_via() {
  r_.via = via_.value;
  if (r_.via == "auto") r_.via.clear();
  // What was submitted finds the setting that submitted it once more, in its files and in its
  // environment. A job inside a job is one that is asked for by a flag.
  if (r_.via == "slurm" && via_.layer < kFlags && std::getenv("SLURM_JOB_ID") != nullptr) {
    r_.via.clear();
  }
  if (r_.via == "kubernetes" && via_.layer < kFlags &&
      std::getenv("KUBERNETES_SERVICE_HOST") != nullptr) {
    r_.via.clear();
  }
  if (!scheduled()) return;
  for (const auto* named : {&hosts_, &hostfile_}) {
    if (named->layer > kFile) {
      conflict(fmt::format("{} names machines, and {} leaves them to {}", named->origin,
                           via_.origin, r_.via == "slurm" ? "SLURM" : "Kubernetes"),
               r_.via == "slurm" ? "leave one of them out; --slurm_nodelist asks for certain nodes"
                                 : "leave one of them out");
    }
  }
  hosts_ = {};
  hostfile_ = {};
  machine_rank_ = {};
}

// Ranks of a node that nobody has seen yet.
int LaunchResolver::scheduled_ranks() {
  const auto& asked = r_.via == "slurm" ? r_.slurm : r_.kubernetes;
  for (const char* name : {"gpus_per_node", "gpus"}) {
    const auto found = asked.find(name);
    if (found == asked.end() || found->second.empty() || r_.config.use_cpu) continue;
    if (const auto gpus = whole_number(found->second.back(), 1, 1 << 20)) return *gpus;
  }
  if (r_.local_ranks != LaunchRequest::kAuto) {
    fail("launch.processes",
         fmt::format("{} counts what a node has, and this job has none yet", per_node_.origin),
         "say how many: --nproc_per_node 8");
  }
  return 1;
}

void LaunchResolver::finish_engine() {
  if (engines_.size() > 1) {
    std::string names;
    for (const auto& [type, origin] : engines_) names += (names.empty() ? "" : " and ") + origin;
    conflict(names + " exclude each other: a program has one engine", "leave all but one out");
  }
  LaunchConfig& config = r_.config;
  if (!engines_.empty()) {
    config.distributed_type = engines_.front().first;
  } else if (!train_yaml_ && cpu_.said() && cpu_.value && is_engine(config.distributed_type)) {
    // As accelerate: a program on the CPU has none. Of a train.yaml it is a layout, on CPUs too.
    config.distributed_type = "NO";
  }
  const bool gpu_said = multi_gpu_.said() && multi_gpu_.value;
  if (cpu_.said() && (!gpu_said || cpu_.layer > multi_gpu_.layer)) {
    config.use_cpu = cpu_.value;
  } else if (gpu_said) {
    config.use_cpu = false;
  }
  if (gpu_said && !config.use_cpu) {
    r_.need_gpu = true;
    if (config.distributed_type == "NO" || config.distributed_type == "MULTI_CPU" ||
        is_foreign_device(config.distributed_type)) {
      config.distributed_type = "MULTI_GPU";
    }
  }
  if (is_foreign_device(config.distributed_type) && !config.use_cpu) {
    fail("launch.device",
         fmt::format("distributed_type {}: mtl starts programs on CPUs and NVIDIA GPUs",
                     config.distributed_type),
         "use `accelerate launch` for these devices, or say --multi_gpu or --cpu");
  }
  if (multi_gpu_.said() && !multi_gpu_.value && config.distributed_type == "MULTI_GPU") {
    config.distributed_type = "NO";
  }
}

// A file that was not written for the scheduler or the hosts says what this machine has, often a
// login node or a laptop.
void LaunchResolver::check_job_device() {
  const LaunchConfig& config = r_.config;
  if (!config.use_cpu || cpu_.said() || config.path.empty()) return;
  const bool by_ssh = r_.mode == LaunchRequest::Mode::hosts;
  const int layer = by_ssh ? std::max(hosts_.layer, hostfile_.layer) : via_.layer;
  if (!(by_ssh || scheduled()) || layer <= kFile) return;
  diagnostics_.add({.code = "launch.job_on_cpus",
                    .what = fmt::format("the job uses no GPUs: {} says use_cpu", config.path),
                    .help = "--multi_gpu for GPUs; --cpu where none are wanted",
                    .severity = Diagnostic::Severity::warning});
}

// accelerate's launcher refuses it of the file alone: the `false` of a flag is a text there, and
// not empty. The program then broadcasts all the same, and says so.
void LaunchResolver::check_fsdp(const LaunchGiven& given) {
  if (r_.config.distributed_type != "FSDP") return;
  for (const FlagValues* values : {&given.flags, &given.environment, &given.train_yaml}) {
    if (values->contains("fsdp_sync_module_states")) return;
  }
  const auto loading = r_.config.plugins.find("fsdp_cpu_ram_efficient_loading");
  if (loading != r_.config.plugins.end() && !truth_of(loading->second).value_or(true)) return;
  const YamlValue::Entry* sync = find_setting(r_.config, "fsdp_sync_module_states");
  if (sync == nullptr || sync->value.quoted || truth_of(sync->value.text).value_or(true)) return;
  conflict("fsdp_cpu_ram_efficient_loading needs fsdp_sync_module_states: only rank 0 loads",
           "--fsdp_sync_module_states true, or --fsdp_cpu_ram_efficient_loading false");
}

void LaunchResolver::check_stage(const LaunchGiven& given) {
  const auto unknown = unknown_stage(r_.config);
  if (!unknown) return;
  for (const FlagValues* values : {&given.flags, &given.environment}) {
    const auto said = values->find(unknown->key);
    if (said == values->end()) continue;
    value_error(said->second, unknown->wanted);
    return;
  }
  // What the file says of its own engine has been looked at when it was read.
  if (r_.config.distributed_type == file_type_) return;
  if (const auto wrong = unknown_stage_of_file(r_.config)) diagnostics_.add(*wrong);
}

// The sizes of a program's layout, which accelerate checks in the program or not at all. Those of a
// train.yaml are checked with the model.
void LaunchResolver::finish_layout() {
  if (train_yaml_ || r_.ranks == 0) return;
  const LaunchConfig& config = r_.config;
  const auto size = [](const std::map<std::string, std::string>& values, const std::string& key) {
    const auto found = values.find(key);
    return found == values.end() ? 1 : whole_number(found->second, 1, 1 << 20).value_or(1);
  };
  if (config.distributed_type == "MEGATRON_LM") {
    const auto& values = config.megatron_lm_config;
    const int tp = size(values, "megatron_lm_tp_degree");
    const int pp = size(values, "megatron_lm_pp_degree");
    const int cp = size(values, "megatron_lm_context_parallel_size");
    const int64_t model = int64_t{tp} * pp * cp;
    if (r_.ranks % model == 0) return;
    fail("launch.processes",
         fmt::format("{} processes cannot hold whole models of tp {} x pp {}{} = {} ranks",
                     r_.ranks, tp, pp, cp > 1 ? fmt::format(" x cp {}", cp) : std::string(), model),
         fmt::format("{} processes would do", (r_.ranks / model + 1) * model));
  } else if ((config.distributed_type == "FSDP" || config.distributed_type == "DEEPSPEED") &&
             config.use_parallelism_config) {
    int64_t product = 1;
    std::string words;
    for (const char* name : {"dp_replicate", "dp_shard", "tp", "cp", "sp"}) {
      const int value = size(config.plugins, fmt::format("parallelism_config_{}_size", name));
      product *= value;
      if (value > 1) words += fmt::format("{}{} {}", words.empty() ? "" : " x ", name, value);
    }
    // Of DeepSpeed's sequence parallelism accelerate asks nothing: groups are DeepSpeed's there.
    const auto backend = config.plugins.find("parallelism_config_sp_backend");
    const bool ulysses = backend == config.plugins.end() || backend->second == "deepspeed";
    const bool free = ulysses && size(config.plugins, "parallelism_config_sp_size") > 1;
    if (product == 1 || product == r_.ranks || free) return;
    fail("launch.processes",
         fmt::format("parallelism_config {} = {} is not the number of processes, {}", words,
                     product, r_.ranks),
         "accelerate wants them equal: change a size or num_processes");
  }
}

void LaunchResolver::finish_meeting() {
  r_.join_timeout = join_timeout_.said() ? join_timeout_.value : r_.join_timeout;
  r_.binding = binding_.said() ? binding_.value : Binding::none;
  // The endpoint is where machines meet; main_process_ip says the same unless both are given.
  const bool member = r_.mode == LaunchRequest::Mode::member && !scheduled();
  const std::string host = endpoint_.said() ? endpoint_.value.host : address_.value;
  int port = endpoint_.said() && endpoint_.value.port >= 0 ? endpoint_.value.port : port_.value;
  if (member && host.empty()) {
    fail("launch.address",
         fmt::format("{} machines, and nobody says where they meet", r_.max_nodes),
         r_.elastic ? "add --rdzv_endpoint HOST:PORT, the same on every machine"
                    : "add --main_process_ip ADDRESS of machine 0, the same on every machine");
  }
  if (member && port == 0) {
    if (endpoint_.value.port == 0 || port_.said()) {
      fail("launch.port", "port 0 with several machines: the others would not know which it is",
           "name one, the same on every machine: --main_process_port 29500");
    }
    port = kMeetingPort;
  }
  if (!host.empty()) r_.address = host;
  r_.port = static_cast<uint16_t>(member ? port : 0);
  // Where our own agents meet is taken; the workers' own meeting has a port of its own.
  const bool both = endpoint_.said() && port_.said() && endpoint_.value.port != port_.value;
  if (!member || both) r_.master_port = static_cast<uint16_t>(port_.value);
  if (!member && !port_.said() && endpoint_.said() && endpoint_.value.port > 0) {
    r_.master_port = static_cast<uint16_t>(endpoint_.value.port);
  }
  r_.machine_rank = machine_rank_.said() ? machine_rank_.value : 0;
  if (member && !r_.elastic && !machine_rank_.said()) {
    fail("launch.machine_rank",
         fmt::format("{} machines, and nobody says which one this is", r_.max_nodes),
         "add --machine_rank: 0 here, 1 on the next machine, ...");
  }
  if (machine_rank_.said() && !r_.starts_agents() && !r_.elastic &&
      r_.machine_rank >= r_.max_nodes) {
    fail("launch.machine_rank",
         fmt::format("machine_rank {} ({}) does not exist with {} machine{}", r_.machine_rank,
                     machine_rank_.origin, r_.max_nodes, r_.max_nodes == 1 ? "" : "s"),
         fmt::format("ranks count from 0 to {}", r_.max_nodes - 1));
  }
  if (member && port_.layer == kSurroundings && !endpoint_.said()) {
    for (const int other : r_.allocation.ports) r_.ports.push_back(static_cast<uint16_t>(other));
  }
  r_.config.machine_rank = r_.machine_rank;
  r_.config.main_process_ip = host;
  r_.config.main_process_port = port;
  if (port_.said()) r_.config.main_process_port_given = true;
  read_token();
}

void LaunchResolver::read_token() {
  if (!token_file_.said()) return;
  const std::string& path = token_file_.value;
  try {
    std::string text = read_file(path, 1 << 16);
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
      text.pop_back();
    }
    if (text.empty()) {
      return fail("launch.token_file", fmt::format("{} is empty", path),
                  "put a long random word in it: openssl rand -hex 32");
    }
    r_.token = text;
  } catch (const Error& failure) {
    for (const Diagnostic& diagnostic : failure.diagnostics()) diagnostics_.add(diagnostic);
    return;
  }
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return;
  // What somebody else has given us through a group is meant to be read so, as in a pod.
  const mode_t others = info.st_uid == geteuid() ? 077 : 007;
  if ((info.st_mode & others) != 0) {
    diagnostics_.add({.code = "launch.token_mode",
                      .what = fmt::format("{} has the job's secret and others may read it", path),
                      .help = "chmod 600 " + shell_word(path),
                      .severity = Diagnostic::Severity::warning});
  }
}

// "3", or "0:3,1:1": bits by local rank.
bool LaunchResolver::bits(const Layered<std::string>& given, std::optional<int>& all,
                          std::map<int, int>& some) {
  const std::string& text = given.value;
  if (const auto number = whole_number(text, 0, 3)) {
    all = *number;
    return true;
  }
  for (const std::string& pair : split_words(text, ',')) {
    const size_t colon = pair.find(':');
    const auto rank = whole_number(pair.substr(0, colon), 0, 1 << 20);
    const auto which =
        colon == std::string::npos ? std::nullopt : whole_number(pair.substr(colon + 1), 0, 3);
    if (!rank || !which) {
      fail("launch.value",
           fmt::format("{} wants 0 to 3, or pairs like 0:3,1:1, got '{}'", given.origin, text),
           "0 = nothing, 1 = stdout, 2 = stderr, 3 = both");
      return false;
    }
    some[*rank] = *which;
  }
  return true;
}

void LaunchResolver::finish_numbers(const LaunchGiven& given) {
  const bool says_none = !r_.config.path.empty() && r_.config.distributed_type == "NO";
  if (train_yaml_ || !says_none || r_.mode != LaunchRequest::Mode::local) return;
  for (const char* word : {"nproc_per_node", "nnodes", "standalone", "rdzv_endpoint", "rdzv_id",
                           "max_restarts", "role"}) {
    if (given.flags.contains(word) || given.environment.contains(word)) return;
  }
  r_.numbered = false;
}

void LaunchResolver::finish_logs() {
  std::optional<int> all;
  const int ranks = r_.local_ranks > 0 ? r_.local_ranks : kManyRanks;
  if (tee_.said() && bits(tee_, all, r_.logs.console)) {
    if (all && *all > 0) {
      r_.logs.console_default = *all;
      for (int rank = 0; rank < ranks; ++rank) r_.logs.console[rank] = *all;
    }
    r_.logs.prefix = (all && *all > 0) || !r_.logs.console.empty();
  }
  all.reset();
  if (redirects_.said() && bits(redirects_, all, r_.logs.redirected) && all && *all > 0) {
    for (int rank = 0; rank < ranks; ++rank) r_.logs.redirected[rank] = *all;
  }
  if (!r_.logs.only_local_ranks.empty() && !tee_.said()) {
    r_.logs.console_default = 3;
    r_.logs.prefix = r_.logs.only_local_ranks.size() > 1;
  }
}

void LaunchResolver::finish_environment() {
  if (r_.omp_threads == 0) {
    const char* threads = std::getenv("OMP_NUM_THREADS");
    // OpenMP takes a list for nested levels; the first is what a rank has.
    if (threads != nullptr) r_.omp_threads = std::max(std::atoi(threads), 0);
  }
  if (r_.config.distributed_type == "DEEPSPEED" && r_.env.count("PYTHONPATH") == 0) {
    const char* path = std::getenv("PYTHONPATH");
    std::error_code ignored;
    const std::string here = std::filesystem::current_path(ignored).string();
    // Behind what is there, as accelerate has it.
    r_.env["PYTHONPATH"] = path != nullptr && *path != '\0' ? path + (":" + here) : here;
  }
}

}  // namespace mtl
