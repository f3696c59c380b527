// What both kinds of launch do on this machine, and what --dry-run shows of it.
#include <algorithm>
#include <cstdlib>
#include <unistd.h>

#include <fmt/format.h>

#include "cli/launch/launch.h"
#include "common/shell_word.h"
#include "launcher/ranks/worker_env.h"
#include "launcher/settings/secret.h"

namespace mtl {

namespace {

// "0-3,8-11".
std::string ranges(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(numbers[i]);
    if (last > i) text += fmt::format("-{}", numbers[last]);
    i = last + 1;
  }
  return text;
}

std::string device_words(const RankPlacement& place) {
  if (!place.gpu) return "CPU";
  const GpuDevice& gpu = *place.gpu;
  std::string text = "GPU " + gpu.id;
  if (!gpu.name.empty()) text += ' ' + gpu.name;
  if (!gpu.pci.empty()) text += " at " + gpu.pci;
  if (gpu.numa >= 0) text += fmt::format(", NUMA node {}", gpu.numa);
  return text;
}

std::string binding_words(const RankPlacement& place) {
  if (place.cpus.empty()) return "none";
  std::string text = "CPUs " + ranges(place.cpus);
  if (place.numa >= 0) text += fmt::format(", memory of NUMA node {}", place.numa);
  return text;
}

std::string command_words(const std::vector<std::string>& argv) {
  std::string text;
  for (const std::string& word : argv) {
    if (!text.empty()) text += ' ';
    text += shell_word(word);
  }
  return text;
}

std::string ranks_words(const WorkerCommand& command) {
  if (command.ranks == 1) return fmt::format("rank {}", command.rank);
  return fmt::format("ranks {}-{}", command.rank, command.rank + command.ranks - 1);
}

const RankPlacement& place_of(const WorkerCommand& command,
                              const std::vector<RankPlacement>& placement) {
  static const RankPlacement nowhere;
  const size_t index = static_cast<size_t>(command.local_rank);
  return index < placement.size() ? placement[index] : nowhere;
}

// Those that are really set here, since nobody wants to copy the others.
std::vector<std::string> taken_out(const WorkerCommand& command) {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string name(text.substr(0, text.find('=')));
    if (command.env.count(name) != 0) continue;
    const bool listed =
        std::any_of(command.unset.begin(), command.unset.end(), [&](const std::string& unset) {
          return unset.ends_with('*') ? name.starts_with(unset.substr(0, unset.size() - 1))
                                      : name == unset;
        });
    if (listed) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

NodeLayout layout_here(const LaunchRequest& request, int master_port) {
  NodeLayout layout;
  const bool member = request.mode == LaunchRequest::Mode::member;
  layout.num_nodes = member ? request.max_nodes : 1;
  layout.node_rank = member ? request.machine_rank : 0;
  layout.local_ranks = request.local_ranks;
  layout.world = !member             ? request.local_ranks
                 : request.ranks > 0 ? request.ranks
                                     : request.local_ranks * request.max_nodes;
  layout.first_rank = layout.node_rank * request.local_ranks;
  layout.master_addr = request.address;
  layout.master_port = master_port;
  layout.run_id = request.run_id;
  layout.max_restarts = request.max_restarts;
  layout.cores = allowed_cores();
  layout.omp_threads = request.omp_threads;
  return layout;
}

std::vector<RankPlacement> place_here(const LaunchRequest& request) {
  Diagnostics diagnostics;
  const NodeHardware hardware = inspect_hardware(request.binding != Binding::none);
  auto ranks = place_ranks(hardware, placement_request(request, request.local_ranks), diagnostics);
  diagnostics.throw_if_errors(Exit::environment);
  print_warnings(diagnostics.all());
  return ranks;
}

std::string threads_notice(const LaunchRequest& request, const std::vector<RankPlacement>& ranks) {
  if (request.omp_threads > 0 || ranks.size() < 2) return {};
  return fmt::format(
      "OMP_NUM_THREADS={} for each of {} ranks, {} cores together (--num_cpu_threads_per_process)",
      ranks[0].omp_threads, ranks.size(), allowed_cores());
}

std::string rank_blocks(const std::vector<WorkerCommand>& commands,
                        const std::vector<RankPlacement>& placement, const std::string& host) {
  std::string text;
  for (const WorkerCommand& command : commands) {
    const RankPlacement& place = place_of(command, placement);
    text += fmt::format("{}{}\n  host     {}\n  device   {}\n  binding  {}\n",
                        text.empty() ? "" : "\n", ranks_words(command), host,
                        placement.empty() ? "chosen there" : device_words(place),
                        placement.empty() ? "chosen there" : binding_words(place));
    std::string line = "env";
    for (const std::string& name : taken_out(command)) line += " -u " + name;
    const char* title = "environment";
    for (const auto& [name, given] : command.env) {
      const std::string& value = is_secret(name) ? "<secret>" : given;
      text += fmt::format("  {}  {}={}\n", title, name, value);
      title = "           ";
      line += fmt::format(" {}={}", name, shell_word(value));
    }
    if (!place.cpus.empty()) line = fmt::format("taskset -c {} {}", ranges(place.cpus), line);
    text += fmt::format("  command  {} {}\n", line, command_words(command.argv));
  }
  return text;
}

std::string rank_table(const std::vector<WorkerCommand>& commands,
                       const std::vector<RankPlacement>& placement, const std::string& host) {
  std::string text;
  for (const WorkerCommand& command : commands) {
    const RankPlacement& place = place_of(command, placement);
    text += fmt::format("{:<10} {:<16} {}, binding {}, {} thread{}: {}\n", ranks_words(command),
                        host, device_words(place), binding_words(place), place.omp_threads,
                        place.omp_threads == 1 ? "" : "s", command_words(command.argv));
  }
  return text;
}

}  // namespace mtl
