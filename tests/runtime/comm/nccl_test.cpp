// The NCCL transport over streams and an NCCL that are none: collectives and messages, groups, and
// what the ranks check beforehand.
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/comm/exact_values.h"
#include "runtime/comm/nccl/environment.h"
#include "runtime/comm/nccl_harness.h"
#include "runtime/comm/queue.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;

namespace {

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

void check_gpus(int ranks, const std::function<void(RankOfGpus&)>& body) {
  for (const When when : kWhen) {
    CAPTURE(std::string(name_of(when)));
    CHECK(problem_of(run_gpus(ranks, when, body)) == "");
  }
}

}  // namespace

TEST_CASE("nccl: every collective gives every rank the right bits on memory of the host") {
  check_gpus(3, [](RankOfGpus& rank) {
    const std::vector<int> all = all_ranks(3);
    const auto group = rank.world.group(all);
    std::vector<float> memory(3 * 1000 + 1000);
    for (uint64_t seed = 0; seed < 3; ++seed) {
      for (const Kind kind : kNcclKinds) {
        const bool apart = kind == Kind::reduce_scatter_apart || kind == Kind::all_gather_apart;
        const Tensor x(memory.data(), DType::f32, {apart ? 4000 : 3000});
        run_and_check(*group, all, kind, x, seed);
      }
    }
    group->barrier();
  });
}

TEST_CASE("nccl: operations of a device are ordered behind its ops and before the later ones") {
  check_gpus(2, [](RankOfGpus& rank) {
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
  });
}

TEST_CASE("nccl: an all_to_all of a device is ordered among its ops and counts as one operation") {
  check_gpus(3, [](RankOfGpus& rank) {
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
  });
}

TEST_CASE("nccl: ranks that send to each other before they receive do not wait for ever") {
  check_gpus(2, [](RankOfGpus& rank) {
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
  });
}

TEST_CASE("nccl: several messages are under way before any is received, in one order") {
  check_gpus(2, [](RankOfGpus& rank) {
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
  });
}

TEST_CASE("nccl: groups that share a lane do what they do there in one order") {
  check_gpus(4, [](RankOfGpus& rank) {
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
  });
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
