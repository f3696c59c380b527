// Attention's sinks: a score of no key in the softmax of each head, by every kernel, and their
// gradient.
#include <cmath>
#include <omp.h>
#include <vector>

#include <doctest/doctest.h>

#include "common/error.h"
#include "runtime/device/attention_test.h"

namespace {

using namespace mtl::test::attention;
using mtl::AttentionShape;
using mtl::DType;
using mtl::Tensor;

const std::vector<double> kSinkValues = {0.5, -1.25, 3, 0, -4, 2};

void check_sinks(const AttentionShape& s, DType dtype, const std::vector<Engine>& engines) {
  check(Sinks(s, dtype, kSinkValues).of(s), dtype, engines);
}
void check_sinks(const AttentionShape& s, DType dtype) {
  check_sinks(s, dtype, engines_for(s, dtype));
}

TEST_CASE("attention: sinks beside everything else that makes scores") {
  for (const DType dtype : kTypes) {
    check_sinks(shape(1, 1, 1, 1, 1), dtype);
    check_sinks(shape(2, 17, 3, 1, 5), dtype);
    check_sinks(shape(2, 65, 4, 2, 64, 0.1f), dtype);
    check_sinks(with_alibi(shape(1, 67, 6, 2, 40, 0.2f)), dtype);
    check_sinks(with_values(with_window(shape(1, 150, 2, 1, 24), 40), 16), dtype);
    check_sinks(with_cap(shape(1, 70, 2, 2, 64), 1), dtype);
    Documents documents(shape(2, 130, 2, 1, 32), 40, 5);
    check_sinks(documents.of(shape(2, 130, 2, 1, 32)), dtype);
  }
}

TEST_CASE("attention: sinks by the kernels for tensor cores, and without these") {
  for (const DType dtype : k16Bits) {
    check_sinks(shape(1, 33, 2, 1, 64), dtype);
    check_sinks(shape(1, 140, 3, 3, 64, 0.1f), dtype);
    check_sinks(shape(1, 66, 2, 1, 96), dtype);
    check_sinks(with_window(shape(1, 130, 2, 2, 128), 50), dtype);
    check_sinks(shape(1, 70, 2, 1, 256), dtype);
    check_sinks(with_values(shape(2, 65, 2, 1, 192), 128), dtype);
    check_sinks(shape(1, 40, 3, 1, 72), dtype);
    check_sinks(shape(1, 35, 2, 1, 12), dtype);
    check_sinks(shape(1, 40, 2, 1, 64, 0.2f), dtype, {kCudaMisaligned});
  }
}

TEST_CASE("attention: sinks far from all scores") {
  for (const DType dtype : kTypes) {
    const AttentionShape plain = shape(1, 70, 4, 2, 64);
    for (const Engine& engine : engines_for(plain, dtype)) {
      CAPTURE(engine.name());
      CAPTURE(static_cast<int>(dtype));
      // Below: as if there were none, to the bit.
      const Run without = run(plain, dtype, 1, engine);
      const Run below =
          run(Sinks(plain, dtype, {-3000, -INFINITY, -200}).of(plain), dtype, 1, engine);
      CHECK(below.out == without.out);
      CHECK(below.lse == without.lse);
      CHECK(below.dqkv == without.dqkv);
      CHECK(largest_difference(below.dsinks, std::vector<double>(4, 0)) == 0);
      // Above: nothing of a key is left, and the sink is the log-sum-exp.
      Sinks high(plain, dtype, {3000, 200});
      const Run above = run(high.of(plain), dtype, 1, engine);
      for (const auto* const none : {&above.out, &above.dqkv, &above.dsinks}) {
        CHECK(largest_difference(*none, std::vector<double>(none->size(), 0)) < 1e-30);
      }
      const Reference want = reference(high.of(plain), above.qkv, nullptr);
      CHECK(largest_difference(above.lse, want.lse) <= 3000 * 0x1p-22);
    }
  }
}

TEST_CASE("attention: the gradient of sinks agrees with finite differences of the reference") {
  AttentionShape s = with_window(with_alibi(shape(2, 40, 4, 2, 8, 0.2f)), 20);
  Sinks sinks(s, DType::f32, kSinkValues);
  s = sinks.of(s);
  const Run cpu = run(s, DType::f32), cuda = run(s, DType::f32, 1, kCuda);
  const auto objective = [&](size_t head, float change) {
    const float before = sinks.buffer.f32[head];
    sinks.buffer.f32[head] += change;
    const Reference r = reference(s, cpu.qkv, nullptr);
    sinks.buffer.f32[head] = before;
    double sum = 0;
    for (size_t i = 0; i < r.out.size(); ++i) sum += r.out[i] * cpu.dout[i];
    return sum;
  };
  for (size_t head = 0; head < 4; ++head) {
    const float h = 0x1p-8f;
    const double slope = (objective(head, h) - objective(head, -h)) / static_cast<double>(2 * h);
    CHECK(std::abs(slope) > 1e-3);
    CHECK(std::abs(slope - cpu.dsinks[head]) <= 1e-4);
    CHECK(std::abs(slope - cuda.dsinks[head]) <= 1e-4);
  }
}

TEST_CASE("attention: the last queries alone have their sinks") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Engine& engine : {Engine{}, kCuda}) {
      AttentionShape s = shape(1, 130, 2, 1, 64);
      Sinks sinks(s, dtype, kSinkValues);
      s = sinks.of(s);
      const auto forward = [&](int64_t first_query) {
        s.first_query = first_query;
        Buffer qkv(dtype, random_values(130 * 256, 1, 1));
        Buffer out(dtype, std::vector<double>(130 * 128)),
            lse(DType::f32, std::vector<double>(260));
        engine.forward({s, qkv.tensor(130, 256), out.tensor(130, 128), lse.tensor(2, 130)});
        return out.values();
      };
      const std::vector<double> whole = forward(0), part = forward(129);
      CHECK(std::equal(part.end() - 128, part.end(), whole.end() - 128));
    }
  }
}

