// Attention of the CPU and of the CUDA kernels (on the host) against a double-precision reference,
// finite differences of that reference, and the invariances: number of threads, repetition.
#include <algorithm>
#include <cmath>
#include <omp.h>
#include <vector>

#include <Random123/philox.h>
#include <doctest/doctest.h>

#include "common/error.h"
#include "runtime/device/attention_test.h"
#include "runtime/device/cpu/kernels/attention_kernels.h"

namespace {

using namespace mtl::test::attention;
using mtl::AttentionShape;
using mtl::DType;
using mtl::Tensor;

TEST_CASE("attention: forward and backward over awkward shapes") {
  for (const DType dtype : kTypes) {
    check(shape(1, 1, 1, 1, 1), dtype);
    check(shape(1, 2, 1, 1, 3), dtype);
    check(shape(2, 17, 3, 1, 5), dtype);
    check(shape(1, 63, 2, 2, 33), dtype);
    check(shape(1, 64, 2, 2, 64), dtype);
    check(shape(2, 65, 4, 2, 64), dtype);
    check(shape(1, 127, 2, 1, 96), dtype);
    check(shape(1, 130, 1, 1, 128), dtype);
    check(shape(1, 200, 6, 2, 32), dtype);
    check(shape(1, 257, 2, 2, 80), dtype);
  }
}

TEST_CASE("attention: values of fewer elements than keys") {
  for (const DType dtype : kTypes) {
    check(with_values(shape(1, 1, 1, 1, 2), 1), dtype);
    check(with_values(shape(2, 17, 3, 1, 5), 3), dtype);
    check(with_values(shape(1, 65, 2, 2, 24), 16), dtype);
    check(with_values(shape(2, 70, 4, 2, 40, 0.2f), 8), dtype);
    check(with_values(shape(1, 130, 2, 1, 128), 64), dtype);
    check(with_values(shape(1, 100, 2, 2, 136, 0.1f), 72), dtype);
    check(with_values(with_window(shape(1, 150, 2, 2, 192), 40), 128), dtype);
    check_with_documents(with_values(with_alibi(shape(2, 130, 2, 1, 192)), 128), 40, dtype);
    check(with_values(with_cap(shape(1, 66, 2, 1, 200), 2), 168), dtype);
  }
}

TEST_CASE("attention: dropout follows the global element index") {
  for (const DType dtype : kTypes) {
    check(shape(2, 64, 2, 1, 32, 0.1f), dtype);
    check(shape(1, 67, 2, 2, 32, 0.3f), dtype);  // rows that do not start at a multiple of 4
    check(shape(1, 130, 4, 2, 16, 0.5f), dtype);
    check(shape(1, 132, 2, 1, 16, 0.1f), dtype);
  }
}

TEST_CASE("attention: ALiBi of the global head") {
  for (const DType dtype : kTypes) {
    check(with_alibi(shape(1, 1, 1, 1, 1)), dtype);
    check(with_alibi(shape(2, 17, 3, 1, 5)), dtype);
    check(with_alibi(shape(1, 64, 2, 2, 64)), dtype);
    check(with_alibi(shape(2, 130, 6, 2, 33)), dtype);
    check(with_alibi(shape(1, 257, 4, 2, 64, 0.1f)), dtype);
    check(with_alibi(shape(1, 67, 13, 1, 16, 0.3f)), dtype);  // 16 heads in all: slopes to 2^-7.5
  }
}

TEST_CASE("attention: nothing is seen across the documents of a sequence") {
  for (const DType dtype : kTypes) {
    check_with_documents(shape(1, 1, 1, 1, 1), 2, dtype);
    check_with_documents(shape(2, 17, 3, 1, 5), 3, dtype);
    check_with_documents(shape(2, 65, 4, 2, 64), 20, dtype);
    check_with_documents(shape(1, 130, 2, 1, 128), 40, dtype);
    check_with_documents(with_alibi(shape(2, 257, 2, 2, 80, 0.1f)), 90, dtype);
    check_with_documents(shape(1, 260, 4, 2, 96, 0.3f), 1000, dtype);
  }
  for (const DType dtype : k16Bits) {
    check_with_documents(shape(2, 200, 2, 1, 64, 0.1f), 30, dtype, {kCudaMisaligned});
    check_with_documents(shape(2, 300, 2, 1, 64), 1, dtype, {kCuda});  // each token on its own
  }
}

TEST_CASE("attention: a sliding window") {
  for (const DType dtype : kTypes) {
    check(with_window(shape(2, 17, 3, 1, 5), 1), dtype);
    check(with_window(shape(2, 65, 4, 2, 64), 17), dtype);
    // Blocks of keys that are hidden as a whole, at scales that round otherwise.
    for (const int64_t head_dim : {16, 40, 96}) {
      for (const int64_t window : {13, 50, 64}) {
        check(with_window(shape(1, 150, 2, 1, head_dim), window), dtype);
      }
    }
    check(with_window(shape(1, 200, 2, 1, 64, 0.1f), 64), dtype);
    check(with_window(with_alibi(shape(1, 257, 2, 2, 33)), 65), dtype);
    check(with_window(shape(1, 66, 1, 1, 128), 66), dtype);
    check(with_window(shape(1, 66, 1, 1, 96), 1000), dtype);
    check_with_documents(with_window(shape(2, 257, 4, 1, 64), 40), 50, dtype);
  }
  check(with_window(shape(1, 130, 2, 1, 40), 33), DType::bf16, kCudaMisaligned);
}

TEST_CASE("attention: scores that are capped") {
  // Caps that bend nearly all scores, some, and hardly any. The bounds are for scores of some
  // units.
  for (const DType dtype : kTypes) {
    for (const float cap : {0.3f, 2.0f, 50.0f}) {
      CAPTURE(cap);
      AttentionShape s = with_cap(shape(2, 70, 4, 2, 40), cap);
      if (cap < 10) s.scale = 1;
      check(s, dtype);
    }
    check(with_cap(with_window(shape(1, 150, 2, 1, 64, 0.1f), 40), 1), dtype);
    check_with_documents(with_cap(shape(1, 130, 2, 1, 128), 0.5f), 40, dtype);
  }
  check(with_cap(shape(1, 66, 2, 1, 64), 1), DType::bf16, kCudaMisaligned);
}

TEST_CASE("attention: what a document gives does not depend on what lies before it") {
  // As far as blocks go together the bits are the same: a document at the start of a block of 64.
  constexpr int64_t kFirst = 128, kSeq = 250, kDim = 32, kIn = 4 * kDim, kWide = 2 * kDim;
  for (const DType dtype : kTypes) {
    AttentionShape alone = shape(1, kSeq - kFirst, 2, 1, kDim), packed = shape(1, kSeq, 2, 1, kDim);
    std::vector<int32_t> first_key(kSeq, 0);
    std::fill(first_key.begin() + kFirst, first_key.end(), static_cast<int32_t>(kFirst));
    packed.first_key = Tensor(first_key.data(), DType::i32, {kSeq});
    const std::vector<double> values = random_values(kSeq * kIn, 3, 1);
    Buffer all(dtype, values), own(dtype, {values.begin() + kFirst * kIn, values.end()});
    Buffer all_out(dtype, std::vector<double>(kSeq * kWide)),
        all_lse(DType::f32, std::vector<double>(2 * kSeq));
    Buffer own_out(dtype, std::vector<double>((kSeq - kFirst) * kWide)),
        own_lse(DType::f32, std::vector<double>(2 * (kSeq - kFirst)));
    const Engine engine;
    engine.forward(
        {packed, all.tensor(kSeq, kIn), all_out.tensor(kSeq, kWide), all_lse.tensor(2, kSeq)});
    engine.forward({alone, own.tensor(kSeq - kFirst, kIn), own_out.tensor(kSeq - kFirst, kWide),
                    own_lse.tensor(2, kSeq - kFirst)});
    const std::vector<double> got = all_out.values();
    CHECK(std::vector<double>(got.begin() + kFirst * kWide, got.end()) == own_out.values());
  }
}

TEST_CASE("attention: a scale that is not positive") {
  for (const float scale : {-0.125f, 0.0f}) {
    AttentionShape s = shape(1, 40, 2, 1, 64);
    s.scale = scale;
    for (const DType dtype : kTypes) check(s, dtype, kCuda);
  }
}

TEST_CASE("attention: the last queries alone are the same as of the whole sequence") {
  for (const DType dtype : kTypes) {
    for (const int64_t first : {0, 1, 63, 64, 128, 130, 199, 200}) {
      for (const Engine& engine : {Engine{}, kCuda, kHopper, kCudaMisaligned}) {
        if (engine.kind == Engine::cuda_misaligned && dtype != DType::f16) continue;
        if (engine.kind == Engine::hopper && dtype == DType::f32) continue;
        const int64_t dim = engine.kind == Engine::hopper ? 256 : 64, in = 4 * dim, wide = 2 * dim;
        AttentionShape s = with_alibi(shape(1, 200, 2, 1, dim, 0.1f));
        CAPTURE(engine.name());
        CAPTURE(first);
        const auto forward = [&](int64_t first_query) {
          s.first_query = first_query;
          Buffer qkv(dtype, random_values(200 * in, 1, 1), engine.offset());
          Buffer out(dtype, std::vector<double>(static_cast<size_t>(200 * wide)), engine.offset());
          Buffer lse(DType::f32, std::vector<double>(400));
          engine.forward({s, qkv.tensor(200, in), out.tensor(200, wide), lse.tensor(2, 200)});
          return out.values();
        };
        const std::vector<double> whole = forward(0), part = forward(first);
        const auto skipped = static_cast<std::ptrdiff_t>(first * wide);
        CHECK(std::equal(part.begin() + skipped, part.end(), whole.begin() + skipped));
      }
    }
  }
}

TEST_CASE("attention: ALiBi of a part of the heads is the same as of all heads") {
  AttentionShape whole = with_alibi(shape(1, 100, 6, 6, 16));
  whole.first_head = 0;
  whole.total_heads = 6;
  AttentionShape part = whole;
  part.heads = part.kv_heads = 2;
  part.first_head = 4;
  const int64_t dim = 16, wide = 6 * dim;
  for (const Engine& engine : {Engine{}, kCuda}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(engine.name());
      const Run all = run(whole, dtype, 1, engine);
      std::vector<double> qkv;
      for (int64_t row = 0; row < 100; ++row) {
        for (int64_t kind = 0; kind < 3; ++kind) {
          const auto from = all.qkv.begin() + row * 3 * wide + kind * wide + 4 * dim;
          qkv.insert(qkv.end(), from, from + 2 * dim);
        }
      }
      Buffer in(dtype, qkv);
      Buffer out(dtype, std::vector<double>(100 * 32)), lse(DType::f32, std::vector<double>(200));
      engine.forward({part, in.tensor(100, 96), out.tensor(100, 32), lse.tensor(2, 100)});
      std::vector<double> want;
      for (int64_t row = 0; row < 100; ++row) {
        const auto from = all.out.begin() + row * wide + 4 * dim;
        want.insert(want.end(), from, from + 2 * dim);
      }
      CHECK(out.values() == want);
    }
  }
}

