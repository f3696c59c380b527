// Which machines a launch has and how many ranks each of them, of all its layers together.
#include <algorithm>

#include <fmt/format.h>

#include "common/shell_word.h"
#include "launcher/request/launch_resolver.h"
#include "launcher/settings/launch_config_place.h"

namespace mtl {

void LaunchResolver::finish_hosts() {
  if (r_.via == "local" && !standalone_.said()) standalone_.set(true, kFlags, "--via local");
  if (wants_allocation()) {
    hosts_ = {};
    hostfile_ = {};
    return finish_allocation();
  }
  finish_step();
  // DeepSpeed's own name for it counts where DeepSpeed does.
  if (const auto file = r_.config.plugins.find("deepspeed_hostfile");
      file != r_.config.plugins.end() && r_.config.distributed_type == "DEEPSPEED" &&
      !hostfile_.said()) {
    const bool by_file = deepspeed_hostfile_origin_.empty();
    hostfile_.set(file->second, kFile, by_file ? "deepspeed_hostfile" : deepspeed_hostfile_origin_);
    if (by_file) hostfile_key_ = "deepspeed_hostfile";
  }
  if (standalone_.said()) {
    const int layer = standalone_.layer;
    if (hosts_.layer >= layer || hostfile_.layer >= layer) {
      conflict(standalone_.origin + " means one machine, and hosts are given",
               "leave one of them out");
    }
    return;
  }
  if (hosts_.said() && hostfile_.said()) {
    if (hosts_.layer == hostfile_.layer) {
      conflict(fmt::format("{} and {} both name the machines", hosts_.origin, hostfile_.origin),
               "leave one of them out");
    }
    if (hosts_.layer < hostfile_.layer) hosts_ = {};
  }
  if (!hosts_.said() && !hostfile_.said()) return;
  read_hosts();
  r_.mode = LaunchRequest::Mode::hosts;
  if (machine_rank_.layer > kFile) {
    conflict(fmt::format("{} is for a command that is typed on every machine; --hosts starts "
                         "them all from here",
                         machine_rank_.origin),
             "leave one of them out");
  }
}

void LaunchResolver::read_hosts() {
  const std::string& file = r_.config.path;
  if (hosts_.said()) {
    r_.hosts = parse_hosts(hosts_.value, diagnostics_,
                           hosts_.layer == kFile ? "mtl_hosts of " + file : hosts_.origin);
  } else if (hostfile_key_.empty()) {
    r_.hosts = read_hostfile(hostfile_.value, diagnostics_, hostfile_.origin);
  } else {
    const YamlValue::Entry* entry = find_setting(r_.config, hostfile_key_);
    r_.hosts = read_hostfile(hostfile_.value, diagnostics_, hostfile_key_,
                             entry != nullptr ? entry->value.place : Place{file});
  }
}

void LaunchResolver::finish_nodes() {
  if (standalone_.said() && nodes_.layer >= standalone_.layer && nodes_.layer > kFile &&
      nodes_.value.max > 1) {
    conflict(fmt::format("{} means one machine, and {} says {}", standalone_.origin, nodes_.origin,
                         nodes_.value.max),
             "leave one of them out");
  }
  if (r_.mode == LaunchRequest::Mode::hosts) {
    const int hosts = static_cast<int>(r_.hosts.size());
    const bool told = nodes_.said() && (nodes_.layer > kFile || nodes_.value.max > 1);
    r_.max_nodes = hosts;
    r_.min_nodes = told ? std::min(nodes_.value.min, std::max(hosts, 1)) : hosts;
    if (told && hosts > 0 && nodes_.value.max != hosts) {
      conflict(fmt::format("{} says {} machines, and {} are named", nodes_.origin, nodes_.value.max,
                           hosts),
               "leave the number out, or name as many");
    }
  } else if (r_.mode != LaunchRequest::Mode::allocation && !standalone_.said()) {
    r_.min_nodes = nodes_.value.min;
    r_.max_nodes = nodes_.value.max;
    if (r_.max_nodes > 1) r_.mode = LaunchRequest::Mode::member;
  }
  r_.config.num_machines = std::max(r_.max_nodes, 1);
  // The agents of a scheduled job are given their places, or join.
  if (scheduled() && r_.min_nodes != r_.max_nodes && r_.config.rdzv_backend == "static") {
    r_.config.rdzv_backend = "tcp";
  }
  r_.elastic = r_.config.rdzv_backend != "static" || r_.min_nodes != r_.max_nodes;
  if (r_.mode == LaunchRequest::Mode::member && r_.min_nodes != r_.max_nodes &&
      r_.config.rdzv_backend == "static") {
    conflict(fmt::format("{} {}:{} with rdzv_backend static: ranks that follow from machine_rank "
                         "cannot change",
                         nodes_.origin, r_.min_nodes, r_.max_nodes),
             "add --rdzv_backend tcp");
  }
}

void LaunchResolver::finish_counts() {
  const bool hosts = r_.starts_agents();
  const int nodes = std::max(r_.max_nodes, 1);
  // A file's total is that of the machines that it was written for. Hosts that are named by a
  // stronger layer bring their own ranks.
  if (r_.mode == LaunchRequest::Mode::hosts && total_.layer == kFile &&
      std::max(hosts_.layer, hostfile_.layer) > kFile &&
      (hosts_have_slots() || nodes_.value.max != nodes)) {
    total_ = {};
  }
  // The stronger one counts; of the same layer, both.
  if (total_.said() && per_node_.said() && total_.layer != per_node_.layer) {
    if (total_.layer < per_node_.layer) {
      total_ = {};
    } else {
      per_node_ = {};
    }
  }
  if (per_node_.said() && per_node_.value == LaunchRequest::kPerGpu) {
    if (r_.config.use_cpu) {
      conflict(fmt::format("{} gpu with --cpu", per_node_.origin), "leave one of them out");
    }
    r_.need_gpu = true;
  }
  r_.local_ranks = per_node_.said() ? per_node_.value : LaunchRequest::kAuto;
  r_.ranks_said = total_.said() || r_.local_ranks > 0;
  r_.total_said = total_.said();
  r_.ranks = 0;
  if (total_.said() && per_node_.said()) {
    if (per_node_.value > 0 && total_.value != per_node_.value * nodes) {
      conflict(
          fmt::format("{} {} and {} {} on {} machine{} do not agree", total_.origin, total_.value,
                      per_node_.origin, per_node_.value, nodes, nodes == 1 ? "" : "s"),
          fmt::format("num_processes is the total: {}", per_node_.value * nodes));
    } else if (per_node_.value <= 0) {
      conflict(fmt::format("{} and {} both say how many ranks", total_.origin, per_node_.origin),
               "leave one of them out");
    }
  }
  if (hosts && hosts_have_slots()) return count_slots();
  if (total_.said() && !per_node_.said()) {
    if (total_.value % nodes != 0) {
      fail("launch.processes",
           fmt::format("num_processes {} ({}) cannot be shared out evenly by {} machines",
                       total_.value, total_.origin, nodes),
           r_.mode == LaunchRequest::Mode::hosts
               ? "give the hosts their ranks: a:3,b:2"
               : fmt::format("num_processes is the total of all machines; {} and {} would do",
                             std::max(total_.value / nodes, 1) * nodes,
                             (total_.value / nodes + 1) * nodes));
    }
    r_.local_ranks = std::max(total_.value / nodes, 1);
  }
  if (scheduled() && r_.local_ranks <= 0) {
    r_.local_ranks = scheduled_ranks();
  } else if (!hosts && r_.local_ranks <= 0) {
    const NodeHardware hardware = inspect_hardware(false);
    // accelerate wants the number here; GPUs can be counted, and nothing else says it.
    const bool from_file = !node_of_step_ && !r_.config.path.empty() &&
                           r_.config.distributed_type != "NO" &&
                           r_.local_ranks == LaunchRequest::kAuto && !per_node_.said();
    if (from_file && hardware.gpus.empty() && !r_.config.use_cpu) {
      // Without a name it changes the one that is read where none is named.
      const std::string file = r_.config.path == default_launch_config_path()
                                   ? ""
                                   : "--config_file " + shell_word(r_.config.path) + " ";
      fail("launch.processes",
           fmt::format("{} ({}) does not say num_processes, and no GPU is visible to count",
                       r_.config.path, r_.config.distributed_type),
           "add --num_processes N, or write it: mtl config set " + file + "num_processes=N");
    }
    r_.local_ranks = ranks_of_node(r_.local_ranks, hardware, r_.config.use_cpu, diagnostics_);
  }
  int all = r_.local_ranks > 0 ? r_.local_ranks * nodes : 0;
  // A step of srun may have more tasks on some nodes than on this one.
  const std::optional<Surroundings::Task>& task = r_.allocation.task;
  if (node_of_step_ && task->world > task->nodes && task->nodes == nodes &&
      per_node_.layer == kSurroundings && !total_.said()) {
    all = task->world;
  }
  if (all > 0 && r_.min_nodes == r_.max_nodes) r_.ranks = all;
  r_.config.num_processes = all > 0 ? all : -1;
}

bool LaunchResolver::hosts_have_slots() const {
  return std::any_of(r_.hosts.begin(), r_.hosts.end(),
                     [](const Host& host) { return host.slots > 0; });
}

// Hosts without a number have what the others leave of the total, in equal parts.
void LaunchResolver::share_rest() {
  int left = total_.value, sharers = 0;
  for (const Host& host : r_.hosts) {
    left -= std::max(host.slots, 0);
    sharers += host.slots > 0 ? 0 : 1;
  }
  if (left < sharers || left % sharers != 0) {
    return fail(
        "launch.processes",
        fmt::format("num_processes {} ({}) leaves {} for {} host{} without a number", total_.value,
                    total_.origin, std::max(left, 0), sharers, sharers == 1 ? "" : "s"),
        "give each host its ranks: a:3,b:2");
  }
  for (Host& host : r_.hosts) {
    if (host.slots <= 0) host.slots = left / sharers;
  }
}

// Ranks fill the hosts in their order, as mpirun does.
void LaunchResolver::count_slots() {
  const bool all_have = std::all_of(r_.hosts.begin(), r_.hosts.end(),
                                    [](const Host& host) { return host.slots > 0; });
  if (r_.mode == LaunchRequest::Mode::hosts && total_.said() && !per_node_.said() && !all_have) {
    share_rest();
  }
  int sum = 0;
  bool all = true;
  for (const Host& host : r_.hosts) {
    const int slots = host.slots > 0 ? host.slots : std::max(r_.local_ranks, 0);
    all = all && slots > 0;
    sum += slots;
  }
  if (all && total_.said() && total_.value > sum) {
    fail("launch.processes",
         fmt::format("num_processes {} ({}), and the hosts have {} slots", total_.value,
                     total_.origin, sum),
         "give them more slots, name more hosts, or start fewer");
  } else if (all && total_.said()) {
    int left = total_.value;
    for (Host& host : r_.hosts) {
      host.slots = std::min(host.slots > 0 ? host.slots : r_.local_ranks, left);
      left -= host.slots;
    }
    std::erase_if(r_.hosts, [](const Host& host) { return host.slots == 0; });
    r_.max_nodes = static_cast<int>(r_.hosts.size());
    r_.min_nodes = std::min(r_.min_nodes, r_.max_nodes);
    r_.config.num_machines = r_.max_nodes;
    sum = total_.value;
  }
  r_.ranks = all && r_.min_nodes == r_.max_nodes ? sum : 0;
  r_.config.num_processes = all ? sum : -1;
}

}  // namespace mtl
