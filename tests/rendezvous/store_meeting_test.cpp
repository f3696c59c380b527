// Watching, barriers and exchanges: the same on the local store and over TCP.
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/error.h"
#include "rendezvous/exchange.h"
#include "rendezvous/store.h"
#include "support/fitting_limit.h"
#include "support/text.h"

using namespace mtl;
using namespace std::chrono_literals;

namespace {

constexpr std::chrono::milliseconds kLongWait = 180s;

// The first error of the action: its code and what it says.
struct Told {
  std::string code = "no error", what;
};
Told told(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return {error.diagnostics().front().code, error.diagnostics().front().what};
  }
  return {};
}

using mtl::test::has;

// Runs `test` with a function that gives each participant its store.
using Connect = std::function<std::shared_ptr<Store>()>;
void on_both_kinds(const std::function<void(const Connect&)>& test) {
  const std::shared_ptr<Store> local = make_local_store();
  test([local] { return local; });
  const auto server = serve_store({.token = "token"});
  test([&] {
    return std::shared_ptr<Store>(
        connect_store({.address = "127.0.0.1", .port = server->port(), .token = "token"}));
  });
}

void in_parallel(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&work, i] { work(i); });
  for (auto& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("watch sees every later version") {
  on_both_kinds([](const Connect& connect) {
    const auto store = connect();
    CHECK_FALSE(store->watch("k", 0, 10ms));
    store->set("k", "");
    const auto first = store->watch("k", 0, kLongWait);
    REQUIRE(first);
    CHECK(first->value.empty());
    CHECK_FALSE(store->watch("k", first->version, 10ms));
    std::atomic<bool> seen = false;
    std::thread watcher([&] {
      const auto next = connect()->watch("k", first->version, kLongWait);
      seen = next && next->value == "2" && next->version > first->version;
    });
    store->set("other", "x");
    store->set("k", "2");
    watcher.join();
    CHECK(seen);
  });
}

TEST_CASE("a barrier lets all go together and may be used again") {
  on_both_kinds([](const Connect& connect) {
    constexpr int kParticipants = 8;
    std::atomic<int> arrived = 0, wrong = 0;
    in_parallel(kParticipants, [&](int) {
      const auto store = connect();
      for (int round = 1; round <= 5; ++round) {
        ++arrived;
        store->barrier("b", kParticipants, kLongWait);
        if (arrived < round * kParticipants) ++wrong;
        store->barrier("c", kParticipants, kLongWait);
      }
    });
    CHECK(wrong == 0);
    const auto store = connect();
    store->barrier("alone", 1, 0ms);
    const Told late = told([&] { store->barrier("b", 3, 20ms); });
    CHECK(late.code == "rendezvous.timeout");
    CHECK(has(late.what, "1 of 3"));
    CHECK(told([&] { store->barrier("b", 0, 20ms); }).code == "rendezvous.disagree");
    // Who gave up does not count: two are still needed.
    std::atomic<int> through = 0;
    in_parallel(2, [&](int) {
      connect()->barrier("b", 2, kLongWait);
      ++through;
    });
    CHECK(through == 2);
  });
}

TEST_CASE("a barrier of two sizes is an error for the second") {
  on_both_kinds([](const Connect& connect) {
    Told codes[2];
    std::atomic<bool> told_one = false;
    // Whoever comes second learns it; the first gives up and comes again until that has happened.
    in_parallel(2, [&](int i) {
      const auto store = connect();
      while (!told_one) {
        codes[i] = told([&] { store->barrier("b", 2 + i, 50ms); });
        if (codes[i].code != "rendezvous.timeout") told_one = true;
      }
    });
    const Told& second = codes[0].code == "rendezvous.disagree" ? codes[0] : codes[1];
    CHECK(second.code == "rendezvous.disagree");
    const bool both =
        has(second.what, "3 here, 2 elsewhere") || has(second.what, "2 here, 3 elsewhere");
    CHECK(both);
  });
}

TEST_CASE("an exchange gives everybody everything once") {
  on_both_kinds([](const Connect& connect) {
    constexpr int kSize = 12;
    std::atomic<int> right = 0;
    in_parallel(kSize, [&](int rank) {
      const auto store = connect();
      // Some of them with the basic operations only, as a store of a test would.
      std::vector<std::string> all;
      if (rank % 3 == 0) {
        all = store->Store::exchange("x", rank, kSize, std::to_string(rank), kLongWait);
      } else {
        all = exchange(*store, "x", rank, kSize, std::to_string(rank), kLongWait);
      }
      bool good = all.size() == kSize;
      for (int i = 0; good && i < kSize; ++i) {
        good = all[static_cast<size_t>(i)] == std::to_string(i);
      }
      if (good) ++right;
    });
    CHECK(right == kSize);
  });
}

TEST_CASE("an exchange that is not complete names who is missing") {
  on_both_kinds([](const Connect& connect) {
    std::string key;
    std::atomic<int> named = 0;
    // Too short if it is over for the first before the last has come.
    test::with_fitting_limit(200ms, [&](auto limit) {
      key = fmt::format("x{}", limit.count());
      named = 0;
      in_parallel(3, [&](int i) {
        const int rank = i == 2 ? 4 : i;
        const Told late = told([&] { exchange(*connect(), key, rank, 5, "v", limit); });
        if (late.code == "rendezvous.timeout" && has(late.what, "2, 3 of 5")) ++named;
      });
      return named == 3;
    });
    CHECK(named == 3);
    const auto store = connect();
    const Told basic = told([&] { store->Store::exchange(key, 0, 5, "v", 10ms); });
    CHECK(has(basic.what, "2, 3 of 5"));
    CHECK(told([&] { store->exchange(key, 0, 6, "v", 10ms); }).code == "rendezvous.disagree");
    CHECK(told([&] { store->exchange("y", 6, 6, "v", 10ms); }).code == "rendezvous.disagree");
    CHECK(told([&] { store->exchange("y", 0, -1, "v", 10ms); }).code == "rendezvous.disagree");
    // Names that only look like a rank's do not count.
    store->set(key + "/02", "v");
    store->set(key + "/3x", "v");
    CHECK(has(told([&] { store->exchange(key, 0, 5, "v", 10ms); }).what, "2, 3 of 5"));
    store->set(key + "/2", "two");
    store->set(key + "/3", "three");
    CHECK(store->exchange(key, 0, 5, "v", 10ms)[3] == "three");
  });
}

TEST_CASE("a table larger than a frame is an error") {
  const auto server = serve_store({.token = "token"});
  std::atomic<int> refused = 0;
  in_parallel(3, [&](int rank) {
    const auto store =
        connect_store({.address = "127.0.0.1", .port = server->port(), .token = "token"});
    const std::string value(7 << 20, 'x');
    if (told([&] { store->exchange("x", rank, 3, value, kLongWait); }).code ==
        "rendezvous.too_large") {
      ++refused;
    }
  });
  CHECK(refused == 3);
}
