// Who comes to share a host's memory: ranks of the same host and container, once each, all in time.
#include <chrono>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <sys/wait.h>

#include <doctest/doctest.h>

#include "common/error.h"
#include "rendezvous/store.h"
#include "runtime/comm/harness.h"
#include "runtime/comm/shm/host.h"
#include "runtime/comm/shm/shm_world.h"
#include "support/text.h"
#include "support/two_hosts.h"

using namespace mtl;
using namespace mtl::test;
using namespace std::chrono_literals;

TEST_CASE("a rank that never joins is named") {
  const auto store = make_local_store();
  try {
    make_shm_world(*store, {.rank = 0, .size = 2, .timeout = 50ms});
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.exit() == Exit::timeout);
    CHECK(error.diagnostics().front().code == "comm.timeout");
    CHECK(has(error.what(), "rank 1 of 2 has not joined"));
  }
  try {
    make_shm_world(*store, {.rank = 0, .size = 2, .timeout = 50ms});
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.diagnostics().front().code == "comm.rank");
  }
}

TEST_CASE("ranks of different hosts or containers cannot share memory, and are told so") {
  // As if one rank had another kernel or another pid namespace.
  const shm::Identity own = shm::Identity::own();
  std::string text, replaced;
  SUBCASE("host") {
    replaced = own.boot;
    text = "are on different hosts";
  }
  SUBCASE("container") {
    replaced = own.pid_namespace;
    text = "are in different containers";
  }
  const auto store = make_local_store();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      StoreOfAnother elsewhere(*store, replaced, rank == 1 ? "0000-elsewhere" : replaced);
      try {
        make_shm_world(elsewhere, {.rank = rank, .size = 2, .timeout = kLong});
        CHECK(false);
      } catch (const Error& error) {
        CHECK(error.diagnostics().front().code == "comm.host");
        CHECK(error.exit() == Exit::environment);
        CHECK(has(error.what(), text));
      }
    });
  }
  for (auto& rank : ranks) rank.join();
}

TEST_CASE("who a process is, and whether it still runs") {
  const shm::Identity own = shm::Identity::own();
  const auto back = shm::Identity::decode(own.encode());
  REQUIRE(back);
  CHECK(back->boot == own.boot);
  CHECK(back->pid == ::getpid());
  CHECK(back->cpus == own.cpus);
  CHECK(shm::count_cpus(own.cpus) > 0);
  CHECK_FALSE(shm::Identity::decode("nonsense"));
  CHECK(shm::count_cpus(shm::unite_cpus("0000000000000003", "00000000000000060000000000000001")) ==
        4);
  CHECK(shm::is_running(own.pid, own.start_time));
  CHECK_FALSE(shm::is_running(own.pid, own.start_time + 1));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  // A dead process that nobody has reaped is dead.
  siginfo_t info = {};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  CHECK_FALSE(shm::is_running(child, own.start_time));
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK_FALSE(shm::is_running(child, own.start_time));
}
