#include "launcher/ranks/placement.h"

#include <algorithm>
#include <array>
#include <set>
#include <sstream>

#include <fmt/format.h>

namespace mtl {

bool is_index(const std::string& text) {
  return !text.empty() && text.size() < 7 &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  size_t start = 0;
  while (start <= text.size()) {
    const size_t end = std::min(text.find(',', start), text.size());
    size_t from = start, to = end;
    while (from < to && text[from] == ' ') ++from;
    while (to > from && text[to - 1] == ' ') --to;
    if (to > from) words.push_back(text.substr(from, to - from));
    start = end + 1;
  }
  return words;
}

std::string names_of(const std::vector<GpuDevice>& gpus) {
  std::string text;
  for (const GpuDevice& gpu : gpus) {
    if (!text.empty()) text += ", ";
    text += gpu.id;
  }
  return text;
}

std::string count(size_t number, const char* one) {
  return fmt::format("{} {}{}", number, one, number == 1 ? "" : "s");
}

// The chosen GPUs. A number counts the visible ones; UUIDs may be shortened, as CUDA allows.
std::vector<GpuDevice> chosen_gpus(const NodeHardware& hardware, const std::string& ids,
                                   Diagnostics& diagnostics) {
  if (ids.empty() || ids == "all") return hardware.gpus;
  std::vector<GpuDevice> chosen;
  for (const std::string& word : split(ids)) {
    const GpuDevice* found = nullptr;
    if (is_index(word)) {
      const size_t index = static_cast<size_t>(std::stoi(word));
      if (index < hardware.gpus.size()) found = &hardware.gpus[index];
    } else {
      for (const GpuDevice& gpu : hardware.gpus) {
        const bool same = word == gpu.id || gpu.id.starts_with(word) || word == gpu.uuid ||
                          (word.size() > 4 && gpu.uuid.starts_with(word));
        if (same && found == nullptr) found = &gpu;
      }
    }
    if (found == nullptr) {
      diagnostics.add(
          {.code = "placement.gpu_id",
           .what = fmt::format("GPU '{}' of gpu_ids is not there", word),
           .help = hardware.gpus.empty()
                       ? "no GPU is visible here (see: mtl env); --cpu runs without"
                       : fmt::format("visible here: {} ({}); numbers count these from 0, whatever "
                                     "CUDA_VISIBLE_DEVICES calls them",
                                     count(hardware.gpus.size(), "GPU"), names_of(hardware.gpus))});
      continue;
    }
    const bool twice = std::any_of(chosen.begin(), chosen.end(),
                                   [&](const GpuDevice& gpu) { return gpu.id == found->id; });
    if (twice) {
      diagnostics.add({.code = "placement.gpu_duplicate",
                       .what = fmt::format("GPU '{}' stands twice in gpu_ids", word),
                       .help = "name each GPU once"});
      continue;
    }
    chosen.push_back(*found);
  }
  return chosen;
}

// Rank `index` of `ranks` gets a run of neighbouring items, all of the same length; with fewer
// items than ranks, several ranks share one.
std::vector<int> share(const std::vector<int>& items, size_t index, size_t ranks) {
  if (items.empty() || ranks == 0) return {};
  if (items.size() < ranks) return {items[index * items.size() / ranks]};
  const size_t each = items.size() / ranks;
  const auto begin = items.begin() + static_cast<std::ptrdiff_t>(index * each);
  return {begin, begin + static_cast<std::ptrdiff_t>(each)};
}

// Which NUMA node each rank belongs to (index into hardware.numa), -1 = nowhere.
std::vector<int> nodes_of_ranks(const NodeHardware& hardware, const PlacementRequest& request,
                                const std::vector<RankPlacement>& ranks, Diagnostics& diagnostics) {
  std::vector<int> usable;  // nodes where this process may run at all
  for (size_t i = 0; i < hardware.numa.size(); ++i) {
    if (!hardware.numa[i].cpus.empty()) usable.push_back(static_cast<int>(i));
  }
  std::set<int> told;
  std::vector<int> nodes;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    int node = -1;
    const bool has_gpu = !request.use_cpu && ranks[rank].gpu && ranks[rank].gpu->numa >= 0;
    if (has_gpu) {
      for (size_t i = 0; i < hardware.numa.size(); ++i) {
        if (hardware.numa[i].os_index == ranks[rank].gpu->numa) node = static_cast<int>(i);
      }
      if (node >= 0 && hardware.numa[static_cast<size_t>(node)].cpus.empty()) {
        if (told.insert(node).second) {
          diagnostics.add(
              {.code = "placement.numa",
               .what = fmt::format("GPU {} is on NUMA node {}, where this process may use no CPU: "
                                   "its rank is not bound",
                                   ranks[rank].gpu->id, ranks[rank].gpu->numa),
               .help = "widen the CPU mask of the job, or leave the binding out",
               .severity = Diagnostic::Severity::warning});
        }
        node = -1;
      }
    } else if (!usable.empty()) {
      // Evenly, neighbours together.
      node = usable[rank * usable.size() / ranks.size()];
    }
    nodes.push_back(node);
  }
  return nodes;
}

