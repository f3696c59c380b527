// What the tests of attention share: a double-precision reference that stores the whole score
// matrix, the engines that compute, and shapes.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <Random123/philox.h>
#include <doctest/doctest.h>

#include "runtime/device/cpu/attention.h"
#include "runtime/device/cpu/isa.h"
#include "runtime/device/device_under_test.h"
#include "runtime/device/ops_test.h"

namespace mtl::test::attention {

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
      if (type == DType::bf16) bf16.push_back(bf16_of_float(static_cast<float>(x)));
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
    for (const uint16_t x : bf16) result.push_back(float_of_bf16(x));
    for (const _Float16 x : f16) result.push_back(static_cast<double>(x));
    result.erase(result.begin(), result.begin() + static_cast<std::ptrdiff_t>(offset));
    return result;
  }
};

inline bool kept(const mtl::Dropout& dropout, int64_t of_pass) {
  const auto& pass = *dropout.pass.as<const mtl::DropoutPass>();
  const uint64_t key = mtl::dropout_key(pass.step_key, dropout.layer, dropout.site);
  const auto element =
      static_cast<uint64_t>(pass.first_sequence * dropout.sequence_elements + of_pass);
  const uint64_t counter = element / 4;
  const r123::Philox4x32::ctr_type c = {
      {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}};
  const r123::Philox4x32::key_type k = {
      {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)}};
  const auto words = r123::Philox4x32()(c, k);
  return static_cast<double>(words[element % 4]) >=
         static_cast<double>(dropout.probability) * 4294967296.0;
}

// Of each head, as stored; empty without sinks.
inline std::vector<double> sinks_of(const AttentionShape& s) {
  std::vector<double> sinks;
  for (int64_t h = 0; s.sinks && h < s.heads; ++h) {
    const auto of_f16 = [&] { return static_cast<float>(s.sinks.as<const _Float16>()[h]); };
    sinks.push_back(static_cast<double>(s.sinks.dtype == DType::f32 ? s.sinks.as<const float>()[h]
                                        : s.sinks.dtype == DType::bf16
                                            ? float_of_bf16(s.sinks.as<const uint16_t>()[h])
                                            : of_f16()));
  }
  return sinks;
}

struct Reference {
  std::vector<double> out, lse, dqkv, dsinks;
};

