// SshFleet against real sshd: what works, byte for byte, and how commands end.
#include "launcher/ssh/fleet.h"

#include <csignal>
#include <random>
#include <thread>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "ssh/loopback.h"

using namespace mtl;
using namespace mtl::test;

namespace {

std::string random_bytes(size_t size) {
  std::mt19937_64 engine(7);
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(engine());
  return bytes;
}

std::string said(const FleetEvent& event) {
  return event.error ? render(*event.error) : "no error";
}

}  // namespace

TEST_CASE("four hosts start, talk and end") {
  Site site;
  std::vector<std::string> names;
  for (int i = 0; i < 4; ++i) {
    names.push_back(fmt::format("m{}", i));
    site.sshd(names.back());
  }
  const int before = open_descriptors();
  {
    const auto fleet = start_fleet(site.options(names, "read line; echo \"got $line\"; exit 7"));
    std::vector<FleetEvent> started = first_events(*fleet, 4);
    for (size_t i = 0; i < 4; ++i) {
      INFO(said(started[i]));
      REQUIRE(started[i].kind == FleetEvent::started);
      CHECK(started[i].host == i);
      write_stream(started[i].stream, fmt::format("hello {}\n", i));
    }
    for (size_t i = 0; i < 4; ++i) {
      const std::string expected = fmt::format("got hello {}\n", i);
      CHECK(read_stream(started[i].stream) == expected);
    }
    for (const FleetEvent& event : first_events(*fleet, 4)) {
      CHECK(event.kind == FleetEvent::ended);
      CHECK(event.exit_code == 7);
      CHECK(event.signal.empty());
    }
    CHECK(fleet->warnings().empty());
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("8 MiB go both ways unchanged") {
  Site site;
  site.sshd("m");
  const auto fleet = start_fleet(site.options({"m"}, "exec cat"));
  std::vector<FleetEvent> started = first_events(*fleet, 1);
  INFO(said(started[0]));
  REQUIRE(started[0].kind == FleetEvent::started);
  const std::string bytes = random_bytes(8 << 20);
  std::thread writer([&] {
    write_stream(started[0].stream, bytes);
    shutdown(started[0].stream.get(), SHUT_WR);
  });
  const std::string back = read_stream(started[0].stream);
  writer.join();
  CHECK((back == bytes));
  const auto ended = next_event(*fleet);
  REQUIRE(ended);
  CHECK(ended->kind == FleetEvent::ended);
  CHECK(ended->exit_code == 0);
}