TEST_CASE("attention: ALiBi of more heads than travel at once") {
  check(with_alibi(shape(1, 3, 300, 300, 4)), DType::f32, kCuda);
}

TEST_CASE("alibi_slope: the published slopes") {
  // arXiv 2108.12409, section 3: 8 heads have 1/2, 1/4 ... 1/256; 16 heads begin with 2^-0.5.
  for (int64_t head = 0; head < 8; ++head) {
    CHECK(mtl::alibi_slope(head, 8) == std::ldexp(1.0f, -static_cast<int>(head + 1)));
  }
  CHECK(mtl::alibi_slope(0, 16) == doctest::Approx(std::exp2(-0.5)).epsilon(1e-7));
  CHECK(mtl::alibi_slope(15, 16) == 0x1p-8f);
  CHECK(mtl::alibi_slope(0, 1) == 0x1p-8f);
  // BLOOM 560M's rule for 12 heads: those of 8, then 2^-0.5, 2^-1.5, 2^-2.5, 2^-3.5.
  for (int64_t head = 0; head < 8; ++head) {
    CHECK(mtl::alibi_slope(head, 12) == mtl::alibi_slope(head, 8));
  }
  for (int64_t head = 8; head < 12; ++head) {
    const double power = -0.5 - static_cast<double>(head - 8);
    CHECK(mtl::alibi_slope(head, 12) == doctest::Approx(std::exp2(power)).epsilon(1e-7));
  }
  CHECK(mtl::alibi_slope(2, 3) == mtl::alibi_slope(0, 4));
}

