// Whether products of our own could be faster than cuBLASLt's where power is the limit: forward
// products of the bars' models, by cuBLASLt's first algorithm, by the fastest that it names, and by
// a persistent kernel (persistent_product.h), alone in a short burst and under load.
//   build/bench/own_product_gpu [--seconds N]
// N: for all of it (default: 40). Ends with 1 where a result is not that of cuBLASLt. On Hopper
// alone.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <cuda_runtime_api.h>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/gpu/loaded_gpu.h"
#include "bench/gpu/persistent_product.h"
#include "bench/gpu/product_operands.h"
#include "common/error.h"
#include "common/text.h"
#include "runtime/device/cuda/cuda_errors.h"
#include "runtime/device/cuda/lt_matmul.h"
#include "runtime/device/cuda/matmul_plan.h"
#include "runtime/device/cuda/refusals.h"

using namespace mtl;
using bench::GpuMemory;
using bench::LoadedGpu;

namespace {

struct Sizes {
  const char* what;
  int64_t m, n, k;
};
constexpr Sizes kSizes[] = {{"llama-8b gate, up", 16384, 28672, 4096},
                            {"llama-8b down", 16384, 4096, 14336},
                            {"llama-8b q, k, v", 16384, 6144, 4096},
                            {"1.5b fc", 16384, 6400, 1600},
                            {"124m fc", 32768, 3072, 768},
                            {"124m proj", 32768, 768, 3072},
                            {"124m q, k, v", 32768, 2304, 768},
                            {"124m out", 32768, 768, 768}};

// |x - y| / |y| of the first elements of two results in bf16.
double distance(const void* x, const void* y, int64_t count) {
  const auto size = static_cast<size_t>(count);
  std::vector<uint16_t> a(size), b(size);
  cuda::check(cudaMemcpy(a.data(), x, 2 * size, cudaMemcpyDefault), "a result");
  cuda::check(cudaMemcpy(b.data(), y, 2 * size, cudaMemcpyDefault), "a result");
  const auto value = [](uint16_t bits) {
    return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits) << 16));
  };
  double apart = 0, all = 0;
  for (size_t i = 0; i < size; ++i) {
    apart += (value(a[i]) - value(b[i])) * (value(a[i]) - value(b[i]));
    all += value(b[i]) * value(b[i]);
  }
  return std::sqrt(apart / all);
}

class Rows {
 public:
  Rows(LoadedGpu& gpu, double slot_s) : gpu_(gpu), slot_s_(slot_s) {}
  bool right = true;

  void measure(const Sizes& s) {
    const Tensor c(nullptr, DType::bf16, {s.m, s.n});
    const Matmul args{.a = Tensor(nullptr, DType::bf16, {s.m, s.k}),
                      .b = Tensor(nullptr, DType::bf16, {s.n, s.k}),
                      .c = c,
                      .transpose_b = true};
    const bench::ProductOperands operands(args, gpu_.stream);
    const cuda::MatmulPlan plan = cuda::plan_matmul(args, cuda::Fuse::nothing);
    const cuda::LtOperands lt = operands.of(plan, args);
    fmt::print("{}: {} x {} x {}\n", s.what, s.m, s.n, s.k);
    flops_ = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
    const auto by_lt = [&] { gpu_.lt.run(plan.gemm, lt, gpu_.stream); };
    gpu_.measure_between(slot_s_);
    row("cuBLASLt's first", by_lt);
    const auto algorithms = gpu_.lt.candidates(plan.gemm, lt, 16);
    size_t best = 0;
    double best_s = 1e9;
    for (size_t i = 0; i < algorithms.size(); ++i) {
      if (!gpu_.lt.take(plan.gemm, lt, algorithms[i])) continue;
      const double seconds = gpu_.alone_s(by_lt);
      if (seconds < best_s) {
        best = i;
        best_s = seconds;
      }
    }
    if (best > 0 && gpu_.lt.take(plan.gemm, lt, algorithms[best])) row("cuBLASLt's best", by_lt);

    const GpuMemory own(c.bytes());
    for (const bench::ProductForm& form : bench::kProductForms) {
      cuda::check(cudaMemset(own.data(), 0xff, static_cast<size_t>(c.bytes())), "a result");
      row(fmt::format("ours, clusters of {}, lead {}", form.cluster, form.lead), [&] {
        bench::enqueue({s.m, s.n, s.k, lt.second, lt.first, own.data()}, form, gpu_.stream);
      });
      // The ends: beside the first tiles those that are not whole.
      const int64_t some = std::min<int64_t>(c.numel(), 1 << 22), behind = c.numel() - some;
      for (const int64_t first : {int64_t{0}, behind}) {
        const double apart =
            distance(static_cast<const uint16_t*>(own.data()) + first,
                     static_cast<const uint16_t*>(operands.c.data()) + first, some);
        if (apart <= 1e-3) continue;
        fmt::print("wrong: {:.2g} away from cuBLASLt's\n", apart);
        right = false;
      }
    }
  }

 private:
  void row(const std::string& name, const LoadedGpu::Call& call) {
    const double alone = gpu_.alone_s(call), loaded = gpu_.loaded_s(call, alone, slot_s_);
    const auto [clock, power] = gpu_.clock_and_power();
    fmt::print("  {:26} alone {:8.4f} ms {:5.0f} TF/s, under load {:8.4f} ms {:5.0f} TF/s", name,
               1e3 * alone, flops_ / alone / 1e12, 1e3 * loaded, flops_ / loaded / 1e12);
    fmt::print(" at {:.0f} MHz, {:.0f} W\n", clock, power);
    std::fflush(stdout);
  }

  LoadedGpu& gpu_;
  const double slot_s_;
  double flops_ = 0;
};

int measure(double seconds) {
  cuda::start_cuda();
  int device = 0;
  cudaDeviceProp properties{};
  cuda::check(cudaGetDevice(&device), "the current device");
  cuda::check(cudaGetDeviceProperties(&properties, device), "asking for a GPU's properties");
  const std::string gpu_name = properties.name;
  if (properties.major != 9) {
    fmt::print("{} is no Hopper: there is no such kernel\n", gpu_name);
    return 0;
  }
  GpuWatch watch(Nvml::open(), cuda::uuid_words(properties.uuid.bytes, cuda::is_mig(gpu_name)),
                 std::chrono::milliseconds(50));
  LoadedGpu gpu(8192, watch);
  fmt::print("{}, cuBLASLt {}\n", gpu_name, cuda::LtMatmul::version());
  gpu.heat(2);
  // Six rows of each size, under load one and a half times as long as they are timed; the trials.
  const double slot_s = seconds / (std::size(kSizes) * 6 * 2.2);
  Rows rows(gpu, slot_s);
  for (const Sizes& sizes : kSizes) rows.measure(sizes);
  return rows.right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 40;
  if (argc == 3 && std::string(argv[1]) == "--seconds") {
    const auto number = to_number<int64_t>(argv[2]);
    seconds = number && *number > 0 ? static_cast<double>(*number) : 0;
  } else if (argc > 1) {
    seconds = 0;
  }
  if (seconds <= 0) {
    fmt::print(stderr, "usage: own_product_gpu [--seconds N]\n");
    return 2;
  }
  try {
    return measure(seconds);
  } catch (const Error& error) {
    fmt::print(stderr, "{}", error.what());
    return static_cast<int>(error.exit());
  }
}
