// CpuAttention against a double-precision reference that stores the whole score matrix, finite
// differences of that reference, and the invariances: number of threads, repetition.
#include "runtime/device/cpu/attention.h"

#include <cmath>
#include <cstring>
#include <omp.h>
#include <random>
#include <vector>

#include <Random123/philox.h>
#include <doctest/doctest.h>

#include "common/error.h"
#include "runtime/device/cpu/isa.h"
#include "runtime/device/cpu/kernels/attention_kernels.h"
#include "runtime/device/ops_test.h"

namespace {

using mtl::AttentionShape;
using mtl::DType;
using mtl::Tensor;

uint16_t to_bf16(double value) {
  const float x = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
double from_bf16(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// Memory of any type; f16 by libgcc's conversions.
struct Buffer {
  DType dtype;
  std::vector<float> f32;
  std::vector<uint16_t> bf16;
  std::vector<_Float16> f16;
  Buffer(DType type, const std::vector<double>& values) : dtype(type) {
    for (const double x : values) {
      if (type == DType::f32) f32.push_back(static_cast<float>(x));
      if (type == DType::bf16) bf16.push_back(to_bf16(x));
      if (type == DType::f16) f16.push_back(static_cast<_Float16>(x));
    }
  }
  Tensor tensor(int64_t rows, int64_t cols) {
    void* data = f32.data();
    if (dtype == DType::bf16) data = bf16.data();
    if (dtype == DType::f16) data = f16.data();
    return Tensor(data, dtype, {rows, cols});
  }
  std::vector<double> values() const {
    std::vector<double> result(f32.begin(), f32.end());
    for (const uint16_t x : bf16) result.push_back(from_bf16(x));
    for (const _Float16 x : f16) result.push_back(static_cast<double>(x));
    return result;
  }
};

bool kept(const mtl::Dropout& dropout, uint64_t element) {
  const uint64_t counter = element / 4;
  const r123::Philox4x32::ctr_type c = {
      {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}};
  const r123::Philox4x32::key_type k = {
      {static_cast<uint32_t>(dropout.key), static_cast<uint32_t>(dropout.key >> 32)}};
  const auto words = r123::Philox4x32()(c, k);
  return static_cast<double>(words[element % 4]) >=
         static_cast<double>(dropout.probability) * 4294967296.0;
}

struct Reference {
  std::vector<double> out, lse, dqkv;
};

// Forward, and with `dout` the gradient, written as the formulas stand.
Reference reference(const AttentionShape& s, const std::vector<double>& qkv,
                    const std::vector<double>* dout) {
  const int64_t D = s.head_dim, stride = (s.heads + 2 * s.kv_heads) * D, width = s.heads * D;
  const auto u = [](int64_t i) { return static_cast<size_t>(i); };
  Reference r;
  r.out.assign(u(s.batch * s.seq * width), 0);
  r.lse.assign(u(s.batch * s.heads * s.seq), 0);
  r.dqkv.assign(qkv.size(), 0);
  const double scale = static_cast<double>(s.scale);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t kv = h / (s.heads / s.kv_heads);
      const double slope =
          s.alibi ? static_cast<double>(mtl::alibi_slope(s.first_head + h, s.total_heads)) : 0;
      const int64_t q_at = h * D, k_at = (s.heads + kv) * D, v_at = (s.heads + s.kv_heads + kv) * D;
      for (int64_t t = 0; t < s.seq; ++t) {
        const int64_t row = (b * s.seq + t) * stride;
        std::vector<double> p(u(t + 1)), mask(u(t + 1), 1);
        double top = -1e300, sum = 0;
        for (int64_t j = 0; j <= t; ++j) {
          double x = 0;
          for (int64_t d = 0; d < D; ++d) {
            x += qkv[u(row + q_at + d)] * qkv[u((b * s.seq + j) * stride + k_at + d)];
          }
          p[u(j)] = x * scale + slope * static_cast<double>(j - t);
          top = std::max(top, p[u(j)]);
        }
        for (double& x : p) sum += x = std::exp(x - top);
        r.lse[u((b * s.heads + h) * s.seq + t)] = top + std::log(sum);
        const int64_t out_at = (b * s.seq + t) * width + h * D;
        for (int64_t j = 0; j <= t; ++j) {
          p[u(j)] /= sum;
          if (s.dropout) {
            const auto element = static_cast<uint64_t>(
                (((s.first_sequence + b) * s.total_heads + s.first_head + h) * s.seq + t) * s.seq +
                j);
            mask[u(j)] =
                kept(s.dropout, element) ? 1 / (1 - static_cast<double>(s.dropout.probability)) : 0;
          }
          for (int64_t d = 0; d < D; ++d) {
            r.out[u(out_at + d)] +=
                p[u(j)] * mask[u(j)] * qkv[u((b * s.seq + j) * stride + v_at + d)];
          }
        }
        if (dout == nullptr) continue;
        double delta = 0;
        std::vector<double> dp(u(t + 1));
        for (int64_t j = 0; j <= t; ++j) {
          const int64_t key = (b * s.seq + j) * stride;
          for (int64_t d = 0; d < D; ++d) {
            dp[u(j)] += (*dout)[u(out_at + d)] * qkv[u(key + v_at + d)] * mask[u(j)];
            r.dqkv[u(key + v_at + d)] += (*dout)[u(out_at + d)] * p[u(j)] * mask[u(j)];
          }
          delta += p[u(j)] * dp[u(j)];
        }
        for (int64_t j = 0; j <= t; ++j) {
          const int64_t key = (b * s.seq + j) * stride;
          const double ds = p[u(j)] * (dp[u(j)] - delta) * scale;
          for (int64_t d = 0; d < D; ++d) {
            r.dqkv[u(row + q_at + d)] += ds * qkv[u(key + k_at + d)];
            r.dqkv[u(key + k_at + d)] += ds * qkv[u(row + q_at + d)];
          }
        }
      }
    }
  }
  return r;
}

std::vector<double> random_values(int64_t count, unsigned seed, double width) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(-width, width);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& x : values) x = uniform(random);
  return values;
}

