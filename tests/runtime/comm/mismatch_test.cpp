// Calls that do not fit each other, or nothing at all, are refused on every rank, and all are told
// what was called where.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/error.h"
#include "runtime/comm/harness.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("ranks that do different things are told which") {
  Body body;
  std::vector<std::string> parts = {"operation 2 of the group of ranks 0, 1, 2", "rank 0 calls",
                                    "rank 2 calls"};
  // Operation 1 is joining the group.
  const auto in_group = [](auto action) {
    return [action](CommWorld& world) {
      Buffer buffer;
      const auto group = world.group(all_ranks(3));
      action(*group, buffer, world.rank() == 2);
    };
  };
  SUBCASE("operation") {
    body = in_group([](Communicator& group, Buffer& buffer, bool odd) {
      odd ? group.all_gather(part_of(buffer.tensor(6), group), buffer.tensor(6))
          : group.all_reduce(buffer.tensor(6));
    });
    parts.insert(parts.end(), {"all_reduce(6 x F32, sum)", "all_gather(6 x F32)"});
  }
  SUBCASE("size, on both sides of the small path") {
    body = in_group([](Communicator& group, Buffer& buffer, bool odd) {
      group.all_reduce(buffer.tensor(odd ? 10 : 9000));
    });
    parts.insert(parts.end(), {"9000 x F32", "10 x F32"});
  }
  SUBCASE("type") {
    body = in_group([](Communicator& group, Buffer& buffer, bool odd) {
      group.all_reduce(buffer.tensor(10, odd ? DType::bf16 : DType::i32));
    });
    parts.insert(parts.end(), {"10 x BF16", "10 x I32"});
  }
  SUBCASE("reduction") {
    body = in_group([](Communicator& group, Buffer& buffer, bool odd) {
      group.all_reduce(buffer.tensor(10), odd ? Reduce::max : Reduce::sum);
    });
    parts.insert(parts.end(), {"max", "sum"});
  }
  SUBCASE("root") {
    body = in_group([](Communicator& group, Buffer& buffer, bool odd) {
      group.broadcast(buffer.tensor(5000), odd ? 1 : 0);
    });
    parts.insert(parts.end(), {"root 0", "root 1"});
  }
  SUBCASE("a barrier") {
    body = in_group([](Communicator& group, Buffer& buffer, bool odd) {
      odd ? group.barrier() : group.all_reduce(buffer.tensor(5));
    });
    parts.push_back("rank 2 calls barrier");
  }
  for (const Transport transport : kTransports) {
    CAPTURE(name_of(transport));
    check_all(run_threads(3, body, kLong, transport), "comm.mismatch", parts);
  }
}

TEST_CASE("a message of another size or type is refused on both sides") {
  const auto body = [](CommWorld& world) {
    Buffer buffer;
    const auto group = world.group(all_ranks(2));
    if (world.rank() == 0) group->send(buffer.tensor(10), 1);
    if (world.rank() == 1) group->recv(buffer.tensor(11), 0);
    group->barrier();
  };
  for (const Transport transport : kTransports) {
    check_all(run_threads(2, body, kLong, transport), "comm.mismatch",
              {"rank 0 sends 10 x F32", "rank 1 receives 11 x F32"});
  }
}

TEST_CASE("all_to_all: a piece of another length than expected is refused and named") {
  for (const Transport transport : kTransports) {
    for (const int64_t piece : {10, 2'000, 100'000}) {
      CAPTURE(name_of(transport));
      CAPTURE(piece);
      const auto body = [&](CommWorld& world) {
        const auto group = world.group(all_ranks(3));
        std::vector<float> from(static_cast<size_t>(3 * piece)), to(from.size());
        std::vector<int64_t> send(3, piece), recv(3, piece);
        if (world.rank() == 2) recv[1] -= 1;
        const int64_t received = 3 * piece - (world.rank() == 2 ? 1 : 0);
        group->all_to_all_v(Tensor(from.data(), DType::f32, {3 * piece}), send,
                            Tensor(to.data(), DType::f32, {received}), recv);
        group->barrier();
      };
      const std::string size = std::to_string(piece), less = std::to_string(piece - 1);
      check_all(run_threads(3, body, kLong, transport), "comm.mismatch",
                {"rank 1 sends " + size + " x F32", "rank 2 receives " + less + " x F32"});
    }
  }
}

TEST_CASE("arguments that cannot be right are refused before anything moves") {
  CHECK(threads_problem(2, [](CommWorld& world) {
          Buffer buffer;
          const auto group = world.group(all_ranks(2));
          const auto refused = [](auto action) {
            try {
              action();
            } catch (const Error& error) {
              return error.diagnostics().front().code == "comm.argument";
            }
            return false;
          };
          expect(refused([&] { group->all_reduce(buffer.tensor(4, DType::u8)); }), "u8");
          const auto both_refuse = [&](Tensor all, Tensor mine, const std::string& what) {
            expect(refused([&] { group->reduce_scatter(all, mine); }), what + ", reduce_scatter");
            expect(refused([&] { group->all_gather(mine, all); }), what + ", all_gather");
          };
          const Tensor all = buffer.tensor(6);
          const Tensor apart = Tensor(buffer.data.data() + 6, DType::f32, {3});
          both_refuse(buffer.tensor(5), buffer.tensor(5).slice(0, 2), "5 over 2");
          both_refuse(all, apart.slice(0, 2), "too small a part");
          both_refuse(all, Tensor(apart.data, DType::bf16, {3}), "another type");
          both_refuse(all, all.slice(1, 3), "an overlap");
          both_refuse(all, all.slice(world.rank() == 0 ? 3 : 0, 3), "the other's range");
          both_refuse(buffer.tensor(9).slice(2, 6), all.slice(0, 3), "an overlap of the beginning");
          expect(refused([&] {
                   group->reduce_scatter(Tensor(all.data, DType::u8, {6}),
                                         Tensor(apart.data, DType::u8, {3}));
                 }),
                 "u8");
          expect(refused([&] { group->broadcast(buffer.tensor(5), 2); }), "root");
          expect(refused([&] { group->send(buffer.tensor(5), world.rank()); }), "self");
          expect(refused([&] { group->recv(buffer.tensor(5), -1); }), "peer");
          expect(refused([&] { world.group(std::vector<int>{1, 0}); }), "descending");
          expect(refused([&] { world.group(std::vector<int>{0, 1, 2}); }), "outside");
          expect(refused([&] { world.group(std::vector<int>{1 - world.rank()}); }), "not member");
          expect(refused([&] { world.group(std::vector<int>{}); }), "empty");
          group->barrier();
        }) == "");
}
