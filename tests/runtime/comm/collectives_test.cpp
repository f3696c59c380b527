// Every operation, type and path gives the exact bits of the rank-order reference on every rank.
#include <cstring>
#include <random>
#include <rapidcheck.h>

#include <doctest/doctest.h>

#include "common/error.h"
#include "runtime/comm/exact_values.h"
#include "runtime/comm/harness.h"
#include "support/sanitized.h"

using namespace mtl;
using namespace mtl::test;

namespace {

constexpr Kind kKinds[] = {Kind::all_reduce_sum,
                           Kind::all_reduce_max,
                           Kind::reduce_scatter,
                           Kind::all_gather,
                           Kind::reduce_scatter_apart,
                           Kind::all_gather_apart,
                           Kind::broadcast,
                           Kind::all_to_all,
                           Kind::all_to_all_v,
                           Kind::all_to_all_rounds,
                           Kind::ring};
constexpr DType kTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::u8};

bool reduces(Kind kind) {
  return kind == Kind::all_reduce_sum || kind == Kind::all_reduce_max ||
         kind == Kind::reduce_scatter || kind == Kind::reduce_scatter_apart;
}
int64_t fit(Kind kind, int64_t numel, int size) {
  if (kind == Kind::reduce_scatter || kind == Kind::all_gather) return numel / size * size;
  if (kind == Kind::all_to_all) return numel / (2 * size) * (2 * size);
  if (kind == Kind::all_to_all_v || kind == Kind::all_to_all_rounds) return numel / 2 * 2;
  const bool apart = kind == Kind::reduce_scatter_apart || kind == Kind::all_gather_apart;
  return apart ? numel / (size + 1) * (size + 1) : numel;
}

enum class Memory { arena, heap, mixed };

// All kinds and types at the sizes where paths change, in one kind of memory.
void exercise(CommWorld& world, Memory memory, std::span<const int64_t> sizes) {
  const std::vector<int> ranks = all_ranks(world.size());
  const auto group = world.group(ranks);
  const size_t bytes = static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end())) * 8;
  // Offsets differ between the ranks, as with pipeline stages that hold different layers.
  const size_t shift = memory == Memory::mixed ? 4096 * static_cast<size_t>(world.rank()) : 0;
  char* arena = static_cast<char*>(world.allocate(bytes + shift)) + shift;
  std::vector<double> heap(bytes / 8);
  uint64_t seed = 1;
  for (const int64_t size : sizes) {
    for (const Kind kind : kKinds) {
      for (const DType dtype : kTypes) {
        if (dtype == DType::u8 && reduces(kind)) continue;
        const bool in_arena =
            memory == Memory::arena || (memory == Memory::mixed && (seed + world.rank()) % 3 != 0);
        void* data = in_arena ? static_cast<void*>(arena) : heap.data();
        run_and_check(*group, ranks, kind, Tensor(data, dtype, {fit(kind, size, world.size())}),
                      seed++);
      }
    }
  }
}

}  // namespace