// The gradient by itself: of any results, and of a log-sum-exp that fits them.
struct Rows {
  AttentionShape shape;
  Buffer sinks, out, dout, lse;
  Rows(int64_t batch, int64_t seq, int64_t heads, int64_t dim, DType dtype, size_t offset)
      : shape(mtl::test::attention::shape(batch, seq, heads, heads, dim)),
        sinks(dtype, Sinks::of_heads(heads, kSinkValues), offset),
        out(dtype, random_values(batch * seq * heads * dim, 1, 1), offset),
        dout(dtype, random_values(batch * seq * heads * dim, 2, 1), offset),
        lse(DType::f32, random_values(batch * heads * seq, 3, 3)) {
    for (float& x : lse.f32) x += 4;  // at least any sink, nearly
    shape.sinks = sinks.tensor(1, heads).slice(0, heads);
  }
  std::vector<double> gradient(const std::vector<double>& before, auto backward) {
    const int64_t rows = shape.batch * shape.seq, wide = shape.heads * shape.values();
    Buffer dsinks(DType::f32, before);
    backward(mtl::AttentionSinksBackward{shape, out.tensor(rows, wide), dout.tensor(rows, wide),
                                         lse.tensor(shape.batch * shape.heads, shape.seq),
                                         dsinks.tensor(1, shape.heads), !std::isnan(before[0])});
    return dsinks.values();
  }
  // And the sum of the sizes of what is added up.
  std::vector<double> expected(std::vector<double>& sizes) const {
    const std::vector<double> o = out.values(), g = dout.values(), of_lse = lse.values(),
                              sink = sinks_of(shape);
    const auto heads = sink.size(), dim = static_cast<size_t>(shape.values());
    const auto seq = static_cast<size_t>(shape.seq);
    std::vector<double> sums(heads, 0);
    sizes.assign(heads, 0);
    for (size_t i = 0; i < o.size(); ++i) {
      const size_t row = i / dim / heads, head = i / dim % heads;
      const double weight =
          std::exp(sink[head] - of_lse[(row / seq * heads + head) * seq + row % seq]);
      sums[head] -= weight * o[i] * g[i];
      sizes[head] += weight * std::abs(o[i] * g[i]);
    }
    return sums;
  }
};

