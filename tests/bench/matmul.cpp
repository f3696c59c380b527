// The matmuls of one GPT-2 124M training step (weights stored [in, out], head [vocabulary, width])
// in every form, against the rate of a 2048^3 matmul measured in the same run, interleaved; and
// attention forward and backward.
//   build/bench/matmul [batch=4] [seq=64] [rounds=5]
// The best time of each is shown: the machine's speed swings, the ratios do not. The step is the
// sum of the best times, with 12 layers and one head.
#include "runtime/device/cpu/matmul.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <omp.h>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "runtime/device/cpu/attention.h"
#include "runtime/device/cpu/calibrate.h"
#include "runtime/device/cpu/isa.h"
#include "runtime/device/cpu/threads.h"

namespace {

using mtl::DType;
using mtl::Matmul;
using mtl::Tensor;

double now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

struct Job {
  std::string name;
  int64_t m, n, k;
  bool ta, tb;
  bool weight_gradient;  // result f32
  bool accumulate;
  int count;  // per step; 0 = shown, not summed
  double best = 1e30;
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

void bench_matmul(DType dtype, int64_t rows, int rounds) {
  struct Layer {
    const char* name;
    int64_t in, out;
  };
  std::vector<Job> jobs;
  for (const Layer& l : {Layer{"qkv", 768, 2304}, Layer{"proj", 768, 768}, Layer{"fc", 768, 3072},
                         Layer{"fc2", 3072, 768}}) {
    const std::string name = l.name;
    jobs.push_back({name + " Y  NN", rows, l.out, l.in, false, false, false, false, 12});
    jobs.push_back({name + " dX NT", rows, l.in, l.out, false, true, false, false, 12});
    jobs.push_back({name + " dW TN", l.in, l.out, rows, true, false, true, false, 12});
    jobs.push_back({name + " dW TN +=", l.in, l.out, rows, true, false, true, true, 0});
  }
  jobs.push_back({"head Y  NT", rows, 50304, 768, false, true, false, false, 1});
  jobs.push_back({"head dX NN", rows, 768, 50304, false, false, false, false, 1});
  jobs.push_back({"head dE TN", 50304, 768, rows, true, false, true, false, 1});
  int64_t a_size = 0, b_size = 0, c_size = 0;
  for (const Job& job : jobs) {
    a_size = std::max(a_size, job.m * job.k);
    b_size = std::max(b_size, job.k * job.n);
    c_size = std::max(c_size, job.m * job.n);
  }
  mtl::Workspace a_space, b_space, c_space;
  const auto fill = [&](mtl::Workspace& space, int64_t size) {
    void* data = space.get(static_cast<unsigned long>(size) * 4);
    for (int64_t i = 0; i < size; ++i) {
      if (dtype == DType::bf16) {
        static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(0x3c00 + i % 509);
      } else {
        static_cast<float*>(data)[i] = static_cast<float>(i % 509) / 512.0f;
      }
    }
    return data;
  };
  void *a = fill(a_space, a_size), *b = fill(b_space, b_size), *c = fill(c_space, c_size);

  mtl::CpuMatmul matmul;
  double peak = 0;
  for (int round = 0; round < rounds; ++round) {
    for (Job& job : jobs) {
      Matmul args;
      args.a = job.ta ? Tensor(a, dtype, {job.k, job.m}) : Tensor(a, dtype, {job.m, job.k});
      args.b = job.tb ? Tensor(b, dtype, {job.n, job.k}) : Tensor(b, dtype, {job.k, job.n});
      args.c = Tensor(c, job.weight_gradient ? DType::f32 : dtype, {job.m, job.n});
      args.transpose_a = job.ta;
      args.transpose_b = job.tb;
      args.accumulate = job.accumulate;
      if (round == 0) matmul.run(args);  // makes the primitive
      for (int repeat = 0; repeat < 3; ++repeat) {
        const double start = now();
        matmul.run(args);
        job.best = std::min(job.best, now() - start);
      }
    }
    peak = std::max(peak, mtl::measure_matmul_rate(dtype, 0.05));
  }
  fmt::print("\n{} rows={}: 2048^3 NT {:.0f} GF/s\n", dtype == DType::f32 ? "f32" : "bf16", rows,
             peak / 1e9);
  double step_time = 0, step_flops = 0;
  for (const Job& job : jobs) {
    fmt::print("  {:14} m{:<6} n{:<6} k{:<6} {:8.3f} ms {:8.0f} GF/s {:5.0f} %\n", job.name, job.m,
               job.n, job.k, job.best * 1e3, job.flops() / job.best / 1e9,
               100 * job.flops() / job.best / peak);
    step_time += job.best * job.count;
    step_flops += job.flops() * job.count;
  }
  fmt::print("  step: {:.1f} GFLOP in {:.0f} ms = {:.0f} GF/s = {:.0f} % of 2048^3\n",
             step_flops / 1e9, step_time * 1e3, step_flops / step_time / 1e9,
             100 * step_flops / step_time / peak);
}

void bench_attention(DType dtype, int64_t batch, int64_t seq, float dropout, int rounds) {
  mtl::AttentionShape s;
  s.batch = batch;
  s.seq = seq;
  s.heads = s.kv_heads = s.total_heads = 12;
  s.head_dim = 64;
  s.scale = 0.125f;
  const mtl::DropoutPass pass;
  s.dropout = {.probability = dropout,
               .pass = Tensor(const_cast<mtl::DropoutPass*>(&pass), DType::u8, {sizeof pass})};
  const int64_t rows = batch * seq, in = 3 * 768, wide = 768;
  mtl::Workspace spaces[5];
  int used = 0;
  const auto make = [&](DType type, int64_t r, int64_t c) {
    Tensor x(nullptr, type, {r, c});
    x.data = spaces[used++].get(static_cast<unsigned long>(x.bytes()));
    for (int64_t i = 0; i < x.numel(); ++i) {
      if (type == DType::bf16) {
        x.as<uint16_t>()[i] = static_cast<uint16_t>(0x3e00 + i * 7919 % 251);
      } else {
        x.as<float>()[i] = static_cast<float>(i * 7919 % 251) / 256.0f;
      }
    }
    return x;
  };
  const mtl::Attention forward{s, make(dtype, rows, in), make(dtype, rows, wide),
                               make(DType::f32, batch * 12, seq)};
  const mtl::AttentionBackward backward{
      s, forward.qkv, forward.out, forward.lse, make(dtype, rows, wide), make(dtype, rows, in)};
  mtl::CpuAttention attention;
  double best_forward = 1e30, best_backward = 1e30;
  for (int round = 0; round < rounds * 3; ++round) {
    const double start = now();
    attention.forward(forward);
    const double middle = now();
    attention.backward(backward);
    best_forward = std::min(best_forward, middle - start);
    best_backward = std::min(best_backward, now() - middle);
  }
  fmt::print(
      "attention {} batch={} seq={} dropout={}: 12 layers forward {:.1f} ms, backward {:.1f} ms\n",
      dtype == DType::f32 ? "f32" : "bf16", batch, seq, dropout, 12e3 * best_forward,
      12e3 * best_backward);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t batch = argc > 1 ? std::atol(argv[1]) : 4;
  const int64_t seq = argc > 2 ? std::atol(argv[2]) : 64;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 5;
  if (batch < 1 || seq < 1 || rounds < 1) {
    fmt::print(stderr, "usage: matmul [batch] [seq] [rounds]\n");
    return 2;
  }
  fmt::print("{} threads, {}{}, memory {:.1f} GB/s\n", omp_get_max_threads(),
             mtl::name_of(mtl::cpu_isa()), mtl::has_amx_bf16() ? " with AMX" : "",
             mtl::measure_memory_rate(0.3) / 1e9);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const float dropout : {0.0f, 0.1f}) bench_attention(dtype, batch, seq, dropout, rounds);
  }
  for (const DType dtype : {DType::f32, DType::bf16}) bench_matmul(dtype, batch * seq, rounds);
}
