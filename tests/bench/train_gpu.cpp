// Training steps of usual shapes on one GPU: model FLOP/s against the GPU's peak, memory against
// the plan's, and where the time goes.
//   MTL_DEVICE=cuda build/bench/train_gpu [--json FILE] [--no-parts | --ops] [--steps N] SHAPE ...
//   build/bench/train_gpu --for GPU [SHAPE ...]
// Shapes: those of gpu_runs.h, of which 124m, 1.5b and llama-8b are measured without further words,
// in bf16, and with -fp8 behind the name in fp8, against bf16's peak too. Before that: -norm, -act,
// -actN (of N layers), what is made again in backward, -bN, other micro-batches, -asks, targets of
// which some do not count, -muon, and -lora, adapters in place of the model. llama-8b has as many
// layers as fit. tests/reference/gpu_baseline.py has the same in PyTorch and joins the two: --json
// appends an object per shape to FILE. Model FLOPs count causal attention once and recompute not at
// all; the peak is that of the catalogue (runtime/plan/forecast/gpus.h). A step is four
// micro-batches and one update (of a run for real it would be more). Median of the steps behind the
// first two
// (--steps: so many, behind one); the first step's time is the start's, with algorithms chosen.
// Memory is what the device gave after it was opened, so without CUDA's own context; the plan is to
// foretell it, kernels' scratch included. The parts come from further steps that wait after every
// op (timed_device.h); each is held against the least time that it can take at the rates of an
// 8192^3 product and of a long copy, measured before. With --for nothing is computed: the same
// table of a GPU of the catalogue that is not at hand, of the least times alone. What is missing
// there to the peak no kernel can bring back, only a step that does less. --ops measures nothing:
// it takes two steps that wait after every op, and says which one fails or takes long.
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
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/text.h"
#include "device_rates.h"
#include "gpu_runs.h"
#include "runtime/device/make_device.h"
#include "runtime/engine/init.h"
#include "runtime/engine/trainer.h"
#include "runtime/engine/yardstick.h"
#include "runtime/plan/forecast/gpus.h"
#include "timed_device.h"

using namespace mtl;
using bench::Run;
using bench::Shape;

