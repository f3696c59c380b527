// The NCCL transport when ranks do not come, leave, or call something else: who is named.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/comm/nccl/flight_recorder.h"
#include "runtime/comm/nccl_harness.h"
#include "runtime/comm/queue.h"
#include "support/fitting_limit.h"
#include "support/temp_dir.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;
using namespace std::chrono_literals;

TEST_CASE("nccl: all_to_all with counts that do not agree ends by the timeout with its name") {
  std::vector<Outcome> outcomes;
  with_fitting_limit(300ms, [&](auto limit) {
    std::atomic<int> ended = 0;
    Arrivals arrivals;
    outcomes = run_gpus(
        2, When::threads,
        [&](RankOfGpus& rank) {
          const CountsEnd end{ended};
          const auto group = rank.world.group(all_ranks(2));
          const Tensor from(rank.world.allocate(400), DType::f32, {100});
          const Tensor to(rank.world.allocate(400), DType::f32, {100});
          const std::vector<int64_t> half = {50, 50}, less = {50, 40};
          group->barrier();
          arrivals.note();
          if (rank.world.rank() == 1) {
            group->all_to_all_v(from, half, to, half);
            while (ended == 0) std::this_thread::sleep_for(1ms);
            return;
          }
          group->all_to_all_v(from, half, to.slice(0, 90), less);
          group->barrier();
        },
        limit);
    return arrivals.together(2, limit);
  });
  CAPTURE(outcomes[0].text);
  CHECK(outcomes[0].code == "comm.timeout");
  CHECK(has(outcomes[0].text,
            "operation 2 of the group of ranks 0, 1, all_to_all(F32), has not ended within"));
}

TEST_CASE("nccl: a rank that does not come to an operation is named with its number") {
  const TempDir dir;
  std::vector<Outcome> outcomes;
  with_fitting_limit(300ms, [&](auto limit) {
    std::atomic<bool> told{false};
    Arrivals arrivals;
    outcomes = run_gpus(
        3, When::threads,
        [&](RankOfGpus& rank) {
          try {
            const auto group = rank.world.group(all_ranks(3));
            const Tensor x(rank.world.allocate(400), DType::f32, {100});
            for (int i = 0; i < 4; ++i) group->all_reduce(x);
            group->barrier();
            arrivals.note();
            if (rank.world.rank() != 1) group->barrier();
            // It has something else to do, until the others have given up.
            while (!told) {
              group->check();
              std::this_thread::sleep_for(1ms);
            }
          } catch (...) {
            told = true;
            throw;
          }
        },
        limit, dir.path());
    return arrivals.together(3, limit);
  });
  int reported = 0;
  for (const int rank : {0, 2}) {
    const Outcome& outcome = outcomes[static_cast<size_t>(rank)];
    CAPTURE(outcome.text);
    if (outcome.code == "comm.peer_lost") continue;  // the other one was first
    ++reported;
    CHECK(outcome.code == "comm.timeout");
    CHECK(has(outcome.text,
              "operation 6 of the group of ranks 0, 1, 2, barrier, has not ended within "));
    CHECK(has(outcome.text, " s: rank 1 has not called it (its last there is 5)"));
    CHECK(has(outcome.text, "nccl-rank-"));
  }
  CHECK(reported >= 1);
  CHECK((outcomes[1].code == "comm.peer_lost" || outcomes[1].code == ""));
  const auto dump = nccl::parse_flight(file_text(dir.path() / "nccl-rank-0.jsonl"));
  REQUIRE(dump);
  CHECK(dump->rank == 0);
  REQUIRE(dump->entries.size() == 6);
  CHECK(dump->entries[0].what == "all_reduce(100 x F32, sum)");
  CHECK(dump->entries[4].finished > 0);
  CHECK(dump->entries[5].started > 0);
  CHECK(dump->entries[5].finished == 0);
}

TEST_CASE("nccl: a rank that does not come to connect is named") {
  std::vector<Outcome> outcomes;
  with_fitting_limit(200ms, [&](auto limit) {
    std::atomic<int> ended = 0;
    Arrivals arrivals;
    outcomes = run_gpus(
        2, When::threads,
        [&](RankOfGpus& rank) {
          const CountsEnd end{ended};
          const auto group = rank.world.group(all_ranks(2));
          arrivals.note();
          if (rank.world.rank() == 0) return group->barrier();
          while (ended == 0) std::this_thread::sleep_for(1ms);
        },
        limit);
    return arrivals.together(2, limit);
  });
  CAPTURE(outcomes[0].text);
  CHECK(outcomes[0].code == "comm.timeout");
  CHECK(has(outcomes[0].text, "for the group of ranks 0, 1 to connect: missing: 1"));
}