void bind(const NodeHardware& hardware, const PlacementRequest& request,
          std::vector<RankPlacement>& ranks, Diagnostics& diagnostics) {
  const std::vector<int> nodes = nodes_of_ranks(hardware, request, ranks, diagnostics);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (nodes[rank] < 0) continue;
    const NumaNode& node = hardware.numa[static_cast<size_t>(nodes[rank])];
    ranks[rank].numa = node.os_index;
    if (request.binding == Binding::numa) {
      ranks[rank].cpus = node.cpus;
      continue;
    }
    // Its own cores among those of the ranks that live on the same node.
    const size_t mates = static_cast<size_t>(std::count(nodes.begin(), nodes.end(), nodes[rank]));
    const size_t index = static_cast<size_t>(
        std::count(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(rank), nodes[rank]));
    ranks[rank].cpus = share(node.cores, index, mates);
  }
}

}  // namespace

bool lacks_peer_access(const std::vector<GpuDevice>& gpus, const std::string& driver) {
  const bool rtx40 = std::any_of(gpus.begin(), gpus.end(), [](const GpuDevice& gpu) {
    return gpu.name.find("RTX 40") != std::string::npos;
  });
  if (gpus.size() < 2 || !rtx40 || driver.empty()) return false;
  constexpr std::array<int, 3> kMended = {550, 40, 7};
  std::array<int, 3> version = {};
  std::istringstream words(driver);
  char dot = 0;
  words >> version[0] >> dot >> version[1] >> dot >> version[2];
  return version < kMended;
}

std::vector<RankPlacement> place_ranks(const NodeHardware& hardware,
                                       const PlacementRequest& request, Diagnostics& diagnostics) {
  std::vector<RankPlacement> ranks(static_cast<size_t>(std::max(request.ranks, 0)));
  const bool chosen_by_name = !request.gpu_ids.empty() && request.gpu_ids != "all";
  if (!request.use_cpu && (chosen_by_name || request.need_gpu || !hardware.gpus.empty())) {
    Diagnostics own;
    const std::vector<GpuDevice> gpus = chosen_gpus(hardware, request.gpu_ids, own);
    for (const Diagnostic& diagnostic : own.all()) diagnostics.add(diagnostic);
    const bool enough = gpus.size() >= ranks.size();
    if ((request.need_gpu || chosen_by_name) && !enough && !own.has_errors()) {
      diagnostics.add(
          {.code = "placement.gpu_count",
           .what =
               fmt::format("{} of this node, one GPU each, but {} {}", count(ranks.size(), "rank"),
                           count(gpus.size(), "GPU"), chosen_by_name ? "in gpu_ids" : "visible"),
           .help = gpus.empty() ? "start fewer with --nproc_per_node, or --cpu to run without GPUs"
                                : fmt::format("--nproc_per_node {} fits; --cpu runs without GPUs",
                                              gpus.size())});
    }
    const bool no_peer_access = lacks_peer_access(gpus, hardware.driver);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (rank < gpus.size()) ranks[rank].gpu = gpus[rank];
      ranks[rank].no_peer_access = no_peer_access;
      // Every rank sees all that were chosen, and LOCAL_RANK picks: what accelerate shows, and what
      // NCCL needs to talk over NVLink.
      if (!chosen_by_name) continue;
      for (const GpuDevice& gpu : gpus) ranks[rank].visible_gpus.push_back(gpu.id);
    }
  }
  const int threads = request.omp_threads > 0
                          ? request.omp_threads
                          : std::max(1, hardware.cores / std::max(1, request.ranks));
  for (RankPlacement& rank : ranks) rank.omp_threads = threads;
  if (request.binding != Binding::none) bind(hardware, request, ranks, diagnostics);
  return ranks;
}

}  // namespace mtl
