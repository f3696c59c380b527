// What ranks print must never cost the link, nor keep what matters waiting: over a slow channel,
// over one that stands still, and over a fast one.
#include "launcher/node/output_relay.h"

#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <poll.h>
#include <thread>
#include <unistd.h>

#include <sys/socket.h>

#include <doctest/doctest.h>

#include "launcher/node/job_messages.h"
#include "launcher/output/outlet.h"
#include "launcher/processes.h"

using namespace mtl;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;
using namespace mtl::test;

// Two hubs with a cable between them that lets only so many bytes a second pass (0 = none, -1 = as
// many as come) from the agent to the launcher.
class Cable {
 public:
  Cable(LinkHub& agent, LinkHub& launcher) {
    int a[2], b[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, a) == 0);
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, b) == 0);
    here = agent.adopt(Fd(a[0]), Fd(), true);
    launcher.adopt(Fd(b[0]), Fd(), false);
    agent_end_ = Fd(a[1]);
    launcher_end_ = Fd(b[1]);
    up_ = std::thread([this] { pass(agent_end_.get(), launcher_end_.get(), true); });
    down_ = std::thread([this] { pass(launcher_end_.get(), agent_end_.get(), false); });
  }
  ~Cable() {
    stop_ = true;
    up_.join();
    down_.join();
  }
  std::atomic<int64_t> bytes_per_second{-1};
  LinkId here = 0;

 private:
  void pass(int from, int to, bool slow) {
    std::vector<char> bytes(16 << 10);
    while (!stop_) {
      const int64_t rate = slow ? bytes_per_second.load() : -1;
      pollfd waiting = {from, POLLIN, 0};
      if (rate == 0 || ::poll(&waiting, 1, 5) != 1) {
        if (rate == 0) std::this_thread::sleep_for(1ms);
        continue;
      }
      const ssize_t got = ::recv(from, bytes.data(), bytes.size(), 0);
      if (got <= 0) return void(::shutdown(to, SHUT_WR));
      for (ssize_t sent = 0; sent < got && !stop_;) {
        const ssize_t n = ::send(to, bytes.data() + sent, static_cast<size_t>(got - sent),
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) sent += n;
        if (n < 0) std::this_thread::sleep_for(1ms);
      }
      if (rate > 0) std::this_thread::sleep_for(got * 1'000'000us / rate);
    }
  }
  Fd agent_end_, launcher_end_;
  std::atomic<bool> stop_{false};
  std::thread up_, down_;
};

// What the launcher's side sees, until it is told "stopped".
struct Seen {
  int64_t bytes = 0, lines = 0, missing = 0, last = -1;
  int gaps = 0, ended = 0;
  bool stopped = false, lost = false, in_order = true;
};

Seen see(LinkHub& launcher) {
  Seen seen;
  bool after_gap = false;
  const auto until = Clock::now() + kPatience;
  while (!seen.stopped && !seen.lost && Clock::now() < until) {
    pollfd waiting = {launcher.fd(), POLLIN, 0};
    ::poll(&waiting, 1, 100);
    while (const auto event = launcher.next()) {
      if (event->kind == LinkEvent::lost) seen.lost = true;
      if (event->kind != LinkEvent::arrived) continue;
      const auto kind = static_cast<JobMessage>(event->message.kind);
      if (kind == JobMessage::ended) ++seen.ended;
      if (kind == JobMessage::stopped) seen.stopped = true;
      if (kind != JobMessage::output) continue;
      const auto output = decode_output(event->message.body);
      REQUIRE(output);
      each_line(output->text, [&](std::string_view line) {
        if (line.starts_with("[mtl: ")) {
          ++seen.gaps;
          CHECK(line.ends_with(" bytes of output were not shown: the connection did not keep up]"));
          std::from_chars(line.data() + 6, line.data() + line.size(), seen.missing);
          after_gap = true;
          return;
        }
        int64_t number = -1;
        std::from_chars(line.data(), line.data() + line.size(), number);
        seen.in_order = seen.in_order && (after_gap ? number > seen.last : number == seen.last + 1);
        after_gap = false;
        seen.last = number;
        ++seen.lines;
        seen.bytes += static_cast<int64_t>(line.size()) + 1;
      });
    }
  }
  return seen;
}

std::string numbered(int64_t number, size_t size) {
  std::string line = std::to_string(number) + " ";
  line.resize(size - 1, 'x');
  return line;
}

