// Names and counts as SLURM writes them; tests/slurm compares with the real scontrol.
#include "rendezvous/node_list.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

using namespace mtl;

namespace {

std::string listed(const std::string& text) {
  Diagnostics diagnostics;
  const std::vector<std::string> names = expand_node_list(text, diagnostics);
  if (diagnostics.all().empty()) return fmt::format("{}", fmt::join(names, " "));
  CHECK(names.empty());
  CHECK(diagnostics.all()[0].code == "nodes.syntax");
  return diagnostics.all()[0].what;
}

}  // namespace

TEST_CASE("node lists keep order and zeros and duplicates") {
  CHECK(listed("gpu[001-003,007],dgx-[1-2]") == "gpu001 gpu002 gpu003 gpu007 dgx-1 dgx-2");
  CHECK(listed("n[9-11]") == "n9 n10 n11");
  CHECK(listed("n[099-101]") == "n099 n100 n101");
  CHECK(listed("n[2-3],n1,n[1-2]") == "n2 n3 n1 n1 n2");
  CHECK(listed(" a,\tb\nc ") == "a b c");
}

TEST_CASE("several brackets run in SLURM's order") {
  CHECK(listed("r[1-2]n[01-02]") == "r1n01 r1n02 r2n01 r2n02");
  CHECK(listed("a[1-2]b[1-2]c[1-2]") == "a1b1c1 a1b1c2 a2b1c1 a2b1c2 a1b2c1 a1b2c2 a2b2c1 a2b2c2");
  CHECK(listed("n[1-2]-ib") == "n1-ib n2-ib");
}

TEST_CASE("what is no list of nodes is told with its place") {
  Diagnostics diagnostics;
  expand_node_list("n[1-2],m[3-1]", diagnostics);
  REQUIRE(diagnostics.all().size() == 1);
  CHECK(diagnostics.all()[0].what ==
        "'n[1-2],m[3-1]' is no list of nodes: the range 3-1 runs backwards");
  CHECK(diagnostics.all()[0].notes[0] == "in the list, at character 8");
  for (const char* text : {"", ",", "n[", "n[1-2", "n[]", "n]", "n[[1-2]]", "n[1-9:2]", "n[a-b]",
                           "n[-3]", "n[1-]", "n[1,]", "-n1", "$(x)", "a;b", "n[0-99999]",
                           "a[1-300]b[1-300]", "n[0-65535],m", "n[99999999999999999999]"}) {
    CAPTURE(std::string(text));
    CHECK(listed(text).find("is no list of nodes") != std::string::npos);
  }
}

TEST_CASE("counts of tasks per node") {
  CHECK(expand_counts("8(x3),4") == std::vector<int>{8, 8, 8, 4});
  CHECK(expand_counts("2") == std::vector<int>{2});
  for (const char* text :
       {"", "x", "2(3)", "2(x)", "2(x0)", "2(x3", ",", "2,", "-1", "2(x99999)"}) {
    CAPTURE(std::string(text));
    CHECK(expand_counts(text).empty());
  }
}
