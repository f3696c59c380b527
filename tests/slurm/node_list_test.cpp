// The expansion of node lists against that of SLURM itself.
#include "rendezvous/node_list.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "support/slurm.h"

using namespace mtl;
using namespace mtl::test;

namespace {

// Of the file: scontrol only reads its slurm.conf.
const Slurm& slurm() {
  static const Slurm one(1);
  return one;
}

std::string ours(const std::string& list) {
  Diagnostics diagnostics;
  const std::vector<std::string> names = expand_node_list(list, diagnostics);
  return diagnostics.all().empty() ? fmt::format("{}\n", fmt::join(names, "\n")) : "error";
}

// scontrol ends with 0 for a list that it refuses, too.
std::string scontrols(const std::string& list) {
  const CommandEnd end = slurm().run({"scontrol", "show", "hostnames", list});
  const bool refused = end.code != 0 || end.err.find("Invalid") != std::string::npos ||
                       end.out.find("Invalid") != std::string::npos || end.out.empty();
  return refused ? "error" : end.out;
}

}  // namespace

TEST_CASE("node lists are what scontrol makes of them") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const std::vector<std::string> lists = {
      "n1", "gpu007", "node-12", "login", "n1.cluster.local", "N1", "n_1", "10.0.0.1", "n[1-3]",
      "gpu[001-003,007],dgx-[1-2]", "n[01-10]", "n[9-11]", "n[09-11]", "n[099-101]", "n[0998-1002]",
      "n[08-11,20]", "n[1,2,3]", "n[3,1,2]", "n[10,9]", "n[5]", "n[000]", "n[0-0]", "n[00-00]",
      "n[1,02,003]", "n[001-3]", "n[1-03]", "n[1-003]", "n[01-1]", "n[1,1]", "n1,n1",
      "n[1-2],n[2-3]", "a,b,c", "a,", ",a", "a,,b", "a b", "n[1-2],m[3-4],x", "n[1-3,5,7-9,0010]",
      "r[1-2]n[1-2]", "rack[1-2]n[01-04]", "r[2,1]n[08-11]", "r[01-03]c[1-2]", "a[1-2]b[1-2]c[1-2]",
      "a[1-2]b[1-3]c[05-06]", "a[1,3]b[2,1]c[5-6]d[1-2]e[7,9]",
      "a[1-2]b[1-2]c[1-2]d[1-2]e[1-2]f[1-2]", "a[1-2][3-4]", "a[1-2][3-4][5-6]", "a[1-2]b3c[4-5]",
      "a1b[1-2]", "a01b02c[1-12]", "x[1-2]y[1-2],z[1-2],x1y1", "n_[1-2]", "n-[1-2]",
      "10.0.0.[1-12]", "[1-3]", "n[999999999-1000000001]", "n[4294967296]", "n[0-1199]",
      "jwb[0001-0936]", "lrdn[0001-3456]", "n[1-16],n[0017-0032],gpu-a[1-4]",
      "cn[1-4,6-8],cn[0101-0104],gn[1-2]",
      // Refused by both.
      "n[]", "n[3-1]", "n[a-b]", "n[1-3,]", "n[,1]", "n[1--3]", "n[-3]", "n[1.2]", "n[1-9:2]",
      "n[0-8:4]", "n[1;2]", "n[0x1]", "n[1e1]", "n[x1-x2]", "n[[1-2]]", "n[1-2]]", "n[1-3]:2",
      "n[1,2 ]", "n[0-99999]", "n[0-65536]", "-n1", ",", ""};
  size_t refused = 0;
  for (const std::string& list : lists) {
    CAPTURE(list);
    const std::string told = scontrols(list);
    refused += told == "error" ? 1 : 0;
    CHECK(ours(list) == told);
  }
  CHECK(lists.size() - refused >= 60);
  CHECK(refused >= 20);
}

TEST_CASE("more is a list of nodes to mtl than to this scontrol and less in no doubt") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  // Text behind a bracket: other versions write it, this one refuses it.
  CHECK(scontrols("n[1-2]-ib") == "error");
  CHECK(ours("n[1-2]-ib") == "n1-ib\nn2-ib\n");
  // Half a range or bracket, which this scontrol guesses at.
  for (const char* list : {"n[1-]", "n[1-2", "n]", "n{1-2}", "user@n1", "n1;n2"}) {
    CAPTURE(std::string(list));
    CHECK(scontrols(list) != "error");
    CHECK(ours(list) == "error");
  }
}
