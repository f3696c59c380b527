// The local store and the TCP store: the same behaviour, and strangers kept out.
#include "rendezvous/store.h"

#include <atomic>
#include <functional>
#include <optional>
#include <poll.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <doctest/doctest.h>

#include "common/error.h"
#include "rendezvous/auth.h"
#include "rendezvous/impostor.h"
#include "rendezvous/protocol.h"
#include "support/errors.h"

using namespace mtl;
using mtl::test::code_of;
using mtl::test::Impostor;
using namespace std::chrono_literals;

namespace {

const std::string kRunToken = "the run's token";

StoreClientOptions client_of(const StoreServer& server) {
  return {.address = "127.0.0.1",
          .port = server.port(),
          .token = kRunToken,
          .generation = 0,
          .connect_timeout = 180s};
}

std::unique_ptr<StoreServer> serve(std::chrono::milliseconds auth_timeout = 180s) {
  return serve_store({.token = kRunToken, .auth_timeout = auth_timeout});
}

// A raw TCP client that speaks whatever a test wants.
class Raw {
 public:
  explicit Raw(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }
  Raw(Raw&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Raw() {
    if (fd_ >= 0) ::close(fd_);
  }
  void send(const std::string& bytes) {
    (void)!::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Whether the server hangs up (whatever it says before that) within `limit`.
  bool hung_up(std::chrono::milliseconds limit = 180s) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline - std::chrono::steady_clock::now());
      pollfd waiting = {fd_, POLLIN, 0};
      if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) {
        return false;
      }
      char bytes[512];
      if (::recv(fd_, bytes, sizeof(bytes), 0) <= 0) return true;
    }
  }
  // One frame's payload.
  std::string receive() {
    std::string header = exactly(wire::kLengthBytes);
    return exactly(wire::frame_length(header, wire::kMaxFrame).value());
  }

 private:
  std::string exactly(size_t bytes) {
    std::string text(bytes, '\0');
    REQUIRE(::recv(fd_, text.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes));
    return text;
  }
  int fd_;
};

// A free port that nobody gets by chance: bound, and not listened at. A server that is given it can
// listen there.
class KeptPort {
 public:
  KeptPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int reuse = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    REQUIRE(::bind(fd_, reinterpret_cast<sockaddr*>(&address), length) == 0);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    number = ntohs(address.sin_port);
  }
  ~KeptPort() { ::close(fd_); }
  KeptPort(const KeptPort&) = delete;
  KeptPort& operator=(const KeptPort&) = delete;
  uint16_t number = 0;

 private:
  int fd_;
};

void check_semantics(Store& store) {
  store.set("a", "1");
  CHECK(store.get("a", 0ms) == "1");
  store.set("a", std::string("\0binary\xff", 8));
  CHECK(store.get("a", 1s) == std::string("\0binary\xff", 8));
  store.set("empty", "");
  CHECK(store.get("empty", 0ms).empty());
  CHECK(store.add("n", 3) == 3);
  CHECK(store.add("n", -5) == -2);
  CHECK(store.get("n", 0ms) == "-2");
  store.set("text", "abc");
  CHECK(code_of([&] { store.add("text", 1); }) == "rendezvous.not_a_number");
  CHECK(store.compare_set("c", "other", "x").empty());
  CHECK(store.compare_set("c", "", "first") == "first");
  CHECK(store.compare_set("c", "", "second") == "first");
  CHECK(store.compare_set("c", "first", "third") == "third");
  CHECK(code_of([&] { store.get("never", 30ms); }) == "rendezvous.timeout");
  try {
    store.get("the/missing/key", 1ms);
  } catch (const Error& error) {
    CHECK(error.exit() == Exit::timeout);
    CHECK(std::string(error.what()).find("the/missing/key") != std::string::npos);
  }
  const std::string large(5 << 20, 'x');
  store.set("large", large);
  CHECK(store.get("large", 1s) == large);
  CHECK(code_of([&] { store.set("huge", std::string(17 << 20, 'x')); }) == "rendezvous.too_large");
  CHECK(store.get("a", 0ms).size() == 8);
}

}  // namespace

TEST_CASE("the local store") {
  const auto store = make_local_store();
  check_semantics(*store);
  std::thread late([&] {
    std::this_thread::sleep_for(20ms);
    store->add("late", 4);
  });
  CHECK(store->get("late", std::chrono::milliseconds::max()) == "4");
  late.join();
}

TEST_CASE("the TCP store behaves like the local one") {
  const auto server = serve();
  const auto store = connect_store(client_of(*server));
  check_semantics(*store);
}

TEST_CASE("get waits for any kind of change, with many waiters of one key") {
  const auto server = serve();
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 12; ++i) {
    threads.emplace_back([&, i] {
      const auto store = connect_store(client_of(*server));
      const char* keys[] = {"set", "add", "compare"};
      const char* values[] = {"v", "1", "w"};
      if (store->get(keys[i % 3], std::chrono::milliseconds::max()) == values[i % 3]) ++right;
    });
  }
  std::this_thread::sleep_for(50ms);
  const auto store = connect_store(client_of(*server));
  store->set("set", "v");
  store->add("add", 1);
  store->compare_set("compare", "", "w");
  for (auto& thread : threads) thread.join();
  CHECK(right == 12);
}

