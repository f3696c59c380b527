// A rank that dies, leaves or does not come: the others learn who it is and wherein, and nobody
// waits for ever.
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>

#include "common/error.h"
#include "runtime/comm/harness.h"
#include "runtime/comm/shm/host.h"
#include "runtime/comm/shm/world_state.h"
#include "support/fitting_limit.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;
using namespace std::chrono_literals;

TEST_CASE("all_to_all: a rank that dies within it or does not come to it is named") {
  for (const Transport transport : kTransports) {
    CAPTURE(name_of(transport));
    auto outcomes = run_processes(
        3,
        [&](CommWorld& world) {
          const auto group = world.group(all_ranks(3));
          std::vector<float> from(300'000), to(300'000);
          const Tensor x(from.data(), DType::f32, {300'000}), y(to.data(), DType::f32, {300'000});
          group->all_to_all(x, y);
          if (world.rank() == 1) std::raise(SIGKILL);
          group->all_to_all(x, y);
          group->barrier();
        },
        kLong, transport);
    CHECK(outcomes[1].code == "signal 9");
    for (const size_t rank : {size_t{0}, size_t{2}}) {
      CAPTURE(outcomes[rank].text);
      CHECK(outcomes[rank].code == "comm.peer_lost");
      CHECK(has(outcomes[rank].text, "rank 1"));
    }
    with_fitting_limit(300ms, [&](auto limit) {
      std::atomic<int> ended = 0;
      Arrivals arrivals;
      outcomes = run_threads(
          3,
          [&](CommWorld& world) {
            const CountsEnd end{ended};
            const auto group = world.group(all_ranks(3));
            std::vector<float> from(9000), to(9000);
            while (world.rank() == 2 && ended < 2) std::this_thread::sleep_for(5ms);
            if (world.rank() != 2) arrivals.note();
            group->all_to_all(Tensor(from.data(), DType::f32, {9000}),
                              Tensor(to.data(), DType::f32, {9000}));
            group->barrier();  // what the others had sent may be all that the late one needs
          },
          limit, transport);
      return arrivals.together(2, limit);
    });
    check_all(outcomes, "comm.timeout",
              {"(all_to_all(F32)) of the group of ranks 0, 1, 2", "rank 2"});
  }
}

TEST_CASE("a rank that does not come is named, and hears of it when it comes") {
  for (const Transport transport : kTransports) {
    CAPTURE(name_of(transport));
    std::vector<Outcome> outcomes;
    std::array<Exit, 4> exits = {};
    with_fitting_limit(300ms, [&](auto limit) {
      std::atomic<int> ended = 0;
      Arrivals arrivals;
      outcomes = run_threads(
          4,
          [&](CommWorld& world) {
            const CountsEnd end{ended};
            Buffer buffer;
            const auto group = world.group(all_ranks(4));
            group->all_reduce(buffer.tensor(5));
            while (world.rank() == 2 && ended < 3) std::this_thread::sleep_for(5ms);
            if (world.rank() != 2) arrivals.note();
            try {
              group->all_reduce(buffer.tensor(9000));
            } catch (const Error& error) {
              exits[static_cast<size_t>(world.rank())] = error.exit();
              throw;
            }
          },
          limit, transport);
      return arrivals.together(3, limit);
    });
    for (const Exit exit : exits) CHECK(exit == Exit::timeout);
    check_all(outcomes, "comm.timeout",
              {"operation 3 (all_reduce(9000 x F32, sum)) of the group of ranks 0, 1, 2, 3",
               "for rank 2 (at operation 2, all_reduce)"});
    CHECK_FALSE(has(outcomes[0].text, "rank 3 (at"));
  }
}

TEST_CASE("a message that nobody sends times out") {
  for (const Transport transport : kTransports) {
    std::vector<Outcome> outcomes;
    with_fitting_limit(200ms, [&](auto limit) {
      std::atomic<int> ended = 0;
      Arrivals arrivals;
      outcomes = run_threads(
          2,
          [&](CommWorld& world) {
            const CountsEnd end{ended};
            Buffer buffer;
            const auto group = world.group(all_ranks(2));
            if (world.rank() == 1) {
              while (ended < 1) std::this_thread::sleep_for(5ms);
              group->barrier();
            }
            arrivals.note();
            group->recv(buffer.tensor(3), 1);
          },
          limit, transport);
      return arrivals.together(1, limit);
    });
    check_all(outcomes, "comm.timeout", {"recv(3 x F32)", "rank 1"});
  }
}

