// The kernels of attention for tensor cores, on the host: the edges of their tiles, every path, and
// that the order of a block's warps, and of blocks that wait for one another, does not matter.
#include <set>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/device/attention_test.h"
#include "runtime/device/cuda/attention_order.h"
#include "support/sanitized.h"

namespace {

using namespace mtl::test::attention;
using mtl::AttentionShape;
using mtl::DType;
using mtl::test::kSanitized;

// By every kernel for tensor cores that takes it.
void check_kernels(const AttentionShape& s, DType dtype) {
  std::vector<Engine> engines = {kCuda};
  if (is_for_hopper(s, dtype)) {
    engines.push_back(kHopper);
    if (s.head_dim <= 128) engines.push_back(kHopperSplit);  // the wider ones have the one backward
  }
  check(s, dtype, engines);
}

TEST_CASE("attention: tensor cores at the edges of their tiles") {
  for (const DType dtype : k16Bits) {
    check_kernels(shape(1, 1, 1, 1, 64), dtype);
    check_kernels(shape(2, 15, 2, 1, 96), dtype);
    check_kernels(shape(1, 16, 1, 1, 128), dtype);
    check_kernels(shape(2, 17, 8, 1, 64), dtype);
    check_kernels(shape(1, 31, 1, 1, 128), dtype);
    check_kernels(shape(1, 33, 1, 1, 96), dtype);
    check_kernels(shape(1, 63, 4, 1, 128), dtype);
    check_kernels(shape(1, 64, 1, 1, 96), dtype);
    check_kernels(shape(1, 65, 1, 1, 128), dtype);
    check_kernels(shape(2, 127, 2, 2, 64), dtype);
    check_kernels(shape(1, 128, 2, 1, 128), dtype);
    check_kernels(shape(1, 129, 1, 1, 64), dtype);
    check_kernels(shape(1, 129, 1, 1, 128), dtype);
    check_kernels(shape(1, 200, 4, 2, 64), dtype);
    check_kernels(shape(1, 32, 2, 1, 96), dtype);
    check_kernels(shape(1, 97, 1, 1, 128), dtype);
    // Between the compiled dimensions: columns of zeros.
    check_kernels(shape(2, 33, 2, 1, 8), dtype);
    check_kernels(shape(1, 66, 1, 1, 40), dtype);
    check_kernels(shape(1, 66, 2, 1, 72), dtype);
    check_kernels(shape(1, 66, 2, 2, 120), dtype);
    // Of heads beyond 128 dK and dV are two kernels.
    check_kernels(shape(1, 1, 1, 1, 256), dtype);
    check_kernels(shape(1, 63, 2, 1, 256), dtype);
    check_kernels(shape(1, 65, 1, 1, 256), dtype);
    check_kernels(shape(2, 130, 4, 1, 256, 0.1f), dtype);
    check_kernels(shape(1, 49, 2, 2, 136), dtype);
    check_kernels(with_alibi(shape(1, 81, 2, 1, 192)), dtype);
    check_kernels(with_window(shape(1, 150, 2, 1, 256), 37), dtype);
    // On Hopper the first 64 queries of a tile see no key of the tile on the diagonal.
    check_kernels(shape(1, 128, 1, 1, 256), dtype);
    check_kernels(with_alibi(shape(1, 193, 2, 1, 256, 0.2f)), dtype);
    check_kernels(with_values(shape(1, 129, 2, 1, 192, 0.1f), 128), dtype);
    check_kernels(with_cap(shape(1, 65, 2, 1, 64, 0.1f), 0.5f), dtype);
    check_kernels(with_cap(shape(1, 97, 2, 1, 256), 2), dtype);
  }
  // Values narrower than keys.
  check_kernels(with_values(shape(1, 65, 2, 2, 192, 0.1f), 128), DType::bf16);
  check_kernels(with_values(shape(2, 33, 2, 1, 192), 120), DType::f16);
  check_kernels(shape(2, 95, 2, 1, 64), DType::bf16);
  check_kernels(shape(1, 193, 1, 1, 96), DType::f16);
  check_kernels(shape(1, 257, 2, 1, 64), DType::bf16);
}

TEST_CASE("attention: tensor cores and values narrower than keys") {
  // The kernels for DeepSeek's heads, which take the smaller ones too, and those for the widest.
  for (const int64_t seq : {1, 31, 32, 33, 63, 64, 65, 97, 129}) {
    check_kernels(with_values(shape(1, seq, 2, 2, 192), 128),
                  seq % 2 == 0 ? DType::bf16 : DType::f16);
  }
  for (const DType dtype : k16Bits) {
    check_kernels(with_values(shape(2, 130, 4, 2, 192, 0.1f), 128), dtype);
    check_kernels(with_values(with_alibi(shape(1, 81, 3, 1, 192)), 120), dtype);
    check_kernels(with_values(with_window(shape(1, 150, 2, 2, 192), 37), 128), dtype);
    check_kernels(with_values(with_cap(shape(1, 97, 2, 1, 192), 2), 128), dtype);
    check_kernels(with_values(shape(1, 66, 2, 1, 184), 8), dtype);
    check_kernels(with_values(shape(1, 66, 2, 1, 24), 16), dtype);
    check_kernels(with_values(shape(1, 66, 2, 2, 128), 64), dtype);  // not by Hopper's kernels
    check_kernels(with_values(shape(2, 65, 2, 1, 192), 136), dtype);
    check_kernels(with_values(shape(1, 65, 2, 1, 256, 0.1f), 128), dtype);
    check_with_documents(with_values(shape(2, 130, 2, 2, 192), 128), 40, dtype, {kCuda, kHopper});
  }
}

TEST_CASE("attention: tensor cores and heads beyond 128") {
  const auto deepseek = [](const AttentionShape& s) { return with_values(s, 128); };
  // Around a tile of keys or queries of any kernel, and some tiles on.
  for (const int64_t seq : {32, 47, 49, 64, 95, 97, 128, 129, 160, 193, 257, 300}) {
    const DType dtype = seq % 2 == 0 ? DType::bf16 : DType::f16;
    check_kernels(shape(1, seq, 2, 2, 256), dtype);
    check(deepseek(shape(1, seq, 1, 1, 192)), dtype, kHopper);
  }
  for (const DType dtype : k16Bits) {
    for (const int64_t window : {1, 40, 64, 100}) {
      check(with_window(shape(1, 270, 1, 1, 256), window), dtype, kHopper);
      check(deepseek(with_window(shape(1, 270, 1, 1, 192), window)), dtype, kHopper);
    }
    // A whole tile of keys that only some of a tile's queries see, and documents of one token.
    for (const unsigned mean : {1u, 30u, 90u}) {
      check_with_documents(shape(2, 200, 2, 1, 256, 0.1f), mean, dtype, {kHopper});
      check_with_documents(deepseek(shape(1, 300, 2, 1, 192)), mean, dtype, {kHopper});
    }
    check_with_documents(with_window(shape(2, 200, 4, 2, 256, 0.1f), 90), 30, dtype, {kHopper});
    // Words of dropout four at a time, and one by one.
    for (const int64_t seq : {132, 131}) {
      check(with_alibi(shape(2, seq, 3, 1, 256, 0.3f)), dtype, kHopper);
      check(deepseek(with_alibi(shape(3, seq, 4, 2, 192, 0.3f))), dtype, kHopper);
    }
    // These are the general kernels'.
    check(with_cap(deepseek(shape(1, 70, 2, 1, 192)), 2), dtype, kHopper);
    check(with_values(shape(1, 70, 2, 1, 256), 128), dtype, kHopper);
  }
}

TEST_CASE("attention: tensor cores and scores that are capped") {
  // Heads of 128 and 256 have kernels of Hopper's for them, of the others the general ones take
  // them; one kernel for every kind of limit.
  for (const int64_t dim : {128, 256}) {
    for (const int64_t seq : {32, 65, 129, 200, 270}) {
      AttentionShape s = with_cap(shape(1, seq, 2, 1, dim), seq < 100 ? 0.5f : 2.0f);
      if (seq < 100) s.scale = 1;  // nearly all are bent
      check_kernels(s, seq % 2 == 0 ? DType::bf16 : DType::f16);
    }
    for (const DType dtype : k16Bits) {
      check(with_cap(shape(2, 132, 4, 2, dim, 0.3f), 1), dtype, kHopper);
      check(with_cap(shape(1, 131, 2, 2, dim, 0.3f), 50), dtype, kHopper);
      check(with_cap(with_window(shape(1, 270, 2, 1, dim), 64), 1), dtype, kHopper);
      check_with_documents(with_cap(shape(2, 200, 2, 1, dim, 0.1f), 1), 30, dtype, {kHopper});
    }
  }
}

TEST_CASE("attention: tensor cores of a GPU with little shared memory") {
  struct Scope {
    size_t before = std::exchange(mtl::gpu_on_host::most_shared_bytes, size_t{99} << 10);
    ~Scope() { mtl::gpu_on_host::most_shared_bytes = before; }
  } scope;
  check(shape(1, 66, 2, 1, 64), DType::f16, kCuda);
  check(shape(1, 130, 2, 1, 96, 0.1f), DType::bf16, kCuda);
  check(with_alibi(shape(1, 130, 2, 2, 128)), DType::bf16, kCuda);
  check(shape(1, 100, 4, 2, 128, 0.1f), DType::f16, kCuda);
  check(shape(1, 100, 2, 1, 256, 0.1f), DType::bf16, kCuda);
  check(with_window(shape(1, 97, 2, 2, 256), 50), DType::f16, kCuda);
  check(with_values(shape(1, 100, 2, 1, 192, 0.1f), 128), DType::bf16, kCuda);
}

TEST_CASE("attention: blocks take heads in sections, and every tile once") {
  using mtl::cuda::block_order;
  using mtl::gpu_on_host::level2_bytes;
  CHECK(block_order(384, 8, 1, 1 << 18).section == 96);   // of 25 MB
  CHECK(block_order(64, 64, 4, 4 << 20).section == 24);   // groups of 4 share 4 MB
  CHECK(block_order(6, 2, 1, 1 << 18).section == 6);      // all
  CHECK(block_order(64, 64, 4, 100 << 20).section == 4);  // more than there is
  CHECK(block_order(201, 8, 1, 1 << 19).section == 41);   // 50 at most, and of one size
  CHECK(block_order(16, 64, 1, 100 << 20, 4).section == 4);
  for (const mtl::cuda::BlockOrder order : {mtl::cuda::BlockOrder{7, 3, 3}, {6, 4, 2}, {1, 5, 1}}) {
    std::set<std::pair<int, int>> seen;
    for (int block = 0; block < order.heads * order.tiles; ++block) {
      const auto [head, tile] = mtl::cuda::place_of_block(order, block);
      CHECK(seen.emplace(head, tile).second);
      CHECK((head >= 0 && head < order.heads && tile >= 0 && tile < order.tiles));
      // A section is done before the next one begins, and its longest tiles begin.
      CHECK(head / order.section == block / (order.section * order.tiles));
      if (tile > 0) CHECK(seen.count({head, tile - 1}) == 1);
    }
  }
  struct Scope {
    int64_t before = std::exchange(level2_bytes, 1 << 17);
    ~Scope() { level2_bytes = before; }
  } scope;
  check_kernels(shape(2, 150, 6, 2, 64), DType::bf16);
  check_kernels(shape(3, 140, 1, 1, 128), DType::f16);
}

TEST_CASE("attention: the path for everything on 16-bit types") {
  for (const DType dtype : k16Bits) {
    check(shape(2, 33, 2, 1, 64), dtype, kCudaMisaligned);
    check(with_alibi(shape(1, 65, 4, 2, 128, 0.2f)), dtype, kCudaMisaligned);
    check(shape(1, 40, 2, 2, 136), dtype, kCuda);
    check(with_alibi(shape(1, 35, 2, 1, 256, 0.2f)), dtype, kCuda);
    check(with_alibi(shape(1, 40, 3, 1, 12, 0.2f)), dtype, kCuda);
    check(with_values(shape(1, 40, 3, 1, 24, 0.2f), 12), dtype, kCuda);
    check(with_values(shape(1, 65, 4, 2, 192, 0.1f), 128), dtype, kCudaMisaligned);
  }
  check(with_alibi(shape(2, 35, 2, 1, 256, 0.2f)), DType::f32, kCudaMisaligned);
}

TEST_CASE("attention: dropout and ALiBi together on tensor cores") {
  for (const DType dtype : k16Bits) {
    check_kernels(with_alibi(shape(2, 68, 4, 1, 64, 0.3f)), dtype);
    check_kernels(with_alibi(shape(1, 131, 2, 1, 128, 0.1f)), dtype);  // words one by one
    check_kernels(with_alibi(shape(1, 132, 2, 2, 96, 0.5f)), dtype);
  }
}

TEST_CASE("attention: which of our kernels a call takes") {
  // EmulatedCuda's Queue is protected.
  struct Gpu final : mtl::test::EmulatedCuda {
    using EmulatedCuda::EmulatedCuda;
    std::string kind(const AttentionShape& s, DType dtype) {
      return mtl::cuda::own_attention_kind(*this, s, dtype);
    }
  };
  Gpu hopper(3, mtl::kernel_scratch::Backward::measured), other(3);
  for (const int64_t dim : {64, 96, 128}) {
    CHECK(hopper.kind(shape(1, 32, 2, 1, dim), DType::bf16) == "wgmma");
    CHECK(hopper.kind(shape(1, 31, 2, 1, dim), DType::f16) == "mma");
    CHECK(hopper.kind(shape(1, 64, 2, 1, dim), DType::f32) == "no tensor cores");
    CHECK(other.kind(shape(1, 64, 2, 1, dim), DType::bf16) == "mma");
  }
  CHECK(hopper.kind(shape(1, 64, 2, 1, 80), DType::bf16) == "mma");
  CHECK(hopper.kind(shape(1, 64, 2, 1, 256), DType::bf16) == "wgmma");
  CHECK(hopper.kind(shape(1, 31, 2, 1, 256), DType::bf16) == "mma");
  for (const int64_t dim : {128, 256}) {
    CHECK(hopper.kind(with_cap(shape(1, 64, 2, 1, dim), 2), DType::bf16) == "wgmma");
  }
  for (const int64_t dim : {64, 96}) {
    CHECK(hopper.kind(with_cap(shape(1, 64, 2, 1, dim), 2), DType::bf16) == "mma");
  }
  CHECK(hopper.kind(with_values(with_cap(shape(1, 64, 2, 1, 192), 2), 128), DType::bf16) == "mma");
  Gpu split(3, mtl::kernel_scratch::Backward::split);
  CHECK(split.kind(with_cap(shape(1, 64, 2, 1, 128), 2), DType::bf16) == "mma");
  CHECK(split.kind(with_cap(shape(1, 64, 2, 1, 256), 2), DType::bf16) == "wgmma");
  CHECK(other.kind(shape(1, 64, 2, 1, 256), DType::bf16) == "mma");
  CHECK(hopper.kind(shape(1, 64, 2, 1, 192), DType::bf16) == "mma");
  CHECK(hopper.kind(shape(1, 64, 2, 1, 264), DType::bf16) == "no tensor cores");
  CHECK(hopper.kind(with_values(shape(1, 64, 2, 1, 128), 128), DType::bf16) == "wgmma");
  CHECK(hopper.kind(with_values(shape(1, 64, 2, 1, 128), 64), DType::bf16) == "mma");
  CHECK(hopper.kind(with_values(shape(1, 64, 2, 1, 192), 128), DType::f16) == "wgmma");
  CHECK(hopper.kind(with_values(shape(1, 64, 2, 1, 192), 120), DType::f16) == "mma");
  CHECK(hopper.kind(with_values(shape(1, 64, 2, 1, 256), 128), DType::bf16) == "mma");
  CHECK(hopper.kind(with_values(shape(1, 64, 2, 1, 192), 124), DType::bf16) == "no tensor cores");
}

// Sequences of many tiles, so that stages are filled again and again; copies that arrive in any
// order.
TEST_CASE("attention: stages of Hopper's copy engine") {
  using mtl::gpu_on_host::Schedule;
  for (const AttentionShape& s :
       {shape(1, 520, 1, 1, 64), with_window(shape(1, 400, 2, 1, 96), 300),
        shape(1, 330, 1, 1, 128), shape(1, 330, 2, 1, 256), with_cap(shape(1, 330, 1, 1, 128), 1),
        with_cap(shape(1, 330, 2, 1, 256), 1),
        with_values(with_window(shape(1, 400, 1, 1, 192), 300), 128),
        with_values(shape(1, 330, 2, 1, 192), 128)}) {
    for (const Engine& engine : {kHopper, kHopperSplit}) {
      if (s.head_dim > 128 && engine.kind == Engine::hopper_split) continue;
      CAPTURE(engine.name());
      CAPTURE(s.head_dim);
      const Run want = run(s, DType::bf16, 1, engine);
      for (const unsigned seed : {1u, 2u, 3u, 4u}) {
        if (kSanitized && seed > 1) continue;  // the same memory in another order
        CAPTURE(seed);
        const mtl::gpu_on_host::ScheduleScope scope({Schedule::random, seed % 2 == 0, seed});
        const Run got = run(s, DType::bf16, 1, engine);
        CHECK(got.out == want.out);
        CHECK(got.lse == want.lse);
        CHECK(got.dqkv == want.dqkv);
      }
    }
  }
}

// The backward whose blocks add to the same queries, one after the other: several run at once, and
// as often as not one comes to a tile before those whose turn it is.
TEST_CASE("attention: blocks that wait for one another add in their order") {
  using mtl::gpu_on_host::Schedule;
  for (const AttentionShape& s :
       {shape(1, 900, 2, 1, 64), with_alibi(shape(2, 520, 2, 1, 64, 0.1f)),
        with_window(shape(1, 700, 2, 2, 128), 300), shape(1, 520, 4, 1, 128)}) {
    CAPTURE(s.head_dim);
    const Run want = run(s, DType::bf16, 1, kHopper);
    for (const unsigned resident : {2u, 3u}) {
      if (kSanitized && resident > 2) continue;
      CAPTURE(resident);
      const mtl::gpu_on_host::ScheduleScope scope(
          {.order = Schedule::random, .seed = resident, .resident = resident});
      CHECK(run(s, DType::bf16, 1, kHopper).dqkv == want.dqkv);
    }
  }
}

TEST_CASE("attention: the order of a block's warps does not matter") {
  using mtl::gpu_on_host::Schedule;
  const AttentionShape shapes[] = {
      with_alibi(shape(1, 200, 2, 1, 64, 0.1f)),
      shape(1, 130, 2, 1, 96, 0.1f),
      shape(1, 160, 2, 1, 128),
      shape(1, 200, 1, 1, 256),
      shape(1, 130, 2, 1, 256, 0.1f),
      with_values(with_alibi(shape(1, 150, 2, 1, 192, 0.1f)), 128),
  };
  for (const AttentionShape& s : shapes) {
    for (const Engine& engine : {kCuda, kHopper, kHopperSplit, kCudaMisaligned}) {
      CAPTURE(engine.name());
      CAPTURE(s.head_dim);
      const Run want = run(s, DType::bf16, 1, engine);
      for (const Schedule& schedule :
           {Schedule{Schedule::in_step, true}, Schedule{Schedule::first_ahead, false},
            Schedule{Schedule::first_ahead, true}, Schedule{Schedule::last_ahead, false},
            Schedule{Schedule::last_ahead, true}, Schedule{Schedule::random, true}}) {
        if (engine.kind == Engine::cuda_misaligned && schedule.order != Schedule::last_ahead) {
          continue;  // its warps share nothing
        }
        if (kSanitized && schedule.order != Schedule::last_ahead) continue;
        CAPTURE(static_cast<int>(schedule.order));
        CAPTURE(schedule.early_copies);
        const mtl::gpu_on_host::ScheduleScope scope(schedule);
        const Run got = run(s, DType::bf16, 1, engine);
        CHECK(got.out == want.out);
        CHECK(got.lse == want.lse);
        CHECK(got.dqkv == want.dqkv);
      }
    }
  }
}

}  // namespace
