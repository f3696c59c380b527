// What a machine's topology means, in sentences (topology.h).
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/doctor/topology.h"

namespace mtl {

namespace {

using Groups = std::vector<std::vector<size_t>>;

// "0-3", "0, 4", "1".
std::string gpu_list(const std::vector<size_t>& group) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < group.size();) {
    size_t end = i;
    while (end + 1 < group.size() && group[end + 1] == group[end] + 1) ++end;
    if (end > i + 1) {
      parts.push_back(fmt::format("{}-{}", group[i], group[end]));
      i = end + 1;
    } else {
      parts.push_back(fmt::format("{}", group[i]));
      ++i;
    }
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string group_list(const Groups& groups) {
  std::vector<std::string> parts;
  for (const std::vector<size_t>& group : groups)
    parts.push_back(fmt::format("{{{}}}", gpu_list(group)));
  return fmt::format("{}", fmt::join(parts, " "));
}

std::string count_words(size_t count, const std::string& one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

// "2, 4 or 8".
std::string choice_words(const std::vector<int>& sizes) {
  if (sizes.size() == 1) return fmt::format("{}", sizes[0]);
  return fmt::format("{} or {}", fmt::join(sizes.begin(), sizes.end() - 1, ", "), sizes.back());
}

// "12 links", "4 to 12 links": between the members of islands.
std::string nvlink_words(const Topology& topology, const Groups& islands) {
  int fewest = 1 << 20, most = 0;
  for (const std::vector<size_t>& island : islands) {
    for (const size_t a : island) {
      for (const size_t b : island) {
        if (a == b) continue;
        fewest = std::min(fewest, topology.links[a][b].nvlinks);
        most = std::max(most, topology.links[a][b].nvlinks);
      }
    }
  }
  return fewest == most ? count_words(static_cast<size_t>(most), "link")
                        : fmt::format("{} to {} links", fewest, most);
}

std::string name_of(const TopologyDevice& device) {
  return device.what.empty() ? device.name : fmt::format("{} {}", device.name, device.what);
}

std::string nic_words(const Topology& topology, const TopologyFacts& facts) {
  // GPUs that reach the same cards the same way in one sentence.
  struct Shared {
    std::vector<size_t> cards;
    std::string link;
    std::vector<size_t> gpus;
  };
  std::vector<Shared> all;
  for (size_t gpu = 0; gpu < facts.nics.size(); ++gpu) {
    const std::vector<size_t>& cards = facts.nics[gpu];
    if (cards.empty()) continue;
    const std::string link = link_word(topology.links[gpu][cards[0]]);
    const auto found = std::find_if(all.begin(), all.end(), [&](const Shared& entry) {
      return entry.cards == cards && entry.link == link;
    });
    if (found == all.end()) {
      all.push_back({cards, link, {gpu}});
    } else {
      found->gpus.push_back(gpu);
    }
  }
  std::vector<std::string> parts;
  for (const Shared& shared : all) {
    std::vector<std::string> names;
    for (const size_t card : shared.cards) names.push_back(name_of(topology.devices[card]));
    parts.push_back(
        fmt::format("GPU {}: {} ({})", gpu_list(shared.gpus), fmt::join(names, ", "), shared.link));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

TopologyRow machine_row(const Topology& topology, size_t gpus, size_t nics) {
  std::vector<std::string> kinds;
  for (size_t gpu = 0; gpu < gpus; ++gpu) {
    const std::string& what = topology.devices[gpu].what;
    if (!what.empty() && std::find(kinds.begin(), kinds.end(), what) == kinds.end()) {
      kinds.push_back(what);
    }
  }
  return {"machine", fmt::format("{}{}, {}", count_words(gpus, "GPU"),
                                 kinds.empty() ? "" : fmt::format(" ({})", fmt::join(kinds, ", ")),
                                 count_words(nics, "network card"))};
}

// How several GPUs reach each other.
std::vector<TopologyRow> link_rows(const Topology& topology, const TopologyFacts& facts) {
  std::vector<TopologyRow> rows;
  if (!has_pair(facts.islands)) {
    rows.push_back({"NVLink", "none between these GPUs"});
  } else if (facts.islands.size() == 1) {
    rows.push_back({"NVLink", fmt::format("all GPUs, each to each: {}",
                                          nvlink_words(topology, facts.islands))});
  } else {
    rows.push_back(
        {"NVLink", fmt::format("{}: GPUs {}, {}{}", count_words(facts.islands.size(), "island"),
                               group_list(facts.islands), nvlink_words(topology, facts.islands),
                               facts.islands_linked ? "; some GPUs of two islands are linked, too"
                                                    : "; nothing between them")});
  }
  rows.push_back({"PCIe", has_pair(facts.switches) ? fmt::format("behind one switch: GPUs {}",
                                                                 group_list(facts.switches))
                                                   : "no two GPUs are known to share a switch"});
  return rows;
}

TopologyRow numa_row(const Topology& topology, const TopologyFacts& facts) {
  std::vector<std::string> parts;
  for (const std::vector<size_t>& group : facts.numa) {
    const TopologyDevice& first = topology.devices[group[0]];
    parts.push_back(fmt::format("node {}: GPU {}{}", first.numa, gpu_list(group),
                                first.cpus.empty() ? "" : ", CPUs " + first.cpus));
  }
  return {"NUMA", fmt::format("{}", fmt::join(parts, "; "))};
}

// What several GPUs' links mean for tensor parallelism.
std::string tensor_advice(const TopologyFacts& facts, size_t gpus) {
  if (!facts.tp_wise.empty()) {
    std::string text = fmt::format("tp {}: the exchange in every layer stays on NVLink",
                                   choice_words(facts.tp_wise));
    if (static_cast<size_t>(facts.tp_wise.back()) < gpus) {
      text += "; more would leave the island, and pipeline or data parallelism is faster there";
    }
    return text;
  }
  if (has_pair(facts.islands)) {
    return "no size above 1 fits all islands, as they are of different sizes: choose GPUs of one "
           "with --gpu_ids";
  }
  if (!facts.tp_slow.empty() && has_pair(facts.switches)) {
    return fmt::format(
        "tp 1; tp {} stays behind a switch, where PCIe is what every layer waits "
        "for: only for a model that fits no other way (first pipeline, recompute)",
        choice_words(facts.tp_slow));
  }
  return "tp 1: the way from GPU to GPU leads over the CPU; use data parallelism, and pipeline "
         "parallelism for what does not fit";
}

}  // namespace

std::vector<TopologyRow> topology_words(const Topology& topology, const TopologyFacts& facts) {
  const size_t gpus = topology.gpus(), nics = topology.devices.size() - gpus;
  std::vector<TopologyRow> rows = {machine_row(topology, gpus, nics)};
  if (gpus == 0) return rows;
  if (gpus > 1) {
    const std::vector<TopologyRow> links = link_rows(topology, facts);
    rows.insert(rows.end(), links.begin(), links.end());
  }
  if (!facts.numa.empty()) rows.push_back(numa_row(topology, facts));
  if (nics > 0) rows.push_back({"network", "nearest cards: " + nic_words(topology, facts)});
  if (gpus > 1) {
    rows.push_back({"tensor", tensor_advice(facts, gpus)});
    if (!facts.order.empty()) {
      rows.push_back({"order", fmt::format("neighbours are not numbered in a row: --gpu_ids {} "
                                           "puts ranks that follow each other next to each other",
                                           fmt::join(facts.order, ","))});
    }
  }
  if (facts.numa.size() > 1) {
    rows.push_back({"binding",
                    "GPUs hang on several NUMA nodes: --enable_cpu_affinity binds each "
                    "rank to the CPUs of its GPU"});
  }
  return rows;
}

}  // namespace mtl
