// Reading nvidia-smi's table, and what the links mean for a layout (topology.h).
#include "launcher/doctor/topology.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mtl {

namespace {

using Groups = std::vector<std::vector<size_t>>;

std::string without_escapes(const std::string& text) {
  std::string clean;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\x1b') {
      clean += text[i];
      continue;
    }
    while (i < text.size() && std::isalpha(static_cast<unsigned char>(text[i])) == 0) ++i;
  }
  return clean;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

bool is_gpu(const std::string& word) {
  return word.starts_with("GPU") && is_index(word.substr(3));
}

std::optional<DeviceLink> link_of(const std::string& word) {
  static const std::pair<const char*, LinkKind> kWords[] = {
      {"X", LinkKind::self},  {"PIX", LinkKind::pix},    {"PXB", LinkKind::pxb},
      {"PHB", LinkKind::phb}, {"NODE", LinkKind::node},  {"SYS", LinkKind::sys},
      {"SOC", LinkKind::sys}, {"N/A", LinkKind::unknown}};
  for (const auto& [text, kind] : kWords) {
    if (word == text) return DeviceLink{kind, 0};
  }
  if (word.starts_with("NV") && is_index(word.substr(2))) {
    return DeviceLink{LinkKind::nvlink, std::stoi(word.substr(2))};
  }
  return std::nullopt;
}

class TableReader {
 public:
  TableReader(const std::string& text, const std::string& name) : name_(name) {
    std::istringstream in(without_escapes(text));
    for (std::string line; std::getline(in, line);) lines_.push_back(line);
  }

  Topology read() {
    find_header();
    topology_.source = name_;
    for (const std::string& column : columns_) {
      topology_.devices.push_back({.name = column, .gpu = is_gpu(column)});
    }
    const size_t count = columns_.size();
    topology_.links.assign(count, std::vector<DeviceLink>(count));
    std::vector<bool> seen(count, false);
    size_t at = header_ + 1;
    for (; at < lines_.size(); ++at) {
      const std::vector<std::string> words = words_of(lines_[at]);
      if (words.empty()) continue;
      const auto column = std::find(columns_.begin(), columns_.end(), words[0]);
      if (column == columns_.end()) break;
      const auto row = static_cast<size_t>(column - columns_.begin());
      if (seen[row]) fail(at, fmt::format("{} has a second row", words[0]));
      seen[row] = true;
      read_row(at, row, words);
    }
    for (size_t row = 0; row < count; ++row) {
      if (!seen[row]) fail(at - 1, fmt::format("there is no row of {}", columns_[row]));
    }
    read_legend(at);
    check_symmetric();
    return std::move(topology_);
  }

 private:
  [[noreturn]] void fail(size_t line, const std::string& what) const {
    throw Error(Exit::data,
                {.code = "topo.format",
                 .what = what,
                 .place = Place{name_, static_cast<int>(std::min(line, lines_.size()) + 1), 0},
                 .help = "give the output of: nvidia-smi topo -m"});
  }

  // The line that names the columns: it begins with GPU0.
  void find_header() {
    for (header_ = 0; header_ < lines_.size(); ++header_) {
      std::vector<std::string> words = words_of(lines_[header_]);
      if (words.empty() || !is_gpu(words[0])) continue;
      // A row has a link behind its name.
      if (words.size() > 1 && link_of(words[1])) continue;
      for (const std::string& word : words) {
        if (word == "CPU" || word == "NUMA") break;  // "CPU Affinity", "NUMA Affinity"
        if (std::find(columns_.begin(), columns_.end(), word) != columns_.end()) {
          fail(header_, fmt::format("{} stands twice", word));
        }
        columns_.push_back(word);
      }
      return;
    }
    fail(0, "there is no table of GPUs in it");
  }

