#include "runtime/device/cpu/calibrate.h"

#include <algorithm>
#include <chrono>
#include <omp.h>

#include "runtime/device/cpu/isa.h"
#include "runtime/device/cpu/kernels/matmul_kernels.h"
#include "runtime/device/cpu/matmul.h"
#include "runtime/device/cpu/threads.h"

namespace mtl {
namespace {

double seconds_now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// The shortest time of one call of `body`, after one call that warms up.
template <typename Body>
double best_time(double seconds, const Body& body) {
  body();
  double best = 1e30;
  const double end = seconds_now() + seconds;
  do {
    const double start = seconds_now();
    body();
    best = std::min(best, seconds_now() - start);
  } while (seconds_now() < end);
  return std::max(best, 1e-9);
}

}  // namespace

double measure_matmul_rate(DType dtype, double seconds) {
  constexpr int64_t kSize = 2048;
  Workspace a, b, c;
  const auto make = [&](Workspace& space) {
    Tensor x(nullptr, dtype, {kSize, kSize});
    x.data = space.get(static_cast<unsigned long>(x.bytes()));
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < x.numel(); ++i) {
      // Ordinary values near 1: zeros and denormals run at speeds of their own.
      if (dtype == DType::bf16) {
        x.as<uint16_t>()[i] = static_cast<uint16_t>(0x3f80 + i % 97);
      } else {
        x.as<float>()[i] = 1.0f + static_cast<float>(i % 97) / 128.0f;
      }
    }
    return x;
  };
  Matmul args;
  args.a = make(a);
  args.b = make(b);
  args.c = make(c);
  args.transpose_b = true;
  CpuMatmul matmul;
  const double time = best_time(seconds, [&] { matmul.run(args); });
  return 2.0 * kSize * kSize * kSize / time;
}

double measure_memory_rate(double seconds) {
  constexpr int64_t kChunk = 1 << 16, kChunks = 256, kSize = kChunk * kChunks;  // 64 MiB each
  Workspace space;
  float* a = static_cast<float*>(space.get(3ul * kSize * sizeof(float)));
  float *b = a + kSize, *c = b + kSize;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < kSize; ++i) {
    a[i] = 0;
    b[i] = 1;
    c[i] = 2;
  }
  const auto triad = cpu_isa() == Isa::avx512 ? avx512::kMatmulKernels.triad
                     : cpu_isa() == Isa::avx2 ? avx2::kMatmulKernels.triad
                                              : base::kMatmulKernels.triad;
  const double time = best_time(seconds, [&] {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < kChunks; ++i) {
      triad(a + i * kChunk, b + i * kChunk, c + i * kChunk, 0.5f, kChunk);
    }
  });
  return 12.0 * kSize / time;
}

}  // namespace mtl
