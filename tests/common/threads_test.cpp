#include "common/threads.h"

#include <atomic>

#include <doctest/doctest.h>

#include "support/no_threads.h"

using namespace mtl;

TEST_CASE("threads: as many are started as can be") {
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  CHECK(start_threads(threads, 3, [&] { ++ran; }) == 3);
  {
    const test::NoThreads poor;
    CHECK(start_threads(threads, 2, [&] { ++ran; }) == 0);
  }
  CHECK(start_threads(threads, 0, [&] { ++ran; }) == 0);
  CHECK(threads.size() == 3);
  for (std::thread& thread : threads) thread.join();
  CHECK(ran == 3);
}
