// The products of a training step alone, on one GPU, as mtl asks cuBLASLt for them: each by the
// algorithm that the heuristics put first (which mtl takes) and by the others that they name; alone
// in a short burst, and those that are fast then again under load (product_trials.h). So many
// milliseconds of a step would be won by a choice that measures.
//   build/bench/products_gpu [--choose FILE] [--seconds N] [SHAPE ...]
// Shapes: those of gpu_runs.h; without any, the four that train_gpu measures. FILE is then what
// MTL_PRODUCTS takes: the fastest of each product under load that is surely not the first one,
// written after each. N: for all of it (default: 30 for each shape); a product has as much of it as
// of the step.
//
// Behind each gradient of a weight that asks for the sums of an operand, which are the bias's
// gradient: the same with them made in the product (BGRADA, BGRADB), and the least time of a pass
// of its own, which it has to win against.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cuda_runtime_api.h>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/gpu/loaded_gpu.h"
#include "bench/gpu/product_operands.h"
#include "bench/gpu/product_trials.h"
#include "bench/gpu/step_products.h"
#include "bench/gpu_runs.h"
#include "common/files.h"
#include "common/text.h"
#include "runtime/device/cuda/cuda_errors.h"
#include "runtime/device/cuda/lt_matmul.h"
#include "runtime/device/cuda/lt_words.h"
#include "runtime/device/cuda/product_choices.h"
#include "runtime/device/cuda/refusals.h"

using namespace mtl;
using bench::GpuMemory;
using bench::LoadedGpu;
using bench::Product;
using bench::ProductOperands;
using cuda::LtAlgorithm;
using cuda::LtMatmul;
using cuda::LtOperands;

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostCandidates = 64;

double memory_bytes() {
  size_t free = 0, total = 0;
  cuda::check(cudaMemGetInfo(&free, &total), "asking for the GPU's memory");
  return static_cast<double>(total);
}

// One way to ask for a product: as it is, or with the sums of an operand in it.
struct Way {
  cuda::MatmulPlan plan;
  LtOperands operands{};
  std::vector<LtAlgorithm> algorithms = {};
  std::vector<double> alone = {};  // seconds of a call of each

  size_t best() const {
    return static_cast<size_t>(std::min_element(alone.begin(), alone.end()) - alone.begin());
  }
};

// Whether run() takes it from now on: cuBLASLt may refuse what it has named.
bool take(LoadedGpu& gpu, const Way& way, size_t place) {
  if (!gpu.lt.take(way.plan.gemm, way.operands, way.algorithms[place])) return false;
  gpu.lt.run(way.plan.gemm, way.operands, gpu.stream);
  return gpu.lt.choice(way.plan.gemm, way.operands).second == way.algorithms[place];
}
LoadedGpu::Call call_of(LoadedGpu& gpu, const Way& way) {
  return [&gpu, &way] { gpu.lt.run(way.plan.gemm, way.operands, gpu.stream); };
}

// Its algorithms alone, until `until`, but the first one in any case. Those that are much slower
// than others are left out. False where cuBLASLt has none.
bool try_alone(LoadedGpu& gpu, Way& way, Clock::time_point until) {
  Clock::duration busy = {};
  for (const LtAlgorithm& algorithm :
       gpu.lt.candidates(way.plan.gemm, way.operands, kMostCandidates)) {
    if (!way.alone.empty() && Clock::now() > until) break;
    const double most = way.alone.empty() ? 1e9 : (1 + bench::kTriedWithin) * way.alone[way.best()];
    // It rests before each for a third of the time, so that power holds the clock of none, whatever
    // ran before it.
    std::this_thread::sleep_for(std::min<Clock::duration>(busy / 2, std::chrono::milliseconds(30)));
    const auto begin = Clock::now();
    way.algorithms.push_back(algorithm);
    std::optional<double> seconds;
    if (take(gpu, way, way.alone.size())) seconds = gpu.alone_s(call_of(gpu, way), most);
    if (seconds) {
      way.alone.push_back(*seconds);
    } else {
      way.algorithms.pop_back();
    }
    busy = Clock::now() - begin;
  }
  return !way.alone.empty();
}

struct Measured {
  const Product* product = nullptr;
  std::vector<Way> ways = {};  // the second one, if any: with the sums
  double pass = 0;             // seconds of a pass of its own for those, at least

  double alone_s() const { return static_cast<double>(product->calls) * ways[0].alone[0]; }
};

// Of a step, in seconds: alone, by the first and by the fastest; and of what was measured under
// load, by the first alone, then under load by the first, the fastest alone, and the chosen.
struct Sum {
  double first = 0, best = 0, share_first = 0, loaded_first = 0, loaded_best = 0, loaded_chosen = 0;
};

