// The TCP transport among strangers: whoever is no rank of this world is not heard, and the world
// does not notice; and what is said when ranks cannot meet.
#include <array>
#include <atomic>
#include <cstdlib>
#include <thread>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <doctest/doctest.h>

#include "common/error.h"
#include "common/files.h"
#include "rendezvous/protocol.h"
#include "runtime/comm/exact_values.h"
#include "runtime/comm/harness.h"
#include "runtime/comm/tcp/network.h"
#include "runtime/comm/tcp/tcp_world.h"
#include "runtime/comm/world.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

// Each rank in a thread; the code of its error and the text.
std::vector<Outcome> run_ranks(const std::vector<std::function<void()>>& ranks) {
  std::vector<Outcome> outcomes(ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ranks[rank]();
      } catch (const Error& error) {
        outcomes[rank] = {error.diagnostics().front().code, error.what()};
      } catch (const std::exception& error) {
        outcomes[rank] = {"wrong", error.what()};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

Fd connect_to(uint16_t port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  expect(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0,
         "a stranger connects");
  return fd;
}

void say(const Fd& fd, const std::string& text) {
  (void)!::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

// Whether the other side closes the connection without having answered more than its challenge.
bool is_dropped(const Fd& fd) {
  const timeval limit = {300, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  std::array<char, 4096> text;
  ssize_t n = 0;
  while ((n = ::recv(fd.get(), text.data(), text.size(), 0)) > 0) continue;
  return n == 0 || errno == ECONNRESET;
}

// A world of two that goes on until `strangers` is done with its ports, then makes another group.
void among_strangers(const std::function<void(const std::vector<tcp::Card>&)>& strangers) {
  const auto store = make_local_store();
  std::atomic<bool> done = false;
  const auto rank = [&](int own) {
    const auto world = make_world(Transport::tcp, *store, own, 2, 5min);
    const auto group = world->group(all_ranks(2));
    std::array<float, 1000> data = {};
    int32_t stop = 0;
    uint64_t round = 0;
    while (stop == 0) {
      run_and_check(*group, all_ranks(2), Kind::all_reduce_sum,
                    Tensor(data.data(), DType::f32, {1000}), ++round);
      stop = own == 0 && done ? 1 : 0;
      group->all_reduce(Tensor(&stop, DType::i32, {1}), Reduce::max);
    }
    const auto another = world->group(all_ranks(2));
    run_and_check(*another, all_ranks(2), Kind::ring, Tensor(data.data(), DType::f32, {1000}), 1);
  };
  const auto outcomes = run_ranks({[&] { rank(0); }, [&] { rank(1); },
                                   [&] {
                                     std::vector<tcp::Card> cards;
                                     for (const char* key : {"tcp/at/0", "tcp/at/1"}) {
                                       cards.push_back(*tcp::Card::decode(store->get(key, kLong)));
                                     }
                                     try {
                                       strangers(cards);
                                     } catch (...) {
                                       done = true;
                                       throw;
                                     }
                                     done = true;
                                   }});
  CHECK(problem_of(outcomes) == "");
}

}  // namespace

TEST_CASE("strangers who do not speak the protocol are dropped and the world goes on") {
  among_strangers([](const std::vector<tcp::Card>& cards) {
    for (const tcp::Card& card : cards) {
      std::vector<Fd> silent;
      for (int i = 0; i < 20; ++i) silent.push_back(connect_to(card.port));
      const Fd http = connect_to(card.port);
      say(http, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
      expect(is_dropped(http), "HTTP");
      const Fd endless = connect_to(card.port);
      say(endless, "\xff\xff\xff\xff");
      expect(is_dropped(endless), "a frame without end");
      const Fd empty = connect_to(card.port);
      say(empty, std::string(4, '\0'));
      expect(is_dropped(empty), "an empty frame");
      const Fd nonsense = connect_to(card.port);
      say(nonsense, wire::frame("nonsense"));
      expect(is_dropped(nonsense), "a frame of nonsense");
      const Fd unproven = connect_to(card.port);
      say(unproven, wire::frame(wire::encode(wire::Hello())) +
                        wire::frame(wire::encode(wire::Proof())) + wire::frame("1 0 1 0"));
      expect(is_dropped(unproven), "no proof");
    }
  });
}

TEST_CASE("a rank with another token or of another generation is refused and told why") {
  std::string token = "a token of the tests", reason;
  int64_t generation = 0;
  SUBCASE("token") {
    token = "another token";
    reason = "it has another token";
  }
  SUBCASE("generation") {
    generation = 3;
    reason = "it belongs to generation 0 of the run and not to 3";
  }
  among_strangers([&](const std::vector<tcp::Card>& cards) {
    const auto network = tcp::make_network({.rank = 1, .token = token, .generation = generation});
    const auto peers = std::make_shared<tcp::Peers>(1, cards, kLong);
    std::string code, text;
    try {
      network->start(peers);
    } catch (const Error& error) {
      code = error.diagnostics().front().code;
      text = error.what();
      expect(error.exit() == Exit::environment, "its exit code");
    }
    expect(code == "comm.connect", "refused");
    expect(has(text, reason), text);
    expect(has(text, "rank 1 (") && has(text, "rank 0 ("), text);
  });
}

TEST_CASE("a token is required") {
  const auto store = make_local_store();
  CHECK_THROWS_AS(make_tcp_world(*store, {.rank = 0, .size = 1, .token = ""}), Error);
}

TEST_CASE("a rank that nobody can reach is named with both hosts") {
  const auto store = make_local_store();
  // Rank 0 says that it is where nobody listens.
  const auto outcomes =
      run_ranks({[&] {
                   const Fd closed(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
                   sockaddr_in address = {};
                   address.sin_family = AF_INET;
                   address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
                   socklen_t length = sizeof(address);
                   CHECK(::bind(closed.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
                   ::getsockname(closed.get(), reinterpret_cast<sockaddr*>(&address), &length);
                   tcp::Card card = {"far-away", 1, "127.0.0.1", ntohs(address.sin_port)};
                   store->set("tcp/at/0", card.encode());
                   store->get("done", kLong);
                 },
                 [&] {
                   try {
                     make_world(Transport::tcp, *store, 1, 2, 400ms);
                   } catch (...) {
                     store->set("done", "yes");
                     throw;
                   }
                 }});
  CHECK(outcomes[0].code == "");
  // Both limits are the timeout here; the first to see it wins.
  CHECK((outcomes[1].code == "comm.connect" || outcomes[1].code == "comm.timeout"));
  CHECK(has(outcomes[1].text, "rank 0"));
}

TEST_CASE("a rank that never joins a TCP world is a timeout") {
  const auto store = make_local_store();
  for (const Transport transport : {Transport::tcp, Transport::mixed}) {
    const auto outcomes = run_ranks({[&] { make_world(transport, *store, 0, 2, 50ms); }});
    CHECK(outcomes[0].code == "comm.timeout");
    CHECK(has(outcomes[0].text, "rank 0 of 2"));
  }
}

TEST_CASE("a rank number that is taken is refused") {
  const auto store = make_local_store();
  const auto outcomes = run_ranks({[&] { make_world(Transport::mixed, *store, 0, 1, kLong); }});
  CHECK(problem_of(outcomes) == "");
  const auto again = run_ranks({[&] { make_world(Transport::mixed, *store, 0, 1, kLong); }});
  CHECK(again[0].code == "comm.rank");
}

TEST_CASE("an address that is not of this machine is refused") {
  const auto store = make_local_store();
  for (const char* address : {"192.0.2.1", "no address"}) {
    const auto outcomes = run_ranks({[&] {
      make_tcp_world(*store, {.rank = 0, .size = 1, .address = address, .token = "x"});
    }});
    CHECK(outcomes[0].code == "comm.listen");
    CHECK(has(outcomes[0].text, address));
  }
}

TEST_CASE("a world over IPv6") {
  const Fd probe(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 loopback = {};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  if (::bind(probe.get(), reinterpret_cast<sockaddr*>(&loopback), sizeof(loopback)) != 0) {
    MESSAGE("this machine has no IPv6");
    return;
  }
  const auto store = make_local_store();
  std::vector<std::function<void()>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back([&, rank] {
      const auto world = make_tcp_world(
          *store, {.rank = rank, .size = 3, .address = "::1", .token = "x", .timeout = kLong});
      const auto group = world->group(all_ranks(3));
      std::vector<float> data(100'000);
      run_and_check(*group, all_ranks(3), Kind::all_reduce_sum,
                    Tensor(data.data(), DType::f32, {100'000}), 1);
    });
  }
  CHECK(problem_of(run_ranks(ranks)) == "");
}

TEST_CASE("MTL_COMM chooses the transport of a whole world") {
  const auto world_of = [](const char* name) {
    ::setenv("MTL_COMM", name, 1);
    const auto store = make_local_store();
    // Two hosts cannot share memory: shm is refused, tcp is not.
    const auto rank = [&](int own) {
      const auto world = make_world(Transport::mixed, *store, own, 4, kLong);
      const auto group = world->group(all_ranks(4));
      const auto pair = world->group(own < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3});
      float value = 1;
      group->all_reduce(Tensor(&value, DType::f32, {1}));
      pair->all_reduce(Tensor(&value, DType::f32, {1}));
      expect(value == 8, "the sum");
    };
    const auto outcomes =
        run_ranks({[&] { rank(0); }, [&] { rank(1); }, [&] { rank(2); }, [&] { rank(3); }});
    ::unsetenv("MTL_COMM");
    return outcomes;
  };
  CHECK(problem_of(world_of("tcp")) == "");
  CHECK(problem_of(world_of("")) == "");
  CHECK(world_of("shm")[3].code == "comm.host");
  CHECK(world_of("carrier pigeons")[0].code == "comm.transport");
}