struct Run {
  std::vector<double> qkv, dout, out, lse, dqkv;  // as stored
};

Run run(const AttentionShape& s, DType dtype, double width = 1, mtl::Isa isa = mtl::cpu_isa()) {
  const int64_t rows = s.batch * s.seq, in = (s.heads + 2 * s.kv_heads) * s.head_dim,
                wide = s.heads * s.head_dim;
  Buffer qkv(dtype, random_values(rows * in, 1, width));
  Buffer dout(dtype, random_values(rows * wide, 2, 1));
  // Filled with NaN, so that what is not written is seen.
  Buffer out(dtype, std::vector<double>(static_cast<size_t>(rows * wide), NAN));
  Buffer dqkv(dtype, std::vector<double>(static_cast<size_t>(rows * in), NAN));
  Buffer lse(DType::f32, std::vector<double>(static_cast<size_t>(rows * s.heads), NAN));
  mtl::CpuAttention attention(isa);
  attention.forward(
      {s, qkv.tensor(rows, in), out.tensor(rows, wide), lse.tensor(s.batch * s.heads, s.seq)});
  attention.backward({s, qkv.tensor(rows, in), out.tensor(rows, wide),
                      lse.tensor(s.batch * s.heads, s.seq), dout.tensor(rows, wide),
                      dqkv.tensor(rows, in)});
  return {qkv.values(), dout.values(), out.values(), lse.values(), dqkv.values()};
}

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= worst)) worst = difference;  // a NaN is the worst
  }
  return worst;
}

AttentionShape shape(int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads, int64_t dim,
                     float dropout = 0) {
  AttentionShape s;
  s.batch = batch;
  s.seq = seq;
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_dim = dim;
  s.scale = 1 / std::sqrt(static_cast<float>(dim));
  s.total_heads = heads + 3;
  s.first_head = 2;
  s.first_sequence = 5;
  s.dropout = {dropout, 0x123456789abcdef0ull};
  return s;
}