TEST_CASE("threads share one client: a waiting get does not hold up the others") {
  const auto server = serve();
  const auto store = connect_store(client_of(*server));
  std::thread waiter(
      [&] { CHECK(store->get("later", std::chrono::milliseconds::max()) == "now"); });
  std::this_thread::sleep_for(20ms);
  store->set("later", "now");
  waiter.join();
}

TEST_CASE("64 clients add concurrently") {
  const auto server = serve();
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  for (int i = 0; i < 64; ++i) {
    threads.emplace_back([&, i] {
      try {
        const auto store = connect_store(client_of(*server));
        for (int k = 0; k < 50; ++k) store->add("sum", i);
        store->set("client/" + std::to_string(i), std::to_string(i));
        store->get("client/" + std::to_string((i + 1) % 64), std::chrono::milliseconds::max());
      } catch (const Error&) {
        ++failed;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(failed == 0);
  CHECK(connect_store(client_of(*server))->add("sum", 0) == 50 * 63 * 64 / 2);
}

TEST_CASE("compare_set elects exactly one") {
  const auto server = serve();
  std::atomic<int> winners = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const std::string mine = std::to_string(i);
      if (connect_store(client_of(*server))->compare_set("leader", "", mine) == mine) ++winners;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(winners == 1);
}

TEST_CASE("a wrong token and a wrong generation are told apart, and nobody else notices") {
  const auto server = serve_store({.token = kRunToken, .generation = 4});
  StoreClientOptions good = client_of(*server);
  good.generation = 4;
  const auto store = connect_store(good);
  StoreClientOptions wrong = good;
  wrong.token = "guess";
  CHECK(code_of([&] { connect_store(wrong); }) == "rendezvous.auth");
  wrong = good;
  wrong.generation = 3;
  CHECK(code_of([&] { connect_store(wrong); }) == "rendezvous.generation");
  wrong.token = "guess";
  CHECK(code_of([&] { connect_store(wrong); }) == "rendezvous.auth");
  wrong.token.clear();
  CHECK(code_of([&] { connect_store(wrong); }) == "rendezvous.token");
  CHECK(code_of([&] { serve_store({}); }) == "rendezvous.token");
  CHECK(store->add("still", 1) == 1);
}

TEST_CASE("a server that does not know the token is not believed") {
  const Impostor impostor;
  CHECK(code_of([&] {
          connect_store({.address = "127.0.0.1", .port = impostor.port(), .token = "t"});
        }) == "rendezvous.auth");
}

TEST_CASE("garbage is dropped without disturbing others") {
  const auto server = serve();
  const auto store = connect_store(client_of(*server));
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(64, '\xff'), std::string(64, '\0'),
        wire::frame("garbage"), wire::frame(std::string(200, 'A')),
        // Out of turn: a request before the proof.
        wire::frame(wire::encode(
            wire::Request{.op = wire::Op::set, .key = "k", .value = "v", .expected = {}})),
        wire::frame(wire::encode(wire::Hello{.version = 99}))}) {
    Raw raw(server->port());
    raw.send(bytes);
    CHECK(raw.hung_up());
    CHECK(store->add("alive", 1) > 0);
  }
  // A replayed or guessed proof.
  Raw raw(server->port());
  raw.send(wire::frame(wire::encode(wire::Hello{.nonce = auth::random_nonce()})));
  CHECK(wire::decode_challenge(raw.receive()));
  raw.send(wire::frame(wire::encode(wire::Proof{})));
  CHECK(wire::decode_welcome(raw.receive())->verdict == wire::Verdict::wrong_token);
  CHECK(raw.hung_up());
  CHECK(code_of([&] { store->get("k", 0ms); }) == "rendezvous.timeout");
}

TEST_CASE("an authenticated client that breaks the protocol is dropped") {
  const auto server = serve();
  Raw raw(server->port());
  const wire::Hello hello = {.nonce = auth::random_nonce()};
  raw.send(wire::frame(wire::encode(hello)));
  const auto challenge = wire::decode_challenge(raw.receive());
  REQUIRE(challenge);
  raw.send(
      wire::frame(wire::encode(wire::Proof{auth::client_proof(kRunToken, hello, *challenge)})));
  const auto welcome = wire::decode_welcome(raw.receive());
  REQUIRE(welcome);
  CHECK(welcome->verdict == wire::Verdict::accepted);
  CHECK(auth::equal(welcome->mac, auth::server_proof(kRunToken, hello, *challenge, *welcome)));
  SUBCASE("a frame above the cap") {
    raw.send("\xff\xff\xff\x7f");
  }
  SUBCASE("an unknown operation") {
    raw.send(wire::frame("\x45\x63"));
  }
  SUBCASE("talking while it waits") {
    raw.send(wire::frame(wire::encode(wire::Request{
        .op = wire::Op::get, .key = "k", .value = {}, .expected = {}, .timeout_ms = 60'000})));
    raw.send("x");
  }
  CHECK(raw.hung_up());
  CHECK(connect_store(client_of(*server))->add("alive", 1) == 1);
}

TEST_CASE("those who do not prove the token in time are dropped, even if they keep dripping") {
  const auto server = serve(300ms);
  const auto store = connect_store(client_of(*server));
  Raw silent(server->port());
  Raw slow(server->port());
  const std::string hello = wire::frame(wire::encode(wire::Hello{}));
  std::atomic<bool> stop = false;
  std::thread drip([&] {
    for (size_t i = 0; i + 1 < hello.size() && !stop; ++i) {
      slow.send(hello.substr(i, 1));
      std::this_thread::sleep_for(20ms);
    }
  });
  CHECK(silent.hung_up());
  CHECK(slow.hung_up());
  stop = true;
  drip.join();
  // The limit is for strangers only.
  CHECK(store->add("alive", 1) == 1);
}

TEST_CASE("a crowd of silent connections does not lock out the true ones") {
  const auto server = serve();
  std::vector<Raw> crowd;
  for (int i = 0; i < 300; ++i) crowd.emplace_back(server->port());
  const auto store = connect_store(client_of(*server));
  CHECK(store->add("n", 1) == 1);
  CHECK(crowd.front().hung_up());
  CHECK_FALSE(crowd.back().hung_up(1ms));
}

TEST_CASE("a client that dies while it waits leaves nothing behind") {
  const auto server = serve();
  std::optional<Raw> raw(server->port());
  const wire::Hello hello = {.nonce = auth::random_nonce()};
  raw->send(wire::frame(wire::encode(hello)));
  const auto challenge = wire::decode_challenge(raw->receive());
  raw->send(
      wire::frame(wire::encode(wire::Proof{auth::client_proof(kRunToken, hello, *challenge)})));
  raw->receive();
  raw->send(wire::frame(wire::encode(wire::Request{
      .op = wire::Op::get, .key = "k", .value = {}, .expected = {}, .timeout_ms = 60'000})));
  std::this_thread::sleep_for(20ms);
  raw.reset();
  const auto store = connect_store(client_of(*server));
  store->set("k", "v");
  CHECK(store->get("k", 0ms) == "v");
}

TEST_CASE("the end of the server ends its clients' waits") {
  auto server = serve();
  const auto store = connect_store(client_of(*server));
  std::string code;
  std::thread waiter([&] { code = code_of([&] { store->get("never", 60s); }); });
  std::this_thread::sleep_for(50ms);
  server.reset();
  waiter.join();
  CHECK(code == "rendezvous.lost");
}

TEST_CASE("addresses: IPv4, IPv6, both, names, a port in use, nobody there") {
  for (const char* address : {"127.0.0.1", "0.0.0.0", "localhost"}) {
    const auto server = serve_store({.address = address, .token = kRunToken});
    CHECK(connect_store(client_of(*server))->add("n", 1) == 1);
  }
  const int probe = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 loopback = {};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  const bool ipv6 = ::bind(probe, reinterpret_cast<sockaddr*>(&loopback), sizeof(loopback)) == 0;
  ::close(probe);
  if (ipv6) {
    const auto server = serve_store({.address = "[::1]", .token = kRunToken});
    StoreClientOptions options = client_of(*server);
    options.address = "::1";
    CHECK(connect_store(options)->add("n", 1) == 1);
    options.address = "[::1]";
    CHECK(connect_store(options)->add("n", 1) == 2);
    const auto both = serve_store({.address = "::", .token = kRunToken});
    CHECK(connect_store(client_of(*both))->add("n", 1) == 1);
  }
  const auto server = serve();
  CHECK(code_of([&] { serve_store({.port = server->port(), .token = kRunToken}); }) ==
        "rendezvous.port");
  CHECK(code_of([&] { serve_store({.address = "no.such.host.invalid", .token = kRunToken}); }) ==
        "rendezvous.address");
  StoreClientOptions nobody = {
      .address = "127.0.0.1", .port = 1, .token = kRunToken, .connect_timeout = 100ms};
  CHECK(code_of([&] { connect_store(nobody); }) == "rendezvous.connect");
}

TEST_CASE("a client may start before its server") {
  const KeptPort port;
  std::thread client([&] {
    StoreClientOptions options = {.address = "127.0.0.1", .port = port.number, .token = kRunToken};
    options.connect_timeout = 180s;
    CHECK(connect_store(options)->add("n", 1) == 1);
  });
  std::this_thread::sleep_for(100ms);
  const auto server = serve_store({.port = port.number, .token = kRunToken});
  client.join();
}