void tell(LinkHub& hub, LinkId link, JobMessage kind) {
  hub.send(link, {static_cast<uint16_t>(kind), 1, "x"});
}

struct Pair {
  std::unique_ptr<LinkHub> agent = make_link_hub({.token = "-", .dead_after = 1h});
  std::unique_ptr<LinkHub> launcher = make_link_hub({.token = "-", .dead_after = 1h});
  Cable cable{*agent, *launcher};
  ~Pair() {
    agent.reset();
    launcher.reset();
  }
};

}  // namespace

TEST_CASE("output relay: on a fast channel every line arrives in order") {
  Pair pair;
  constexpr int64_t kLines = 500'000;
  const auto begin = Clock::now();
  std::thread printer([&] {
    OutputRelay relay(*pair.agent, pair.cable.here, 1);
    for (int64_t i = 0; i < kLines; ++i) relay.line(0, false, numbered(i, 100));
    relay.finish();
    tell(*pair.agent, pair.cable.here, JobMessage::stopped);
  });
  const Seen seen = see(*pair.launcher);
  printer.join();
  MESSAGE("MB/s: ", 50.0 / std::chrono::duration<double>(Clock::now() - begin).count());
  CHECK(seen.stopped);
  CHECK(seen.lines == kLines);
  CHECK(seen.in_order);
  CHECK(seen.gaps == 0);
}

TEST_CASE("output relay: a few lines do not wait for more") {
  Pair pair;
  OutputRelay relay(*pair.agent, pair.cable.here, 1);
  relay.line(3, true, "one");
  const auto until = Clock::now() + kPatience;
  std::optional<OutputMessage> output;
  while (!output && Clock::now() < until) {
    pollfd waiting = {pair.launcher->fd(), POLLIN, 0};
    ::poll(&waiting, 1, 100);
    while (const auto event = pair.launcher->next()) {
      if (event->kind == LinkEvent::arrived) output = decode_output(event->message.body);
    }
  }
  REQUIRE(output);
  CHECK(output->rank == 3);
  CHECK(output->is_stderr);
  CHECK(output->text == "one\n");
}

TEST_CASE("output relay: a slow channel lives and its gap tells the truth") {
  Pair pair;
  pair.cable.bytes_per_second = 2'000'000;
  constexpr int64_t kLines = 1'000'000;
  constexpr int64_t kBytes = 100 * kLines;
  bool ended = false;
  SUBCASE("a stop was asked for") {}
  SUBCASE("the ranks have ended") {
    ended = true;
  }
  std::atomic<size_t> most{0};
  std::thread printer([&] {
    OutputRelay relay(*pair.agent, pair.cable.here, 1);
    for (int64_t i = 0; i < kLines; ++i) {
      relay.line(0, false, numbered(i, 100));
      most = std::max(most.load(), pair.agent->queued_bytes(pair.cable.here));
      if (i == 20'000) {
        tell(*pair.agent, pair.cable.here, JobMessage::ended);
        if (ended) relay.ranks_ended();
        if (!ended) relay.hurry();
      }
    }
    relay.finish();
    tell(*pair.agent, pair.cable.here, JobMessage::stopped);
  });
  const Seen seen = see(*pair.launcher);
  printer.join();
  CHECK_FALSE(seen.lost);
  CHECK(seen.ended == 1);
  CHECK(seen.stopped);
  CHECK(seen.in_order);
  CHECK(seen.gaps == 1);
  CHECK(seen.bytes + seen.missing == kBytes);
  CHECK(seen.bytes < kBytes / 2);
  CHECK(seen.last == kLines - 1);
  CHECK(most < size_t{1} << 20);
}

namespace {

constexpr int64_t kRestLines = 40'000;

// What is seen of 4 MB that are printed by the time the ranks end, over so slow a link, of which it
// holds half a megabyte.
Seen see_rest(int64_t bytes_per_second, std::chrono::milliseconds patience) {
  Pair pair;
  pair.cable.bytes_per_second = bytes_per_second;
  std::thread printer([&] {
    OutputRelay relay(*pair.agent, pair.cable.here, 1, {.patience = patience, .rest = 1000s});
    relay.ranks_ended();
    for (int64_t i = 0; i < kRestLines; ++i) relay.line(0, false, numbered(i, 100));
    relay.finish();
    tell(*pair.agent, pair.cable.here, JobMessage::stopped);
  });
  const Seen seen = see(*pair.launcher);
  printer.join();
  return seen;
}

}  // namespace

