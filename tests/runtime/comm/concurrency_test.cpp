// Several threads of a rank, each with communicators of its own, in one world.
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include <doctest/doctest.h>

#include "common/error.h"
#include "runtime/comm/exact_values.h"
#include "runtime/comm/harness.h"
#include "runtime/comm/queue.h"
#include "support/errors.h"

using namespace mtl;
using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

// Both at once, in two threads; throws what either threw, the first of them first.
void at_once(const std::function<void()>& here, const std::function<void()>& there) {
  std::exception_ptr errors[2];
  const auto caught = [](const std::function<void()>& action, std::exception_ptr& error) {
    try {
      action();
    } catch (...) {
      error = std::current_exception();
    }
  };
  std::thread other(caught, std::cref(there), std::ref(errors[1]));
  caught(here, errors[0]);
  other.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace

TEST_CASE("two threads of each rank use two groups of the same ranks at once") {
  const auto body = [](CommWorld& world) {
    const std::vector<int> ranks = all_ranks(world.size());
    const auto a = world.group(ranks), b = world.group(ranks);
    char* arena = static_cast<char*>(world.allocate(4 << 20));
    std::vector<double> heap(40'000);
    const auto loop = [&](Communicator& group, char* resident, uint64_t seed) {
      for (uint64_t i = 0; i < 150; ++i) {
        const int64_t numel = i % 3 == 0 ? 60 : 30'000;
        run_and_check(
            group, ranks, i % 2 == 0 ? Kind::all_reduce_sum : Kind::all_gather_apart,
            Tensor(resident, DType::f32, {numel / (world.size() + 1) * (world.size() + 1)}),
            seed + i);
      }
    };
    at_once([&] { loop(*a, arena, 1000); }, [&] { loop(*b, arena + (2 << 20), 2000); });
    at_once([&] { loop(*a, arena, 3000); },
            [&] { loop(*b, reinterpret_cast<char*>(heap.data()), 4000); });
    expect(a->traffic().all_reduce == b->traffic().all_reduce, "each counts its own");
  };
  CHECK(threads_problem(2, body) == "");
  CHECK(threads_problem(4, body) == "");
  CHECK(processes_problem(3, body) == "");
}

TEST_CASE("groups and arenas are made while another thread communicates") {
  const auto body = [](CommWorld& world) {
    const std::vector<int> ranks = all_ranks(world.size());
    const auto busy = world.group(ranks);
    char* arena = static_cast<char*>(world.allocate(1 << 20));
    at_once(
        [&] {
          for (uint64_t i = 0; i < 30; ++i) {
            char* more = static_cast<char*>(world.allocate(100'000));
            const auto group = world.group(ranks);
            run_and_check(*group, ranks, Kind::all_reduce_sum, Tensor(more, DType::f32, {20'000}),
                          i);
          }
        },
        [&] {
          for (uint64_t i = 0; i < 150; ++i) {
            run_and_check(*busy, ranks, Kind::all_reduce_sum, Tensor(arena, DType::f32, {20'000}),
                          i);
          }
        });
  };
  CHECK(threads_problem(3, body) == "");
  CHECK(processes_problem(3, body) == "");
}

TEST_CASE("a failure in one group ends the operations of all threads of all ranks") {
  for (const Transport transport : kTransports) {
    CAPTURE(name_of(transport));
    std::atomic<int> failed = 0;
    const auto outcomes = run_threads(
        3,
        [&](CommWorld& world) {
          const std::vector<int> ranks = all_ranks(3);
          const auto a = world.group(ranks), b = world.group(ranks);
          std::array<float, 100> data = {}, other = {};
          const auto fails = [&](const std::function<void()>& action) {
            if (code_of(action) == "comm.mismatch") ++failed;
          };
          at_once(
              [&] {
                const Tensor x(data.data(), DType::f32, {world.rank() == 2 ? 10 : 11});
                fails([&] { a->all_reduce(x); });
              },
              [&] {
                fails([&] {
                  for (;;) b->all_reduce(Tensor(other.data(), DType::f32, {50}));
                });
              });
          a->barrier();
        },
        30min, transport);
    CHECK(failed == 6);
    for (const Outcome& outcome : outcomes) CHECK(outcome.code == "comm.mismatch");
  }
}

TEST_CASE("a rank that leaves ends its other threads' operations and is lost for its peers") {
  for (const Transport transport : kTransports) {
    CAPTURE(name_of(transport));
    std::string in_queue;
    const auto outcomes = run_threads(
        3,
        [&](CommWorld& world) {
          const auto group = world.group(all_ranks(3));
          const auto last = world.group(all_ranks(3));
          std::array<float, 10> data = {};
          const Tensor x(data.data(), DType::f32, {10});
          if (world.rank() == 1) {
            CommQueue queue(true);
            const auto ticket = queue.start([&] { group->all_reduce(x); });
            std::this_thread::sleep_for(20ms);
            world.leave();
            in_queue = code_of([&] { queue.wait(ticket); });
            last->all_reduce(x);
          } else {
            last->all_reduce(x);  // not the group of the queue: nobody would ever come there
          }
        },
        30min, transport);
    CHECK(in_queue == "comm.peer_lost");
    for (const Outcome& outcome : outcomes) {
      CAPTURE(outcome.text);
      CHECK(outcome.code == "comm.peer_lost");
      CHECK(outcome.text.find("rank 1 has left") != std::string::npos);
    }
  }
}