TEST_CASE("attention: backward agrees with finite differences of the reference") {
  for (const bool limited : {false, true}) {
    AttentionShape s = with_alibi(shape(1, 70, 2, 1, 8, 0.2f));
    Documents documents(s, 25, 3);
    if (limited) s = documents.of(with_window(s, 20));
    const Run got = run(s, DType::f32), cuda = run(s, DType::f32, 1, kCuda);
    const auto objective = [&](const std::vector<double>& qkv) {
      const Reference r = reference(s, qkv, nullptr);
      double sum = 0;
      for (size_t i = 0; i < r.out.size(); ++i) sum += r.out[i] * got.dout[i];
      return sum;
    };
    for (size_t at = 0; at < got.qkv.size(); at += 97) {
      std::vector<double> qkv = got.qkv;
      const double h = 1e-5;
      qkv[at] += h;
      const double up = objective(qkv);
      qkv[at] -= 2 * h;
      const double slope = (up - objective(qkv)) / (2 * h);
      CHECK(std::abs(slope - got.dqkv[at]) <= 2e-5);  // f32 gradients of size 1 from 70 terms
      CHECK(std::abs(slope - cuda.dqkv[at]) <= 2e-5);
    }
  }
}

TEST_CASE("attention: large scores neither overflow nor lose the maximum") {
  const AttentionShape s = shape(1, 100, 1, 1, 32);
  for (const Engine& engine : {Engine{}, kCuda}) {
    for (const DType dtype : kTypes) {
      CAPTURE(engine.name());
      const Run got = run(s, dtype, 60, engine);  // scores up to several thousand
      const Reference want = reference(s, got.qkv, &got.dout);
      // Scores of size 5000 carry f32 errors of 5000 * 2^-22, and so do probabilities, times values
      // 60; these and what is stored are rounded to 16 bits.
      const double unit = dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
      CHECK(largest_difference(got.lse, want.lse) <= 5000 * 0x1p-21);
      CHECK(largest_difference(got.out, want.out) <= 60 * (5000 * 0x1p-20 + 2 * unit));
    }
  }
}

