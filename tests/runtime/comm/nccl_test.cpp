// The NCCL transport over streams and an NCCL that are none: collectives and messages, who is named
// when a rank does not come, what the flight recorders say, and what the ranks check beforehand.
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include <doctest/doctest.h>

#include "common/error.h"
#include "runtime/comm/harness.h"
#include "runtime/comm/nccl/environment.h"
#include "runtime/comm/nccl/flight_recorder.h"
#include "runtime/comm/nccl/nccl_world.h"
#include "runtime/comm/queue.h"
#include "support/fake_gpu.h"
#include "support/temp_dir.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

struct RankOfGpus {
  CommWorld& world;
  FakeGpu& gpu;
};

// As run_threads() of the harness, with a GPU that is none for each rank.
std::vector<Outcome> run_gpus(int size, When when, const std::function<void(RankOfGpus&)>& body,
                              std::chrono::milliseconds timeout = kLong,
                              const std::filesystem::path& crash_dir = {},
                              const nccl::Api& api = fake_nccl()) {
  const std::unique_ptr<Store> store = make_local_store();
  std::vector<Outcome> outcomes(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Outcome& outcome = outcomes[static_cast<size_t>(rank)];
      try {
        FakeGpu gpu(when);
        WorldOptions options;
        options.rank = rank;
        options.size = size;
        options.timeout = timeout;
        const auto world = make_nccl_world(*store, options, make_fake_streams(gpu, rank),
                                           {.api = &api, .crash_dir = crash_dir});
        RankOfGpus context{*world, gpu};
        body(context);
      } catch (const Error& error) {
        outcome = {error.diagnostics().front().code, error.what()};
      } catch (const std::exception& error) {
        outcome = {"wrong", error.what()};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

constexpr Kind kNcclKinds[] = {Kind::all_reduce_sum,
                               Kind::all_reduce_max,
                               Kind::reduce_scatter,
                               Kind::reduce_scatter_apart,
                               Kind::all_gather,
                               Kind::all_gather_apart,
                               Kind::broadcast,
                               Kind::all_to_all,
                               Kind::all_to_all_v,
                               Kind::all_to_all_rounds,
                               Kind::ring};

// A recorder's dump where `enqueued` operations were called, of which so many began and ended.
nccl::FlightDump dump_of(int rank, const nccl::GroupName& group, uint64_t enqueued,
                         uint64_t started, uint64_t finished, const std::string& last = "") {
  nccl::FlightDump dump = {.rank = rank, .reason = ""};
  dump.groups.push_back(
      {.group = group, .enqueued = enqueued, .started = started, .finished = finished});
  for (uint64_t i = 1; i <= enqueued; ++i) {
    const std::string what = i == enqueued && !last.empty() ? last : "all_reduce(8 x F32, sum)";
    dump.entries.push_back({.group = group.key,
                            .sequence = i,
                            .what = what,
                            .bytes = 32,
                            .enqueued = static_cast<double>(i),
                            .started = i <= started ? static_cast<double>(i) + 0.25 : 0,
                            .finished = i <= finished ? static_cast<double>(i) + 0.5 : 0});
  }
  return dump;
}

}  // namespace

TEST_CASE("nccl: every collective gives every rank the right bits on memory of the host") {
  for (const When when : kWhen) {
    CAPTURE(std::string(name_of(when)));
    CHECK(problem_of(run_gpus(3, when, [](RankOfGpus& rank) {
            const std::vector<int> all = all_ranks(3);
            const auto group = rank.world.group(all);
            std::vector<float> memory(3 * 1000 + 1000);
            for (uint64_t seed = 0; seed < 3; ++seed) {
              for (const Kind kind : kNcclKinds) {
                const bool apart =
                    kind == Kind::reduce_scatter_apart || kind == Kind::all_gather_apart;
                const Tensor x(memory.data(), DType::f32, {apart ? 4000 : 3000});
                run_and_check(*group, all, kind, x, seed);
              }
            }
            group->barrier();
          })) == "");
  }
}

TEST_CASE("nccl: operations of a device are ordered behind its ops and before the later ones") {
  for (const When when : kWhen) {
    CAPTURE(std::string(name_of(when)));
    CHECK(problem_of(run_gpus(2, when, [](RankOfGpus& rank) {
            const auto device = make_fake_device(rank.gpu);
            const auto group = rank.world.group(all_ranks(2));
            const Tensor x(rank.world.allocate(4000), DType::f32, {1000});
            const Tensor y(rank.world.allocate(4000), DType::f32, {1000});
            CommQueue queue(true, group->lane());
            for (int round = 0; round < 5; ++round) {
              device->fill(x, 1.0f + static_cast<float>(rank.world.rank()));
              const auto ticket = queue.start([&] { group->all_reduce(x); });  // 3
              device->fill(y, 5);
              queue.wait(ticket);
              device->add(x, y);     // 8
              group->all_reduce(y);  // 16
              device->scale(y, 2);   // 32
              group->all_reduce(y, Reduce::max);
              float host = 0;
              device->copy_to_host(&host, y.slice(999, 1));
              expect(host == 32, "the sum is wrong: " + std::to_string(host));
            }
          })) == "");
  }
}

TEST_CASE("nccl: an all_to_all of a device is ordered among its ops and counts as one operation") {
  for (const When when : kWhen) {
    CAPTURE(std::string(name_of(when)));
    CHECK(problem_of(run_gpus(3, when, [](RankOfGpus& rank) {
            const auto device = make_fake_device(rank.gpu);
            const auto group = rank.world.group(all_ranks(3));
            const int own = rank.world.rank();
            const Tensor from(rank.world.allocate(4000), DType::f32, {1000});
            const Tensor to(rank.world.allocate(4000), DType::f32, {1000});
            // Rank 2 gets everything and gives nothing; rank 0 keeps some.
            const std::vector<int64_t> send[] = {{100, 0, 300}, {0, 0, 500}, {0, 0, 0}};
            const std::vector<int64_t> recv[] = {{100, 0, 0}, {0, 0, 0}, {300, 500, 0}};
            const int64_t sent = own == 0 ? 400 : own == 1 ? 500 : 0;
            const int64_t received = own == 0 ? 100 : own == 1 ? 0 : 800;
            const auto at = static_cast<size_t>(own);
            CommQueue queue(true, group->lane());
            for (int round = 0; round < 5; ++round) {
              device->fill(to, -1);
              device->fill(from, static_cast<float>(10 * round + own));
              const auto ticket = queue.start([&] {
                group->all_to_all_v(from.slice(0, sent), send[at], to.slice(0, received), recv[at]);
              });
              queue.wait(ticket);
              device->scale(to, 2);
              std::vector<float> host(1000);
              device->copy_to_host(host.data(), to);
              for (int64_t i = 0; i < 1000; ++i) {
                const int source = own == 0 && i < 100 ? 0 : own == 2 && i < 300 ? 0 : 1;
                const bool got = i < received;
                const auto value = static_cast<float>(got ? 2 * (10 * round + source) : -2);
                expect(host[static_cast<size_t>(i)] == value, "another piece");
              }
            }
            expect(group->traffic().all_to_all == 5 * 4 * (own == 0 ? 300 : sent), "traffic");
          })) == "");
  }
}

TEST_CASE("nccl: all_to_all with counts that do not agree ends by the timeout with its name") {
  std::atomic<bool> ended{false};
  const auto outcomes = run_gpus(
      2, When::threads,
      [&](RankOfGpus& rank) {
        const auto group = rank.world.group(all_ranks(2));
        const Tensor from(rank.world.allocate(400), DType::f32, {100});
        const Tensor to(rank.world.allocate(400), DType::f32, {100});
        const std::vector<int64_t> half = {50, 50}, less = {50, 40};
        group->barrier();
        if (rank.world.rank() == 1) {
          group->all_to_all_v(from, half, to, half);
          while (!ended) std::this_thread::sleep_for(1ms);
          return;
        }
        try {
          group->all_to_all_v(from, half, to.slice(0, 90), less);
          group->barrier();
        } catch (...) {
          ended = true;
          throw;
        }
      },
      1s);
  CAPTURE(outcomes[0].text);
  CHECK(outcomes[0].code == "comm.timeout");
  CHECK(has(outcomes[0].text,
            "operation 2 of the group of ranks 0, 1, all_to_all(F32), has not ended within"));
}

TEST_CASE("nccl: ranks that send to each other before they receive do not wait for ever") {
  for (const When when : kWhen) {
    CAPTURE(std::string(name_of(when)));
    CHECK(problem_of(run_gpus(2, when, [](RankOfGpus& rank) {
            const auto device = make_fake_device(rank.gpu);
            const auto group = rank.world.group(all_ranks(2));
            const Tensor x(rank.world.allocate(400), DType::f32, {100});
            const Tensor y(rank.world.allocate(400), DType::f32, {100});
            const int other = 1 - rank.world.rank();
            for (int round = 0; round < 20; ++round) {
              device->fill(x, static_cast<float>(10 * round + rank.world.rank()));
              group->send(x, other);
              device->fill(x, -1);  // what is sent stays as it was
              group->recv(y, other);
              float host = 0;
              device->copy_to_host(&host, y.slice(99, 1));
              expect(host == static_cast<float>(10 * round + other), "another message");
            }
            expect(group->traffic().send == 20 * 400, "traffic");
          })) == "");
  }
}

TEST_CASE("nccl: several messages are under way before any is received, in one order") {
  for (const When when : kWhen) {
    CAPTURE(std::string(name_of(when)));
    CHECK(problem_of(run_gpus(2, when, [](RankOfGpus& rank) {
            const auto device = make_fake_device(rank.gpu);
            const auto group = rank.world.group(all_ranks(2));
            const Tensor x(rank.world.allocate(4000), DType::f32, {1000});
            const int other = 1 - rank.world.rank();
            const auto value = [](int round, int i, int from) {
              return static_cast<float>(100 * round + 2 * i + from);
            };
            // Later ones are larger than what there was room for.
            for (const int round : {0, 1, 2}) {
              const Tensor part = x.slice(0, 100 << round);
              for (int i = 0; i < 40; ++i) {
                device->fill(part, value(round, i, rank.world.rank()));
                group->send(part, other);
              }
              for (int i = 0; i < 40; ++i) {
                group->recv(part, other);
                float host = 0;
                device->copy_to_host(&host, part.slice(part.numel() - 1, 1));
                expect(host == value(round, i, other), "another message");
              }
            }
          })) == "");
  }
}

TEST_CASE("nccl: groups that share a lane do what they do there in one order") {
  for (const When when : kWhen) {
    CAPTURE(std::string(name_of(when)));
    CHECK(problem_of(run_gpus(4, when, [](RankOfGpus& rank) {
            const int own = rank.world.rank();
            const auto device = make_fake_device(rank.gpu);
            const auto near = rank.world.group(std::vector<int>{own / 2 * 2, own / 2 * 2 + 1});
            const auto far = rank.world.group(std::vector<int>{own % 2, own % 2 + 2});
            far->share_lane(*near);
            expect(far->lane() == near->lane(), "another lane");
            const Tensor x(rank.world.allocate(4000), DType::f32, {1000});
            CommQueue queue(true, near->lane());
            for (int round = 0; round < 5; ++round) {
              device->fill(x, static_cast<float>(1 << own));
              queue.start([&] { near->all_reduce(x); });
              const auto ticket = queue.start([&] { far->all_reduce(x); });
              queue.wait(ticket);
              far->all_reduce(x);  // behind, among the device's ops
              float host = 0;
              device->copy_to_host(&host, x.slice(999, 1));
              expect(host == 30, "the sum is wrong: " + std::to_string(host));
            }
          })) == "");
  }
}

TEST_CASE("nccl: a rank that does not come to an operation is named with its number") {
  const TempDir dir;
  std::atomic<bool> told{false};
  const auto outcomes = run_gpus(
      3, When::threads,
      [&](RankOfGpus& rank) {
        const auto group = rank.world.group(all_ranks(3));
        const Tensor x(rank.world.allocate(400), DType::f32, {100});
        for (int i = 0; i < 4; ++i) group->all_reduce(x);
        group->barrier();
        try {
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
      300ms, dir.path());
  int reported = 0;
  for (const int rank : {0, 2}) {
    const Outcome& outcome = outcomes[static_cast<size_t>(rank)];
    CAPTURE(outcome.text);
    if (outcome.code == "comm.peer_lost") continue;  // the other one was first
    ++reported;
    CHECK(outcome.code == "comm.timeout");
    CHECK(has(outcome.text,
              "operation 6 of the group of ranks 0, 1, 2, barrier, has not "
              "ended within 0.3 s: rank 1 has not called it (its last there "
              "is 5)"));
    CHECK(has(outcome.text, "nccl-rank-"));
  }
  CHECK(reported >= 1);
  CHECK((outcomes[1].code == "comm.peer_lost" || outcomes[1].code == ""));
  std::ifstream in(dir.path() / "nccl-rank-0.jsonl");
  std::ostringstream text;
  text << in.rdbuf();
  const auto dump = nccl::parse_flight(text.str());
  REQUIRE(dump);
  CHECK(dump->rank == 0);
  REQUIRE(dump->entries.size() == 6);
  CHECK(dump->entries[0].what == "all_reduce(100 x F32, sum)");
  CHECK(dump->entries[4].finished > 0);
  CHECK(dump->entries[5].started > 0);
  CHECK(dump->entries[5].finished == 0);
}

TEST_CASE("nccl: a rank that does not come to connect is named") {
  std::atomic<int> ended{0};
  const auto outcomes = run_gpus(
      2, When::threads,
      [&](RankOfGpus& rank) {
        const auto group = rank.world.group(all_ranks(2));
        struct End {
          std::atomic<int>& ended;
          ~End() { ++ended; }
        } end{ended};
        if (rank.world.rank() == 0) return group->barrier();
        while (ended == 0) std::this_thread::sleep_for(1ms);
      },
      200ms);
  CAPTURE(outcomes[0].text);
  CHECK(outcomes[0].code == "comm.timeout");
  CHECK(has(outcomes[0].text, "for the group of ranks 0, 1 to connect: missing: 1"));
}

TEST_CASE("nccl: ranks that call different operations learn who called what") {
  const auto outcomes = run_gpus(
      2, When::threads,
      [&](RankOfGpus& rank) {
        const auto group = rank.world.group(all_ranks(2));
        const Tensor x(rank.world.allocate(400), DType::f32, {100});
        group->all_reduce(x);
        if (rank.world.rank() == 0) {
          group->all_reduce(x.slice(0, 50));
        } else {
          group->broadcast(x, 0);
        }
        group->barrier();
      },
      300ms);
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

TEST_CASE("nccl: the flight recorder keeps the last operations and reads back what it wrote") {
  nccl::FlightRecorder recorder(7);
  const nccl::GroupName group = {.key = 42, .ranks = {3, 7}};
  recorder.add_group(group);
  constexpr uint64_t kCount = nccl::FlightRecorder::kEntries + 100;
  for (uint64_t i = 1; i <= kCount; ++i) {
    const auto slot = recorder.enqueued(42, i, "barrier", 4);
    if (i < kCount) recorder.started(slot, 42, i);
    if (i + 1 < kCount) recorder.finished(slot, 42, i);
  }
  // What the ring has forgotten touches nothing.
  recorder.finished(0, 42, 1);
  const nccl::FlightDump dump = recorder.dump("because");
  REQUIRE(dump.entries.size() == nccl::FlightRecorder::kEntries);
  CHECK(dump.entries.front().sequence == 101);
  CHECK(dump.entries.back().sequence == kCount);
  CHECK(dump.entries.back().started == 0);

  const auto read = nccl::parse_flight(nccl::to_json_lines(dump) + "{\"group\": \"cut of");
  REQUIRE(read);
  CHECK(read->rank == 7);
  CHECK(read->reason == "because");
  REQUIRE(read->groups.size() == 1);
  CHECK(read->groups[0].group.ranks == group.ranks);
  CHECK(read->groups[0].enqueued == kCount);
  CHECK(read->groups[0].started == kCount - 1);
  CHECK(read->groups[0].finished == kCount - 2);
  REQUIRE(read->entries.size() == dump.entries.size());
  CHECK(read->entries[5].enqueued == doctest::Approx(dump.entries[5].enqueued));
  CHECK(read->entries[5].what == "barrier");
  const auto tail = nccl::parse_flight(nccl::to_json_lines(dump, 10));
  REQUIRE(tail);
  CHECK(tail->entries.size() == 10);
  CHECK(tail->entries.back().sequence == kCount);
  CHECK_FALSE(nccl::parse_flight("{\"something\": \"else\"}\n"));
  CHECK_FALSE(nccl::parse_flight(""));
}

TEST_CASE("nccl: the recorders of several ranks say who waits for whom") {
  const nccl::GroupName group = {.key = 1, .ranks = {0, 1, 2, 3, 4}};
  // Rank 1 has not called it, rank 2's device is busy, rank 3 calls another one, rank 4 is dead.
  const std::vector<nccl::FlightDump> dumps = {
      dump_of(0, group, 7, 7, 6), dump_of(1, group, 6, 6, 6), dump_of(2, group, 7, 6, 6),
      dump_of(3, group, 7, 7, 6, "broadcast(8 x F32, root 0)")};
  const nccl::Stalled stalled = nccl::why_stalled(group, 7, dumps);
  CHECK(stalled.not_called == std::vector<int>{1});
  CHECK(stalled.not_started == std::vector<int>{2});
  CHECK(stalled.different == std::vector<int>{3});
  CHECK(stalled.silent == std::vector<int>{4});
  CHECK(stalled.words ==
        std::vector<std::string>{"rank 1 has not called it (its last there is 6)",
                                 "rank 2 has called it, but its device has not come to it",
                                 "rank 3 calls broadcast(8 x F32, root 0) instead",
                                 "rank 4 does not answer"});
}

TEST_CASE("nccl: the recorders tell groups apart and know that a message has two ends") {
  const nccl::GroupName late = {.key = 1, .ranks = {0, 1}};
  const nccl::GroupName message = {.key = 2, .ranks = {1, 0}, .messages = true};
  nccl::FlightDump zero = dump_of(0, late, 9, 9, 8);
  const nccl::FlightDump receives = dump_of(0, message, 3, 3, 2, "recv(8 x F32)");
  zero.groups.push_back(receives.groups[0]);
  zero.entries.insert(zero.entries.end(), receives.entries.begin(), receives.entries.end());
  nccl::FlightDump one = dump_of(1, message, 3, 3, 2, "send(8 x F32)");
  const std::vector<nccl::FlightDump> dumps = {zero, one};
  CHECK(nccl::why_stalled(message, 3, dumps).words.empty());
  CHECK(nccl::why_stalled(late, 9, dumps).words ==
        std::vector<std::string>{"rank 1 has called nothing there yet"});
}

TEST_CASE("nccl: ranks check their GPUs and versions before anything else") {
  const auto code_of = [](const std::vector<nccl::Card>& cards, bool share) -> std::string {
    try {
      return nccl::check_cards(cards, 0, share) ? "shared" : "";
    } catch (const Error& error) {
      return error.diagnostics().front().code;
    }
  };
  const nccl::Card a = {.host = "x", .gpu = "0", .nccl = 22809};
  nccl::Card b = a;
  CHECK(code_of({a, b}, false) == "comm.gpu_shared");
  CHECK(code_of({a, b}, true) == "shared");
  b.gpu = "1";
  CHECK(code_of({a, b}, false) == "");
  b = a;
  b.host = "y";
  CHECK(code_of({a, b}, false) == "");
  b.nccl = 22709;
  CHECK(code_of({a, b}, true) == "comm.nccl_version");
  const auto read = nccl::Card::decode(a.encode());
  REQUIRE(read);
  CHECK(read->host == "x");
  CHECK(read->nccl == 22809);
  CHECK_FALSE(nccl::Card::decode("{}"));
  CHECK_FALSE(nccl::Card::decode("no"));
  CHECK(nccl::version_text(22809) == "2.28.9");
}

TEST_CASE("nccl: without the library the error says what to install") {
  try {
    nccl::load_api("libnccl-that-nobody-has.so.2");
    FAIL("a library that nobody has was opened");
  } catch (const Error& error) {
    CHECK(error.exit() == Exit::environment);
    CHECK(error.diagnostics().front().code == "comm.nccl_missing");
    CHECK(has(error.diagnostics().front().help, "LD_LIBRARY_PATH"));
  }
}

// NCCL keeps buffers per channel for each communicator.
TEST_CASE("nccl: a group for numbers gets one channel, and one for tensors what NCCL likes") {
  static std::mutex mutex;
  static std::map<std::pair<int, int>, int> made;  // ranks and most channels -> communicators
  made.clear();
  static const nccl::Api& fake = fake_nccl();
  nccl::Api api = fake;
  api.comm_init_rank_config = [](nccl::CommHandle* handle, int size, nccl::UniqueId id, int rank,
                                 nccl::Config* config) {
    {
      const std::scoped_lock lock(mutex);
      ++made[{size, config->max_ctas}];
    }
    return fake.comm_init_rank_config(handle, size, id, rank, config);
  };
  const auto body = [](RankOfGpus& context) {
    const int ranks[] = {0, 1, 2};
    const auto tensors = context.world.group(ranks);
    const auto numbers = context.world.group_for_numbers(ranks);
    tensors->barrier();
    numbers->barrier();
  };
  for (const Outcome& outcome : run_gpus(3, When::threads, body, kLong, {}, api)) {
    CHECK(outcome.code == "");
  }
  const std::map<std::pair<int, int>, int> expected = {{{3, 1}, 3},
                                                       {{3, nccl::Config::kUndefined}, 3}};
  CHECK(made == expected);
}

TEST_CASE("nccl: groups of the same ranks are told apart and alike on all ranks") {
  CHECK(problem_of(run_gpus(2, When::threads, [](RankOfGpus& rank) {
          const auto a = rank.world.group(all_ranks(2)), b = rank.world.group(all_ranks(2));
          const int own[] = {rank.world.rank()};
          const auto alone = rank.world.group(own);
          expect(alone->lane() == nullptr && a->lane() != nullptr, "lanes");
          const Tensor x(rank.world.allocate(400), DType::f32, {100});
          const Tensor y(rank.world.allocate(400), DType::f32, {100});
          alone->all_gather(x, y);
          // Beside each other, and waited for in another order on each rank: with one communicator
          // for both these would be the other's.
          const auto device = make_fake_device(rank.gpu);
          device->fill(x, 1);
          device->fill(y, 2);
          CommQueue of_a(true, a->lane()), of_b(true, b->lane());
          of_a.start([&] { a->all_reduce(x); });
          of_b.start([&] { b->all_reduce(y); });
          (rank.world.rank() == 0 ? of_a : of_b).wait_all();
          (rank.world.rank() == 0 ? of_b : of_a).wait_all();
          float one = 0, two = 0;
          device->copy_to_host(&one, x.slice(99, 1));
          device->copy_to_host(&two, y.slice(99, 1));
          expect(one == 2 && two == 4, "sums");
        })) == "");
}