TEST_CASE("attention: the gradient of sinks over rows, heads and columns of any number") {
  struct Size {
    int64_t batch, seq, heads, dim;
  };
  for (const Size& size :
       {Size{1, 1, 1, 1}, Size{2, 31, 3, 5}, Size{1, 33, 5, 64}, Size{3, 70, 4, 128},
        Size{1, 300, 9, 72}, Size{1, 1500, 2, 8}, Size{2, 40, 2, 256}, Size{40, 3, 13, 16}}) {
    for (const DType dtype : kTypes) {
      std::vector<Engine> engines = {kCuda, kCudaMisaligned};
      for (const mtl::Isa isa : isas_under_test()) engines.push_back({Engine::cpu, isa});
      for (const Engine& engine : engines) {
        CAPTURE(engine.name());
        CAPTURE(size.seq);
        CAPTURE(static_cast<int>(dtype));
        Rows rows(size.batch, size.seq, size.heads, size.dim, dtype, engine.offset());
        std::vector<double> sizes;
        const std::vector<double> want = rows.expected(sizes);
        for (const double before : {static_cast<double>(NAN), 2.0}) {
          const std::vector<double> got =
              rows.gradient(std::vector<double>(want.size(), before),
                            [&](const auto& args) { engine.sinks_backward(args); });
          const double start = std::isnan(before) ? 0 : before;
          for (size_t h = 0; h < want.size(); ++h) {
            CHECK(std::abs(got[h] - start - want[h]) <= 0x1p-21 * (sizes[h] + start));
          }
        }
      }
    }
  }
}

TEST_CASE("attention: the gradient of sinks has the same bits for every number of threads") {
  const int threads = omp_get_max_threads();
  for (const DType dtype : kTypes) {
    Rows rows(2, 400, 6, 64, dtype, 0);
    const std::vector<double> none(6, NAN);
    const auto on_cpu = [&](const auto& args) { mtl::CpuAttention().sinks_backward(args); };
    omp_set_num_threads(1);
    const std::vector<double> one = rows.gradient(none, on_cpu);
    for (const int n : {2, 3, 7}) {
      omp_set_num_threads(n);
      CHECK(rows.gradient(none, on_cpu) == one);
    }
    // And of multiprocessors.
    const auto on_gpu = [](int multiprocessors) {
      return [=](const auto& args) {
        mtl::test::EmulatedCuda device(multiprocessors);
        static_cast<mtl::Device&>(device).attention_sinks_backward(args);
      };
    };
    CHECK(rows.gradient(none, on_gpu(1)) == rows.gradient(none, on_gpu(50)));
  }
  omp_set_num_threads(threads);
}

TEST_CASE("attention: sinks that do not fit are refused") {
  std::vector<float> memory(4096);
  const auto matrix = [&](int64_t r, int64_t c) {
    return Tensor(memory.data(), DType::f32, {r, c});
  };
  const auto vector = [&](DType dtype, int64_t n) { return Tensor(memory.data(), dtype, {n}); };
  for (const Engine& engine : {Engine{}, kCuda}) {
    AttentionShape s = shape(1, 4, 2, 2, 8);
    for (const Tensor& sinks : {vector(DType::f32, 3), vector(DType::bf16, 2)}) {
      s.sinks = sinks;
      CHECK_THROWS_AS(engine.forward({s, matrix(4, 48), matrix(4, 16), matrix(2, 4)}), mtl::Error);
    }
    const auto backward = [&](const Tensor& sinks, const Tensor& dsinks) {
      s.sinks = sinks;
      engine.sinks_backward({s, matrix(4, 16), matrix(4, 16), matrix(2, 4), dsinks});
    };
    CHECK_NOTHROW(backward(vector(DType::f32, 2), vector(DType::f32, 2)));
    CHECK_THROWS_AS(backward({}, vector(DType::f32, 2)), mtl::Error);
    CHECK_THROWS_AS(backward(vector(DType::f32, 2), vector(DType::f32, 1)), mtl::Error);
    CHECK_THROWS_AS(backward(vector(DType::f32, 2), vector(DType::bf16, 2)), mtl::Error);
  }
}

}  // namespace