  void read_row(size_t line, size_t row, const std::vector<std::string>& words) {
    const size_t count = columns_.size();
    if (words.size() < count + 1) {
      fail(line, fmt::format("{} has {} links, and the table has {} columns", words[0],
                             words.size() - 1, count));
    }
    for (size_t i = 0; i < count; ++i) {
      const std::optional<DeviceLink> link = link_of(words[i + 1]);
      if (!link) fail(line, fmt::format("'{}' is no kind of link", words[i + 1]));
      if ((link->kind == LinkKind::self) != (i == row)) {
        fail(line,
             fmt::format("the link of {} to {} is '{}'", words[0], columns_[i], words[i + 1]));
      }
      topology_.links[row][i] = *link;
    }
    // CPU affinity, then the NUMA node; network cards have neither.
    if (words.size() > count + 1 && words[count + 1] != "N/A") {
      topology_.devices[row].cpus = words[count + 1];
    }
    if (words.size() > count + 2 && is_index(words[count + 2])) {
      topology_.devices[row].numa = std::stoi(words[count + 2]);
    }
  }

  // "  NIC0: mlx5_0".
  void read_legend(size_t line) {
    for (; line < lines_.size(); ++line) {
      const std::vector<std::string> words = words_of(lines_[line]);
      if (words.size() != 2 || !words[0].ends_with(':')) continue;
      for (TopologyDevice& device : topology_.devices) {
        if (device.name + ':' == words[0]) device.what = words[1];
      }
    }
  }

  void check_symmetric() const {
    for (size_t a = 0; a < columns_.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        if (link_word(topology_.links[a][b]) == link_word(topology_.links[b][a])) continue;
        fail(header_,
             fmt::format("{} to {} is {}, and back it is {}", columns_[a], columns_[b],
                         link_word(topology_.links[a][b]), link_word(topology_.links[b][a])));
      }
    }
  }

  const std::string name_;
  std::vector<std::string> lines_;
  size_t header_ = 0;
  std::vector<std::string> columns_;
  Topology topology_;
};

// Each GPU joins the first group to whose members all it is linked in this way.
template <typename Linked>
Groups grouped_by(size_t count, const Linked& linked) {
  Groups groups;
  for (size_t gpu = 0; gpu < count; ++gpu) {
    const auto fits = [&](const std::vector<size_t>& group) {
      return std::all_of(group.begin(), group.end(),
                         [&](size_t other) { return linked(gpu, other); });
    };
    const auto found = std::find_if(groups.begin(), groups.end(), fits);
    if (found == groups.end()) {
      groups.push_back({gpu});
    } else {
      found->push_back(gpu);
    }
  }
  return groups;
}

bool follow_each_other(const std::vector<size_t>& group) {
  for (size_t i = 1; i < group.size(); ++i) {
    if (group[i] != group[i - 1] + 1) return false;
  }
  return true;
}

// Sizes above 1 that divide every group.
std::vector<int> sizes_within(const Groups& groups, size_t gpus) {
  std::vector<int> sizes;
  for (size_t size = 2; size <= gpus; ++size) {
    const bool fits = std::all_of(groups.begin(), groups.end(),
                                  [&](const auto& group) { return group.size() % size == 0; });
    if (fits) sizes.push_back(static_cast<int>(size));
  }
  return sizes;
}

}  // namespace

size_t Topology::gpus() const {
  return static_cast<size_t>(
      std::count_if(devices.begin(), devices.end(), [](const TopologyDevice& d) { return d.gpu; }));
}

std::string link_word(const DeviceLink& link) {
  switch (link.kind) {
    case LinkKind::self:
      return "X";
    case LinkKind::nvlink:
      return fmt::format("NV{}", link.nvlinks);
    case LinkKind::pix:
      return "PIX";
    case LinkKind::pxb:
      return "PXB";
    case LinkKind::phb:
      return "PHB";
    case LinkKind::node:
      return "NODE";
    case LinkKind::sys:
      return "SYS";
    case LinkKind::unknown:
      break;
  }
  return "?";
}

