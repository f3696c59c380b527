// Links between two hubs of this process: messages, order, ends, errors.
#include "rendezvous/link.h"

#include <algorithm>
#include <cstdio>
#include <fcntl.h>
#include <fstream>
#include <map>
#include <set>
#include <thread>
#include <unistd.h>

#include <netinet/in.h>
#include <sys/socket.h>

#include "common/error.h"
#include "link_support.h"
#include "rendezvous/link_frames.h"
#include "rendezvous/sockets.h"

using namespace mtl;
using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

struct Pair {
  LinkId here = 0, there = 0;
};

Pair join(LinkHub& server, LinkHub& client, const std::string& address = "127.0.0.1") {
  const uint16_t port = server.listen(address, 0);
  Pair pair;
  pair.here = client.connect(address, port, kPatience);
  const LinkEvent ours = expect(client, LinkEvent::opened);
  const LinkEvent theirs = expect(server, LinkEvent::opened);
  CHECK(ours.link == pair.here);
  CHECK(ours.local_address == theirs.local_address);  // both ends are on this machine
  pair.there = theirs.link;
  return pair;
}

bool have_ipv6() {
  const auto hub = make_link_hub(hub_options());
  try {
    hub->listen("::1", 0);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

TEST_CASE("messages cross a TCP link in order both ways of any size") {
  std::vector<std::string> addresses = {"127.0.0.1", "localhost"};
  if (have_ipv6()) {
    addresses.push_back("::1");
    addresses.push_back("[::1]");
  }
  for (const std::string& address : addresses) {
    CAPTURE(address);
    const auto server = make_link_hub(hub_options());
    const auto client = make_link_hub(hub_options());
    const Pair link = join(*server, *client, address);
    const size_t sizes[] = {0, 1, 100, 65'536, 5'000'000, 3};
    uint16_t kind = 0;
    for (const size_t size : sizes) {
      client->send(link.here, message(kind, std::string(size, 'a'), -5));
      server->send(link.there, message(kind, std::string(size, 'b'), 1LL << 40));
      ++kind;
    }
    kind = 0;
    for (const size_t size : sizes) {
      const LinkEvent up = expect(*server, LinkEvent::arrived);
      CHECK(up.link == link.there);
      CHECK(up.message.kind == kind);
      CHECK(up.message.generation == -5);
      CHECK(up.message.body == std::string(size, 'a'));
      const LinkEvent down = expect(*client, LinkEvent::arrived);
      CHECK(down.message.kind == kind++);
      CHECK(down.message.generation == 1LL << 40);
      CHECK(down.message.body == std::string(size, 'b'));
    }
    client->close(link.here);
    const LinkEvent end = expect(*server, LinkEvent::lost);
    CHECK(end.loss == LinkEvent::closed);
    CHECK_FALSE(next_event(*client, 20ms));
  }
}

TEST_CASE("adopted streams: a socket pair and a pair of pipes") {
  const auto controller = make_link_hub({});
  const auto agent = make_link_hub({});
  LinkId here = 0, there = 0;
  SUBCASE("socket pair") {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    here = controller->adopt(Fd(ends[0]), Fd(), false);
    there = agent->adopt(Fd(ends[1]), Fd(), true);
  }
  SUBCASE("pipes") {
    int up[2], down[2];
    REQUIRE(::pipe2(up, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(down, O_CLOEXEC) == 0);
    here = controller->adopt(Fd(up[0]), Fd(down[1]), false);
    there = agent->adopt(Fd(down[0]), Fd(up[1]), true);
  }
  CHECK(expect(*controller, LinkEvent::opened).link == here);
  CHECK(expect(*agent, LinkEvent::opened).link == there);
  const std::string large(3'000'000, 'x');
  controller->send(here, message(7, large, 1));
  agent->send(there, message(8, "hello", 2));
  CHECK(expect(*agent, LinkEvent::arrived).message.body == large);
  CHECK(expect(*controller, LinkEvent::arrived).message.body == "hello");
  agent->send(there, message(9, "last words"));
  agent->close(there);
  CHECK(expect(*controller, LinkEvent::arrived).message.body == "last words");
  const LinkEvent end = expect(*controller, LinkEvent::lost);
  CHECK(end.link == here);
  CHECK(end.loss == LinkEvent::closed);
}

TEST_CASE("what is not our protocol on an adopted stream ends it") {
  struct Case {
    std::string bytes;
    LinkEvent::Loss loss;
  };
  std::string other_version(mtl::link::greeting().view());
  other_version[13] = 99;
  other_version[0] = static_cast<char>(other_version[0] + 2);
  other_version += "??";
  const std::string greeting(mtl::link::greeting().view());
  const Case cases[] = {
      {"Last login: yesterday\n", LinkEvent::broken},
      {other_version, LinkEvent::wrong_version},
      {greeting + greeting, LinkEvent::broken},
      {greeting + std::string("\xff\xff\xff\x7f", 4), LinkEvent::broken},
      {greeting + std::string(8, '\0'), LinkEvent::broken},
      {std::string(mtl::link::message_head(1, 0, 0).view()), LinkEvent::broken},
      {greeting, LinkEvent::closed},
      {greeting.substr(0, 9), LinkEvent::closed},
  };
  for (const Case& one : cases) {
    CAPTURE(one.bytes);
    const auto hub = make_link_hub({});
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    hub->adopt(Fd(ends[0]), Fd(), false);
    expect(*hub, LinkEvent::opened);
    REQUIRE(::send(ends[1], one.bytes.data(), one.bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(one.bytes.size()));
    ::shutdown(ends[1], SHUT_WR);
    CHECK(expect(*hub, LinkEvent::lost).loss == one.loss);
    ::close(ends[1]);
  }
}

TEST_CASE("a connection that does not come about says why") {
  const auto client = make_link_hub(hub_options());
  const auto loss_of = [&](const std::string& address, uint16_t port,
                           const std::string& from = "") {
    const LinkId id = client->connect(address, port, 250ms, from);
    const LinkEvent event = expect(*client, LinkEvent::lost);
    CHECK(event.link == id);
    CHECK_FALSE(event.reason.empty());
    return static_cast<int>(event.loss);
  };
  const auto server = make_link_hub(hub_options());
  const uint16_t port = server->listen("127.0.0.1", 0);
  CHECK(loss_of("127.0.0.1", 1) == LinkEvent::refused);
  CHECK(loss_of("no.such.host.invalid", port) == LinkEvent::unknown_name);
  CHECK(loss_of("", port) == LinkEvent::unknown_name);
  CHECK(loss_of("127.0.0.1", port, "192.0.2.77") == LinkEvent::broken);
  CHECK(loss_of("127.0.0.1", port, "nonsense") == LinkEvent::broken);
  CHECK(loss_of("127.0.0.1", port, "::1") == LinkEvent::unreachable);

  LinkHubOptions other = hub_options();
  other.token = "guess";
  const auto stranger = make_link_hub(other);
  stranger->connect("127.0.0.1", port, kPatience);
  CHECK(expect(*stranger, LinkEvent::lost).loss == LinkEvent::wrong_token);
  CHECK_FALSE(next_event(*server, 50ms));

  const auto tokenless = make_link_hub({});
  CHECK_THROWS_AS(tokenless->listen("127.0.0.1", 0), Error);
  CHECK_THROWS_AS(tokenless->connect("127.0.0.1", port, 1s), Error);
  CHECK_THROWS_AS(server->listen("127.0.0.1", port), Error);
  CHECK_THROWS_AS(server->listen("no.such.host.invalid", 0), Error);
  CHECK_THROWS_AS(client->send(1, message(1, std::string(17 << 20, 'x'))), Error);
}

TEST_CASE("who accepts and does not answer is unreachable - who hangs up is tried again") {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  // Its connections inherit it: the port can be listened on again while they fade away.
  const int reuse = 1;
  REQUIRE(::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse)) == 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  REQUIRE(::listen(listener, 8) == 0);
  socklen_t length = sizeof(address);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  const uint16_t port = ntohs(address.sin_port);
  const auto client = make_link_hub(hub_options());
  client->connect("127.0.0.1", port, 300ms);
  CHECK(expect(*client, LinkEvent::lost).loss == LinkEvent::unreachable);
  std::thread rude([listener] {
    for (int i = 0; i < 3; ++i) ::close(::accept(listener, nullptr, nullptr));
    ::close(listener);
  });
  client->connect("127.0.0.1", port, kPatience);
  rude.join();  // it has come back at least twice (the first accept may be the one from above)
  const auto server = make_link_hub(hub_options());
  server->listen("127.0.0.1", port);
  expect(*client, LinkEvent::opened);
}

TEST_CASE("while an attempt has no answer others are made beside it and one is enough") {
  // A listener whose backlog is full does not answer, as if the first packets were lost.
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(::bind(listener.get(), any, sizeof(address)) == 0);
  REQUIRE(::listen(listener.get(), 0) == 0);
  socklen_t length = sizeof(address);
  ::getsockname(listener.get(), any, &length);
  const Fd filling(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(filling.get(), any, sizeof(address)) == 0);
  // Connections to it under way: lines "... 0100007F:PORT 02 ..." (SYN_SENT).
  char mark[40];
  std::snprintf(mark, sizeof mark, "0100007F:%04X 02 ", ntohs(address.sin_port));
  const auto under_way = [&] {
    std::ifstream in("/proc/self/net/tcp");
    int found = 0;
    for (std::string line; std::getline(in, line);) found += line.find(mark) != std::string::npos;
    return found;
  };
  const auto client = make_link_hub(hub_options());
  const LinkId id = client->connect("127.0.0.1", ntohs(address.sin_port), kPatience);
  // Once is enough: lines of a table that changes while it is read are missed at times.
  const auto until = [](auto happened) {
    for (int i = 0; i < 2'000; ++i) {
      if (happened()) return true;
      std::this_thread::sleep_for(10ms);
    }
    return false;
  };
  CHECK(until([&] { return under_way() >= 3; }));
  // Who is let in is spoken to.
  std::vector<Fd> accepted;
  const auto spoken_to = [&] {
    while (Fd one = net::accept_one(listener.get())) accepted.push_back(std::move(one));
    char byte = 0;
    return std::any_of(accepted.begin(), accepted.end(), [&](const Fd& fd) {
      return ::recv(fd.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
    });
  };
  CHECK(until(spoken_to));
  client->close(id, 0ms);
  CHECK(until([&] { return under_way() == 0; }));
}

TEST_CASE("the listener may start later - and the local address may be chosen") {
  const auto client = make_link_hub(hub_options());
  uint16_t port = 0;
  {
    const auto short_lived = make_link_hub(hub_options());
    port = short_lived->listen("127.0.0.1", 0);
  }
  client->connect("127.0.0.1", port, kPatience, "127.0.0.5");
  CHECK_FALSE(next_event(*client, 100ms));
  const auto server = make_link_hub(hub_options());
  server->listen("127.0.0.1", port);
  CHECK(expect(*client, LinkEvent::opened).local_address == "127.0.0.5");
  CHECK(expect(*server, LinkEvent::opened).local_address == "127.0.0.1");
}

TEST_CASE("messages sent before the link is open wait for it") {
  const auto server = make_link_hub(hub_options());
  const auto client = make_link_hub(hub_options());
  const LinkId id = client->connect("127.0.0.1", server->listen("127.0.0.1", 0), kPatience);
  client->send(id, message(1, "early"));
  CHECK(client->flush(kPatience));
  expect(*server, LinkEvent::opened);
  CHECK(expect(*server, LinkEvent::arrived).message.body == "early");
}

TEST_CASE("the descriptor is readable exactly while events wait") {
  const auto server = make_link_hub(hub_options());
  const auto client = make_link_hub(hub_options());
  const Pair link = join(*server, *client);
  const auto readable = [&](int limit_ms) {
    pollfd waiting = {server->fd(), POLLIN, 0};
    return ::poll(&waiting, 1, limit_ms) == 1;
  };
  CHECK_FALSE(readable(0));
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 3; ++i) client->send(link.here, message(uint16_t(i), "x"));
    for (int i = 0; i < 3; ++i) {
      REQUIRE(readable(20'000));
      const auto event = server->next();
      if (!event) {  // raised for one that had been taken already
        --i;
        continue;
      }
      CHECK(event->message.kind == i);
    }
    CHECK_FALSE(server->next());
    CHECK_FALSE(readable(0));
  }
}

TEST_CASE("after close no event of that link comes and its last words go out") {
  const auto server = make_link_hub(hub_options());
  const auto client = make_link_hub(hub_options());
  const Pair link = join(*server, *client);
  for (int i = 0; i < 100; ++i) client->send(link.here, message(1, "unread"));
  REQUIRE(client->flush(kPatience));
  const std::string large(8'000'000, 'l');
  server->send(link.there, message(2, large));
  server->close(link.there);
  CHECK_FALSE(next_event(*server, 50ms));
  CHECK(expect(*client, LinkEvent::arrived).message.body == large);
  CHECK(expect(*client, LinkEvent::lost).loss == LinkEvent::closed);
  client->send(link.here, message(3, "nobody"));  // nothing happens
  client->close(link.here);
  client->close(12345);
  CHECK(client->flush(kPatience));
}

TEST_CASE("flush waits for those whose link was closed to have read what was said last") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const auto hub = make_link_hub(hub_options());
  const LinkId link = hub->adopt(Fd(ends[0]), Fd(), false);
  Fd peer(ends[1]);
  expect(*hub, LinkEvent::opened);
  hub->send(link, message(1, "the end"));
  hub->close(link, 20s);
  // The kernel has it, the peer does not: whoever leaves now may take it back.
  CHECK_FALSE(hub->flush(50ms));
  std::thread reader([&peer] {
    char bytes[1000];
    while (::read(peer.get(), bytes, sizeof bytes) > 0) continue;
    peer.reset();
  });
  CHECK(hub->flush(kPatience));
  reader.join();
}

TEST_CASE("a peer that does not read is cut off and the others do not notice") {
  LinkHubOptions options = hub_options();
  options.max_queued_bytes = 1 << 20;
  const auto server = make_link_hub(options);
  const auto client = make_link_hub(hub_options());
  const Pair link = join(*server, *client);
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const LinkId lazy = server->adopt(Fd(ends[0]), Fd(), false);
  expect(*server, LinkEvent::opened);
  bool lost = false;
  for (int i = 0; i < 100 && !lost; ++i) {
    for (const LinkId id : {link.there, lazy}) {
      server->send(id, message(1, std::string(100'000, 'x')));
    }
    CHECK(expect(*client, LinkEvent::arrived).message.body.size() == 100'000);
    while (const auto event = server->next()) {
      CHECK(event->link == lazy);
      CHECK(event->loss == LinkEvent::overflow);
      lost = true;
    }
  }
  if (!lost) CHECK(expect(*server, LinkEvent::lost).loss == LinkEvent::overflow);
  ::close(ends[1]);
}

TEST_CASE("what waits on a link is known to its sender") {
  const auto server = make_link_hub(hub_options());
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const LinkId lazy = server->adopt(Fd(ends[0]), Fd(), false);
  expect(*server, LinkEvent::opened);
  CHECK(server->queued_bytes(12345) == 0);
  for (int i = 0; i < 40; ++i) {
    server->send(lazy, message(1, std::string(100'000, 'x')));
    // The kernel takes less than 1 MB of it.
    if (i >= 10) CHECK(server->queued_bytes(lazy) > static_cast<size_t>(i - 9) * 100'000);
    // The one that the hub's thread is just queueing may be counted twice.
    CHECK(server->queued_bytes(lazy) < static_cast<size_t>(i + 2) * 100'100);
  }
  CHECK_FALSE(server->flush(0ms));  // the hub's thread has them now
  SUBCASE("it is read") {
    std::vector<char> bytes(1 << 20);
    size_t got = 0;
    while (got < 4'000'000) {
      const ssize_t n = ::recv(ends[1], bytes.data(), bytes.size(), 0);
      REQUIRE(n > 0);
      got += static_cast<size_t>(n);
    }
    CHECK(server->flush(kPatience));
  }
  SUBCASE("it is given up") {
    server->close(lazy, 0ms);
    CHECK(server->flush(kPatience));
  }
  CHECK(server->queued_bytes(lazy) == 0);
  ::close(ends[1]);
}

TEST_CASE("200 links at once: each is told apart and all get a large message") {
  const auto server = make_link_hub(hub_options());
  const auto client = make_link_hub(hub_options());
  const uint16_t port = server->listen("127.0.0.1", 0);
  constexpr int kLinks = 200;
  std::map<LinkId, int> index;
  for (int i = 0; i < kLinks; ++i) index[client->connect("127.0.0.1", port, kPatience)] = i;
  for (const auto& [id, i] : index) client->send(id, message(1, std::to_string(i)));
  std::set<LinkId> there;
  std::set<std::string> bodies;
  while (bodies.size() < kLinks) {
    const auto event = next_event(*server);
    REQUIRE(event);
    REQUIRE(event->kind != LinkEvent::lost);
    if (event->kind == LinkEvent::opened) there.insert(event->link);
    if (event->kind == LinkEvent::arrived) bodies.insert(event->message.body);
  }
  CHECK(there.size() == kLinks);
  const std::string table(200'000, 't');
  for (const LinkId id : there) server->send(id, message(2, table));
  int arrived = 0;
  while (arrived < kLinks) {
    const auto event = next_event(*client);
    REQUIRE(event);
    REQUIRE(event->kind != LinkEvent::lost);
    if (event->kind == LinkEvent::arrived) {
      CHECK(event->message.body == table);
      ++arrived;
    }
  }
  CHECK(server->flush(kPatience));
}

TEST_CASE("every descriptor is closed in a program that is started") {
  const auto server = make_link_hub(hub_options());
  const auto client = make_link_hub(hub_options());
  const Pair link = join(*server, *client);
  for (int fd = 3; fd < 256; ++fd) {
    const int flags = ::fcntl(fd, F_GETFD);
    char name[256] = "";
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    if (flags < 0 || ::readlink(path.c_str(), name, sizeof(name) - 1) < 0) continue;
    const std::string target = name;
    if (target.starts_with("socket:") || target.starts_with("anon_inode:")) {
      CAPTURE(target);
      CHECK((flags & FD_CLOEXEC) != 0);
    }
  }
  CHECK(link.here > 0);
}

TEST_CASE("the end of a lease moves with the heartbeats and is known of open leased links only") {
  const auto server = make_link_hub(hub_options(15s));
  const auto client = make_link_hub(hub_options(15s));
  CHECK(!client->lease_end(77));
  const Pair link = join(*server, *client);
  CHECK(!server->lease_end(link.there));  // the controller's side
  const auto first = client->lease_end(link.here);
  REQUIRE(first);
  timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &now);
  CHECK(*first <= std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec) + 12s);
  const auto moved = [&] {
    for (int i = 0; i < 3'000; ++i) {
      if (const auto end = client->lease_end(link.here); end && *end > *first) return true;
      std::this_thread::sleep_for(10ms);
    }
    return false;
  };
  CHECK(moved());
  server->close(link.there);
  expect(*client, LinkEvent::lost);
  CHECK(!client->lease_end(link.here));
  CHECK(client->dead_after() == 15s);
}
