// Attention of the CPU and of the CUDA kernels (on the host) against a double-precision reference
// that stores the whole score matrix, finite differences of that reference, and the invariances:
// number of threads, repetition, the order of a block's warps.
#include "runtime/device/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <omp.h>
#include <random>
#include <utility>
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

// Memory of any type, aligned to 16 bytes or, with `offset` elements before, not; f16 by libgcc's
// conversions.
struct Buffer {
  DType dtype;
  size_t offset;
  std::vector<float> f32;
  std::vector<uint16_t> bf16;
  std::vector<_Float16> f16;
  Buffer(DType type, const std::vector<double>& values, size_t offset_ = 0)
      : dtype(type), offset(offset_) {
    if (type == DType::f32) f32.resize(offset);
    if (type == DType::bf16) bf16.resize(offset);
    if (type == DType::f16) f16.resize(offset);
    for (const double x : values) {
      if (type == DType::f32) f32.push_back(static_cast<float>(x));
      if (type == DType::bf16) bf16.push_back(to_bf16(x));
      if (type == DType::f16) f16.push_back(static_cast<_Float16>(x));
    }
  }
  Tensor tensor(int64_t rows, int64_t cols) {
    void* data = f32.data() + offset;
    if (dtype == DType::bf16) data = bf16.data() + offset;
    if (dtype == DType::f16) data = f16.data() + offset;
    return Tensor(data, dtype, {rows, cols});
  }
  std::vector<double> values() const {
    std::vector<double> result(f32.begin(), f32.end());
    for (const uint16_t x : bf16) result.push_back(from_bf16(x));
    for (const _Float16 x : f16) result.push_back(static_cast<double>(x));
    result.erase(result.begin(), result.begin() + static_cast<std::ptrdiff_t>(offset));
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
        int64_t first = s.first_key ? s.first_key.as<const int32_t>()[b * s.seq + t] : 0;
        if (s.window > 0) first = std::max(first, t - s.window + 1);
        std::fill(p.begin(), p.begin() + static_cast<std::ptrdiff_t>(first), -INFINITY);
        for (int64_t j = first; j <= t; ++j) {
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

// What computes: the CPU with an instruction set, or the CUDA kernels with tensors that are aligned
// (tensor cores, where type and head_dim allow) or one element off (the path for everything).
struct Engine {
  enum { cpu, cuda, cuda_misaligned } kind = cpu;
  mtl::Isa isa = mtl::cpu_isa();

  std::string name() const {
    return kind == cpu ? mtl::name_of(isa) : kind == cuda ? "cuda" : "cuda, misaligned";
  }
  size_t offset() const { return kind == cuda_misaligned ? 1 : 0; }
  void forward(const mtl::Attention& args) const {
    if (kind == cpu) return mtl::CpuAttention(isa).forward(args);
    mtl::test::EmulatedCuda device;
    static_cast<mtl::Device&>(device).attention_forward(args);
  }
  void backward(const mtl::AttentionBackward& args) const {
    if (kind == cpu) return mtl::CpuAttention(isa).backward(args);
    mtl::test::EmulatedCuda device;
    static_cast<mtl::Device&>(device).attention_backward(args);
  }
};
const Engine kCuda = {Engine::cuda}, kCudaMisaligned = {Engine::cuda_misaligned};

Run run(const AttentionShape& s, DType dtype, double width = 1, const Engine& engine = {}) {
  const int64_t rows = s.batch * s.seq, in = (s.heads + 2 * s.kv_heads) * s.head_dim,
                wide = s.heads * s.head_dim;
  const size_t offset = engine.offset();
  Buffer qkv(dtype, random_values(rows * in, 1, width), offset);
  Buffer dout(dtype, random_values(rows * wide, 2, 1), offset);
  // Filled with NaN, so that what is not written is seen.
  Buffer out(dtype, std::vector<double>(static_cast<size_t>(rows * wide), NAN), offset);
  Buffer dqkv(dtype, std::vector<double>(static_cast<size_t>(rows * in), NAN), offset);
  Buffer lse(DType::f32, std::vector<double>(static_cast<size_t>(rows * s.heads), NAN), offset);
  engine.forward(
      {s, qkv.tensor(rows, in), out.tensor(rows, wide), lse.tensor(s.batch * s.heads, s.seq)});
  engine.backward({s, qkv.tensor(rows, in), out.tensor(rows, wide),
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

void check(const AttentionShape& s, DType dtype, const Engine& engine) {
  CAPTURE(engine.name());
  CAPTURE(s.alibi);
  CAPTURE(s.seq);
  CAPTURE(s.heads);
  CAPTURE(s.kv_heads);
  CAPTURE(s.head_dim);
  CAPTURE(s.dropout.probability);
  CAPTURE(static_cast<int>(dtype));
  const Run got = run(s, dtype, 1, engine);
  const Reference want = reference(s, got.qkv, &got.dout);
  // Values and gradients are of size 1 (at most 1/(1-p) more with dropout). f32: sums of `seq`
  // terms with errors that average out. bf16: P and dS are rounded to 2^-8 of them each before they
  // are summed, and so are results: 2 units in `out`; a dK or dV sums over `seq` queries and the
  // group. f16: the same with 2^-11 on tensor cores; the CPU rounds only what is stored, `out`
  // before delta reads it.
  const double sums = std::sqrt(static_cast<double>(s.seq * s.heads / s.kv_heads));
  const double boost = 1 / (1 - static_cast<double>(s.dropout.probability));
  const double unit = dtype == DType::f32 ? 0x1p-22 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
  CHECK(largest_difference(got.lse, want.lse) <= 0x1p-19);  // scores are f32 sums of exact products
  CHECK(largest_difference(got.out, want.out) <= unit * boost * 2);
  CHECK(largest_difference(got.dqkv, want.dqkv) <= unit * boost * (4 + sums));
}

void check(const AttentionShape& s, DType dtype) {
  for (const mtl::Isa isa : mtl::test::isas_of_this_machine()) check(s, dtype, {Engine::cpu, isa});
  check(s, dtype, kCuda);
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

constexpr DType k16Bits[] = {DType::bf16, DType::f16};

// The first keys of sequences that are cut at random into documents, of `mean` tokens or so; the
// second and third of them right behind one another.
struct Documents {
  std::vector<int32_t> first_key;
  Documents(const AttentionShape& s, unsigned mean, unsigned seed) {
    std::mt19937 random(seed);
    for (int64_t b = 0; b < s.batch; ++b) {
      int32_t first = 0;
      for (int64_t t = 0; t < s.seq; ++t) {
        if (t > 0 && (random() % mean == 0 || t == 2 || t == 3)) first = static_cast<int32_t>(t);
        first_key.push_back(first);
      }
    }
  }
  AttentionShape of(AttentionShape s) {
    s.first_key = Tensor(first_key.data(), DType::i32, {static_cast<int64_t>(first_key.size())});
    return s;
  }
};

void check_with_documents(const AttentionShape& s, unsigned mean, DType dtype,
                          const Engine& engine) {
  CAPTURE(mean);
  CAPTURE(s.window);
  Documents documents(s, mean, 7 + mean);
  check(documents.of(s), dtype, engine);
}
void check_with_documents(const AttentionShape& s, unsigned mean, DType dtype) {
  for (const mtl::Isa isa : mtl::test::isas_of_this_machine()) {
    check_with_documents(s, mean, dtype, {Engine::cpu, isa});
  }
  check_with_documents(s, mean, dtype, kCuda);
}

AttentionShape with_window(AttentionShape s, int64_t window) {
  s.window = window;
  return s;
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
    check_with_documents(shape(2, 200, 2, 1, 64, 0.1f), 30, dtype, kCudaMisaligned);
    check_with_documents(shape(2, 300, 2, 1, 64), 1, dtype, kCuda);  // each token on its own
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

TEST_CASE("attention: tensor cores at the edges of their tiles") {
  for (const DType dtype : k16Bits) {
    check(shape(1, 1, 1, 1, 64), dtype, kCuda);
    check(shape(2, 15, 2, 1, 96), dtype, kCuda);
    check(shape(1, 16, 1, 1, 128), dtype, kCuda);
    check(shape(2, 17, 8, 1, 64), dtype, kCuda);
    check(shape(1, 31, 1, 1, 128), dtype, kCuda);
    check(shape(1, 33, 1, 1, 96), dtype, kCuda);
    check(shape(1, 63, 4, 1, 128), dtype, kCuda);
    check(shape(1, 64, 1, 1, 96), dtype, kCuda);
    check(shape(1, 65, 1, 1, 128), dtype, kCuda);
    check(shape(2, 127, 2, 2, 64), dtype, kCuda);
    check(shape(1, 128, 2, 1, 128), dtype, kCuda);
    check(shape(1, 129, 1, 1, 64), dtype, kCuda);
    check(shape(1, 129, 1, 1, 128), dtype, kCuda);
    check(shape(1, 200, 4, 2, 64), dtype, kCuda);
    // Between the compiled dimensions: columns of zeros.
    check(shape(2, 33, 2, 1, 8), dtype, kCuda);
    check(shape(1, 66, 1, 1, 40), dtype, kCuda);
    check(shape(1, 66, 2, 1, 72), dtype, kCuda);
    check(shape(1, 66, 2, 2, 120), dtype, kCuda);
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
}

TEST_CASE("attention: the path for everything on 16-bit types") {
  for (const DType dtype : k16Bits) {
    check(shape(2, 33, 2, 1, 64), dtype, kCudaMisaligned);
    check(with_alibi(shape(1, 65, 4, 2, 128, 0.2f)), dtype, kCudaMisaligned);
    check(shape(1, 40, 2, 2, 136), dtype, kCuda);
    check(with_alibi(shape(1, 35, 2, 1, 256, 0.2f)), dtype, kCuda);
    check(with_alibi(shape(1, 40, 3, 1, 12, 0.2f)), dtype, kCuda);
  }
  check(with_alibi(shape(2, 35, 2, 1, 256, 0.2f)), DType::f32, kCudaMisaligned);
}

TEST_CASE("attention: dropout and ALiBi together on tensor cores") {
  for (const DType dtype : k16Bits) {
    check(with_alibi(shape(2, 68, 4, 1, 64, 0.3f)), dtype, kCuda);
    check(with_alibi(shape(1, 131, 2, 1, 128, 0.1f)), dtype, kCuda);  // words one by one
    check(with_alibi(shape(1, 132, 2, 2, 96, 0.5f)), dtype, kCuda);
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
      AttentionShape s = with_alibi(shape(1, 200, 2, 1, 64, 0.1f));
      const int64_t in = 4 * 64, wide = 2 * 64;
      for (const Engine& engine : {Engine{}, kCuda, kCudaMisaligned}) {
        if (engine.kind == Engine::cuda_misaligned && dtype != DType::f16) continue;
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

TEST_CASE("attention: the order of a block's warps does not matter") {
  using mtl::gpu_on_host::Schedule;
  const AttentionShape shapes[] = {
      with_alibi(shape(1, 200, 2, 1, 64, 0.1f)),
      shape(1, 130, 2, 1, 96, 0.1f),
      shape(1, 160, 2, 1, 128),
  };
  for (const AttentionShape& s : shapes) {
    for (const Engine& engine : {kCuda, kCudaMisaligned}) {
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