TEST_CASE("a killed rank is noticed long before the timeout, in every kind of wait") {
  Body body;
  SUBCASE("a barrier, with everybody") {
    body = [](CommWorld& world) {
      const auto group = world.group(all_ranks(3));
      if (world.rank() == 1) ::raise(SIGKILL);
      group->barrier();
    };
  }
  SUBCASE("in the middle of many operations") {
    body = [](CommWorld& world) {
      const auto group = world.group(all_ranks(3));
      float* arena = static_cast<float*>(world.allocate(1 << 20));
      for (int i = 0;; ++i) {
        if (world.rank() == 1 && i == 50) ::raise(SIGKILL);
        group->all_reduce(Tensor(arena, DType::f32, {i % 2 == 0 ? 100 : 1 << 18}));
      }
    };
  }
  SUBCASE("receiving") {
    body = [](CommWorld& world) {
      Buffer buffer;
      const auto group = world.group(all_ranks(3));
      if (world.rank() == 1) ::raise(SIGKILL);
      group->recv(buffer.tensor(10), 1);
    };
  }
  SUBCASE("making a group, led by it or not") {
    body = [](CommWorld& world) {
      if (world.rank() == 1) ::raise(SIGKILL);
      if (world.rank() == 0) world.group(std::vector<int>{0, 1});
      if (world.rank() == 2) world.group(std::vector<int>{1, 2});
    };
  }
  SUBCASE("sending more than is buffered") {
    body = [](CommWorld& world) {
      const auto group = world.group(all_ranks(3));
      if (world.rank() == 1) ::raise(SIGKILL);
      std::vector<float> data(40 << 20);
      group->send(Tensor(data.data(), DType::f32, {40 << 20}), 1);
    };
  }
  SUBCASE("in another group") {
    body = [](CommWorld& world) {
      // Rank 0 waits for rank 2 only; rank 2 waits for the dead one.
      const auto ends = world.rank() != 1 ? world.group(std::vector<int>{0, 2}) : nullptr;
      const auto last = world.rank() != 0 ? world.group(std::vector<int>{1, 2}) : nullptr;
      if (world.rank() == 1) ::raise(SIGKILL);
      if (world.rank() == 2) last->barrier();
      ends->barrier();
    };
  }
  // The timeout is minutes: if it were needed, the test would be stopped as hanging.
  for (const Transport transport : kTransports) {
    CAPTURE(name_of(transport));
    const auto outcomes = run_processes(3, body, 30min, transport);
    CHECK(outcomes[1].code == "signal 9");
    for (const size_t rank : {0, 2}) {
      CAPTURE(outcomes[rank].text);
      CHECK(outcomes[rank].code == "comm.peer_lost");
      CHECK(has(outcomes[rank].text, "rank 1 (process "));
      CHECK(has(outcomes[rank].text, "has died"));
    }
  }
}

TEST_CASE("an arena is not made without everybody") {
  const auto outcomes = run_processes(3, [](CommWorld& world) {
    if (world.rank() == 1) ::raise(SIGKILL);
    world.allocate(100);
  });
  for (const size_t rank : {0, 2}) CHECK(outcomes[rank].code == "comm.peer_lost");
}

TEST_CASE("a rank that leaves by an error of its own is lost for the others") {
  const auto body = [](CommWorld& world) {
    const auto group = world.group(all_ranks(3));
    expect(world.rank() != 2, "its own error");
    group->barrier();
  };
  for (const Transport transport : kTransports) {
    CAPTURE(name_of(transport));
    const auto outcomes = run_threads(3, body, kLong, transport);
    CHECK(outcomes[2].code == "wrong");
    for (const size_t rank : {0, 1}) {
      CHECK(outcomes[rank].code == "comm.peer_lost");
      CHECK(has(outcomes[rank].text, "rank 2 has left"));
    }
  }
}

TEST_CASE("a rank may end as soon as its last operation is over") {
  for (int i = 0; i < 20; ++i) {
    CHECK(processes_problem(3, [](CommWorld& world) {
            Buffer buffer;
            const auto group = world.group(all_ranks(3));
            group->all_reduce(buffer.tensor(9000));
            // What was sent may be received after the sender's end.
            if (world.rank() == 0) group->send(buffer.tensor(9000), 2);
            if (world.rank() == 2) ::usleep(2000);
            if (world.rank() == 2) group->recv(buffer.tensor(9000), 0);
          }) == "");
  }
}

TEST_CASE("what fails on one host ends the operations of all hosts") {
  // Ranks 0 and 1 share a host, 2 and 3 another.
  Body body;
  SUBCASE("in shared memory") {
    body = [](CommWorld& world) {
      Buffer buffer;
      const auto all = world.group(all_ranks(4));
      if (world.rank() < 2) {
        const auto pair = world.group(std::vector<int>{0, 1});
        pair->all_reduce(buffer.tensor(10 + world.rank()));
      }
      all->barrier();
    };
  }
  SUBCASE("between hosts, others wait in shared memory") {
    body = [](CommWorld& world) {
      Buffer buffer;
      const int rank = world.rank();
      const auto pair = world.group(rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3});
      if (rank == 1 || rank == 2) {
        const auto across = world.group(std::vector<int>{1, 2});
        across->all_reduce(buffer.tensor(10 + rank));
      }
      pair->barrier();
    };
  }
  check_all(run_threads(4, body, 30min, Transport::mixed), "comm.mismatch", {"x F32"});
}

TEST_CASE("killed ranks leave nothing behind") {
  const auto files = [] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      const std::string name = entry.path().filename();
      // What other tests have there comes and goes: their folders, and the NCCL on the host's.
      const bool others = name.starts_with("mtl-test-") || name.starts_with("mtl-host-nccl-");
      if (has(name, "mtl") && !others) names.insert(name);
    }
    return names;
  };
  const auto before = files();
  run_processes(2, [](CommWorld& world) {
    const auto group = world.group(all_ranks(2));
    world.allocate(1 << 20);
    group->barrier();
    ::raise(SIGKILL);
  });
  CHECK(files() == before);
}

TEST_CASE("a rank that arrives and leaves while we look around has arrived") {
  std::vector<shm::Identity> identities(2, shm::Identity::own());
  shm::WorldState world(0, identities, 10s,
                        shm::SharedMemory::create("test", shm::WorldState::control_bytes(2)));
  shm::Signal signal = {};
  world.member(1).departed = 1;
  // It comes just after we have found it missing, and is gone before we look whether it lives.
  bool came = false;
  const auto missing = [&](bool comes) {
    came = comes;
    return std::vector<int>{1};
  };
  const auto wait = [&](bool comes) {
    world.wait(
        signal, [&] { return came; }, [&] { return missing(comes); },
        [] { return std::string("waits in a test"); });
  };
  CHECK_NOTHROW(wait(true));
  came = false;
  CHECK_THROWS_AS(wait(false), Error);
}