// Forward, and with `dout` the gradient, written as the formulas stand.
inline Reference reference(const AttentionShape& s, const std::vector<double>& qkv,
                           const std::vector<double>* dout) {
  const int64_t D = s.head_dim, V = s.values(), stride = s.qkv_width(), width = s.heads * V;
  const auto u = [](int64_t i) { return static_cast<size_t>(i); };
  Reference r;
  r.out.assign(u(s.batch * s.seq * width), 0);
  r.lse.assign(u(s.batch * s.heads * s.seq), 0);
  r.dqkv.assign(qkv.size(), 0);
  const std::vector<double> sinks = sinks_of(s);
  r.dsinks.assign(sinks.size(), 0);
  const double scale = static_cast<double>(s.scale), cap = static_cast<double>(s.cap);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t kv = h / (s.heads / s.kv_heads);
      const double slope =
          s.alibi ? static_cast<double>(mtl::alibi_slope(s.first_head + h, s.total_heads)) : 0;
      const int64_t q_at = h * D, k_at = (s.heads + kv) * D;
      const int64_t v_at = (s.heads + s.kv_heads) * D + kv * V;
      for (int64_t t = 0; t < s.seq; ++t) {
        const int64_t row = (b * s.seq + t) * stride;
        std::vector<double> p(u(t + 1)), mask(u(t + 1), 1), capped(u(t + 1));
        double top = -1e300, sum = 0;
        int64_t first = s.first_key ? s.first_key.as<const int32_t>()[b * s.seq + t] : 0;
        if (s.window > 0) first = std::max(first, t - s.window + 1);
        std::fill(p.begin(), p.begin() + static_cast<std::ptrdiff_t>(first), -INFINITY);
        for (int64_t j = first; j <= t; ++j) {
          double x = 0;
          for (int64_t d = 0; d < D; ++d) {
            x += qkv[u(row + q_at + d)] * qkv[u((b * s.seq + j) * stride + k_at + d)];
          }
          x *= scale;
          if (s.cap > 0) x = cap * std::tanh(x / cap);
          p[u(j)] = x + slope * static_cast<double>(j - t);
          capped[u(j)] = x;
          top = std::max(top, p[u(j)]);
        }
        if (s.sinks) top = std::max(top, sinks[u(h)]);
        for (double& x : p) sum += x = std::exp(x - top);
        if (s.sinks) sum += std::exp(sinks[u(h)] - top);
        r.lse[u((b * s.heads + h) * s.seq + t)] = top + std::log(sum);
        const int64_t out_at = (b * s.seq + t) * width + h * V;
        for (int64_t j = 0; j <= t; ++j) {
          p[u(j)] /= sum;
          if (s.dropout) {
            const int64_t element =
                ((b * s.total_heads + s.first_head + h) * s.seq + t) * s.seq + j;
            mask[u(j)] =
                kept(s.dropout, element) ? 1 / (1 - static_cast<double>(s.dropout.probability)) : 0;
          }
          for (int64_t d = 0; d < V; ++d) {
            r.out[u(out_at + d)] +=
                p[u(j)] * mask[u(j)] * qkv[u((b * s.seq + j) * stride + v_at + d)];
          }
        }
        if (dout == nullptr) continue;
        double delta = 0;
        std::vector<double> dp(u(t + 1));
        for (int64_t j = 0; j <= t; ++j) {
          const int64_t key = (b * s.seq + j) * stride;
          for (int64_t d = 0; d < V; ++d) {
            dp[u(j)] += (*dout)[u(out_at + d)] * qkv[u(key + v_at + d)] * mask[u(j)];
            r.dqkv[u(key + v_at + d)] += (*dout)[u(out_at + d)] * p[u(j)] * mask[u(j)];
          }
          delta += p[u(j)] * dp[u(j)];
        }
        if (s.sinks) r.dsinks[u(h)] -= std::exp(sinks[u(h)] - top) / sum * delta;
        for (int64_t j = 0; j <= t; ++j) {
          const int64_t key = (b * s.seq + j) * stride;
          double ds = p[u(j)] * (dp[u(j)] - delta) * scale;
          if (s.cap > 0) ds *= 1 - std::pow(capped[u(j)] / cap, 2);
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

inline std::vector<double> random_values(int64_t count, unsigned seed, double width) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(-width, width);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& x : values) x = uniform(random);
  return values;
}

struct Run {
  std::vector<double> qkv, dout, out, lse, dqkv;  // as stored
  std::vector<double> dsinks = {};
};

// What computes: the CPU with an instruction set, or the CUDA kernels with tensors that are aligned
// (tensor cores, where type and head_dim allow; on Hopper by warpgroups) or one element off (the
// path for everything). The kernels run on the host, or on the GPU under test: then `cuda`,
// `hopper` and those behind it are what it takes itself.
struct Engine {
  enum { cpu, cuda, hopper, hopper_split, cuda_misaligned } kind = cpu;
  mtl::Isa isa = mtl::cpu_isa();

  std::string name() const {
    switch (kind) {
      case cpu:
        return mtl::name_of(isa);
      case cuda:
        return "cuda";
      case hopper:
        return "cuda on Hopper";
      case hopper_split:
        return "cuda on Hopper, backward by two kernels";
      default:
        return "cuda, misaligned";
    }
  }
  std::optional<mtl::kernel_scratch::Backward> hopper_backward() const {
    using mtl::kernel_scratch::Backward;
    if (kind == hopper) return Backward::measured;
    if (kind == hopper_split) return Backward::split;
    return {};
  }
  size_t offset() const { return kind == cuda_misaligned ? 1 : 0; }
  void forward(Attention args) const {
    if (kind == cpu) return CpuAttention(isa).forward(args);
    if (Device* const gpu = gpu_under_test(); gpu != nullptr) {
      const ShapeOnGpu shape(*gpu, args.shape);
      const OnGpu qkv(*gpu, args.qkv), out(*gpu, args.out), lse(*gpu, args.lse);
      return gpu->attention_forward({shape.view, qkv.view, out.view, lse.view});
    }
    test::EmulatedCuda device(3, hopper_backward());
    static_cast<Device&>(device).attention_forward(args);
  }
  void backward(AttentionBackward args) const {
    if (kind == cpu) return CpuAttention(isa).backward(args);
    if (Device* const gpu = gpu_under_test(); gpu != nullptr) {
      const ShapeOnGpu shape(*gpu, args.shape);
      const OnGpu qkv(*gpu, args.qkv), out(*gpu, args.out), lse(*gpu, args.lse),
          dout(*gpu, args.dout), dqkv(*gpu, args.dqkv);
      return gpu->attention_backward(
          {shape.view, qkv.view, out.view, lse.view, dout.view, dqkv.view});
    }
    test::EmulatedCuda device(3, hopper_backward());
    static_cast<Device&>(device).attention_backward(args);
  }
  void sinks_backward(AttentionSinksBackward args) const {
    if (kind == cpu) return CpuAttention(isa).sinks_backward(args);
    if (Device* const gpu = gpu_under_test(); gpu != nullptr) {
      const ShapeOnGpu shape(*gpu, args.shape);
      const OnGpu out(*gpu, args.out), dout(*gpu, args.dout), lse(*gpu, args.lse),
          dsinks(*gpu, args.dsinks);
      return gpu->attention_sinks_backward(
          {shape.view, out.view, dout.view, lse.view, dsinks.view, args.accumulate});
    }
    test::EmulatedCuda device(3, hopper_backward());
    static_cast<Device&>(device).attention_sinks_backward(args);
  }

 private:
  // A shape, with what it points to in the GPU's memory.
  struct ShapeOnGpu {
    ShapeOnGpu(Device& gpu, const AttentionShape& s)
        : view(s), first_key(gpu, s.first_key), sinks(gpu, s.sinks) {
      view.first_key = first_key.view;
      view.sinks = sinks.view;
    }
    AttentionShape view;
    OnGpu first_key, sinks;
  };
};
inline const Engine kCuda = {Engine::cuda}, kHopper = {Engine::hopper},
                    kHopperSplit = {Engine::hopper_split},
                    kCudaMisaligned = {Engine::cuda_misaligned};

inline Run run(const AttentionShape& s, DType dtype, double width = 1, const Engine& engine = {}) {
  const int64_t rows = s.batch * s.seq, in = s.qkv_width(), wide = s.heads * s.values();
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
  Run result = {qkv.values(), dout.values(), out.values(), lse.values(), dqkv.values()};
  if (s.sinks) {
    Buffer dsinks(DType::f32, std::vector<double>(static_cast<size_t>(s.heads), NAN));
    engine.sinks_backward({s, out.tensor(rows, wide), dout.tensor(rows, wide),
                           lse.tensor(s.batch * s.heads, s.seq), dsinks.tensor(1, s.heads)});
    result.dsinks = dsinks.values();
  }
  return result;
}

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= worst)) worst = difference;  // a NaN is the worst
  }
  return worst;
}

