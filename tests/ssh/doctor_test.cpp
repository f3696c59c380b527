// mtl doctor over real sshd: two hosts that reach each other, and what goes wrong between them.
#include "launcher/doctor/doctor.h"

#include <algorithm>

#include <doctest/doctest.h>

#include "rendezvous/network.h"
#include "ssh/loopback.h"

using namespace mtl;
using namespace mtl::test;

namespace {

Finding of(const HostReport& report, const std::string& check) {
  const auto found = std::find_if(report.findings.begin(), report.findings.end(),
                                  [&](const Finding& f) { return f.check == check; });
  return found == report.findings.end() ? Finding{} : *found;
}

DoctorFleet fleet_of(const Site& site, const std::vector<std::string>& names) {
  DoctorFleet fleet;
  for (const std::string& name : names) {
    fleet.hosts.emplace_back();
    fleet.hosts.back().name = name;
  }
  fleet.program = MTL_PROGRAM;
  fleet.ssh_config = site.config();
  fleet.options.run_dir = "/tmp";
  fleet.options.probe_bytes = 1 << 20;
  return fleet;
}

}  // namespace

TEST_CASE("two hosts are examined and compared and reach each other") {
  Site site;
  site.sshd("m0");
  site.sshd("m1");
  const std::vector<HostReport> reports = examine_hosts(fleet_of(site, {"m0", "m1"}));
  REQUIRE(reports.size() == 2);
  for (const HostReport& report : reports) {
    CAPTURE(report.host);
    CHECK(of(report, "hosts.ssh").level == Finding::Level::ok);
    CHECK(of(report, "hosts.ssh").host == report.host);
    CHECK(of(report, "disk.speed").what.size() > 3);
    CHECK(report.facts.size() > 5);
    REQUIRE(report.clock_ahead_s);
    // The same clock, twice.
    CHECK(std::abs(*report.clock_ahead_s) <= report.clock_error_s + 0.001);
  }
  const bool alone = [] {
    const auto addresses = local_addresses();
    return std::all_of(addresses.begin(), addresses.end(),
                       [](const LocalAddress& a) { return a.is_loopback; });
  }();
  CHECK(of(reports[1], "hosts.way").level ==
        (alone ? Finding::Level::problem : Finding::Level::ok));
  CHECK_FALSE(has_problem(compare_hosts(reports)));
}

TEST_CASE("a host without mtl and one that is not there do not hide the third") {
  Site site;
  site.sshd("m0");
  DoctorFleet fleet = fleet_of(site, {"m0", "absent"});
  site.after("Host absent\n  HostName 127.0.0.1\n  Port " + std::to_string(free_port()) + "\n");
  const std::vector<HostReport> reports = examine_hosts(fleet);
  CHECK(of(reports[0], "limits.nofile").what.size() > 3);
  CHECK(of(reports[1], "hosts.ssh").level == Finding::Level::problem);
  CHECK(of(reports[1], "hosts.ssh").what.find("[ssh.connect]") != std::string::npos);
  CHECK(reports[1].facts.empty());

  fleet = fleet_of(site, {"m0"});
  fleet.program = "/nowhere/mtl";
  const Finding missing = of(examine_hosts(fleet)[0], "hosts.ssh");
  CHECK(missing.level == Finding::Level::problem);
  CHECK(missing.what.find("[ssh.command]") != std::string::npos);
}

TEST_CASE("a port of the job that somebody has is a problem of the first host") {
  Site site;
  const Sshd& taken = site.sshd("m0");
  site.sshd("m1");
  DoctorFleet fleet = fleet_of(site, {"m0", "m1"});
  fleet.options.port = static_cast<uint16_t>(taken.port);  // its own sshd's
  const std::vector<HostReport> reports = examine_hosts(fleet);
  CHECK(of(reports[0], "network.port").level == Finding::Level::problem);
}

TEST_CASE("this host needs no sshd") {
  Site site;
  site.sshd("m1");
  const std::vector<HostReport> reports = examine_hosts(fleet_of(site, {"localhost", "m1"}));
  CHECK(of(reports[0], "limits.nofile").host == "localhost");
  CHECK(of(reports[0], "hosts.ssh").what.empty());
  CHECK(of(reports[1], "limits.nofile").host == "m1");
  CHECK(reports[0].clock_ahead_s);
  DoctorFleet fleet = fleet_of(site, {"localhost"});
  fleet.program = "/nowhere/mtl";
  CHECK(of(examine_hosts(fleet)[0], "hosts.answer").level == Finding::Level::problem);
}