const Tensor& sums_of(const Matmul& args) {
  return args.sums_of_b ? args.sums_of_b : args.sums_of_a;
}

std::string whole_number(double value) {
  return value > 0 ? fmt::format("{:.0f}", value) : "-";
}

class Bench {
 public:
  // copy_rate: bytes per second, read and written.
  Bench(LoadedGpu& gpu, std::string file, double least_slot_s, double copy_rate)
      : gpu_(gpu), file_(std::move(file)), least_slot_s_(least_slot_s), copy_rate_(copy_rate) {}

  cuda::ProductChoices choices;
  int code = 0;

  void run(const std::string& name, double seconds) {
    const auto begin = Clock::now();
    const auto since = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
    bench::Run run(name, memory_bytes());
    const std::vector<Product> products = bench::products_of(run);
    print_head(name, run.shape.layers);
    // Alone at first: so all of them, and what each is worth.
    const double alone_s = kAlone * (seconds - since());
    double all_flops = 0, share = 0;
    for (const Product& product : products) all_flops += bench::flops_of(product);
    std::vector<Measured> measured;
    for (const Product& product : products) {
      share +=
          (1 / static_cast<double>(products.size()) + bench::flops_of(product) / all_flops) / 2;
      const std::chrono::duration<double> until(share * alone_s);
      guarded(product, [&] {
        alone(product, begin + std::chrono::duration_cast<Clock::duration>(until), measured);
      });
    }
    double left_s = 0;
    for (const Measured& one : measured) left_s += one.alone_s();
    const double all_s = left_s;
    sum_ = {};
    for (Measured& one : measured) {
      const double time_s = one.alone_s() / left_s * (seconds - since());
      left_s -= one.alone_s();
      guarded(*one.product, [&] { loaded(one, one.alone_s() / all_s, time_s); });
      // What has been measured is there even if the next one is too much.
      if (!file_.empty()) write_file_atomic(file_, to_text(choices));
    }
    print_sum(since());
  }

 private:
  static constexpr double kAlone = 0.35;  // of the time

  template <class Body>
  void guarded(const Product& product, const Body& body) {
    try {
      body();
    } catch (const Error& error) {
      // The others are worth their time all the same.
      fmt::print("{} not measured: {}", bench::words_of(product.args), error.what());
      code = static_cast<int>(error.exit());
    }
  }

  void alone(const Product& product, Clock::time_point until, std::vector<Measured>& to) {
    const Matmul& args = product.args;
    const ProductOperands operands(args, gpu_.stream);
    Measured measured = {.product = &product};
    for (const cuda::Fuse fuse : {cuda::Fuse::all, cuda::Fuse::bias, cuda::Fuse::nothing}) {
      Way way = {.plan = cuda::plan_matmul(args, fuse)};
      if (way.plan.into == cuda::MatmulPlan::Into::wide) return;  // in slices: none of its own
      way.operands = operands.of(way.plan, args);
      if (!try_alone(gpu_, way, until)) continue;
      measured.ways.push_back(std::move(way));
      break;
    }
    if (measured.ways.empty()) return;
    if (const Tensor& sums = sums_of(args)) {
      const Tensor& summed = args.sums_of_b ? args.b : args.a;
      measured.pass = static_cast<double>(summed.bytes()) / copy_rate_;
      Way way = {.plan = cuda::plan_matmul(args, cuda::Fuse::nothing, cuda::Sums::in_product)};
      const GpuMemory to_sums(sums.bytes());
      way.operands = operands.of(way.plan, args, to_sums.data());
      if (way.plan.sums_in_gemm && try_alone(gpu_, way, until)) {
        measured.ways.push_back(std::move(way));
      }
    }
    to.push_back(std::move(measured));
  }

