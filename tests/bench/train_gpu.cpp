// Training steps of usual shapes on one GPU: model FLOP/s against the GPU's peak, memory against
// the plan's, and where the time goes.
//   MTL_DEVICE=cuda build/bench/train_gpu [--json FILE] [--no-parts] [SHAPE ...]
// Shapes: 124m, 1.5b (GPT-2), llama-8b (Llama 3's layers, 16 of 32, and its vocabulary), which are
// measured without further words, llama-1b-4k, and tiny and tiny-llama (to try the program
// anywhere); in bf16, and with -fp8 behind the name in fp8, against bf16's peak too.
// tests/reference/gpu_baseline.py has the same in PyTorch and joins the two: --json appends an
// object per shape to FILE. Model FLOPs count causal attention once and recompute not at all; the
// peak is that of the catalogue (runtime/plan/gpus.h). Median of the steps behind the first three;
// the first step's time is the start's, with algorithms chosen. Memory is what the device gave
// after it was opened, so without CUDA's own context; the plan is to foretell it. The parts come
// from further steps that wait after every op (timed_device.h).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/device/load_cuda.h"
#include "runtime/device/make_device.h"
#include "runtime/engine/trainer.h"
#include "runtime/engine/yardstick.h"
#include "spread_tokens.h"
#include "timed_device.h"

using namespace mtl;