inline AttentionShape shape(int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads,
                            int64_t dim, float dropout = 0) {
  AttentionShape s;
  s.batch = batch;
  s.seq = seq;
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_dim = dim;
  s.scale = 1 / std::sqrt(static_cast<float>(dim));
  s.total_heads = heads + 3;
  s.first_head = 2;
  s.dropout = test::dropout_in_test_memory(dropout, 5, s.total_heads * seq * seq);
  return s;
}

// The reference takes as long as an engine or longer: all are held to one.
inline void check(const AttentionShape& s, DType dtype, const std::vector<Engine>& engines) {
  CAPTURE(s.alibi);
  CAPTURE(s.seq);
  CAPTURE(s.heads);
  CAPTURE(s.kv_heads);
  CAPTURE(s.head_dim);
  CAPTURE(s.values());
  CAPTURE(s.dropout.probability);
  CAPTURE(static_cast<int>(dtype));
  // Values and gradients are of size 1 (at most 1/(1-p) more with dropout). f32: sums of `seq`
  // terms with errors that average out. bf16: P and dS are rounded to 2^-8 of them each before they
  // are summed, and so are results: 2 units in `out`; a dK or dV sums over `seq` queries and the
  // group. f16: the same with 2^-11 on tensor cores; the CPU rounds only what is stored, `out`
  // before delta reads it.
  const double sums = std::sqrt(static_cast<double>(s.seq * s.heads / s.kv_heads));
  const double boost = 1 / (1 - static_cast<double>(s.dropout.probability));
  const double unit = dtype == DType::f32 ? 0x1p-22 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
  std::optional<Reference> want;
  for (const Engine& engine : engines) {
    CAPTURE(engine.name());
    const Run got = run(s, dtype, 1, engine);
    if (!want) want = reference(s, got.qkv, &got.dout);
    // Scores are f32 sums of exact products.
    CHECK(largest_difference(got.lse, want->lse) <= 0x1p-19);
    CHECK(largest_difference(got.out, want->out) <= unit * boost * 2);
    CHECK(largest_difference(got.dqkv, want->dqkv) <= unit * boost * (4 + sums));
    // Of every row the error of `out`, times head_dim gradients of it, by chance of either sign.
    const double terms = std::sqrt(static_cast<double>(s.batch * s.seq * s.values()));
    CHECK(largest_difference(got.dsinks, want->dsinks) <= unit * boost * terms);
  }
}
inline void check(const AttentionShape& s, DType dtype, const Engine& engine) {
  check(s, dtype, std::vector{engine});
}