  // Under load, for so long; and its row. `share`: of the step's products.
  void loaded(Measured& of, double share, double seconds) {
    const Matmul& args = of.product->args;
    const auto calls = static_cast<double>(of.product->calls);
    Way& whole = of.ways[0];
    const double first = whole.alone[0], best = whole.alone[whole.best()];
    double best_with_sums = best + of.pass;
    std::vector<size_t> with_sums;
    if (of.ways.size() > 1) {
      const Way& way = of.ways[1];
      best_with_sums = std::min(best_with_sums, way.alone[way.best()]);
      // The fastest alone and the first: they have one to beat.
      with_sums = bench::tried_of(way.alone, 2);
    }
    sum_.first += calls * (first + of.pass);
    sum_.best += calls * best_with_sums;

    std::vector<size_t> tried = bench::tried_of(whole.alone, whole.alone.size());
    const bench::LoadPlan plan =
        bench::load_plan(seconds, tried.size() + with_sums.size(), first, least_slot_s_);
    fmt::print("{:>7} {:>7} {:>7}  {:36} {:6} {:5.1f} % {:9.4f} {:6.0f} {:9.4f} {:6.0f} {:3}",
               args.c.rows(), args.c.cols(), bench::k_of(args), bench::words_of(args),
               of.product->calls, 100 * share, 1e3 * first, bench::tera(args, first), 1e3 * best,
               bench::tera(args, best), whole.best());
    if (plan.rounds == 0) {
      fmt::print(" {:>9}\n", "-");
      return;
    }
    if (plan.candidates < 2 + with_sums.size()) with_sums.clear();
    tried.resize(std::min(tried.size(), plan.candidates - with_sums.size()));
    const ProductOperands operands(args, gpu_.stream);
    const GpuMemory to_sums(sums_of(args) ? sums_of(args).bytes() : 0);
    whole.operands = operands.of(whole.plan, args);
    if (!with_sums.empty()) {
      of.ways[1].operands = operands.of(of.ways[1].plan, args, to_sums.data());
    }
    const auto candidate = [&](size_t i) -> std::pair<const Way&, size_t> {
      if (i < tried.size()) return {whole, tried[i]};
      return {of.ways[1], with_sums[i - tried.size()]};
    };
    gpu_.measure_between(plan.slot_s);
    const bench::UnderLoad found =
        bench::under_load(tried.size() + with_sums.size(), plan.rounds, [&](size_t i) {
          const std::pair<const Way&, size_t> asked = candidate(i);
          take(gpu_, asked.first, asked.second);
          return gpu_.loaded_s(call_of(gpu_, asked.first), asked.first.alone[asked.second],
                               plan.slot_s);
        });

    // Seconds of a call, but for what the clock did from round to round.
    const auto cost = [&](size_t i) { return found.ratios[i] * found.seconds[0]; };
    const size_t chosen = bench::chosen_of(found, tried.size());
    const auto place_of_best = std::find(tried.begin(), tried.end(), whole.best());
    const double best_s = cost(static_cast<size_t>(place_of_best - tried.begin()));
    const auto [clock, power] = gpu_.clock_and_power();
    fmt::print(" {:9.4f} {:9.4f} {:9.4f} {:6.0f} {:3} {:5.2f} % {:>5} {:>4} {:9.3f}\n",
               1e3 * cost(0), 1e3 * best_s, 1e3 * cost(chosen), bench::tera(args, cost(chosen)),
               tried[chosen], 100 * found.noise, whole_number(clock), whole_number(power),
               1e3 * calls * (cost(0) - cost(chosen)));
    if (chosen > 0) {
      choose(whole, tried[chosen]);
      fmt::print("{:25} first: {}\n{:25} chosen: {}\n", "", cuda::words_of(whole.algorithms[0]), "",
                 cuda::words_of(whole.algorithms[tried[chosen]]));
    }
    double least = cost(chosen) + of.pass;
    if (!with_sums.empty()) {
      const size_t i = bench::fastest_of(found, tried.size(), found.ratios.size());
      const bool wins = cost(i) < (1 - bench::needed_gain(found)) * least;
      fmt::print("{:25} with sums in it {:.4f} ms, a pass of its own {:.4f} ms at least{}\n", "",
                 1e3 * cost(i), 1e3 * of.pass, wins ? ": chosen in it" : "");
      if (wins) {
        choose(of.ways[1], candidate(i).second);
        least = cost(i);
      }
    }
    std::fflush(stdout);
    sum_.share_first += calls * (first + of.pass);
    sum_.loaded_first += calls * (cost(0) + of.pass);
    sum_.loaded_best += calls * (best_s + of.pass);
    sum_.loaded_chosen += calls * least;
  }
  void choose(const Way& way, size_t place) {
    if (take(gpu_, way, place)) {
      choices.algorithms.insert(gpu_.lt.choice(way.plan.gemm, way.operands));
    }
  }