namespace {

using Clock = std::chrono::steady_clock;

int64_t memory_in_use(const MadeDevice& made) {
  if (made.cuda == nullptr) return 0;
  const CudaDeviceFacts facts = made.cuda->facts(true).devices.at(0);
  return facts.memory_bytes - facts.free_bytes;
}

// "bf16", "fp8+lora", "bf16+asks+muon", "bf16, cudnn", "bf16, norm mlp_act:7"
std::string variant(DType compute, const bench::NamedShape& named) {
  const char* attention = std::getenv("MTL_ATTENTION");
  std::string name = named.fp8 ? "fp8" : compute_name(compute);
  if (named.asks) name += "+asks";
  if (named.muon) name += "+muon";
  if (named.lora) name += "+lora";
  if (attention != nullptr) name += fmt::format(", {}", attention);
  if (named.recompute.mode == "none") return name;
  std::vector<std::string> modules = named.recompute.modules;
  for (std::string& module : modules) {
    const auto layers = named.recompute.module_layers.find(module);
    if (layers != named.recompute.module_layers.end()) module += fmt::format(":{}", layers->second);
  }
  name += fmt::format(", {}", fmt::join(modules, " "));
  return name;
}

// Passes are replayed from the third time on.
constexpr int kWarmUp = 2;

struct Options {
  std::string json;  // "" = none
  bool parts = true;
  bool ops = false;
  int steps = 0;  // that are measured; 0: the shape's
};

// Weights of the right size, and moments of zero. Billions of normal numbers take seconds to draw,
// so that of each matrix the first ones are drawn and repeated on the device.
void fill_weights(Trainer& trainer, Device& device) {
  constexpr int64_t kDrawn = 1 << 18;
  std::vector<float> drawn(kDrawn);
  for (const ParameterState& state : trainer.state()) {
    const int64_t count = state.part.count, first = state.part.first;
    int64_t done = std::min(count, kDrawn);
    initialise(*state.row, state.local_shape,
               clip_to_range(state.rects, state.local_shape, first, done), 1, first, done,
               drawn.data());
    state.master.write(device, 0, done, drawn.data());
    for (; done < count; done = std::min(count, 2 * done)) {
      const int64_t more = std::min(done, count - done);
      for (const Tensor& x : {state.master.whole, state.master.rests, state.master.weights}) {
        if (x) device.copy(x.slice(0, more), x.slice(done, more));
      }
    }
    for (const auto& [name, moment] : state.moments) device.fill(moment, 0);
  }
  trainer.weights_changed();
}

// Seconds of each of `count` steps; `done` is called after each.
std::vector<double> time_steps(Run& run, Device& device, int count, bool fills,
                               const std::function<void(int step, const StepResult&)>& done) {
  std::vector<double> seconds;
  Trainer trainer(run.plan, run.resolved.spec, device, *run.world);
  if (fills) fill_weights(trainer, device);
  for (int step = 0; step < count; ++step) {
    const auto start = Clock::now();
    const StepResult result = trainer.step(step, *run.samples, {});
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    done(step, result);
  }
  return seconds;
}

// The parts of one step, on average; without a device only counted.
using Share = bench::TimedDevice::Share;
std::map<std::string, Share> parts_of(Run& run, Device* device, const bench::DeviceRates& rates) {
  bench::TimedDevice timed(device, rates);
  const int steps = device != nullptr ? 2 : 1;
  time_steps(run, timed, 1 + steps, device != nullptr, [&](int step, const StepResult&) {
    if (step == 0) timed.clear();
  });
  std::map<std::string, Share> parts = timed.shares();
  for (auto& [part, share] : parts) {
    share.seconds /= steps;
    share.least /= steps;
    share.calls /= steps;
  }
  return parts;
}

void take_ops(Run& run, const std::string& title, Device& device) {
  bench::OpWatch watch(std::chrono::seconds(4));
  bench::TimedDevice timed(&device, {});
  timed.watch = &watch;
  time_steps(run, timed, 2, true, [&](int step, const StepResult& result) {
    int64_t calls = 0;
    for (const auto& [part, share] : timed.shares()) calls += share.calls;
    fmt::print("{:22} step {}: {} ops, loss {:.3f}\n", title, step + 1, calls, result.loss);
    std::fflush(stdout);
  });
}

Share sum_of(const std::map<std::string, Share>& parts) {
  Share all;
  for (const auto& [part, share] : parts) {
    all.seconds += share.seconds;
    all.least += share.least;
    all.calls += share.calls;
  }
  return all;
}

// What could be won most first.
void print_parts(const std::map<std::string, Share>& parts) {
  const Share all = sum_of(parts);
  const bool measured = all.seconds > 0;
  const auto to_win = [&](const Share& share) {
    return measured ? share.seconds - share.least : share.least;
  };
  std::vector<std::pair<std::string, Share>> rows(parts.begin(), parts.end());
  std::sort(rows.begin(), rows.end(),
            [&](const auto& a, const auto& b) { return to_win(a.second) > to_win(b.second); });
  rows.emplace_back("all", all);
  fmt::print("          {:28} {:>9} {:>9} {:>9} {:>7} {:>6}\n", "part", "ms", "least ms", "of step",
             "reached", "calls");
  for (const auto& [part, share] : rows) {
    const double of_step = measured ? share.seconds / all.seconds : share.least / all.least;
    fmt::print("          {:28} {:>9} {:9.3f} {:7.1f} % {:>7} {:6}\n", part,
               measured ? fmt::format("{:.3f}", 1e3 * share.seconds) : "-", 1e3 * share.least,
               100 * of_step,
               measured ? fmt::format("{:.0f} %", 100 * share.least / share.seconds) : "-",
               share.calls);
  }
  std::fflush(stdout);
}

// `opened`: memory in use before anything was asked of the device.
void measure(const std::string& title, MadeDevice& made, int64_t opened, double peak,
             const bench::DeviceRates& rates, const Options& options) {
  const bench::NamedShape named = bench::named_shape(title);
  if (named.fp8 && !made.device->has_float8()) {
    fmt::print("{:22} this device multiplies no FP8\n", title);
    return;
  }
  const int64_t memory =
      made.cuda != nullptr ? made.cuda->facts(false).devices.at(0).memory_bytes : 0;
  Run run(title, static_cast<double>(memory));
  if (options.ops) return take_ops(run, title, *made.device);
  const Shape& shape = run.shape;
  const Plan& plan = run.plan;
  double loss = 0, counted = 0;
  int64_t used = 0;
  const int warm_up = options.steps > 0 ? 1 : kWarmUp;
  const int steps = options.steps > 0 ? options.steps : shape.steps;
  std::vector<double> seconds =
      time_steps(run, *made.device, warm_up + steps, true, [&](int step, const StepResult& result) {
        loss = result.loss;
        counted = result.counted;
        if (step == warm_up) used = memory_in_use(made) - opened;
      });
  const double first = seconds.front();
  seconds.erase(seconds.begin(), seconds.begin() + warm_up);
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const auto tokens = static_cast<double>(plan.tokens_of_step(0));
  const double rate = run.flops(counted) / median;
  // Of one rank: its arena, and what kernels take beside it.
  const int64_t plan_bytes =
      plan.total_bytes() + made.device->scratch_for(plan.stages.front().kernels);
  const auto planned = static_cast<double>(plan_bytes);
  fmt::print(
      "{:22} {:6} {:6.2f} {:>7} {:6} {:9.2f} {:9.4f} {:10.0f} {:9.1f} {:>8} {:8.1f} {:8.1f} {:>7} "
      "{:7.3f}\n",
      title, shape.layers, static_cast<double>(plan.cost.parameters) / 1e9,
      fmt::format("{} x {}", shape.micro_batches, shape.batch), shape.seq, first, median,
      tokens / median, rate / 1e12, peak > 0 ? fmt::format("{:.1f} %", 100 * rate / peak) : "-",
      planned / (1 << 30), static_cast<double>(used) / (1 << 30),
      used > 0 ? fmt::format("{:+.1f} %", 100 * (static_cast<double>(used) / planned - 1)) : "-",
      loss);
  if (!options.json.empty()) {
    std::ofstream(options.json, std::ios::app)
        << nlohmann::json{{"shape", named.name},
                          {"variant", variant(plan.compute, named)},
                          {"layers", shape.layers},
                          {"parameters", plan.cost.parameters},
                          {"batch", shape.batch},
                          {"seq", shape.seq},
                          {"micro_batches", shape.micro_batches},
                          {"first_s", first},
                          {"step_s", median},
                          {"tokens_per_s", tokens / median},
                          {"flops_per_token", plan.cost.flops_per_token},
                          {"peak", peak},
                          {"plan_bytes", plan_bytes},
                          {"memory_bytes", used},
                          {"loss", loss}}
        << '\n';
  }
  std::fflush(stdout);
  if (options.parts) print_parts(parts_of(run, made.device.get(), rates));
}

void foretell(const std::string& name, const GpuModel& gpu, const bench::DeviceRates& rates) {
  Run run(name, gpu.memory_bytes);
  const std::map<std::string, Share> parts = parts_of(run, nullptr, rates);
  const double least = sum_of(parts).least;
  fmt::print(
      "{}: {} layers, {} x {} x {} tokens, {:.1f} GiB; at best {:.4f} s, {:.1f} model TFLOP/s, "
      "{:.1f} %\n",
      name, run.shape.layers, run.shape.micro_batches, run.shape.batch, run.shape.seq,
      static_cast<double>(run.plan.total_bytes()) / (1 << 30), least, run.flops() / least / 1e12,
      100 * run.flops() / least / gpu.bf16);
  print_parts(parts);
}

void print_rates(const bench::DeviceRates& rates) {
  fmt::print("large products: bf16 {:.4g} TFLOP/s, fp8 {:.4g} TFLOP/s; long copies {:.0f} GB/s\n",
             rates.flops / 1e12, rates.fp8_flops / 1e12, rates.memory / 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> names;
  Options options;
  std::string absent;  // --for
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--no-parts") {
      options.parts = false;
    } else if (word == "--ops") {
      options.ops = true;
    } else if (word == "--steps" && i + 1 < argc) {
      const auto steps = to_number<int>(argv[++i]);
      if (!steps || *steps <= 0) {
        fmt::print(stderr, "--steps needs a number above 0\n");
        return 2;
      }
      options.steps = *steps;
    } else if (word == "--json" && i + 1 < argc) {
      options.json = argv[++i];
    } else if (word == "--for" && i + 1 < argc) {
      absent = argv[++i];
    } else {
      names.push_back(word);
    }
  }
  if (names.empty()) names = {"124m", "1.5b", "llama-8b", "llama-8b-fp8"};
  if (const std::string what = bench::unknown_shape(names); !what.empty()) {
    fmt::print(stderr, "{}\n", what);
    return 2;
  }
  try {
    if (!absent.empty()) {
      const GpuModel* const gpu = find_gpu(absent);
      if (gpu == nullptr) {
        fmt::print(stderr, "the catalogue has no GPU {}\n", absent);
        return 2;
      }
      const bench::DeviceRates rates = bench::rates_of(*gpu);
      fmt::print("{}, not at hand; peak bf16 {:.0f} TFLOP/s\n", gpu->name, gpu->bf16 / 1e12);
      print_rates(rates);
      for (const std::string& name : names) foretell(name, *gpu, rates);
      return 0;
    }
    MadeDevice made = make_device({});
    const int64_t opened = memory_in_use(made);
    const double peak = catalogue_peak(made, DType::bf16);
    const char* attention = std::getenv("MTL_ATTENTION");
    if (attention != nullptr) fmt::print("MTL_ATTENTION={}\n", attention);
    fmt::print("{}; peak bf16 {}\n", made.description(),
               peak > 0 ? fmt::format("{:.0f} TFLOP/s", peak / 1e12) : "unknown");
    bench::DeviceRates rates;
    // Where no row is for a GPU (gpu_runs.h), in a moment on a CPU as well.
    const bool tiny = std::all_of(names.begin(), names.end(),
                                  [](const std::string& name) { return name.starts_with("tiny"); });
    const int64_t side = tiny || made.device->host_memory() ? 512 : 8192;
    if (options.parts && !options.ops) {
      print_rates(rates = bench::measured_rates(*made.device, side));
    }
    fmt::print(
        "{:22} {:>6} {:>6} {:>7} {:>6} {:>9} {:>9} {:>10} {:>9} {:>8} {:>8} {:>8} {:>7} "
        "{:>7}\n",
        "shape", "layers", "10^9", "B", "T", "first s", "median s", "tokens/s", "model TF/s",
        "of peak", "plan GiB", "used GiB", "more", "loss");
    int code = 0;
    for (const std::string& name : names) {
      try {
        measure(name, made, opened, peak, rates, options);
      } catch (const Error& error) {
        // The others are worth their time all the same.
        fmt::print("{:22} not measured: {}", name, error.what());
        code = static_cast<int>(error.exit());
      }
    }
    return code;
  } catch (const Error& error) {
    fmt::print(stderr, "{}", error.what());
    return static_cast<int>(error.exit());
  }
  return 0;
}