// The instruction sets to test; none beside a GPU, where time is dear.
inline std::vector<Isa> isas_under_test() {
  return gpu_under_test() != nullptr ? std::vector<Isa>{} : isas_of_this_machine();
}
// Whether Hopper's kernels take it; else kHopper is kCuda, as it is on a GPU.
inline bool is_for_hopper(const AttentionShape& s, DType dtype) {
  if (gpu_under_test() != nullptr) return false;
  const bool narrow = s.head_dim == 64 || s.head_dim == 96 || s.head_dim == 128;
  const bool compiled = (narrow && s.values() == s.head_dim) ||
                        (s.head_dim == 192 && s.values() == 128) ||
                        (s.head_dim == 256 && s.values() == 256);
  return dtype != DType::f32 && compiled && s.seq >= 32;
}

inline std::vector<Engine> engines_for(const AttentionShape& s, DType dtype) {
  std::vector<Engine> engines;
  for (const mtl::Isa isa : isas_under_test()) engines.push_back({Engine::cpu, isa});
  engines.push_back(kCuda);
  if (is_for_hopper(s, dtype)) engines.push_back(kHopper);
  return engines;
}
inline void check(const AttentionShape& s, DType dtype) {
  check(s, dtype, engines_for(s, dtype));
}

inline AttentionShape with_values(AttentionShape s, int64_t value_dim) {
  s.value_dim = value_dim;
  return s;
}
inline AttentionShape with_alibi(AttentionShape s) {
  s.alibi = true;
  return s;
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

inline void check_with_documents(const AttentionShape& s, unsigned mean, DType dtype,
                                 const std::vector<Engine>& engines) {
  CAPTURE(mean);
  CAPTURE(s.window);
  Documents documents(s, mean, 7 + mean);
  check(documents.of(s), dtype, engines);
}
inline void check_with_documents(const AttentionShape& s, unsigned mean, DType dtype) {
  check_with_documents(s, mean, dtype, engines_for(s, dtype));
}

// Sinks of a shape's heads: those given, again and again.
struct Sinks {
  Buffer buffer;
  Sinks(const AttentionShape& s, DType dtype, const std::vector<double>& values)
      : buffer(dtype, of_heads(s.heads, values)) {}
  AttentionShape of(AttentionShape s) {
    s.sinks = buffer.tensor(1, s.heads).slice(0, s.heads);
    return s;
  }
  static std::vector<double> of_heads(int64_t heads, const std::vector<double>& values) {
    std::vector<double> all;
    for (int64_t h = 0; h < heads; ++h) {
      all.push_back(values[static_cast<size_t>(h) % values.size()]);
    }
    return all;
  }
};

inline AttentionShape with_cap(AttentionShape s, float cap) {
  s.cap = cap;
  return s;
}

inline AttentionShape with_window(AttentionShape s, int64_t window) {
  s.window = window;
  return s;
}

}  // namespace mtl::test::attention
