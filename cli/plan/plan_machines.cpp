#include "cli/plan/plan_machines.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/error.h"
#include "common/text.h"
#include "runtime/device/cpu/calibrate.h"
#include "runtime/rank_memory.h"

namespace mtl {

namespace {

constexpr const char* kDefault = "h100-80g";
constexpr const char* kCpu = "cpu";

bool on_cpu(const MachinesGiven& given) {
  return lower(given.gpu_type) == kCpu;
}

const Cluster& type_given(const MachinesGiven& given) {
  const std::string name = given.gpu_type.empty() ? kDefault : given.gpu_type;
  if (const Cluster* found = find_cluster(name)) return *found;
  std::vector<std::string> types = cluster_types();
  types.emplace_back(kCpu);
  throw Error(Exit::usage,
              Diagnostic{.code = "usage.value",
                         .what = fmt::format("--gpu-type '{}' is not known", name),
                         .help = fmt::format("use one of {}", fmt::join(types, ", "))});
}

// As many as anybody has, many times over; and worlds are multiplied as int.
constexpr int64_t kMostRanks = 1 << 20;

int ranks_of(const char* option, int64_t number, int64_t each) {
  if (number > kMostRanks / each) {
    throw Error(Exit::usage,
                Diagnostic{.code = "usage.value",
                           .what = fmt::format("--{} {}: mtl plans at most {} ranks", option,
                                               number, kMostRanks),
                           .help = fmt::format("use at most --{} {}", option, kMostRanks / each)});
  }
  return static_cast<int>(number * each);
}

}  // namespace

std::optional<int> ranks_given(const MachinesGiven& given) {
  if (on_cpu(given) && given.nodes.value_or(1) > 1) {
    throw Error(Exit::usage,
                Diagnostic{.code = "usage.option",
                           .what = fmt::format("--gpu-type cpu is this machine, and --nodes {} are "
                                               "several",
                                               *given.nodes),
                           .help = "use --gpus for the number of ranks on it"});
  }
  const int per_node = on_cpu(given) ? 1 : type_given(given).gpus_per_node;
  if (!given.nodes) {
    return given.gpus ? std::optional(ranks_of("gpus", *given.gpus, 1)) : std::nullopt;
  }
  if (!given.gpus) return ranks_of("nodes", *given.nodes, per_node);
  if (*given.gpus % *given.nodes != 0 ||
      (*given.gpus / *given.nodes > per_node && !on_cpu(given))) {
    throw Error(Exit::usage,
                Diagnostic{.code = "usage.option",
                           .what = fmt::format("--gpus {} cannot be shared out over --nodes {} of "
                                               "at most {}",
                                               *given.gpus, *given.nodes, per_node),
                           .help = "give one of them, or a multiple"});
  }
  return ranks_of("gpus", *given.gpus, 1);
}

Cluster machines_given(const MachinesGiven& given, DType compute, int ranks) {
  if (on_cpu(given)) {
    constexpr double kSeconds = 0.2;
    const double shared = std::max(1, ranks);
    const std::optional<RankMemory> memory = rank_memory(std::max(1, ranks), true);
    return cpu_cluster(measure_matmul_rate(compute, kSeconds) / shared,
                       measure_memory_rate(kSeconds) / shared, ranks,
                       memory ? static_cast<double>(memory->bytes) : 0);
  }
  Cluster cluster = type_given(given);
  if (given.nodes && given.gpus) {
    cluster.gpus_per_node = static_cast<int>(*given.gpus / *given.nodes);
    cluster.near_domain =
        std::max(cluster.gpus_per_node, cluster.near_domain > 8 ? cluster.near_domain : 0);
  }
  return cluster;
}

}  // namespace mtl
