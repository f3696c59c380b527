// Work of a queue: in order, beside its owner, and no error is lost.
#include "runtime/comm/queue.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/comm/exact_values.h"
#include "runtime/comm/harness.h"

using namespace mtl;
using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

// A door that a thread waits at until another opens it.
class Door {
 public:
  void open() {
    const std::scoped_lock lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

std::string error_of(const std::function<void()>& action) {
  try {
    action();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("work is done in the order of its start and wait covers what stands before") {
  for (const bool asynchronous : {false, true}) {
    CAPTURE(asynchronous);
    CommQueue queue(asynchronous);
    queue.wait_all();
    std::vector<int> done;
    std::vector<CommQueue::Ticket> tickets;
    for (int i = 0; i < 200; ++i) tickets.push_back(queue.start([&done, i] { done.push_back(i); }));
    queue.wait(tickets[99]);
    queue.wait(tickets[3]);
    queue.wait_all();
    REQUIRE(done.size() == 200);
    for (int i = 0; i < 200; ++i) CHECK(done[static_cast<size_t>(i)] == i);
  }
}

TEST_CASE("an asynchronous queue works in one thread of its own and another one at once") {
  std::vector<std::thread::id> ids;
  const auto note = [&] { ids.push_back(std::this_thread::get_id()); };
  {
    CommQueue queue(true);
    Door door;
    queue.start([&] { door.pass(); });  // returns although the work cannot end
    queue.start(note);
    queue.start(note);
    door.open();
    queue.wait_all();
  }
  REQUIRE(ids.size() == 2);
  CHECK(ids[0] != std::this_thread::get_id());
  CHECK(ids[0] == ids[1]);
  CommQueue queue(false);
  queue.start(note);
  REQUIRE(ids.size() == 3);
  CHECK(ids[2] == std::this_thread::get_id());
}

TEST_CASE("wait does not wait for later work") {
  CommQueue queue(true);
  Door door;
  const auto first = queue.start([] {});
  queue.start([&] { door.pass(); });
  queue.wait(first);
  door.open();
  queue.wait_all();
}

TEST_CASE("an error drops the later work and every wait throws it") {
  for (const bool asynchronous : {false, true}) {
    CAPTURE(asynchronous);
    CommQueue queue(asynchronous);
    std::atomic<int> done = 0;
    const auto good = queue.start([&] { ++done; });
    queue.wait(good);
    const auto bad = queue.start([] { throw std::runtime_error("the first error"); });
    const auto later = queue.start([&] { ++done; });
    CHECK(error_of([&] { queue.wait(later); }) == "the first error");
    CHECK(error_of([&] { queue.wait(bad); }) == "the first error");
    CHECK(error_of([&] { queue.wait(good); }) == "the first error");
    queue.start([] { throw std::runtime_error("never thrown"); });
    CHECK(error_of([&] { queue.wait_all(); }) == "the first error");
    CHECK(done == 1);
  }
}

TEST_CASE("the destructor finishes what was started also after an error") {
  for (const bool asynchronous : {false, true}) {
    CAPTURE(asynchronous);
    std::atomic<int> done = 0;
    const auto kept = std::make_shared<int>(0);
    {
      CommQueue queue(asynchronous);
      for (int i = 0; i < 50; ++i) {
        queue.start([&, kept] {
          std::this_thread::sleep_for(50us);
          ++done;
        });
      }
    }
    CHECK(done == 50);
    {
      CommQueue queue(asynchronous);
      queue.start([] { throw std::runtime_error("told to stderr, in a test"); });
      queue.start([&, kept] { ++done; });
    }
    CHECK(done == 50);
    CHECK(kept.use_count() == 1);
  }
}

TEST_CASE("collectives of two groups overlap with each other in queues of their own") {
  // Rank 1 issues them in the other order: with one queue for both groups this would not end.
  CHECK(problem_of(run_threads(2, [](CommWorld& world) {
          const std::vector<int> both = all_ranks(2);
          const auto a = world.group(both), b = world.group(both);
          float* arena = static_cast<float*>(world.allocate(2 << 20));
          const Tensor x(arena, DType::f32, {100'000});
          const Tensor y(arena + 100'000, DType::f32, {100'000});
          CommQueue queue_a(true), queue_b(true);
          for (uint64_t round = 0; round < 20; ++round) {
            const auto reduce = [&, round] {
              run_and_check(*a, both, Kind::all_reduce_sum, x, round);
            };
            const auto gather = [&, round] { run_and_check(*b, both, Kind::all_gather, y, round); };
            if (world.rank() == 0) {
              queue_a.start(reduce);
              queue_a.wait_all();
              queue_b.start(gather);
            } else {
              queue_b.start(gather);
              queue_a.start(reduce);
            }
          }
          queue_a.wait_all();
          queue_b.wait_all();
        })) == "");
}

namespace {

// Tells what it was asked for.
class TellingLane final : public CommLane {
 public:
  uint64_t run(const std::function<void()>& work) override {
    work();
    told += "run ";
    return ++number_;
  }
  void join(uint64_t number) override { told += "join" + std::to_string(number) + " "; }
  std::string told;

 private:
  uint64_t number_ = 0;
};

}  // namespace

TEST_CASE("on a lane work of any size is enqueued at once and waiting is the device's") {
  TellingLane lane;
  {
    CommQueue queue(true, &lane);
    std::vector<std::thread::id> ids;
    const auto note = [&] { ids.push_back(std::this_thread::get_id()); };
    const auto first = queue.start(note);
    queue.start(1, note);
    CHECK(lane.told == "run run ");
    CHECK(ids == std::vector<std::thread::id>(2, std::this_thread::get_id()));
    queue.wait(first);
    queue.wait_all();
    CHECK(lane.told == "run run join1 join2 ");
    queue.start(note);
  }
  CHECK(lane.told == "run run join1 join2 run join3 ");
  lane.told.clear();
  // Not asynchronous: the operations are in the order of the device's ops.
  CommQueue queue(false, &lane);
  int done = 0;
  queue.wait(queue.start([&] { ++done; }));
  CHECK(done == 1);
  CHECK(lane.told == "");
}

TEST_CASE("an error on a lane drops the later work and every wait throws it") {
  TellingLane lane;
  CommQueue queue(true, &lane);
  int done = 0;
  const auto good = queue.start([&] { ++done; });
  const auto bad = queue.start([] { throw std::runtime_error("the first error"); });
  queue.start([&] { ++done; });
  CHECK(error_of([&] { queue.wait(bad); }) == "the first error");
  CHECK(error_of([&] { queue.wait(good); }) == "the first error");
  CHECK(error_of([&] { queue.wait_all(); }) == "the first error");
  CHECK(done == 1);
}
