// What happens when a host cannot be used: each way, told by its code and with what to do.
#include <chrono>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "ssh/loopback.h"
#include "ssh/one_host.h"
#include "support/fitting_limit.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;
using namespace std::chrono_literals;

TEST_CASE("start-up files that print do not disturb") {
  for (const char* way : kWays) {
    CAPTURE(std::string(way));
    Site site;
    site.sshd(
        "m",
        "ForceCommand echo Welcome; echo; printf 'no newline'; eval \"$SSH_ORIGINAL_COMMAND\"");
    FleetOptions options = site.options({"m"}, "exec cat");
    options.ssh_command = way;
    const auto fleet = start_fleet(options);
    std::vector<FleetEvent> started = first_events(*fleet, 1);
    REQUIRE(started[0].kind == FleetEvent::started);
    write_stream(started[0].stream, "clean");
    CHECK(read_stream(started[0].stream, 5) == "clean");
  }
}

TEST_CASE("a missing program is told with its exit code and the shell's words") {
  for (const char* way : kWays) {
    CAPTURE(std::string(way));
    Site site;
    site.sshd("m", "ForceCommand echo Welcome home; eval \"$SSH_ORIGINAL_COMMAND\"");
    FleetOptions options = site.options({"m"}, "");
    options.ssh_command = way;
    options.command = "exec /opt/none/mtl agent";
    std::string code;
    std::string text = failure(options, &code);
    INFO(text);
    CHECK(code == "ssh.command");
    CHECK(has(text, "the program is not there"));
    CHECK(has(text, "/opt/none/mtl: "));
    CHECK(has(text, "Welcome home"));
    // csh has no exit codes for these.
    options.command = "echo '/opt/none/mtl: Command not found.' >&2; exit 1";
    text = failure(options, &code);
    CHECK(code == "ssh.command");
    CHECK(has(text, "the program is not there"));
    CHECK(has(text, "install it there"));
    options.command = "echo '/opt/none/mtl: Permission denied.' >&2; exit 1";
    CHECK(has(failure(options, &code), "the program cannot be executed there"));
    options.command = "echo other; exit 9";
    text = failure(options, &code);
    CHECK(code == "ssh.command");
    CHECK(has(text, "ended with 9"));
    CHECK(has(text, "other"));
  }
}

TEST_CASE("no such host and nobody listening") {
  for (const char* way : kWays) {
    CAPTURE(std::string(way));
    Site site;
    const SilentServer closed(false);
    site.after(fmt::format("Host closed\n  HostName 127.0.0.1\n  Port {}\n", closed.port));
    std::string code;
    std::string text = failure(site, way, &code, "closed");
    CHECK(code == "ssh.connect");
    CHECK(has(text, "Connection refused"));
    text = failure(site, way, &code, "no-such-host.invalid");
    CHECK(code == "ssh.unknown_host");
    CHECK(has(text, "no-such-host.invalid"));
  }
}

TEST_CASE("a port that takes connections and says nothing runs into the time limit") {
  for (const char* way : kWays) {
    CAPTURE(std::string(way));
    Site site;
    const SilentServer silent(true);
    site.after(fmt::format("Host silent\n  HostName 127.0.0.1\n  Port {}\n", silent.port));
    FleetOptions options = site.options({"silent"}, "");
    options.ssh_command = way;
    std::string code, text;
    with_fitting_limit(300ms, [&](auto limit) {
      options.connect_timeout = limit;
      text = failure(options, &code);
      CHECK(has(text, fmt::format("{} s", static_cast<double>(limit.count()) / 1000)));
      return *way != '\0' || has(text, "says nothing");
    });
    INFO(text);
    CHECK(code == "ssh.timeout");
    if (*way == '\0') {  // the configuration's own limit counts where it is shorter
      site.before("ConnectTimeout 1\n");
      options.connect_timeout = kPatience;
      CHECK(has(failure(options, &code), "no answer within 1 s"));
    }
    if (*way == '\0') CHECK(has(text, "says nothing"));
  }
}

TEST_CASE("a command that never says its magic line runs into the time limit") {
  for (const char* way : kWays) {
    CAPTURE(std::string(way));
    Site site;
    site.sshd("m");
    FleetOptions options = site.options({"m"}, "");
    options.ssh_command = way;
    options.command = "echo no magic; cat >/dev/null";
    std::string code, text;
    with_fitting_limit(1500ms, [&](auto limit) {
      options.connect_timeout = limit;
      text = failure(options, &code);
      return has(text, "no magic");
    });
    INFO(text);
    CHECK(code == "ssh.timeout");
    CHECK(has(text, "no magic"));
  }
}

TEST_CASE("a server that drops logins beyond its limit is asked again") {
  Site site;
  site.sshd("m", "MaxStartups 1:100:1");
  const std::vector<std::string> hosts(8, "m");
  const auto fleet = start_fleet(site.options(hosts, "cat >/dev/null"));
  for (const FleetEvent& event : first_events(*fleet, hosts.size())) {
    INFO((event.error ? render(*event.error) : ""));
    CHECK(event.kind == FleetEvent::started);
  }
}

TEST_CASE("a host that fails does not disturb the others") {
  Site site;
  site.sshd("good");
  const SilentServer closed(false);
  site.after(fmt::format("Host closed\n  HostName 127.0.0.1\n  Port {}\n", closed.port));
  FleetOptions options = site.options({"closed", "good", "none.invalid", "good"}, "cat");
  options.handshakes = 1;
  const auto fleet = start_fleet(options);
  const std::vector<FleetEvent> events = first_events(*fleet, 4);
  CHECK(events[0].kind == FleetEvent::failed);
  CHECK(events[1].kind == FleetEvent::started);
  CHECK(events[2].kind == FleetEvent::failed);
  CHECK(events[3].kind == FleetEvent::started);
}