TEST_CASE("threads: 1 to 8 ranks, all operations and types, small and resident and staged") {
  const int64_t sizes[] = {0, 1, 3, 64, 511, 1023, 1024, 1025, 2049, 4097, 10'007};
  for (int size = 1; size <= 8; ++size) {
    if (kSanitized && size > 3 && size < 8) continue;
    CAPTURE(size);
    for (const Memory memory : {Memory::arena, Memory::heap}) {
      CHECK(threads_problem(size, [&](CommWorld& world) { exercise(world, memory, sizes); }) == "");
    }
  }
}

TEST_CASE("threads: tensors above the staging area, odd sizes") {
  // The staging area of a rank holds 262,144 f32; half of it 131,072.
  const int64_t sizes[] = {131'071, 262'145, 600'011};
  for (const int size : {2, 3, 5}) {
    CAPTURE(size);
    for (const Memory memory : {Memory::arena, Memory::heap}) {
      CHECK(threads_problem(size, [&](CommWorld& world) { exercise(world, memory, sizes); }) == "");
    }
  }
}

TEST_CASE("processes over the TCP store: all operations and types") {
  const int64_t sizes[] = {1, 7, 1025, 5003, 270'001};
  for (const int size : {1, 2, 3, 4, 8}) {
    CAPTURE(size);
    for (const Memory memory : {Memory::arena, Memory::heap}) {
      const int64_t* last = size > 4 ? std::end(sizes) - 1 : std::end(sizes);
      CHECK(processes_problem(size, [&](CommWorld& world) {
              exercise(world, memory, {std::begin(sizes), last});
            }) == "");
    }
  }
}

TEST_CASE("some ranks in their arena at different offsets, some not") {
  const int64_t sizes[] = {5, 3000, 300'007};
  CHECK(threads_problem(4, [&](CommWorld& world) {
          const auto group = world.group(all_ranks(4));
          char* arena = static_cast<char*>(world.allocate(4 << 20));
          std::vector<double> heap(sizes[2]);
          uint64_t seed = 1;
          for (const int64_t size : sizes) {
            for (const Kind kind : kKinds) {
              for (int mix = 0; mix < 4; ++mix) {
                const bool in_arena = mix == 0 || (world.rank() + mix) % 4 != 0;
                void* data = in_arena ? static_cast<void*>(arena + 64 * world.rank()) : heap.data();
                run_and_check(*group, all_ranks(4), kind,
                              Tensor(data, DType::f32, {fit(kind, size, 4)}), seed++);
              }
            }
          }
        }) == "");
}

TEST_CASE("tensor- and data-parallel groups of 8 ranks, interleaved with the world's") {
  const auto body = [](CommWorld& world) {
    const int rank = world.rank();
    // Pairs of neighbours; strides of 2; the middle four; every rank is in some of them.
    const std::vector<int> tp = {rank / 2 * 2, rank / 2 * 2 + 1};
    const std::vector<int> dp = {rank % 2, rank % 2 + 2, rank % 2 + 4, rank % 2 + 6};
    const std::vector<int> middle = {2, 3, 4, 5};
    const bool in_middle = rank >= 2 && rank <= 5;
    const auto tp_group = world.group(tp);
    const auto dp_group = world.group(dp);
    const auto second_dp_group = world.group(dp);
    const auto all = world.group(all_ranks(8));
    const auto middle_group = in_middle ? world.group(middle) : nullptr;
    const auto alone = world.group(std::vector<int>{rank});
    char* first = static_cast<char*>(world.allocate(1 << 20));
    char* second = static_cast<char*>(world.allocate(100));
    expect(reinterpret_cast<uintptr_t>(first) % 4096 == 0, "arena alignment");
    for (int i = 0; i < 1 << 20; i += 997) expect(first[i] == 0, "arena is not zeroed");
    expect(tp_group->rank() == rank % 2 && dp_group->rank() == rank / 2, "ranks in the groups");
    for (uint64_t step = 0; step < 20; ++step) {
      const Tensor large(first, DType::f32, {20'000});
      const Tensor tiny(second, DType::f32, {8});
      run_and_check(*tp_group, tp, Kind::all_reduce_sum, large, 10 * step);
      run_and_check(*dp_group, dp, Kind::reduce_scatter, large, 10 * step + 1);
      run_and_check(*second_dp_group, dp, Kind::all_gather, large, 10 * step + 2);
      run_and_check(*all, all_ranks(8), Kind::all_reduce_max, tiny, 10 * step + 3);
      if (in_middle) run_and_check(*middle_group, middle, Kind::ring, large, 10 * step + 4);
      run_and_check(*alone, std::vector<int>{rank}, Kind::all_reduce_sum, tiny, 10 * step + 5);
      all->barrier();
    }
  };
  CHECK(threads_problem(8, body) == "");
  CHECK(processes_problem(8, body) == "");
}

TEST_CASE("property: random sequences of operations in random memory") {
  const bool holds = rc::check([](uint32_t seed) {
    std::mt19937 choose(seed);
    const auto below = [&](uint32_t n) { return static_cast<int>(choose() % n); };
    const int size = 2 + below(4);
    struct Step {
      Kind kind;
      DType dtype;
      int64_t numel;
      uint32_t where;
    };
    std::vector<Step> steps;
    for (int i = 0; i < 30; ++i) {
      const Kind kind = kKinds[below(std::size(kKinds))];
      const DType dtype = kTypes[below(reduces(kind) ? 4 : 5)];
      const int64_t limit = below(8) == 0 ? 300'000 : below(2) == 0 ? 5'000 : 300;
      steps.push_back({kind, dtype, fit(kind, below(static_cast<uint32_t>(limit)), size),
                       static_cast<uint32_t>(choose())});
    }
    const std::string problem = threads_problem(size, [&](CommWorld& world) {
      const auto group = world.group(all_ranks(size));
      char* arena = static_cast<char*>(world.allocate(3 << 20));
      std::vector<double> heap(300'000);
      for (size_t i = 0; i < steps.size(); ++i) {
        const Step& step = steps[i];
        // A third resident everywhere, a third staged, a third mixed.
        const uint32_t mix = step.where % 3;
        const bool in_arena = mix == 0 || (mix == 2 && (step.where >> world.rank()) % 2 == 0);
        void* data = in_arena ? static_cast<void*>(arena + step.where % 512 * 8) : heap.data();
        run_and_check(*group, all_ranks(size), step.kind, Tensor(data, step.dtype, {step.numel}),
                      seed + i);
      }
    });
    RC_ASSERT(problem == "");
  });
  CHECK(holds);
}

TEST_CASE("send and recv: order, sizes above the buffer, both directions at once") {
  CHECK(threads_problem(3, [](CommWorld& world) {
          const auto group = world.group(all_ranks(3));
          const int64_t numel = (70 << 20) / 8;
          // 70 MiB do not fit in the buffer: the receiver has to take while the sender gives.
          if (world.rank() == 0 || world.rank() == 1) {
            std::vector<double> big(numel);
            const Tensor x(big.data(), DType::f64, {numel});
            if (world.rank() == 0) fill(x, 5, 0);
            if (world.rank() == 0) group->send(x, 1);
            if (world.rank() == 1) group->recv(x, 0);
            for (int64_t i = 0; i < numel; i += 101) expect(is_of(x, i, 5, 0), "the large message");
          }
          // Many small messages, all sent before the first is received, to and from everybody.
          for (int round = 0; round < 20; ++round) {
            for (int peer = 0; peer < 3; ++peer) {
              int32_t value = 1000 * world.rank() + round;
              if (peer != world.rank()) group->send(Tensor(&value, DType::i32, {1}), peer);
            }
          }
          for (int round = 0; round < 20; ++round) {
            for (int peer = 0; peer < 3; ++peer) {
              if (peer == world.rank()) continue;
              int32_t value = -1;
              group->recv(Tensor(&value, DType::i32, {1}), peer);
              expect(value == 1000 * peer + round, "messages arrive in order");
            }
          }
          const Tensor empty(nullptr, DType::f32, {0});
          if (world.rank() == 2) group->send(empty, 0);
          if (world.rank() == 0) group->recv(empty, 2);
        }) == "");
}

TEST_CASE("out of place gives the bits of in place wherever the whole and the part lie") {
  for (const int64_t numel : {600, 60'000, 1'200'000}) {
    CAPTURE(numel);
    CHECK(threads_problem(3, [&](CommWorld& world) {
            const auto group = world.group(all_ranks(3));
            const int64_t count = numel / 3;
            float* arena = static_cast<float*>(world.allocate(8 * static_cast<size_t>(numel)));
            std::vector<float> heap(static_cast<size_t>(2 * numel)), sum(count), whole(numel);
            const Tensor in_place(heap.data(), DType::f32, {numel});
            const auto same = [](const Tensor& x, const std::vector<float>& y) {
              return std::memcmp(x.data, y.data(), y.size() * sizeof(float)) == 0;
            };
            fill(in_place, 3, world.rank());
            group->all_gather(part_of(in_place, *group), in_place);
            std::copy_n(heap.begin(), numel, whole.begin());
            fill(in_place, 3, world.rank());
            group->reduce_scatter(in_place, part_of(in_place, *group));
            std::copy_n(part_of(in_place, *group).as<float>(), count, sum.begin());
            for (int where = 0; where < 5; ++where) {
              // The last time, every rank has another.
              const int own = where == 4 ? world.rank() + 1 : where;
              float* const first = own % 2 == 0 ? arena : heap.data();
              float* const second = (own / 2 % 2 == 0 ? arena : heap.data()) + numel;
              const Tensor all(first, DType::f32, {numel});
              const Tensor mine(second, DType::f32, {count});
              fill(all, 3, world.rank());
              group->reduce_scatter(all, mine);
              expect(same(mine, sum), "reduce_scatter");
              fill(all, 3, world.rank());
              std::memcpy(mine.data, part_of(all, *group).data, static_cast<size_t>(mine.bytes()));
              std::memset(all.data, 0xee, static_cast<size_t>(all.bytes()));
              group->all_gather(mine, all);
              expect(same(all, whole), "all_gather");
            }
          }) == "");
  }
}

TEST_CASE("arenas of different sizes") {
  const auto body = [](CommWorld& world) {
    const auto group = world.group(all_ranks(3));
    for (int round = 0; round < 2; ++round) {
      // Rank 1 asks for least; each uses the end of its own.
      const size_t bytes = size_t{1 << 20} * static_cast<size_t>(1 + (world.rank() + 2) % 3);
      char* arena = static_cast<char*>(world.allocate(bytes));
      char* data = arena + bytes - 400'000;
      for (const Kind kind : kKinds) {
        run_and_check(*group, all_ranks(3), kind, Tensor(data, DType::f32, {fit(kind, 100'000, 3)}),
                      7);
      }
    }
    expect(world.rank() != 0 || world.allocate(0) != nullptr, "no bytes");
    if (world.rank() != 0) world.allocate(10'000);
  };
  CHECK(threads_problem(3, body) == "");
  CHECK(processes_problem(3, body) == "");
}

TEST_CASE("traffic counts whole tensors of collectives and own messages") {
  const auto body = [](CommWorld& world) {
    for (const int64_t numel : {200, 2000, 800'000}) {
      const auto group = world.group(all_ranks(2));
      std::vector<float> data(static_cast<size_t>(2 * numel));
      const Tensor x(data.data(), DType::f32, {numel});
      const Tensor apart(data.data() + numel, DType::f32, {numel / 2});
      group->barrier();
      expect(group->traffic() == Traffic(), "a barrier has no payload");
      group->all_reduce(x);
      group->all_reduce(x.slice(0, 10), Reduce::max);
      expect(group->traffic() == Traffic{.all_reduce = 4 * numel + 40}, "all_reduce");
      Traffic before = group->traffic();
      group->reduce_scatter(x, part_of(x, *group));
      group->reduce_scatter(x, apart);
      expect(group->traffic() - before == Traffic{.reduce_scatter = 8 * numel}, "reduce_scatter");
      before = group->traffic();
      group->all_gather(part_of(x, *group), x);
      group->all_gather(apart, x);
      expect(group->traffic() - before == Traffic{.all_gather = 8 * numel}, "all_gather");
      before = group->traffic();
      group->broadcast(x, 1);
      expect(group->traffic() - before == Traffic{.broadcast = 4 * numel}, "broadcast");
      before = group->traffic();
      if (world.rank() == 0) group->send(x, 1);
      if (world.rank() == 1) group->recv(x, 0);
      expect(group->traffic() - before == Traffic{.send = world.rank() == 0 ? 4 * numel : 0},
             "send");
      before = group->traffic();
      const Tensor pieces(data.data() + numel, DType::f32, {numel});
      group->all_to_all(x, pieces);
      expect(group->traffic() - before == Traffic{.all_to_all = 2 * numel}, "all_to_all");
    }
  };
  CHECK(threads_problem(2, body) == "");
}

TEST_CASE("communicators outlive the world object that made them") {
  CHECK(threads_problem(2, [](CommWorld& world) {
          const auto group = world.group(all_ranks(2));
          for (int i = 0; i < 200; ++i) {
            const auto more = world.group(all_ranks(2));
            more->barrier();
          }
          group->barrier();
        }) == "");
}

TEST_CASE("a world of one needs no peers") {
  const auto world = make_self_world();
  CHECK(world->rank() == 0);
  CHECK(world->size() == 1);
  float* data = static_cast<float*>(world->allocate(100));
  CHECK(reinterpret_cast<uintptr_t>(data) % 4096 == 0);
  CHECK(world->allocate(0) != nullptr);
  for (int i = 0; i < 25; ++i) CHECK(data[i] == 0);
  const auto group = world->group(std::vector<int>{0});
  data[0] = 7;
  const Tensor x(data, DType::f32, {25});
  group->all_reduce(x);
  group->reduce_scatter(x, x);
  group->all_gather(x, x);
  group->broadcast(x, 0);
  group->barrier();
  CHECK(data[0] == 7);
  float other[25] = {};
  const Tensor apart(other, DType::f32, {25});
  group->reduce_scatter(x, apart);
  CHECK(other[0] == 7);
  other[24] = 9;
  group->all_gather(apart, x);
  CHECK(data[24] == 9);
  CHECK(group->traffic() == Traffic());
  CHECK_THROWS_AS(group->all_gather(x.slice(0, 24), x), Error);
  CHECK_THROWS_AS(group->reduce_scatter(x.slice(0, 20), x.slice(3, 20)), Error);
  CHECK_THROWS_AS(group->send(x, 0), Error);
  data[0] = 5;
  group->all_to_all(x, apart);
  CHECK(other[0] == 5);
  const std::vector<int64_t> all = {25}, less = {24};
  group->all_to_all_v(x, all, apart, all);
  CHECK_THROWS_AS(group->all_to_all_v(x, all, apart, less), Error);
  CHECK_THROWS_AS(group->all_to_all_v(x, all, apart.slice(0, 24), less), Error);
  CHECK_THROWS_AS(group->all_to_all_v(x, {}, apart, all), Error);
  const std::vector<int64_t> two = {20, 5}, others = {19, 6};
  CHECK_THROWS_AS(group->all_to_all_v(x, two, apart, two), Error);
  group->all_to_all_rounds(x, two, apart, two);
  CHECK_THROWS_AS(group->all_to_all_rounds(x, two, apart, others), Error);
  CHECK_THROWS_AS(group->all_to_all_rounds(x, two, apart, all), Error);
  CHECK_THROWS_AS(group->all_to_all_rounds(x, {}, apart, {}), Error);
  CHECK_THROWS_AS(group->all_to_all(x, x), Error);
  CHECK_THROWS_AS(group->all_to_all(x, Tensor(other, DType::i32, {25})), Error);
  CHECK_THROWS_AS(group->broadcast(x, 1), Error);
  CHECK_THROWS_AS(group->all_reduce(Tensor(data, DType::u8, {4})), Error);
  CHECK_THROWS_AS(world->group(std::vector<int>{0, 1}), Error);
}
