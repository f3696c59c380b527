// SshFleet against real sshd: what works, byte for byte, and how commands end.
#include "launcher/ssh/fleet.h"

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "ssh/loopback.h"
#include "support/text.h"

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

TEST_CASE("bytes behind the magic line are part of the stream") {
  Site site;
  site.sshd("m");
  FleetOptions options = site.options({"m"}, "");
  options.command = fmt::format("printf '{}\\nmore\\nand more'; sleep 0", kMagic);
  const auto fleet = start_fleet(options);
  std::vector<FleetEvent> started = first_events(*fleet, 1);
  INFO(said(started[0]));
  REQUIRE(started[0].kind == FleetEvent::started);
  CHECK(read_stream(started[0].stream) == "more\nand more");
}

TEST_CASE("a killed command is told by its signal and its last words") {
  Site site;
  site.sshd("m");
  const auto fleet = start_fleet(site.options(
      {"m"},
      "for i in 1 2 3 4 5 6 7 8 9; do echo line $i$i >&2; done; for i in 1 2 3 4 5 6 7 8 9 "
      "10 11 12 13 14 15 16 17 18 19 20; do echo word $i >&2; done; kill -SEGV $$"));
  REQUIRE(first_events(*fleet, 1)[0].kind == FleetEvent::started);
  const auto ended = next_event(*fleet);
  REQUIRE(ended);
  CHECK(ended->kind == FleetEvent::ended);
  CHECK(ended->signal == "SEGV");
  CHECK(!ended->exit_code);
  CHECK(ended->stderr_tail.starts_with("word 1\n"));
  CHECK(ended->stderr_tail.ends_with("word 20"));
}

TEST_CASE("closing the stream's writing half ends the far stdin only") {
  Site site;
  site.sshd("m");
  const auto fleet = start_fleet(site.options({"m"}, "cat >/dev/null; echo after; exit 3"));
  std::vector<FleetEvent> started = first_events(*fleet, 1);
  REQUIRE(started[0].kind == FleetEvent::started);
  shutdown(started[0].stream.get(), SHUT_WR);
  CHECK(read_stream(started[0].stream) == "after\n");
  const auto ended = next_event(*fleet);
  REQUIRE(ended);
  CHECK(ended->exit_code == 3);
}

TEST_CASE("closing the stream ends the far stdin and the exit code still comes") {
  Site site;
  site.sshd("m");
  const auto fleet =
      start_fleet(site.options({"m"}, "yes | head -c 3000000; cat >/dev/null; exit 4"));
  {
    std::vector<FleetEvent> started = first_events(*fleet, 1);
    REQUIRE(started[0].kind == FleetEvent::started);
  }
  const auto ended = next_event(*fleet);
  REQUIRE(ended);
  CHECK(ended->kind == FleetEvent::ended);
  CHECK(ended->exit_code == 4);
}

TEST_CASE("a far side that closes its stdout first ends later") {
  Site site;
  site.sshd("m");
  const auto fleet =
      start_fleet(site.options({"m"}, "echo last; exec >&-; cat >/dev/null; exit 5"));
  std::vector<FleetEvent> started = first_events(*fleet, 1);
  REQUIRE(started[0].kind == FleetEvent::started);
  CHECK(read_stream(started[0].stream, 5) == "last\n");
  write_stream(started[0].stream, "still read\n");
  CHECK(!fleet->next());
  shutdown(started[0].stream.get(), SHUT_WR);
  const auto ended = next_event(*fleet);
  REQUIRE(ended);
  CHECK(ended->exit_code == 5);
}

TEST_CASE("a reader that does not keep up holds the far side back and loses nothing") {
  Site site;
  site.sshd("m");
  const auto fleet = start_fleet(
      site.options({"m"}, "head -c 16777216 /dev/zero; echo done >" + (site / "done").string()));
  std::vector<FleetEvent> started = first_events(*fleet, 1);
  REQUIRE(started[0].kind == FleetEvent::started);
  // With 16 MiB under way and nobody reading, the writer cannot have come to its end.
  CHECK(!wait_until([&] { return file_text(site / "done") == "done\n"; }, std::chrono::seconds(1)));
  CHECK(read_stream(started[0].stream).size() == 16777216);
  const auto ended = next_event(*fleet);
  REQUIRE(ended);
  CHECK(ended->exit_code == 0);
}

TEST_CASE("a stopped far side does not stop the others") {
  Site site;
  site.sshd("stuck");
  site.sshd("well");
  const auto fleet = start_fleet(site.options({"stuck", "well"}, "echo $PPID; exec cat"));
  std::vector<FleetEvent> started = first_events(*fleet, 2);
  REQUIRE(started[0].kind == FleetEvent::started);
  REQUIRE(started[1].kind == FleetEvent::started);
  std::string line;
  while (!line.ends_with('\n')) line += read_stream(started[0].stream, 1);
  const pid_t session = std::stoi(line);
  while (read_stream(started[1].stream, 1) != "\n") {
  }
  REQUIRE(kill(session, SIGSTOP) == 0);
  // Until nothing more goes in, which may take several rounds of the sockets between.
  const std::string block(1 << 16, 'x');
  size_t stuffed = 0;
  auto moved = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - moved < std::chrono::milliseconds(300) &&
         stuffed < (64U << 20)) {
    const ssize_t sent = send(started[0].stream.get(), block.data(), block.size(), MSG_DONTWAIT);
    if (sent <= 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      continue;
    }
    stuffed += static_cast<size_t>(sent);
    moved = std::chrono::steady_clock::now();
  }
  CHECK(stuffed < (64U << 20));
  write_stream(started[1].stream, "ping");
  CHECK(read_stream(started[1].stream, 4) == "ping");
  kill(session, SIGCONT);
  shutdown(started[0].stream.get(), SHUT_WR);
  CHECK(read_stream(started[0].stream).size() == stuffed);
}

TEST_CASE("the end of the fleet ends the far stdin") {
  Site site;
  site.sshd("m");
  pid_t far = 0;
  {
    const auto fleet = start_fleet(site.options({"m"}, "echo $$ >" + (site / "pid").string() +
                                                           "; cat >/dev/null; echo bye >" +
                                                           (site / "bye").string()));
    const std::vector<FleetEvent> started = first_events(*fleet, 1);
    REQUIRE(started[0].kind == FleetEvent::started);
    far = pid_in(site / "pid");
    CHECK(alive(far));
  }
  CHECK(wait_until([&] { return file_text(site / "bye") == "bye\n"; }));
  CHECK(wait_until([&] { return !alive(far); }));
}

TEST_CASE("a killed fleet leaves no far command") {
  Site site;
  site.sshd("m");
  const std::string script = "echo $$ >" + (site / "pid").string() + "; cat >/dev/null";
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto fleet = start_fleet(site.options({"m"}, script));
    for (;;) pause();
  }
  const pid_t far = pid_in(site / "pid");
  REQUIRE(far > 0);
  CHECK(alive(far));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(wait_until([&] { return !alive(far); }));
}
