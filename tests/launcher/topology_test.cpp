// Layouts of real machines in nvidia-smi's format, what is concluded from them, and what is no
// table at all.
#include "launcher/doctor/topology.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/files.h"
#include "support/text.h"

using namespace mtl;

namespace {

using Groups = std::vector<std::vector<size_t>>;

Topology read(const std::string& name) {
  return parse_topo_matrix(read_file(MTL_SOURCE_DIR "/tests/launcher/topologies/" + name), name);
}

std::string words(const std::string& name, const std::string& what) {
  const Topology topology = read(name);
  for (const TopologyRow& row : topology_words(topology, judge_topology(topology))) {
    if (row.what == what) return row.text;
  }
  return "";
}

using mtl::test::has;

// The message of a table that is refused, with its line.
std::string refusal(const std::string& text) {
  try {
    parse_topo_matrix(text, "t.txt");
  } catch (const Error& error) {
    const Diagnostic& why = error.diagnostics().front();
    CHECK(error.exit() == Exit::data);
    CHECK(why.code == "topo.format");
    return fmt::format("{}: {}", why.place->line, why.what);
  }
  return "taken";
}

}  // namespace

TEST_CASE("a DGX A100: one NVLink island over four switches and nodes") {
  const Topology topology = read("dgx-a100.txt");
  CHECK(topology.gpus() == 8);
  CHECK(topology.devices.size() == 18);
  CHECK(topology.devices[0].numa == 3);
  CHECK(topology.devices[0].cpus == "48-63,176-191");
  CHECK(topology.devices[17].what == "mlx5_9");
  CHECK(link_word(topology.links[0][7]) == "NV12");
  CHECK(link_word(topology.links[0][8]) == "PXB");
  const TopologyFacts facts = judge_topology(topology);
  CHECK(facts.islands == Groups{{0, 1, 2, 3, 4, 5, 6, 7}});
  // NVLink hides the switches; the network cards behind them show them.
  CHECK(facts.switches == Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  CHECK(facts.numa.size() == 4);
  CHECK(facts.tp_wise == std::vector<int>{2, 4, 8});
  CHECK(facts.order.empty());
  CHECK(facts.nics[0] == std::vector<size_t>{8, 9});
  CHECK(facts.nics[7] == std::vector<size_t>{14, 15, 17});
  CHECK(has(words("dgx-a100.txt", "NVLink"), "all GPUs, each to each: 12 links"));
  CHECK(has(words("dgx-a100.txt", "tensor"), "tp 2, 4 or 8"));
  CHECK(has(words("dgx-a100.txt", "network"), "GPU 0, 1: NIC0 mlx5_0, NIC1 mlx5_1 (PXB)"));
  CHECK(has(words("dgx-a100.txt", "binding"), "--enable_cpu_affinity"));
}

TEST_CASE("an HGX H100: every GPU has a card of its own") {
  const TopologyFacts facts = judge_topology(read("hgx-h100.txt"));
  CHECK(facts.tp_wise == std::vector<int>{2, 4, 8});
  CHECK(facts.numa == Groups{{0, 1, 2, 3}, {4, 5, 6, 7}});
  for (size_t gpu = 0; gpu < 8; ++gpu) CHECK(facts.nics[gpu] == std::vector<size_t>{8 + gpu});
  CHECK(has(words("hgx-h100.txt", "NVLink"), "18 links"));
}

TEST_CASE("GPUs that reach the same card another way are not one") {
  const Topology topology = parse_topo_matrix(
      "\tGPU0\tGPU1\tGPU2\tNIC0\n"
      "GPU0\t X \tSYS\tSYS\tPXB\n"
      "GPU1\tSYS\t X \tPHB\tSYS\n"
      "GPU2\tSYS\tPHB\t X \tSYS\n"
      "NIC0\tPXB\tSYS\tSYS\t X \n",
      "t.txt");
  std::string network;
  for (const TopologyRow& row : topology_words(topology, judge_topology(topology))) {
    if (row.what == "network") network = row.text;
  }
  CHECK(network == "nearest cards: GPU 0: NIC0 (PXB); GPU 1, 2: NIC0 (SYS)");
}

TEST_CASE("GPUs on PCIe alone are no place for tensor parallelism") {
  const TopologyFacts pairs = judge_topology(read("four-pcie.txt"));
  CHECK(pairs.tp_wise.empty());
  CHECK(pairs.switches == Groups{{0, 1}, {2, 3}});
  CHECK(pairs.tp_slow == std::vector<int>{2});
  CHECK(pairs.nics[0] == std::vector<size_t>{4});
  CHECK(has(words("four-pcie.txt", "NVLink"), "none"));
  CHECK(has(words("four-pcie.txt", "tensor"), "tp 1; tp 2 stays behind a switch"));
  // Older versions of nvidia-smi name the cards themselves.
  CHECK(has(words("four-pcie.txt", "network"), "mlx5_0 (NODE)"));

  const TopologyFacts switched = judge_topology(read("one-switch.txt"));
  CHECK(switched.switches == Groups{{0, 1, 2, 3}});
  CHECK(switched.tp_slow == std::vector<int>{2, 4});
  CHECK(switched.numa.empty());

  const TopologyFacts desk = judge_topology(read("workstation.txt"));
  CHECK(desk.tp_wise.empty());
  CHECK(has(words("workstation.txt", "tensor"), "leads over the CPU"));
  CHECK(words("workstation.txt", "binding").empty());
}

TEST_CASE("islands: bridges between GPUs that are not numbered in a row and a cube mesh") {
  const TopologyFacts bridges = judge_topology(read("bridges.txt"));
  CHECK(bridges.islands == Groups{{0, 2}, {1, 3}});
  CHECK(bridges.tp_wise == std::vector<int>{2});
  CHECK(bridges.order == std::vector<size_t>{0, 2, 1, 3});
  CHECK_FALSE(bridges.islands_linked);
  CHECK(has(words("bridges.txt", "order"), "--gpu_ids 0,2,1,3"));
  CHECK(has(words("bridges.txt", "tensor"), "tp 2:"));
  CHECK(has(words("bridges.txt", "tensor"), "leave the island"));

  const TopologyFacts cube = judge_topology(read("dgx-1v.txt"));
  CHECK(cube.islands == Groups{{0, 1, 2, 3}, {4, 5, 6, 7}});
  CHECK(cube.islands_linked);
  CHECK(cube.tp_wise == std::vector<int>{2, 4});
  CHECK(has(words("dgx-1v.txt", "NVLink"), "1 to 2 links"));

  const TopologyFacts single = judge_topology(read("single.txt"));
  CHECK(single.tp_wise.empty());
  CHECK(words("single.txt", "tensor").empty());
}

TEST_CASE("what is no table is refused with its line") {
  CHECK(refusal("") == "1: there is no table of GPUs in it");
  CHECK(refusal("nvidia-smi: command not found\n") == "1: there is no table of GPUs in it");
  CHECK(refusal("\tGPU0\tGPU1\nGPU0\t X \tNV12\n") == "2: there is no row of GPU1");
  CHECK(refusal("\tGPU0\tGPU1\nGPU0\t X \nGPU1\tNV12\t X \n") ==
        "2: GPU0 has 1 links, and the table has 2 columns");
  CHECK(refusal("\tGPU0\tGPU1\nGPU0\t X \tNVX\nGPU1\tSYS\t X \n") == "2: 'NVX' is no kind of link");
  CHECK(refusal("\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tPIX\t X \n") ==
        "1: GPU1 to GPU0 is PIX, and back it is SYS");
  CHECK(refusal("\tGPU0\tGPU1\nGPU0\tSYS\t X \nGPU1\tPIX\t X \n") ==
        "2: the link of GPU0 to GPU0 is 'SYS'");
  CHECK(refusal("\tGPU0\tGPU0\n") == "1: GPU0 stands twice");
  CHECK(refusal("\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU0\t X \tSYS\n") == "3: GPU0 has a second row");
}

TEST_CASE("the kind of a PCI link follows from the paths in sysfs") {
  const std::string root = "/sys/devices/pci0000:00/0000:00:01.0";
  const std::string a = root + "/0000:01:00.0/0000:02:04.0/0000:03:00.0";
  const std::string b = root + "/0000:01:00.0/0000:02:08.0/0000:04:00.0";
  const std::string far =
      root + "/0000:01:00.0/0000:02:0c.0/0000:05:00.0/0000:06:00.0/0000:07:00.0";
  CHECK(pci_link(a, b, 0, 0) == LinkKind::pix);
  CHECK(pci_link(a, far, 0, 0) == LinkKind::pxb);
  CHECK(pci_link(a, "/sys/devices/pci0000:00/0000:00:02.0/0000:08:00.0", 0, 0) == LinkKind::phb);
  CHECK(pci_link(a, "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0", 0, 0) == LinkKind::node);
  CHECK(pci_link(a, "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0", 0, 1) == LinkKind::sys);
  CHECK(pci_link(a, "", 0, 0) == LinkKind::unknown);
  CHECK(pci_link(a, "/sys/devices/virtual/net/lo", 0, -1) == LinkKind::unknown);
}