TEST_CASE("output relay: the rest after the ranks' end is waited for while the link moves") {
  // Far shorter than the way takes; the link never stands still for so long, but on a slow machine:
  // there all is slower.
  Seen seen;
  for (int slower = 1; slower <= 16 && seen.lines != kRestLines; slower *= 4) {
    seen = see_rest(4'000'000 / slower, 300ms * slower);
  }
  CHECK(seen.stopped);
  CHECK(seen.lines == kRestLines);
  CHECK(seen.in_order);
  CHECK(seen.gaps == 0);
}

TEST_CASE("output relay: while the process itself is stopped the link does not stand still") {
  const TempDir folder;
  Child agent([&] {
    write(folder / "begun", "");
    const Seen seen = see_rest(1'000'000, 2s);
    return seen.lines == kRestLines && seen.gaps == 0 ? 0 : 1;
  });
  REQUIRE(wait_until([&] { return std::filesystem::exists(folder / "begun"); }));
  std::this_thread::sleep_for(1s);  // in the middle of its four
  kill(agent.pid(), SIGSTOP);
  std::this_thread::sleep_for(3s);
  kill(agent.pid(), SIGCONT);
  CHECK(agent.wait() == 0);
}

TEST_CASE("output relay: nothing goes out and still the end comes") {
  Pair pair;
  pair.cable.bytes_per_second = 0;
  bool ended = false;
  SUBCASE("a stop was asked for") {}
  SUBCASE("the ranks have ended") {
    ended = true;
  }
  OutputRelay relay(*pair.agent, pair.cable.here, 1, {.patience = 50ms, .rest = 1000s});
  constexpr int64_t kLines = 100'000;
  std::thread printer([&] {
    for (int64_t i = 0; i < kLines; ++i) relay.line(0, false, numbered(i, 100));
  });
  const auto until = Clock::now() + kPatience;
  while (pair.agent->queued_bytes(pair.cable.here) < 512u << 10 && Clock::now() < until) {
    std::this_thread::sleep_for(1ms);
  }
  CHECK(pair.agent->queued_bytes(pair.cable.here) < 1u << 20);
  if (ended) relay.ranks_ended();
  if (!ended) relay.hurry();  // wakes who waits
  printer.join();
  relay.finish();
  tell(*pair.agent, pair.cable.here, JobMessage::stopped);
  pair.cable.bytes_per_second = -1;
  const Seen seen = see(*pair.launcher);
  CHECK(seen.stopped);
  CHECK(seen.gaps == 1);
  CHECK(seen.last == kLines - 1);
  CHECK(seen.bytes + seen.missing == 100 * kLines);
}

TEST_CASE("output relay: what is already a gap counts as what is missing there") {
  Pair pair;
  pair.cable.bytes_per_second = 0;
  OutputRelay relay(*pair.agent, pair.cable.here, 1, {.patience = 0ms});
  relay.hurry();
  // More than the way holds, so that the rest is dropped for certain, but for the newest.
  constexpr int64_t kLines = 30'000, kMore = 1'000;
  for (int64_t i = 0; i < kLines; ++i) relay.line(0, false, numbered(i, 100));
  relay.line(0, false,
             "[mtl: 7000000 bytes of output are not shown here: the reader did not keep up]");
  for (int64_t i = kLines; i < kLines + kMore; ++i) relay.line(0, false, numbered(i, 100));
  relay.finish();
  tell(*pair.agent, pair.cable.here, JobMessage::stopped);
  pair.cable.bytes_per_second = -1;
  const Seen seen = see(*pair.launcher);
  CHECK(seen.gaps == 1);
  CHECK(seen.bytes + seen.missing == 100 * (kLines + kMore) + 7'000'000);
}

TEST_CASE("output relay: a link that is gone holds up nobody") {
  Pair pair;
  OutputRelay relay(*pair.agent, pair.cable.here, 1);
  pair.agent->close(pair.cable.here, 0ms);
  for (int64_t i = 0; i < 100'000; ++i) relay.line(0, false, numbered(i, 100));
  relay.finish();
  // What was handed over last counts until the hub's thread has thrown it away.
  const Clock::time_point end = Clock::now() + kPatience;
  while (pair.agent->queued_bytes(pair.cable.here) != 0 && Clock::now() < end) {
    std::this_thread::sleep_for(1ms);
  }
  CHECK(pair.agent->queued_bytes(pair.cable.here) == 0);
}