namespace {

using Clock = std::chrono::steady_clock;

struct Shape {
  bool llama;
  int64_t vocab, layers, hidden, heads, kv_heads, ffn, batch, seq;
  int steps;
};
const std::map<std::string, Shape> kShapes = {
    {"tiny", {false, 512, 2, 64, 4, 4, 256, 2, 64, 4}},
    {"tiny-llama", {true, 512, 2, 64, 4, 2, 160, 2, 64, 4}},
    {"124m", {false, 50257, 12, 768, 12, 12, 3072, 32, 1024, 20}},
    {"1.5b", {false, 50257, 48, 1600, 25, 25, 6400, 8, 1024, 10}},
    {"llama-1b-4k", {true, 128256, 16, 2048, 32, 8, 8192, 4, 4096, 8}},
    {"llama-8b", {true, 128256, 16, 4096, 32, 8, 14336, 2, 8192, 8}},
};

TrainSpec spec_of(const Shape& shape, bool fp8) {
  TrainSpec spec;
  spec.model.layers = shape.layers;
  spec.model.hidden = shape.hidden;
  spec.model.heads = shape.heads;
  spec.model.kv_heads = shape.kv_heads;
  spec.model.ffn = shape.ffn;
  spec.model.max_seq = shape.seq;
  if (shape.llama) {
    spec.model.activation = "swiglu";
    spec.model.norm.type = "rmsnorm";
    spec.model.position.type = "rope";
    spec.model.position.base = 500000;
    spec.model.bias = false;
    spec.model.tie_embeddings = false;
  }
  spec.train.global_batch = shape.batch;
  spec.train.seq_len = shape.seq;
  spec.train.steps = 1000;
  spec.precision.dtype = fp8 ? "fp8" : "bf16";
  return spec;
}

int64_t memory_in_use(const MadeDevice& made) {
  if (made.cuda == nullptr) return 0;
  const CudaDeviceFacts facts = made.cuda->facts(true).devices.at(0);
  return facts.memory_bytes - facts.free_bytes;
}

// "bf16", "fp8", "bf16, cudnn"
std::string variant(DType compute, bool fp8) {
  const char* attention = std::getenv("MTL_ATTENTION");
  const std::string name = fp8 ? "fp8" : compute_name(compute);
  return attention != nullptr ? name + ", " + attention : name;
}

struct Options {
  std::string json;  // "" = none
  bool parts = true;
};

void run(const std::string& name, bool fp8, MadeDevice& made, double peak, const Options& options) {
  const std::string title = fp8 ? name + "-fp8" : name;
  const Shape& shape = kShapes.at(name);
  if (fp8 && !made.device->has_float8()) {
    fmt::print("{:12} this device multiplies no FP8\n", title);
    return;
  }
  ResolvedSpec resolved;
  resolved.spec = spec_of(shape, fp8);
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = shape.vocab}, 1, diagnostics);
  diagnostics.throw_if_errors();
  const SpreadTokens source(shape.vocab);
  const Sampler sampler(source.size(), shape.seq, SampleOrder::random, 1);
  const auto world = make_self_world();
  bench::TimedDevice timed(*made.device);
  std::vector<double> seconds;
  double loss = 0;
  const int64_t before = memory_in_use(made);
  int64_t used = 0;
  const auto steps = [&](Device& device, int count, const std::function<void(int)>& done) {
    Trainer trainer(plan, resolved.spec, device, *world);
    trainer.initialise();
    for (int step = 0; step < count; ++step) {
      const auto start = Clock::now();
      loss = trainer.step(step, source, sampler, {}).loss;
      seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
      done(step);
    }
  };
  steps(*made.device, 3 + shape.steps, [&](int step) {
    if (step == 3) used = memory_in_use(made) - before;
  });
  const double first = seconds.front();
  seconds.erase(seconds.begin(), seconds.begin() + 3);
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const auto tokens = static_cast<double>(plan.tokens_of_step(0));
  const double rate = plan.cost.flops_per_token * tokens / median;
  const auto planned = static_cast<double>(plan.total_bytes());
  fmt::print(
      "{:12} {:6.2f} {:4} {:6} {:9.2f} {:9.4f} {:10.0f} {:9.1f} {:>8} {:8.1f} {:8.1f} {:>7} "
      "{:7.3f}\n",
      title, static_cast<double>(plan.cost.parameters) / 1e9, shape.batch, shape.seq, first, median,
      tokens / median, rate / 1e12, peak > 0 ? fmt::format("{:.1f} %", 100 * rate / peak) : "-",
      planned / (1 << 30), static_cast<double>(used) / (1 << 30),
      used > 0 ? fmt::format("{:+.1f} %", 100 * (static_cast<double>(used) / planned - 1)) : "-",
      loss);
  if (!options.json.empty()) {
    std::ofstream(options.json, std::ios::app)
        << nlohmann::json{{"shape", name},
                          {"variant", variant(plan.compute, fp8)},
                          {"parameters", plan.cost.parameters},
                          {"batch", shape.batch},
                          {"seq", shape.seq},
                          {"first_s", first},
                          {"step_s", median},
                          {"tokens_per_s", tokens / median},
                          {"flops_per_token", plan.cost.flops_per_token},
                          {"peak", peak},
                          {"plan_bytes", plan.total_bytes()},
                          {"memory_bytes", used},
                          {"loss", loss}}
        << '\n';
  }
  std::fflush(stdout);
  if (!options.parts) return;

  seconds.clear();
  constexpr int kTimedSteps = 2;
  steps(timed, 1 + kTimedSteps, [&](int step) {
    if (step == 0) timed.clear();
  });
  std::vector<std::pair<std::string, bench::TimedDevice::Share>> parts(timed.shares().begin(),
                                                                       timed.shares().end());
  std::sort(parts.begin(), parts.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  for (const auto& [part, share] : parts) {
    fmt::print("          {:28} {:9.3f} ms {:6} calls a step\n", part,
               1e3 * share.seconds / kTimedSteps, share.calls / kTimedSteps);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> names;
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--no-parts") {
      options.parts = false;
    } else if (word == "--json" && i + 1 < argc) {
      options.json = argv[++i];
    } else {
      names.push_back(word);
    }
  }
  if (names.empty()) names = {"124m", "1.5b", "llama-8b", "llama-8b-fp8"};
  try {
    MadeDevice made = make_device({});
    const double peak = catalogue_peak(made, DType::bf16);
    const char* attention = std::getenv("MTL_ATTENTION");
    if (attention != nullptr) fmt::print("MTL_ATTENTION={}\n", attention);
    fmt::print("{}; peak bf16 {}\n", made.description(),
               peak > 0 ? fmt::format("{:.0f} TFLOP/s", peak / 1e12) : "unknown");
    fmt::print(
        "shape         10^9    B      T   first s  median s   tokens/s model TF/s  of peak  plan "
        "GiB used GiB    more    loss\n");
    for (const std::string& name : names) {
      const bool fp8 = name.ends_with("-fp8");
      const auto shape = kShapes.find(fp8 ? name.substr(0, name.size() - 4) : name);
      if (shape == kShapes.end()) {
        std::vector<std::string> known;
        for (const auto& [other, _] : kShapes) known.push_back(other);
        fmt::print(stderr, "there is no shape {}: {}\n", name, fmt::join(known, ", "));
        return 2;
      }
      run(shape->first, fp8, made, peak, options);
    }
  } catch (const Error& error) {
    fmt::print(stderr, "{}", error.what());
    return static_cast<int>(error.exit());
  }
  return 0;
}
