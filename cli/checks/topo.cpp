// mtl topo: how the GPUs and network cards of a machine are connected, and what follows.
#include <cstdio>
#include <optional>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/checks/check_job.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/launch_flags.h"
#include "cli/run_request.h"
#include "common/error.h"
#include "common/files.h"
#include "common/terminal.h"
#include "launcher/doctor/topology.h"
#include "runtime/link_bench.h"
#include "runtime/metrics/format.h"

namespace mtl {

namespace {

using Json = nlohmann::ordered_json;

struct BenchOutcome {
  std::optional<Json> found;  // as run_link_bench() says it
  int exit_code = 0;
};

BenchOutcome bench(const LaunchGiven& given) {
  JobOptions job = check_job(given, {"--links"});
  // Where it is known before the start; a rank says it twice, once for itself.
  if (job.request.ranks > 0) check_bench_ranks(job.request.ranks);
  BenchOutcome outcome;
  job.ears.on_line = [&](std::string_view line) {
    Json json = Json::parse(line, nullptr, false);
    if (json.is_object()) outcome.found = std::move(json);
  };
  job.ears.on_output = [](int, bool, std::string_view line) { fmt::print(stderr, "{}\n", line); };
  job.ears.on_notice = [](std::string_view line) { fmt::print(stderr, "{}\n", line); };
  const JobOutcome end = run_job(job);
  const bool color = inspect_terminal(STDERR_FILENO).color;
  for (const Diagnostic& line : end.report) fmt::print(stderr, "{}", render(line, color));
  outcome.exit_code = end.exit_code;
  if (end.exit_code != 0) outcome.found.reset();
  return outcome;
}

// The machine as far as it has no GPU: what ranks on its cores share.
std::vector<TopologyRow> cpu_rows(const NodeHardware& hardware) {
  std::vector<TopologyRow> rows;
  std::string nodes;
  for (const NumaNode& node : hardware.numa) {
    nodes += fmt::format("{}node {}: {} cores, {} CPUs", nodes.empty() ? "" : "; ", node.os_index,
                         node.cores.size(), node.cpus.size());
  }
  rows.push_back({"cores", fmt::format("{} to use{}", hardware.cores,
                                       hardware.cpu_quota > 0
                                           ? fmt::format(" (a quota of {:.3g})", hardware.cpu_quota)
                                           : "")});
  if (!nodes.empty()) rows.push_back({"memory", nodes});
  return rows;
}

std::vector<TopologyRow> no_gpu_rows(const NodeHardware& hardware) {
  std::vector<TopologyRow> rows;
  rows.push_back(
      {"tensor", hardware.numa.size() > 1
                     ? "ranks exchange through memory: keep a tensor parallel group within a node "
                       "of memory, with --numa_binding numa"
                     : "ranks exchange through the memory that they share: every size works, and "
                       "data parallelism costs least"});
  rows.push_back({"GPUs",
                  "none that can be seen here. Of another machine: nvidia-smi topo -m > "
                  "there.txt, then mtl topo --file there.txt"});
  return rows;
}

std::string matrix_text(const Topology& topology) {
  std::string text = fmt::format("{:<6}", "");
  for (const TopologyDevice& device : topology.devices) text += fmt::format(" {:>5}", device.name);
  text += '\n';
  for (size_t a = 0; a < topology.devices.size(); ++a) {
    text += fmt::format("{:<6}", topology.devices[a].name);
    for (const DeviceLink& link : topology.links[a]) text += fmt::format(" {:>5}", link_word(link));
    text += '\n';
  }
  return text;
}

std::string bench_text(const Json& found) {
  const int ranks = found["ranks"];
  std::string text =
      fmt::format("\nall-reduce of {} ranks, each on {}\n{:>10} {:>12} {:>14} {:>14}\n", ranks,
                  found["device"].get<std::string>(), "size", "time", "size / time", "bus");
  for (const Json& timing : found["timings"]) {
    const double bytes = timing["bytes"], seconds = timing["seconds"];
    text += fmt::format("{:>10} {:>9.1f} us {:>9.3g} GB/s {:>9.3g} GB/s\n", human_bytes(bytes),
                        seconds * 1e6, bytes / seconds / 1e9,
                        bus_factor(ranks) * bytes / seconds / 1e9);
  }
  return text + fmt::format("bus: what each rank sends and takes in, 2 (n-1)/n of the size.\n");
}

Json groups_json(const std::vector<std::vector<size_t>>& groups) {
  Json list = Json::array();
  for (const auto& group : groups) list.push_back(group);
  return list;
}

Json to_json(const Topology& topology, const TopologyFacts& facts,
             const std::vector<TopologyRow>& rows, const NodeHardware* hardware) {
  Json devices = Json::array(), links = Json::array(), words = Json::object();
  for (const TopologyDevice& device : topology.devices) {
    devices.push_back({{"name", device.name},
                       {"gpu", device.gpu},
                       {"what", device.what},
                       {"numa", device.numa},
                       {"cpus", device.cpus}});
  }
  for (const auto& row : topology.links) {
    Json list = Json::array();
    for (const DeviceLink& link : row) list.push_back(link_word(link));
    links.push_back(list);
  }
  for (const TopologyRow& row : rows) words[row.what] = row.text;
  Json json = {{"schema", "mtl.topo/1"},
               {"source", topology.source},
               {"devices", devices},
               {"links", links},
               {"nvlink_islands", groups_json(facts.islands)},
               {"pcie_switches", groups_json(facts.switches)},
               {"numa_nodes", groups_json(facts.numa)},
               {"nearest_nics", groups_json(facts.nics)},
               {"tp_wise", facts.tp_wise},
               {"tp_slow", facts.tp_slow},
               {"gpu_order", facts.order},
               {"words", words}};
  if (hardware != nullptr) {
    json["cores"] = hardware->cores;
    Json nodes = Json::array();
    for (const NumaNode& node : hardware->numa) {
      nodes.push_back(
          {{"node", node.os_index}, {"cores", node.cores.size()}, {"cpus", node.cpus.size()}});
    }
    json["numa"] = nodes;
  }
  return json;
}

}  // namespace

int command_topo(const Arguments& args) {
  bool json = false, measure = false;
  std::string file;
  LaunchGiven given;
  CommandLine line({"topo [--file F] [--json]", "topo --bench [the flags of mtl launch]"},
                   "Says how the GPUs and network cards of a machine are connected (NVLink, PCIe, "
                   "NUMA), and which sizes of tensor parallelism are wise on it. Starts nothing, "
                   "but with --bench.");
  line.example("mtl topo", "this machine");
  line.example("mtl topo --file dgx.txt", "another one, by its nvidia-smi topo -m");
  line.example("mtl topo --bench --num_processes 2", "and how fast its ranks exchange");
  line.group("The topology");
  line.option("file", "F", file, "the output of nvidia-smi topo -m, instead of this machine");
  line.flag("bench", measure, "measures all-reduces of the ranks that mtl launch would start");
  line.flag("json", json, "one JSON document, schema mtl.topo/1");
  declare_check_flags(line, given.flags);
  if (!line.parse(args)) return 0;
  if (measure) read_launch_environment(given);
  refuse_launch_only_flags(given, "topo");
  if (!file.empty() && measure) {
    throw Error(Exit::usage, {.code = "usage.option",
                              .what = "--bench measures this machine, and --file is of another",
                              .help = "leave one of them out"});
  }
  NodeHardware hardware;
  if (file.empty()) hardware = inspect_hardware(true);
  const Topology topology =
      file.empty() ? inspect_topology(hardware) : parse_topo_matrix(read_file(file, 1 << 20), file);
  const TopologyFacts facts = judge_topology(topology);
  std::vector<TopologyRow> rows = topology_words(topology, facts);
  if (file.empty()) {
    const auto add = [&](const std::vector<TopologyRow>& more) {
      rows.insert(rows.end(), more.begin(), more.end());
    };
    add(cpu_rows(hardware));
    if (topology.gpus() == 0) add(no_gpu_rows(hardware));
  }
  BenchOutcome measured;
  if (measure) {
    measured = bench(given);
    if (!measured.found) return measured.exit_code != 0 ? measured.exit_code : 1;
  }
  if (json) {
    Json document = to_json(topology, facts, rows, file.empty() ? &hardware : nullptr);
    if (measured.found) document["all_reduce"] = *measured.found;
    fmt::print("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace));
    return 0;
  }
  const int columns = std::max(60, terminal_columns(STDOUT_FILENO));
  std::string text;
  if (topology.devices.size() > 1) text += matrix_text(topology) + '\n';
  for (const TopologyRow& row : rows) {
    text += fmt::format("{:<9} ", row.what) + wrap_text(row.text, columns, 10, 10) + '\n';
  }
  if (measured.found) text += bench_text(*measured.found);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace mtl