void check(const AttentionShape& s, DType dtype, mtl::Isa isa) {
  CAPTURE(mtl::name_of(isa));
  CAPTURE(s.alibi);
  CAPTURE(s.seq);
  CAPTURE(s.heads);
  CAPTURE(s.kv_heads);
  CAPTURE(s.head_dim);
  CAPTURE(s.dropout.probability);
  CAPTURE(static_cast<int>(dtype));
  const Run got = run(s, dtype, 1, isa);
  const Reference want = reference(s, got.qkv, &got.dout);
  // Values and gradients are of size 1 (at most 1/(1-p) more with dropout). f32: sums of `seq`
  // terms with errors that average out. bf16: P and dS are rounded to 2^-9 each before they are
  // summed, and so are results; a dK or dV sums over `seq` queries and the group. f16: only what is
  // stored is rounded, to 2^-11 at values up to 2, `out` before delta reads it.
  const double sums = std::sqrt(static_cast<double>(s.seq * s.heads / s.kv_heads));
  const double boost = 1 / (1 - static_cast<double>(s.dropout.probability));
  const double unit = dtype == DType::f32 ? 0x1p-22 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
  CHECK(largest_difference(got.lse, want.lse) <= 0x1p-19);  // scores are f32 sums of exact products
  CHECK(largest_difference(got.out, want.out) <= unit * boost * 2);
  CHECK(largest_difference(got.dqkv, want.dqkv) <= unit * boost * (4 + sums));
}

void check(const AttentionShape& s, DType dtype) {
  for (const mtl::Isa isa : mtl::test::isas_of_this_machine()) check(s, dtype, isa);
}

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

TEST_CASE("attention: dropout follows the global element index") {
  for (const DType dtype : kTypes) {
    check(shape(2, 64, 2, 1, 32, 0.1f), dtype);
    check(shape(1, 67, 2, 2, 32, 0.3f), dtype);  // rows that do not start at a multiple of 4
    check(shape(1, 130, 4, 2, 16, 0.5f), dtype);
    check(shape(1, 132, 2, 1, 16, 0.1f), dtype);
  }
}

AttentionShape with_alibi(AttentionShape s) {
  s.alibi = true;
  return s;
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

TEST_CASE("attention: ALiBi of a part of the heads is the same as of all heads") {
  AttentionShape whole = with_alibi(shape(1, 100, 6, 6, 16));
  whole.first_head = 0;
  whole.total_heads = 6;
  const Run all = run(whole, DType::f32);
  AttentionShape part = whole;
  part.heads = part.kv_heads = 2;
  part.first_head = 4;
  const int64_t dim = 16, wide = 6 * dim;
  std::vector<double> qkv;
  for (int64_t row = 0; row < 100; ++row) {
    for (int64_t kind = 0; kind < 3; ++kind) {
      const auto from = all.qkv.begin() + row * 3 * wide + kind * wide + 4 * dim;
      qkv.insert(qkv.end(), from, from + 2 * dim);
    }
  }
  Buffer in(DType::f32, qkv);
  Buffer out(DType::f32, std::vector<double>(100 * 32)), lse(DType::f32, std::vector<double>(200));
  mtl::CpuAttention().forward({part, in.tensor(100, 96), out.tensor(100, 32), lse.tensor(2, 100)});
  std::vector<double> want;
  for (int64_t row = 0; row < 100; ++row) {
    const auto from = all.out.begin() + row * wide + 4 * dim;
    want.insert(want.end(), from, from + 2 * dim);
  }
  CHECK(out.values() == want);
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
  AttentionShape s = with_alibi(shape(1, 70, 2, 1, 8, 0.2f));
  const Run got = run(s, DType::f32);
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
  }
}

TEST_CASE("attention: large scores neither overflow nor lose the maximum") {
  const AttentionShape s = shape(1, 100, 1, 1, 32);
  const Run got = run(s, DType::f32, 60);  // scores up to several thousand
  const Reference want = reference(s, got.qkv, &got.dout);
  // Scores of size 5000 carry f32 errors of 5000 * 2^-22, and so do probabilities, times values 60.
  CHECK(largest_difference(got.lse, want.lse) <= 5000 * 0x1p-21);
  CHECK(largest_difference(got.out, want.out) <= 60 * 5000 * 0x1p-20);
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
  mtl::CpuAttention attention;
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
}

}  // namespace