  static void print_head(const std::string& name, int64_t layers) {
    fmt::print("\n{}, {} layers\n{:77} {:38} {}\n", name, layers, "", "alone, in a burst",
               "under load: by the first, by the best alone, by the chosen");
    fmt::print(
        "{:>7} {:>7} {:>7}  {:36} {:>6} {:>7} {:>9} {:>6} {:>9} {:>6} {:>3} {:>9} {:>9} "
        "{:>9} {:>6} {:>3} {:>7} {:>5} {:>4} {:>9}\n",
        "m", "n", "k", "form", "calls", "of step", "first ms", "TF/s", "best ms", "TF/s", "no.",
        "first ms", "best ms", "chosen ms", "TF/s", "no.", "noise", "MHz", "W", "to win ms");
    std::fflush(stdout);
  }
  void print_sum(double took) const {
    fmt::print("products of a step: {:.3f} ms alone, by the best alone {:.3f} ms ({:+.1f} %)\n",
               1e3 * sum_.first, 1e3 * sum_.best, 100 * (sum_.best / sum_.first - 1));
    if (sum_.loaded_first > 0) {
      fmt::print(
          "under load, {:.1f} % of them: {:.3f} ms ({:+.1f} % against alone), by the best "
          "alone {:.3f} ms ({:+.1f} %), by the chosen {:.3f} ms ({:+.1f} %)\n",
          100 * sum_.share_first / sum_.first, 1e3 * sum_.loaded_first,
          100 * (sum_.loaded_first / sum_.share_first - 1), 1e3 * sum_.loaded_best,
          100 * (sum_.loaded_best / sum_.loaded_first - 1), 1e3 * sum_.loaded_chosen,
          100 * (sum_.loaded_chosen / sum_.loaded_first - 1));
    }
    fmt::print("in {:.1f} s\n", took);
    std::fflush(stdout);
  }

  LoadedGpu& gpu_;
  const std::string file_;
  const double least_slot_s_, copy_rate_;
  Sum sum_;
};

// Bytes per second, read and written.
double copy_rate_of(LoadedGpu& gpu, int64_t bytes) {
  const GpuMemory from(bytes), to(bytes);
  return 2.0 * static_cast<double>(bytes) / gpu.alone_s([&] {
    bench::copy_bytes(to.data(), from.data(), static_cast<size_t>(bytes), gpu.stream);
  });
}

cudaDeviceProp gpu_properties() {
  int device = 0;
  cudaDeviceProp properties{};
  cuda::check(cudaGetDevice(&device), "the current device");
  cuda::check(cudaGetDeviceProperties(&properties, device), "asking for a GPU's properties");
  return properties;
}

struct Options {
  std::string file;
  double seconds = 0;  // 0: so many for each shape
  std::vector<std::string> names;
};
// What is wrong with the words; empty: nothing.
std::string read_options(const std::vector<std::string>& words, Options& options) {
  for (size_t i = 0; i < words.size(); ++i) {
    const bool last = i + 1 == words.size();
    if (words[i] == "--choose") {
      if (last) return "--choose needs a file to write";
      options.file = words[++i];
    } else if (words[i] == "--seconds") {
      const auto seconds = last ? std::nullopt : to_number<int64_t>(words[++i]);
      if (!seconds || *seconds <= 0) return "--seconds needs a whole number above 0";
      options.seconds = static_cast<double>(*seconds);
    } else {
      options.names.push_back(words[i]);
    }
  }
  if (options.names.empty()) options.names = {"124m", "1.5b", "llama-8b", "llama-8b-fp8"};
  return bench::unknown_shape(options.names);
}

int measure(const Options& options) {
  const auto begin = Clock::now();
  constexpr double kOfAShape_s = 30;
  const std::vector<std::string>& names = options.names;
  const double seconds =
      options.seconds > 0 ? options.seconds : kOfAShape_s * static_cast<double>(names.size());
  // Rows that are for no GPU are to be there in a moment without one.
  const bool tiny = std::all_of(names.begin(), names.end(),
                                [](const std::string& name) { return name.starts_with("tiny"); });
  cuda::start_cuda();
  const cudaDeviceProp properties = gpu_properties();
  const std::string gpu_name = properties.name;
  GpuWatch watch(Nvml::open(), cuda::uuid_words(properties.uuid.bytes, cuda::is_mig(gpu_name)),
                 std::chrono::milliseconds(50));
  LoadedGpu gpu(tiny ? 64 : 8192, watch);
  const double copy_rate = copy_rate_of(gpu, int64_t{1} << (tiny ? 20 : 30));
  fmt::print("cuBLASLt {}; copies {:.0f} GB/s; ' is transposed\n", LtMatmul::version(),
             copy_rate / 1e9);
  gpu.heat(tiny ? 0.02 : std::min(3.0, seconds / 40));
  Bench bench(gpu, options.file, tiny ? 1e-3 : 0.07, copy_rate);
  bench.choices = {.gpu = gpu_name, .cublaslt = LtMatmul::version(), .algorithms = {}};
  for (size_t i = 0; i < names.size(); ++i) {
    const double gone = std::chrono::duration<double>(Clock::now() - begin).count();
    bench.run(names[i], (seconds - gone) / static_cast<double>(names.size() - i));
  }
  return bench.code;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const std::string wrong = read_options({argv + 1, argv + argc}, options);
  if (!wrong.empty()) {
    fmt::print(stderr, "{}\n", wrong);
    return 2;
  }
  try {
    return measure(options);
  } catch (const Error& error) {
    fmt::print(stderr, "{}", error.what());
    return static_cast<int>(error.exit());
  }
}