TEST_CASE("nccl: ranks that call different operations learn who called what") {
  std::vector<Outcome> outcomes;
  with_fitting_limit(300ms, [&](auto limit) {
    Arrivals arrivals;
    outcomes = run_gpus(
        2, When::threads,
        [&](RankOfGpus& rank) {
          const auto group = rank.world.group(all_ranks(2));
          const Tensor x(rank.world.allocate(400), DType::f32, {100});
          group->all_reduce(x);
          group->check();
          arrivals.note();
          if (rank.world.rank() == 0) {
            group->all_reduce(x.slice(0, 50));
          } else {
            group->broadcast(x, 0);
          }
          group->barrier();
        },
        limit);
    return arrivals.together(2, limit);
  });
  bool told = false;
  for (const Outcome& outcome : outcomes) {
    CAPTURE(outcome.text);
    CHECK((outcome.code == "comm.mismatch" || outcome.code == "comm.peer_lost"));
    if (outcome.code != "comm.mismatch") continue;
    told = true;
    CHECK(has(outcome.text, "operation 2 of the group of ranks 0, 1, "));
    CHECK(has(outcome.text, "rank 1 calls broadcast(100 x F32, root 0) instead"));
  }
  CHECK(told);
}

TEST_CASE("nccl: a rank that leaves takes its peers along") {
  const auto outcomes = run_gpus(3, When::threads, [&](RankOfGpus& rank) {
    const auto group = rank.world.group(all_ranks(3));
    group->barrier();
    if (rank.world.rank() == 2) {
      rank.world.leave();
      group->check();
    }
    group->barrier();
  });
  for (const Outcome& outcome : outcomes) {
    CAPTURE(outcome.text);
    CHECK(outcome.code == "comm.peer_lost");
    CHECK(has(outcome.text, "rank 2 has "));
  }
}

TEST_CASE("nccl: memory that NCCL does not get is memory that there is not") {
  for (const auto& [last, exit] : {std::pair("Failed to CUDA calloc 6291456 bytes", 5),
                                   {"Cuda failure 2 'out of memory'", 5},
                                   {"Cuda failure 700 'an illegal memory access'", 1}}) {
    static const char* said = nullptr;
    said = last;
    nccl::Api api = fake_nccl();
    api.get_last_error = [](nccl::CommHandle) { return said; };
    api.comm_get_async_error = [](nccl::CommHandle, nccl::Result* result) {
      *result = nccl::kUnhandledCudaError;
      return nccl::kSuccess;
    };
    std::atomic<int> exits[2] = {};
    const auto outcomes = run_gpus(
        2, When::threads,
        [&](RankOfGpus& rank) {
          try {
            rank.world.group(all_ranks(2))->barrier();
          } catch (const Error& error) {
            exits[rank.world.rank()] = static_cast<int>(error.exit());
            throw;
          }
        },
        kLong, {}, api);
    for (int rank = 0; rank < 2; ++rank) {
      const Outcome& outcome = outcomes[static_cast<size_t>(rank)];
      CAPTURE(outcome.text);
      CHECK(exits[rank] == exit);
      CHECK(outcome.code == (exit == 5 ? "device.out_of_memory" : "comm.nccl"));
      CHECK(has(outcome.text, last));
    }
  }
}

TEST_CASE("nccl: operations of several groups that will never end are given up together") {
  for (const When when : kWhen) {
    CAPTURE(std::string(name_of(when)));
    const auto outcomes = run_gpus(3, when, [&](RankOfGpus& rank) {
      const auto device = make_fake_device(rank.gpu);
      const auto all = rank.world.group(all_ranks(3));
      const auto beside = rank.world.group(all_ranks(3));
      const Tensor x(rank.world.allocate(400), DType::f32, {100});
      const Tensor y(rank.world.allocate(400), DType::f32, {100});
      all->barrier();
      beside->barrier();
      if (rank.world.rank() == 2) {
        std::this_thread::sleep_for(200ms);  // until the others are in both
        rank.world.leave();
        all->check();
      }
      CommQueue queue(true, beside->lane());
      queue.start([&] { beside->all_reduce(x); });
      all->all_reduce(y);
      float host = 0;
      device->copy_to_host(&host, y.slice(0, 1));
      all->check();
    });
    for (const Outcome& outcome : outcomes) {
      CAPTURE(outcome.text);
      CHECK(outcome.code == "comm.peer_lost");
    }
    CHECK(hopeless_aborts() == 0);
  }
}
