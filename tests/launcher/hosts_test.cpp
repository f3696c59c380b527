// --hosts and --hostfile: what people write, what it means, and where a mistake is.
#include "launcher/hosts.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "support/temp_dir.h"

using namespace mtl;
using namespace mtl::test;

namespace {

// "user@name:slots ..." of what was read, or the codes and places of what is wrong.
std::string shown(const std::vector<Host>& hosts, const Diagnostics& diagnostics) {
  std::string text;
  for (const Diagnostic& one : diagnostics.all()) {
    text += fmt::format("{}{}", text.empty() ? "" : " ", one.code);
    if (one.place) text += fmt::format("@{}:{}", one.place->line, one.place->column);
  }
  if (!text.empty()) return text;
  for (const Host& host : hosts) {
    text += fmt::format("{}{}{}:{}", text.empty() ? "" : " ",
                        host.user.empty() ? "" : host.user + "@", host.name, host.slots);
  }
  return text;
}

std::string listed(std::string_view text) {
  Diagnostics diagnostics;
  const std::vector<Host> hosts = parse_hosts(text, diagnostics);
  return shown(hosts, diagnostics);
}

std::string filed(const std::string& text, Diagnostics* all = nullptr) {
  const TempDir dir;
  Diagnostics diagnostics;
  const std::vector<Host> hosts = read_hostfile(dir.file("hosts", text), diagnostics);
  if (all != nullptr) *all = diagnostics;
  return shown(hosts, diagnostics);
}

}  // namespace

TEST_CASE("hosts by comma with slots and users") {
  CHECK(listed("a") == "a:0");
  CHECK(listed("a,b:4,root@c.example.org:2") == "a:0 b:4 root@c.example.org:2");
  CHECK(listed(" a , b:1 ") == "a:0 b:1");
  CHECK(listed("10.0.0.1:8") == "10.0.0.1:8");
}

TEST_CASE("ranges keep their zeros and multiply") {
  CHECK(listed("n[1-3]") == "n1:0 n2:0 n3:0");
  CHECK(listed("n[08-11,20]:2") == "n08:2 n09:2 n10:2 n11:2 n20:2");
  CHECK(listed("me@r[1-2]n[1-2]-ib,x") ==
        "me@r1n1-ib:0 me@r1n2-ib:0 me@r2n1-ib:0 me@r2n2-ib:0 x:0");
  CHECK(listed("n[5]") == "n5:0");
}

TEST_CASE("IPv6 addresses stand in brackets") {
  CHECK(listed("[fd00::1]:4,[fe80::1%eth0]") == "fd00::1:4 fe80::1%eth0:0");
  CHECK(listed("u@[::1]") == "u@::1:0");
  Diagnostics diagnostics;
  parse_hosts("fd00::1:4", diagnostics);
  REQUIRE(diagnostics.all().size() == 1);
  CHECK(diagnostics.all()[0].help == "write an IPv6 address in brackets: [fd00::1:4]");
}

TEST_CASE("mistakes in a list of hosts") {
  for (const char* text : {"",        ",",      "a,",     "a,,b",        "a:",
                           "a:0",     "a:x",    "a:-1",   "a:1:2",       "n[1-",
                           "n[]",     "n[3-1]", "n[a-b]", "n[0-999999]", "-oProxyCommand=x",
                           "a b",     "a;b",    "@a",     "a@",          "$(x)",
                           "[a]x[:]", "n]"}) {
    CAPTURE(std::string(text));
    CHECK(listed(text).starts_with("hosts.syntax"));
  }
  CHECK(listed("a,b,a") == "hosts.duplicate");
  CHECK(listed("n[1-3],n2:4,n2") == "hosts.duplicate");
  Diagnostics diagnostics;
  parse_hosts("good,bad:x,good2,worse:y", diagnostics);
  REQUIRE(diagnostics.all().size() == 2);
  CHECK(diagnostics.all()[0].notes[0] == "in --hosts, at character 10");
}

TEST_CASE("hostfiles of DeepSpeed and Open MPI and MPICH") {
  CHECK(filed("\xEF\xBB\xBFh1 slots=1\r\n") == "h1:1");  // as some editors write
  CHECK(filed("m1 slots=4\nm2 slots=8\n") == "m1:4 m2:8");
  CHECK(filed("# cluster\n\n  m1 slots=2 max_slots=4 # first\r\nme@m2 max-slots=3\n\tm3") ==
        "m1:2 me@m2:0 m3:0");
  CHECK(filed("m1:4\nm2\n[fd00::1]:2\nn[1-2] slots=3\n") == "m1:4 m2:0 fd00::1:2 n1:3 n2:3");
}

TEST_CASE("a host that appears again adds its ranks") {
  CHECK(filed("m1\nm2\nm1\nm1\n") == "m1:3 m2:0");
  CHECK(filed("m1:4\nm1 slots=2\n") == "m1:6");
}

TEST_CASE("a host knows its line") {
  const TempDir dir;
  Diagnostics diagnostics;
  const std::string path = dir.file("hosts", "\n  m1\nm2:2\n");
  const std::vector<Host> hosts = read_hostfile(path, diagnostics);
  REQUIRE(hosts.size() == 2);
  CHECK(hosts[0].place.file == path);
  CHECK(hosts[0].place.line == 2);
  CHECK(hosts[0].place.column == 3);
  CHECK(hosts[1].place.line == 3);
}

TEST_CASE("mistakes in a hostfile are all told with their places") {
  Diagnostics all;
  CHECK(filed("m1 slot=4\nok\nm2 slots=\nm3:x\n m4 4\nm5:2 slots=3\n", &all) ==
        "hosts.syntax@1:4 hosts.syntax@3:10 hosts.syntax@4:4 hosts.syntax@5:5 hosts.syntax@6:6");
  CHECK(all.all()[0].help == "did you mean slots=?");
  CHECK(filed("# nothing\n\n") == "hosts.empty@0:0");
  Diagnostics diagnostics;
  read_hostfile("/nonexistent/hostfile", diagnostics);
  REQUIRE(diagnostics.all().size() == 1);
  CHECK(diagnostics.all()[0].code == "hosts.file");
  CHECK(diagnostics.all()[0].help == "correct the path that --hostfile gives");
}