TEST_CASE("attention: bit-equal for every number of threads and from run to run") {
  const int threads = omp_get_max_threads();
  for (const DType dtype : kTypes) {
    const AttentionShape s = with_alibi(shape(1, 300, 3, 1, 64, 0.1f));
    omp_set_num_threads(1);
    const Run one = run(s, dtype);
    for (const int n : {1, 2, 3, 7}) {
      omp_set_num_threads(n);
      const Run many = run(s, dtype);
      CHECK(one.out == many.out);
      CHECK(one.lse == many.lse);
      CHECK(one.dqkv == many.dqkv);
    }
  }
  omp_set_num_threads(threads);
}

TEST_CASE("attention: Philox words are Random123's on every instruction set") {
  const auto check_table = [](const mtl::AttentionKernels& kernels) {
    for (const uint64_t first : {0ull, 5ull, 0xfffffff8ull, 0xfffffffffffffff8ull}) {
      uint32_t words[64];
      kernels.philox16(first, 0xfeedfacecafebeefull, words);
      for (uint64_t i = 0; i < 16; ++i) {
        const uint64_t counter = first + i;
        const auto want = r123::Philox4x32()(
            {{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}},
            {{0xcafebeefu, 0xfeedfaceu}});
        for (size_t w = 0; w < 4; ++w) CHECK(words[4 * i + w] == want[w]);
      }
    }
  };
  check_table(mtl::base::kAttentionKernels);
  if (mtl::cpu_isa() >= mtl::Isa::avx2) check_table(mtl::avx2::kAttentionKernels);
  if (mtl::cpu_isa() >= mtl::Isa::avx512) check_table(mtl::avx512::kAttentionKernels);
}

TEST_CASE("attention: arguments that do not fit are refused") {
  std::vector<float> memory(4096);
  const auto matrix = [&](int64_t r, int64_t c) {
    return Tensor(memory.data(), DType::f32, {r, c});
  };
  for (const Engine& attention : {Engine{}, kCuda}) {
    AttentionShape s = shape(1, 4, 3, 2, 8);
    CHECK_THROWS_AS(attention.forward({s, matrix(4, 56), matrix(4, 24), matrix(3, 4)}), mtl::Error);
    s.kv_heads = 1;
    CHECK_THROWS_AS(attention.forward({s, matrix(4, 41), matrix(4, 24), matrix(3, 4)}), mtl::Error);
    CHECK_THROWS_AS(attention.forward({s, matrix(4, 40), matrix(4, 24), matrix(3, 3)}), mtl::Error);
    s.alibi = true;
    s.total_heads = 4;  // and the local heads would be 2 to 4
    CHECK_THROWS_AS(attention.forward({s, matrix(4, 40), matrix(4, 24), matrix(3, 4)}), mtl::Error);
    s.alibi = false;
    s.dropout.probability = 1;
    CHECK_THROWS_AS(attention.forward({s, matrix(4, 40), matrix(4, 24), matrix(3, 4)}), mtl::Error);
    s.dropout.probability = 0;
    s.window = -1;
    CHECK_THROWS_AS(attention.forward({s, matrix(4, 40), matrix(4, 24), matrix(3, 4)}), mtl::Error);
    s.window = 0;
    s.first_key = Tensor(memory.data(), DType::i32, {3});
    CHECK_THROWS_AS(attention.forward({s, matrix(4, 40), matrix(4, 24), matrix(3, 4)}), mtl::Error);
    s.first_key = {};
    CHECK_THROWS_AS(attention.backward({s, matrix(4, 40), matrix(4, 24), matrix(3, 4),
                                        matrix(4, 23), matrix(4, 40)}),
                    mtl::Error);
  }
}

}  // namespace
