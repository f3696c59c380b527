// A GPU for products_gpu: products alone, in short bursts, and under load, where the power's limit
// holds its clock as it does in a step.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bench/gpu/product_operands.h"
#include "bench/gpu/product_trials.h"
#include "runtime/device/cuda/cuda_errors.h"
#include "runtime/device/cuda/lt_matmul.h"
#include "runtime/engine/gpu_watch.h"

namespace mtl::bench {

class LoadedGpu {
 public:
  using Call = std::function<void()>;  // enqueues one product on `stream`

  // side: of the large product that runs between, [side, side / 2] by [side / 2, side].
  LoadedGpu(int64_t side, GpuWatch& watch)
      : stream(make_stream()),
        watch_(watch),
        between_(product_of(side)),
        operands_(between_, stream) {
    cuda::check(cudaEventCreate(&begin_), "an event");
    cuda::check(cudaEventCreate(&end_), "an event");
    between_plan_ = cuda::plan_matmul(between_, cuda::Fuse::nothing);
    between_s_ = alone_s([this] { run_between(); });
  }

  // Seconds of a call in a row of them.
  double row_s(const Call& call, int calls) {
    cuda::check(cudaEventRecord(begin_, stream), "an event");
    for (int i = 0; i < calls; ++i) call();
    return end_s() / calls;
  }
  // In a short burst: the median of three rows of some milliseconds. Nothing where it is surely
  // slower than `at_most`. What it calls has run before.
  std::optional<double> alone_s(const Call& call, double at_most) {
    const double once = row_s(call, 1);
    if (once > 1.1 * at_most) return std::nullopt;
    const int calls = calls_in(3e-3, once, 100);
    std::vector<double> times;
    if (calls == 1) times.push_back(once);
    while (times.size() < 3) times.push_back(row_s(call, calls));
    const double seconds = median_of(times);
    return seconds <= at_most ? std::optional(seconds) : std::nullopt;
  }
  double alone_s(const Call& call) {
    row_s(call, 1);
    return *alone_s(call, 1e9);
  }

  // Until its clock is where a step has it, or nearly: nothing but products.
  void heat(double seconds) {
    const auto start = std::chrono::steady_clock::now();
    const int calls = calls_in(0.02, between_s_, 100);
    while (std::chrono::steady_clock::now() - start < std::chrono::duration<double>(seconds)) {
      row_s([this] { run_between(); }, calls);
    }
  }
  // Before loaded_s() for slots of this length: what runs between, by itself.
  void measure_between(double slot_s) {
    const int calls = calls_in(slot_s, between_s_, 1000);
    row_s([this] { run_between(); }, std::max(1, calls / 2));
    between_loaded_s_ = row_s([this] { run_between(); }, calls);
  }
  // What a call takes of the time of a slot, where pieces of some milliseconds of it take turns
  // with a large product: that is behind what runs between. As long as power is the limit, so much
  // energy is so much time, whichever of the two has needed it: it may well be less than alone, if
  // it draws little. Timed from a time on, when the clock has come to where both hold it.
  double loaded_s(const Call& call, double call_s, double slot_s) {
    const int calls = calls_in(kPiece_s, call_s, 1000);
    const int pieces =
        std::max(1, static_cast<int>(std::lround(slot_s / (calls * call_s + between_s_))));
    const auto enqueue = [&](int count) {
      for (int piece = 0; piece < count; ++piece) {
        for (int i = 0; i < calls; ++i) call();
        run_between();
      }
    };
    enqueue((pieces + 1) / 2);
    const double slot = row_s([&] { enqueue(pieces); }, 1);
    see(watch_.latest());
    return (slot / pieces - between_loaded_s_) / calls;
  }

  // Of what was under load since the last time: megahertz and watts, 0 where the driver says none.
  std::pair<double, double> clock_and_power() {
    const auto mean = [](std::vector<double>& values) {
      double sum = 0;
      for (const double value : values) sum += value;
      const double result = values.empty() ? 0 : sum / static_cast<double>(values.size());
      values.clear();
      return result;
    };
    return {mean(clocks_), mean(powers_)};
  }

  const cudaStream_t stream;  // of all products
  cuda::LtMatmul lt;

 private:
  static constexpr double kPiece_s = 2e-3;

  static int calls_in(double seconds, double call_s, int most) {
    return static_cast<int>(std::clamp(seconds / std::max(call_s, 1e-9), 1.0, double(most)));
  }
  static cudaStream_t make_stream() {
    cudaStream_t made = nullptr;
    cuda::check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "a stream");
    return made;
  }
  static Matmul product_of(int64_t side) {
    const Tensor wide(nullptr, DType::bf16, {side, side / 2});
    return {
        .a = wide, .b = wide, .c = Tensor(nullptr, DType::bf16, {side, side}), .transpose_b = true};
  }
  void run_between() { lt.run(between_plan_.gemm, operands_.of(between_plan_, between_), stream); }
  double end_s() {
    cuda::check(cudaEventRecord(end_, stream), "an event");
    cuda::check(cudaEventSynchronize(end_), "a product");
    float milliseconds = 0;
    cuda::check(cudaEventElapsedTime(&milliseconds, begin_, end_), "a time");
    return static_cast<double>(milliseconds) / 1e3;
  }
  void see(const GpuReading& reading) {
    if (reading.clock_mhz) clocks_.push_back(*reading.clock_mhz);
    if (reading.power_w) powers_.push_back(*reading.power_w);
  }

  GpuWatch& watch_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  Matmul between_;
  ProductOperands operands_;
  cuda::MatmulPlan between_plan_;
  double between_s_ = 0, between_loaded_s_ = 0;  // of a call: alone, and in a row of a slot
  std::vector<double> clocks_, powers_;
};

}  // namespace mtl::bench