Topology parse_topo_matrix(const std::string& text, const std::string& name) {
  Topology read = TableReader(text, name).read();
  // GPUs first, whatever the order of the columns.
  std::vector<size_t> order;
  for (const bool gpu : {true, false}) {
    for (size_t i = 0; i < read.devices.size(); ++i) {
      if (read.devices[i].gpu == gpu) order.push_back(i);
    }
  }
  Topology sorted{.source = read.source, .devices = {}, .links = {}};
  for (const size_t a : order) {
    sorted.devices.push_back(read.devices[a]);
    sorted.links.emplace_back();
    for (const size_t b : order) sorted.links.back().push_back(read.links[a][b]);
  }
  return sorted;
}

bool has_pair(const std::vector<std::vector<size_t>>& groups) {
  return std::any_of(groups.begin(), groups.end(), [](const auto& g) { return g.size() > 1; });
}

TopologyFacts judge_topology(const Topology& topology) {
  TopologyFacts facts;
  const size_t gpus = topology.gpus();
  const auto kind = [&](size_t a, size_t b) { return topology.links[a][b].kind; };
  const auto by_nvlink = [&](size_t a, size_t b) { return kind(a, b) == LinkKind::nvlink; };
  facts.islands = grouped_by(gpus, by_nvlink);
  // Where NVLink hides how two GPUs are connected by PCIe, what they share with a third tells.
  facts.switches = grouped_by(gpus, [&](size_t a, size_t b) {
    if (kind(a, b) == LinkKind::pix || kind(a, b) == LinkKind::pxb) return true;
    if (kind(a, b) != LinkKind::nvlink) return false;
    for (size_t nic = gpus; nic < topology.devices.size(); ++nic) {
      const auto near = [](LinkKind k) { return k == LinkKind::pix || k == LinkKind::pxb; };
      if (near(kind(a, nic)) && near(kind(b, nic))) return true;
    }
    return false;
  });
  std::vector<int> nodes;
  for (size_t gpu = 0; gpu < gpus; ++gpu) {
    const int node = topology.devices[gpu].numa;
    if (node < 0) {
      nodes.clear();
      facts.numa.clear();
      break;
    }
    const auto found = std::find(nodes.begin(), nodes.end(), node);
    if (found == nodes.end()) {
      nodes.push_back(node);
      facts.numa.push_back({gpu});
    } else {
      facts.numa[static_cast<size_t>(found - nodes.begin())].push_back(gpu);
    }
  }
  for (size_t a = 0; a < gpus; ++a) {
    for (size_t b = 0; b < a; ++b) {
      const bool together =
          std::any_of(facts.islands.begin(), facts.islands.end(), [&](const auto& island) {
            return std::count(island.begin(), island.end(), a) > 0 &&
                   std::count(island.begin(), island.end(), b) > 0;
          });
      facts.islands_linked |= by_nvlink(a, b) && !together;
    }
  }
  const bool nvlink = has_pair(facts.islands);
  facts.tp_wise = nvlink ? sizes_within(facts.islands, gpus) : std::vector<int>();
  const Groups& nearest = nvlink ? facts.islands : facts.switches;
  if (!nvlink) {
    const Groups& slow = has_pair(facts.switches) ? facts.switches : facts.numa;
    facts.tp_slow = sizes_within(slow, gpus);
  }
  if (has_pair(nearest) && !std::all_of(nearest.begin(), nearest.end(), follow_each_other)) {
    for (const auto& group : nearest) {
      facts.order.insert(facts.order.end(), group.begin(), group.end());
    }
  }
  for (size_t gpu = 0; gpu < gpus; ++gpu) {
    LinkKind best = LinkKind::unknown;
    facts.nics.emplace_back();
    for (size_t nic = gpus; nic < topology.devices.size(); ++nic) {
      if (kind(gpu, nic) > best || kind(gpu, nic) == LinkKind::unknown) continue;
      if (kind(gpu, nic) < best) facts.nics.back().clear();
      best = kind(gpu, nic);
      facts.nics.back().push_back(nic);
    }
  }
  return facts;
}

}  // namespace mtl
