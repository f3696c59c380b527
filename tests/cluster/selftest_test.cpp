// mtl test on several machines: over ssh, with one that is slow, and with a cable that is out.
#include <chrono>
#include <thread>

#include "cluster/machines.h"
#include "support/text.h"

using namespace mtl::test;

TEST_CASE_FIXTURE(Machines, "mtl test over ssh: well and slow and cut off") {
  Lab lab(3);
  const auto test = [&](const std::string& hosts) {
    return lab.head({MTL_PROGRAM, "test", "--hosts", hosts, "--stage_timeout", "120"});
  };
  SUBCASE("three machines are well") {
    const CommandEnd end = test("m1:2,m2:2,m3:1");
    CAPTURE(end.out);
    CAPTURE(end.err);
    CHECK(end.code == 0);
    CHECK(has(end.out, "ok  spawn        5 ranks on 3 hosts (m1 2, m2 2, m3 1)"));
    CHECK(has(end.out, "within a host: all_reduce 4 B "));
    CHECK(has(end.out, "between hosts: all_reduce 4 B "));
    CHECK(has(end.out, "all is well"));
  }
  SUBCASE("the slow machine is named") {
    lab.delay(2, std::chrono::milliseconds(60));
    const CommandEnd end = test("m1:1,m2:1,m3:1");
    CAPTURE(end.out);
    CAPTURE(end.err);
    CHECK(end.code == 0);
    CHECK(has(end.err, "warning[selftest.slow_host]: the network link of m2 is "));
    CHECK_FALSE(has(end.err, "the network link of m1"));
    CHECK_FALSE(has(end.err, "the network link of m3"));
  }
  SUBCASE("a machine that is not there") {
    lab.stop_sshd(3);
    const CommandEnd end = test("m1:1,m2:1,m3:1");
    CAPTURE(end.out);
    CAPTURE(end.err);
    CHECK(end.code == 4);
    CHECK(has(end.err, "error[ssh.connect]"));
    CHECK(has(end.err, "m3"));
  }
  // The end of their channel ends them.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(180);
  for (int machine = 1; machine <= 3; ++machine) {
    while (!lab.processes(machine).empty() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    CHECK(lab.processes(machine).empty());
  }
}
