// Ranks as threads: who failed first is who is named, and a process has one end.
#include "runtime/comm/rank_threads.h"

#include <array>
#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>

#include <sys/wait.h>

#include <doctest/doctest.h>

#include "common/error.h"
#include "runtime/comm/exact_values.h"
#include "runtime/comm/harness.h"

using namespace mtl;
using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

struct Failed {
  std::string code, what;
  Exit exit = Exit::done;
};

Failed failure_of(const std::function<void()>& action) {
  try {
    action();
    return {};
  } catch (const Error& error) {
    return {error.diagnostics().front().code, error.diagnostics().front().what, error.exit()};
  } catch (const std::exception& error) {
    return {"other", error.what(), Exit::run_failed};
  }
}

// The first is what a rank does when it fails; the others wait for it in vain.
std::function<void(CommWorld&)> failing(int rank, const std::function<void()>& how) {
  return [rank, how](CommWorld& world) {
    const auto group = world.group(all_ranks(world.size()));
    if (world.rank() == rank) how();
    group->barrier();
  };
}

void damaged() {
  throw Error(Exit::data, Diagnostic{.code = "test.damaged", .what = "a file is damaged"});
}

}  // namespace

TEST_CASE("rank threads have a world in common") {
  for (const int size : {1, 2, 5}) {
    std::atomic<int> ranks = 0;
    run_rank_threads(size, [&](CommWorld& world) {
      const auto group = world.group(all_ranks(size));
      std::array<float, 3> data = {};
      run_and_check(*group, all_ranks(size), Kind::all_reduce_sum,
                    Tensor(data.data(), DType::f32, {3}), 1);
      ranks += 1 << world.rank();
    });
    CHECK(ranks == (1 << size) - 1);
  }
}

TEST_CASE("the error of the rank that failed first is thrown and its rank is named") {
  for (int round = 0; round < 10; ++round) {
    const Failed failed = failure_of([] { run_rank_threads(4, failing(2, damaged)); });
    CHECK(failed.code == "test.damaged");
    CHECK(failed.what == "rank 2: a file is damaged");
    CHECK(failed.exit == Exit::data);
  }
  const Failed other = failure_of(
      [] { run_rank_threads(2, failing(1, [] { throw std::runtime_error("something else"); })); });
  CHECK(other.what == "rank 1: something else");
}

TEST_CASE("what is felt of a failure is not the failure even if it is thrown earlier") {
  std::atomic<int> lost = 0;
  const Failed failed = failure_of([&] {
    run_rank_threads(3, [&](CommWorld& world) {
      const auto group = world.group(all_ranks(3));
      if (world.rank() == 1) {
        world.leave();
        while (lost < 2) std::this_thread::sleep_for(1ms);
        damaged();
      }
      try {
        group->barrier();
      } catch (const Error& error) {
        ++lost;
        throw;
      }
    });
  });
  CHECK(failed.what == "rank 1: a file is damaged");
  // If there is nothing else, it is said.
  const Failed only = failure_of([] {
    run_rank_threads(2, [](CommWorld& world) {
      const auto group = world.group(all_ranks(2));
      if (world.rank() == 0) group->barrier();
    });
  });
  CHECK(only.code == "comm.peer_lost");
  CHECK(only.what.find("rank 0: rank 1 has left") == 0);
}

TEST_CASE("ranks that do not end after a failure go with the process") {
  std::array<int, 2> pipe;
  REQUIRE(::pipe(pipe.data()) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(pipe[1], STDERR_FILENO);
    ::close(pipe[0]);
    ::close(pipe[1]);
    run_rank_threads(
        3,
        [](CommWorld& world) {
          if (world.rank() == 1) damaged();
          for (;;) std::this_thread::sleep_for(1h);
        },
        20ms);
    ::_exit(99);
  }
  ::close(pipe[1]);
  std::string text;
  std::array<char, 512> part;
  ssize_t n = 0;
  while ((n = ::read(pipe[0], part.data(), part.size())) > 0) {
    text.append(part.data(), static_cast<size_t>(n));
  }
  ::close(pipe[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == static_cast<int>(Exit::data));
  CHECK(text.find("error[test.damaged]: rank 1: a file is damaged") == 0);
}
