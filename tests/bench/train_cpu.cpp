// Training steps of the GPT-2 124M shape on this machine's CPU, in one process. Beside each row
// stand the matmul and memory rates measured just before and after it (the better of the two),
// because shared machines change speed from minute to minute.
//   build/bench/train_cpu [threads=2] [steps=8]
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "runtime/device/cpu/calibrate.h"
#include "runtime/engine/trainer.h"
#include "spread_tokens.h"
#include "support/some_count.h"
#include "support/specs.h"

using namespace mtl;

namespace {

constexpr int64_t kVocab = 50257;

struct Rates {
  double matmul = 0, memory = 0;
};

Rates measure(DType dtype) {
  return {measure_matmul_rate(dtype, 0.4), measure_memory_rate(0.2)};
}

// Of `of` targets one counts in the loss. `rank`: of adapters that are trained in the model's
// place.
void run(const char* dtype, int64_t batch, int64_t seq, int threads, int steps, int64_t of = 1,
         int64_t rank = 0) {
  ResolvedSpec resolved;
  TrainSpec& spec = resolved.spec;
  spec = test::spec_with({.layers = 12,
                          .hidden = 768,
                          .heads = 12,
                          .global_batch = batch,
                          .micro_batch = 0,
                          .seq_len = seq,
                          .steps = 1000});
  spec.model.max_seq = 1024;
  spec.precision.dtype = dtype;
  spec.lora.rank = rank;
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = kVocab}, 1, diagnostics);
  diagnostics.throw_if_errors();
  const auto device = make_cpu_device(threads);
  const auto world = make_self_world();
  Trainer trainer(plan, spec, *device, *world);
  trainer.initialise();
  const SpreadTokens source(kVocab);
  const Sampler sampler(source.size(), seq, SampleOrder::random, 1);
  const test::SomeCount samples(std::make_shared<TokenWindows>(source, sampler), seq,
                                [of](int64_t, int64_t position) { return position % of == 0; });

  const Rates before = measure(plan.compute);
  std::vector<double> seconds;
  for (int step = 0; step < steps + 2; ++step) {
    const auto start = std::chrono::steady_clock::now();
    trainer.step(step, samples, {});
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (step >= 2) seconds.push_back(took.count());  // the first two build caches and touch memory
  }
  const Rates after = measure(plan.compute);
  std::sort(seconds.begin(), seconds.end());
  const double best = seconds.front(), median = seconds[seconds.size() / 2];
  const double matmul = std::max(before.matmul, after.matmul);
  const auto tokens = static_cast<double>(plan.tokens_of_step(0));
  const double head = flops_per_token_of_head(plan.model);
  const double needed = plan.cost.flops_per_token - head + head / static_cast<double>(of);
  const double rate = needed * tokens / median;
  fmt::print(
      "{:5} {:3} {:5} {:7} {:>8} {:5.2f} {:9.3f} {:9.3f} {:9.0f} {:11.0f} {:7.1f} % {:13.0f} "
      "{:12.1f}\n",
      dtype, batch, seq, fmt::format("1/{}", of), rank > 0 ? fmt::format("lora {}", rank) : "all",
      static_cast<double>(plan.peak_bytes()) / 1e9, best, median, tokens / median, rate / 1e9,
      100 * rate / matmul, matmul / 1e9, std::max(before.memory, after.memory) / 1e9);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const int steps = argc > 2 ? std::atoi(argv[2]) : 8;
  fmt::print("GPT-2 124M, forward + backward + AdamW, {} threads, {} steps after 2 to warm up\n",
             threads, steps);
  fmt::print(
      "dtype   B     T learned  trained    GB    best s  median s  tokens/s  model GF/s of matmul  "
      " "
      "matmul GF/s  memory GB/s\n");
  run("bf16", 4, 64, threads, steps);
  run("fp32", 4, 64, threads, steps);
  run("bf16", 4, 1024, threads, std::max(2, steps / 3));
  run("bf16", 4, 1024, threads, std::max(2, steps / 3), 4);
  run("bf16", 4, 1024, threads, std::max(2, steps / 3), 1, 16);
  return 0;
}
