// Links over bad cables, and strangers at the door.
#include "link_support.h"
#include "relay.h"
#include "rendezvous/auth.h"
#include "rendezvous/impostor.h"
#include "rendezvous/link_frames.h"
#include "rendezvous/protocol.h"

using namespace mtl;
using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

struct Ends {
  std::unique_ptr<LinkHub> server, client;
  LinkId here = 0, there = 0;
  std::unique_ptr<Relay> relay;
};

Ends over_relay(std::chrono::milliseconds dead_after) {
  Ends ends;
  ends.server = make_link_hub(hub_options(dead_after));
  ends.client = make_link_hub(hub_options(dead_after));
  ends.relay = std::make_unique<Relay>(ends.server->listen("127.0.0.1", 0));
  ends.here = ends.client->connect("127.0.0.1", ends.relay->port(), kPatience);
  expect(*ends.client, LinkEvent::opened);
  ends.there = expect(*ends.server, LinkEvent::opened).link;
  return ends;
}

int tcp_to(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  return fd;
}

void say(int fd, const std::string& bytes) {
  (void)!::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

bool hung_up(int fd) {
  pollfd waiting = {fd, POLLIN, 0};
  char bytes[512];
  const std::chrono::milliseconds limit = kPatience;
  while (::poll(&waiting, 1, static_cast<int>(limit.count())) == 1) {
    if (::recv(fd, bytes, sizeof(bytes), 0) <= 0) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("a cut cable is silence for both ends") {
  // The agent knows after 0.8 of it. Where it hears that the controller gives it up the rest has to
  // be enough for a slow machine.
  std::chrono::milliseconds dead_after = 400ms;
  bool to_server = false, to_client = false;
  SUBCASE("both directions") {}
  SUBCASE("half open: the agent hears nothing any more") {
    to_server = true;
  }
  SUBCASE("half open: the controller hears nothing any more") {
    to_client = true;
    dead_after = 4s;
  }
  Ends ends = over_relay(dead_after);
  ends.relay->to_server = to_server;
  ends.relay->to_client = to_client;
  CHECK(expect(*ends.client, LinkEvent::lost).loss == LinkEvent::silent);
  // The agent may close what it has given up, and where that can be heard it is.
  const LinkEvent end = expect(*ends.server, LinkEvent::lost);
  const bool known = end.loss == LinkEvent::silent || end.loss == LinkEvent::closed;
  CHECK(known);
}

TEST_CASE("a reset and an end in the middle of a frame are the end of the peer") {
  Ends ends = over_relay(kPatience);
  SUBCASE("reset") {
    ends.relay->reset = true;
  }
  SUBCASE("cut") {
    ends.relay->cut_after = 1'000;
    ends.client->send(ends.here, message(1, std::string(100'000, 'x')));
  }
  CHECK(expect(*ends.server, LinkEvent::lost).loss == LinkEvent::closed);
  CHECK(expect(*ends.client, LinkEvent::lost).loss == LinkEvent::closed);
}

TEST_CASE("spoiled bytes end the link and never become a message") {
  Ends ends = over_relay(kPatience);
  ends.relay->spoil = true;
  ends.client->send(ends.here, message(1, "spoiled"));
  CHECK(expect(*ends.server, LinkEvent::lost).loss == LinkEvent::broken);
  CHECK(expect(*ends.client, LinkEvent::lost).loss == LinkEvent::closed);
}

TEST_CASE("a slow cable is no death and the clocks are seen through it") {
  Ends ends = over_relay(10s);
  const auto begin = std::chrono::steady_clock::now();
  ends.relay->delay_ms = 100;
  for (int i = 0; i < 5; ++i) {
    ends.client->send(ends.here, message(uint16_t(i), std::string(50'000, 'x')));
    const LinkEvent event = expect(*ends.server, LinkEvent::arrived);
    CHECK(event.message.kind == i);
    // Both clocks are this machine's: what is seen is at most half the shortest round trip off.
    CHECK(std::chrono::abs(event.clock_ahead) <
          2s + (std::chrono::steady_clock::now() - begin) / 2);
  }
}

TEST_CASE("heartbeats overtake what waits: a long queue is no silence") {
  // 40 MB wait behind a cable that lets nothing through for a while.
  LinkHubOptions options = hub_options();
  const auto server = make_link_hub(options);
  const auto client = make_link_hub(options);
  Relay relay(server->listen("127.0.0.1", 0));
  const LinkId here = client->connect("127.0.0.1", relay.port(), kPatience);
  expect(*client, LinkEvent::opened);
  const LinkId there = expect(*server, LinkEvent::opened).link;
  relay.delay_ms = 20;
  for (int i = 0; i < 4; ++i) client->send(here, message(1, std::string(10'000'000, 'x')));
  server->send(there, message(2, "meanwhile"));
  CHECK(expect(*client, LinkEvent::arrived).message.body == "meanwhile");
  for (int i = 0; i < 4; ++i) {
    CHECK(expect(*server, LinkEvent::arrived).message.body.size() == 10'000'000);
  }
}

TEST_CASE("strangers are dropped and the owner hears nothing of it") {
  LinkHubOptions options = hub_options();
  options.auth_timeout = 300ms;
  const auto server = make_link_hub(options);
  const uint16_t port = server->listen("127.0.0.1", 0);
  const wire::Hello hello = {.service = wire::Service::link, .nonce = auth::random_nonce()};
  const std::string cases[] = {
      "GET / HTTP/1.1\r\n\r\n",
      std::string(64, '\xff'),
      std::string(64, '\0'),
      wire::frame("garbage"),
      wire::frame(std::string(200, 'A')),
      wire::frame(std::string(300, 'A')),
      wire::frame(wire::encode(wire::Hello{.nonce = hello.nonce})),  // the store's
      wire::frame(wire::encode(hello)) + wire::frame(wire::encode(wire::Proof{})),
      wire::frame(wire::encode(hello)) + wire::frame("no proof"),
      std::string(mtl::link::message_head(1, 0, 0).view()),
      std::string(mtl::link::greeting().view()),
      wire::frame(wire::encode(hello)),                // and then nothing
      wire::frame(wire::encode(hello)).substr(0, 20),  // not even all of it
      "",
  };
  for (const std::string& bytes : cases) {
    CAPTURE(bytes);
    const int fd = tcp_to(port);
    say(fd, bytes);
    CHECK(hung_up(fd));
    ::close(fd);
  }
  CHECK_FALSE(server->next());
  const auto client = make_link_hub(hub_options());
  client->connect("127.0.0.1", port, kPatience);
  expect(*client, LinkEvent::opened);
  expect(*server, LinkEvent::opened);
}

TEST_CASE("the owner hears once from where another version of the protocol has come") {
  const auto server = make_link_hub(hub_options());
  const uint16_t port = server->listen("127.0.0.1", 0);
  for (int i = 0; i < 3; ++i) {
    const int fd = tcp_to(port);
    say(fd, wire::frame(wire::encode(wire::Hello{.service = wire::Service::link, .version = 99})));
    CHECK(hung_up(fd));
    ::close(fd);
  }
  const LinkEvent event = expect(*server, LinkEvent::turned_away);
  CHECK(event.link == 0);
  CHECK(event.reason.find("from 127.0.0.1 speaks version 99 of the protocol") != std::string::npos);
  CHECK_FALSE(server->next());
}

TEST_CASE("a flood of strangers neither disturbs a link nor keeps a true one out") {
  LinkHubOptions options = hub_options();
  options.auth_timeout = 60s;
  const auto server = make_link_hub(options);
  const auto client = make_link_hub(hub_options());
  const uint16_t port = server->listen("127.0.0.1", 0);
  const LinkId here = client->connect("127.0.0.1", port, kPatience);
  expect(*client, LinkEvent::opened);
  const LinkId there = expect(*server, LinkEvent::opened).link;
  std::vector<Fd> crowd;
  const std::string hello = wire::frame(
      wire::encode(wire::Hello{.service = wire::Service::link, .nonce = auth::random_nonce()}));
  for (int i = 0; i < 600; ++i) {
    crowd.emplace_back(tcp_to(port));
    if (i % 3 == 0) say(crowd.back().get(), hello);
    if (i % 50 == 0) {
      client->send(here, message(1, std::to_string(i)));
      CHECK(expect(*server, LinkEvent::arrived).message.body == std::to_string(i));
      server->send(there, message(2, "back"));
      CHECK(expect(*client, LinkEvent::arrived).message.body == "back");
    }
  }
  client->connect("127.0.0.1", port, kPatience);
  expect(*client, LinkEvent::opened);
  expect(*server, LinkEvent::opened);
}

TEST_CASE("an impostor that does not know the token is not believed") {
  const Impostor impostor;
  const auto client = make_link_hub(hub_options());
  client->connect("127.0.0.1", impostor.port(), kPatience);
  CHECK(expect(*client, LinkEvent::lost).loss == LinkEvent::wrong_token);
}

TEST_CASE("the splitter gives the same frames however the bytes are cut and takes any bytes") {
  uint64_t state = 0x2545f4914f6cdd1du;
  const auto random = [&state] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  };
  const auto limit = [] { return wire::kMaxFrame; };
  for (int round = 0; round < 2'000; ++round) {
    std::string stream;
    std::vector<std::string> sent, got;
    for (uint64_t count = random() % 6; count > 0; --count) {
      const std::string body(random() % 300, static_cast<char>(random()));
      stream += mtl::link::message_head(7, -1, body.size()).view();
      stream += body;
      sent.push_back(body);
    }
    mtl::link::Splitter splitter;
    for (size_t at = 0; at < stream.size();) {
      const size_t part = std::min(stream.size() - at, 1 + random() % 200);
      const auto result =
          splitter.feed(std::string_view(stream).substr(at, part), limit, [&](auto payload) {
            const auto frame = mtl::link::decode(payload);
            REQUIRE(frame);
            CHECK(frame->kind == 7);
            CHECK(frame->generation == -1);
            got.emplace_back(frame->body);
            return true;
          });
      CHECK(result == mtl::link::Splitter::Result::ok);
      at += part;
    }
    CHECK(got == sent);
  }
  for (int round = 0; round < 50'000; ++round) {
    std::string bytes(mtl::link::message_head(1, 2, 3).view());
    bytes += "abc";
    bytes += mtl::link::beat(5, 6, 7).view();
    bytes += mtl::link::answer(8, 9).view();
    bytes += mtl::link::greeting().view();
    for (uint64_t edits = random() % 5; edits > 0; --edits) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    bytes.resize(random() % (bytes.size() + 1));
    mtl::link::Splitter splitter;
    splitter.feed(bytes, limit, [](std::string_view payload) {
      (void)mtl::link::decode(payload);
      (void)wire::decode_hello(payload);
      (void)wire::decode_request(payload);
      return true;
    });
  }
}
