// The products of a training step alone, on one GPU: each as mtl asks cuBLASLt for it, by the
// algorithm that the heuristics put first (which mtl takes), and by the fastest of the first
// sixteen. So many milliseconds of a step would be won by a choice that measures.
//   build/bench/products_gpu [--choose FILE] [SHAPE ...]
// Shapes: those of gpu_runs.h; without any, the four that train_gpu measures. FILE is then what
// MTL_PRODUCTS takes: the fastest of each product that is not the first one, written after each.
//
// Below each gradient of a weight that asks for the sums of an operand, which are the bias's
// gradient: the same with them made in the product (BGRADA, BGRADB), and the least time of a pass
// of its own, which it has to win against.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <cuda_runtime_api.h>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "bench/gpu_runs.h"
#include "bench/timed_device.h"
#include "common/files.h"
#include "runtime/device/cuda/cuda_errors.h"
#include "runtime/device/cuda/lt_matmul.h"
#include "runtime/device/cuda/product_choices.h"

using namespace mtl;
using cuda::LtGemm;
using cuda::LtMatmul;
using cuda::LtOperands;

namespace {

constexpr int kPlaces = 16;

// Everything of a Matmul but where its tensors lie.
using Form = std::tuple<int64_t, int64_t, int64_t, bool, bool, bool, DType, DType, DType, int, bool,
                        int, bool, bool>;
int64_t k_of(const Matmul& args) {
  return args.transpose_a ? args.a.rows() : args.a.cols();
}
Form form_of(const Matmul& args) {
  return {args.c.rows(),
          args.c.cols(),
          k_of(args),
          args.transpose_a,
          args.transpose_b,
          args.accumulate,
          args.a.dtype,
          args.b.dtype,
          args.c.dtype,
          static_cast<int>(args.epilogue),
          args.gelu_once,
          args.bias ? static_cast<int>(args.bias.dtype) : -1,
          static_cast<bool>(args.sums_of_a),
          static_cast<bool>(args.sums_of_b)};
}

struct Product {
  Matmul args;
  int64_t calls = 0;  // of a step
};

// Of one step, in the order in which they are asked for first.
std::vector<Product> products_of(bench::Run& run) {
  bench::TimedDevice counting(nullptr, {});
  std::vector<Product> products;
  std::map<Form, size_t> known;
  counting.on_matmul = [&](const Matmul& args) {
    const auto [found, is_new] = known.try_emplace(form_of(args), products.size());
    if (is_new) products.push_back({args});
    ++products[found->second].calls;
  };
  Trainer trainer(run.plan, run.resolved.spec, counting, *run.world);
  trainer.step(0, run.source, run.sampler, {});
  return products;
}

class Memory {
 public:
  explicit Memory(int64_t bytes) {
    if (bytes > 0) cuda::check(cudaMalloc(&data_, static_cast<size_t>(bytes)), "memory");
  }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// Values of about 1, of any sign: zeros would cost less power, and so time.
void fill(const Tensor& x, void* to) {
  constexpr size_t kPiece = size_t{64} << 20;
  static std::map<DType, std::vector<char>> pieces;
  std::vector<char>& piece = pieces[x.dtype];
  if (piece.empty()) {
    piece.resize(kPiece);
    uint32_t state = 1;
    for (size_t i = 0; i + 4 <= kPiece; i += 4) {
      state = state * 1664525 + 1013904223;
      const uint32_t mixed = state ^ state >> 15;
      uint32_t word = 0;
      switch (x.dtype) {
        case DType::bf16:
          word = 0x3f003f00 | (mixed & 0x80ff80ff);
          break;
        case DType::f8_e4m3:
          word = 0x30303030 | (mixed & 0x8f8f8f8f);
          break;
        case DType::f8_e5m2:
          word = 0x38383838 | (mixed & 0x87878787);
          break;
        default:
          word = 0x3f000000 | (mixed & 0x80ffffff);
      }
      std::memcpy(piece.data() + i, &word, 4);
    }
  }
  const auto bytes = static_cast<size_t>(x.bytes());
  for (size_t at = 0; at < bytes; at += kPiece) {
    cuda::check(cudaMemcpy(static_cast<char*>(to) + at, piece.data(), std::min(kPiece, bytes - at),
                           cudaMemcpyHostToDevice),
                "filling memory");
  }
}

struct Gpu {
  Gpu() {
    cuda::check(cudaStreamCreate(&stream), "a stream");
    cuda::check(cudaEventCreate(&begin), "an event");
    cuda::check(cudaEventCreate(&end), "an event");
  }
  // Seconds of a call: the median of five rounds of some milliseconds.
  template <class Call>
  double seconds_of(const Call& call) {
    const auto round = [&](int calls) {
      cuda::check(cudaEventRecord(begin, stream), "an event");
      for (int i = 0; i < calls; ++i) call();
      cuda::check(cudaEventRecord(end, stream), "an event");
      cuda::check(cudaEventSynchronize(end), "a product");
      float milliseconds = 0;
      cuda::check(cudaEventElapsedTime(&milliseconds, begin, end), "a time");
      return static_cast<double>(milliseconds) / 1e3 / calls;
    };
    round(1);
    const int calls = std::clamp(static_cast<int>(3e-3 / std::max(round(1), 1e-9)), 1, 100);
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) times.push_back(round(calls));
    std::nth_element(times.begin(), times.begin() + 2, times.end());
    return times[2];
  }

  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  LtMatmul lt;
};

struct Times {
  double first = 0, best = 0;
  int place = 0;  // of the best
};
// Nothing where cuBLASLt has no algorithm. Ends with the best one taken.
std::optional<Times> times_of(Gpu& gpu, const LtGemm& gemm, const LtOperands& operands) {
  std::optional<Times> times;
  for (int place = 0; place < kPlaces && gpu.lt.take(gemm, operands, place); ++place) {
    const double seconds = gpu.seconds_of([&] { gpu.lt.run(gemm, operands, gpu.stream); });
    if (!times) times = Times{seconds, seconds, 0};
    if (seconds < times->best) times = Times{times->first, seconds, place};
  }
  if (times) gpu.lt.take(gemm, operands, times->place);
  return times;
}

// Below it, one is as good as the other, and the heuristics' stays.
constexpr double kLeastGain = 0.01;

std::string words_of(const Matmul& args) {
  std::string text = fmt::format("{}{} {}{} -> {}", safetensors_name(args.a.dtype),
                                 args.transpose_a ? "'" : "", safetensors_name(args.b.dtype),
                                 args.transpose_b ? "'" : "", safetensors_name(args.c.dtype));
  if (args.accumulate) text += " +=";
  if (args.bias) text += " bias";
  if (args.epilogue == Epilogue::gelu) text += args.gelu_once ? " gelu once" : " gelu";
  if (args.epilogue == Epilogue::gelu_grad) text += " dgelu";
  return text;
}

void print_times(const std::string& words, const Matmul& args, int64_t calls, const Times& times) {
  const double flops = 2.0 * static_cast<double>(args.c.numel()) * static_cast<double>(k_of(args));
  fmt::print("{:>7} {:>7} {:>7}  {:28} {:6} {:9.4f} {:6.0f} {:9.4f} {:6.0f} {:4} {:9.3f}\n",
             args.c.rows(), args.c.cols(), k_of(args), words, calls, 1e3 * times.first,
             flops / times.first / 1e12, 1e3 * times.best, flops / times.best / 1e12, times.place,
             1e3 * static_cast<double>(calls) * (times.first - times.best));
  std::fflush(stdout);
}

// What of a product's tensors is there, of random values.
struct Operands {
  explicit Operands(const Matmul& args)
      : a(args.a.bytes()),
        b(args.b.bytes()),
        c(args.c.bytes()),
        scale(256),
        bias(args.bias ? args.bias.bytes() : 0),
        aux(args.aux ? args.aux.bytes() : 0) {
    fill(args.a, a.data());
    fill(args.b, b.data());
    fill(args.c, c.data());
    if (args.bias) fill(args.bias, bias.data());
    if (args.aux) fill(args.aux, aux.data());
    const float one = 1;
    cuda::check(cudaMemcpy(scale.data(), &one, sizeof one, cudaMemcpyHostToDevice), "a scale");
  }
  LtOperands of(const cuda::MatmulPlan& plan, const Matmul& args, void* sums = nullptr) const {
    void* const scales = args.scale_a ? scale.data() : nullptr;
    return {.first = b.data(),
            .second = a.data(),
            .result = c.data(),
            .bias = plan.bias_in_gemm ? bias.data() : sums,
            .aux = plan.gemm.ld_aux > 0 ? aux.data() : nullptr,
            .scale_first = scales,
            .scale_second = scales};
  }
  Memory a, b, c, scale, bias, aux;
};

// Of a step; and what is to be taken for it.
struct Sum {
  Times step;
  cuda::ProductChoices choices;

  void add(const Product& product, const Times& times, double pass) {
    step.first += static_cast<double>(product.calls) * (times.first + pass);
    step.best += static_cast<double>(product.calls) * (times.best + pass);
  }
};

// `copy_rate`: bytes per second, read and written.
void measure(Gpu& gpu, const Product& product, double copy_rate, Sum& sum) {
  const Matmul& args = product.args;
  const Operands operands(args);
  std::optional<Times> times;
  for (const cuda::Fuse fuse : {cuda::Fuse::all, cuda::Fuse::bias, cuda::Fuse::nothing}) {
    const cuda::MatmulPlan plan = cuda::plan_matmul(args, fuse);
    if (plan.into == cuda::MatmulPlan::Into::wide) return;  // in slices: no product of its own
    const LtOperands there = operands.of(plan, args);
    times = times_of(gpu, plan.gemm, there);
    if (!times) continue;
    print_times(words_of(args), args, product.calls, *times);
    if (times->best < (1 - kLeastGain) * times->first) {
      sum.choices.algorithms.insert(gpu.lt.choice(plan.gemm, there));
    }
    break;
  }
  if (!times) return;
  const Tensor& sums = args.sums_of_b ? args.sums_of_b : args.sums_of_a;
  const Tensor& summed = args.sums_of_b ? args.b : args.a;
  const double pass = sums ? static_cast<double>(summed.bytes()) / copy_rate : 0;
  const cuda::MatmulPlan plan =
      cuda::plan_matmul(args, cuda::Fuse::nothing, cuda::Sums::in_product);
  sum.add(product, *times, pass);
  if (!plan.sums_in_gemm) return;
  const Memory to(sums.bytes());
  const LtOperands there = operands.of(plan, args, to.data());
  const std::optional<Times> with_sums = times_of(gpu, plan.gemm, there);
  const std::string words = args.sums_of_b ? "  and sums of B" : "  and sums of A";
  if (with_sums) {
    print_times(words, args, product.calls, *with_sums);
    const double apart = times->best + pass;
    if (with_sums->best < (1 - kLeastGain) * apart) {
      sum.choices.algorithms.insert(gpu.lt.choice(plan.gemm, there));
      sum.step.best -= static_cast<double>(product.calls) * (apart - with_sums->best);
    }
  } else {
    fmt::print("{:25} {}: cuBLASLt has none\n", "", words);
  }
  fmt::print("{:25} a pass of its own: {:.4f} ms at least\n", "", 1e3 * pass);
}

// Bytes per second, read and written.
double copy_rate_of(Gpu& gpu) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const Memory from(kBytes), to(kBytes);
  return 2.0 * static_cast<double>(kBytes) / gpu.seconds_of([&] {
    cuda::check(
        cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, gpu.stream),
        "a copy");
  });
}

double memory_bytes() {
  size_t free = 0, total = 0;
  cuda::check(cudaMemGetInfo(&free, &total), "asking for the GPU's memory");
  return static_cast<double>(total);
}

std::string gpu_name() {
  int device = 0;
  cudaDeviceProp properties{};
  cuda::check(cudaGetDevice(&device), "the current device");
  cuda::check(cudaGetDeviceProperties(&properties, device), "asking for a GPU's properties");
  return properties.name;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> names(argv + 1, argv + argc);
  std::string file;
  if (!names.empty() && names[0] == "--choose") {
    if (names.size() < 2) {
      fmt::print(stderr, "--choose needs a file to write\n");
      return 2;
    }
    file = names[1];
    names.erase(names.begin(), names.begin() + 2);
  }
  if (names.empty()) names = {"124m", "1.5b", "llama-8b", "llama-8b-fp8"};
  if (const std::string what = bench::unknown_shape(names); !what.empty()) {
    fmt::print(stderr, "{}\n", what);
    return 2;
  }
  int code = 0;
  try {
    cuda::start_cuda();
    Gpu gpu;
    const double copy_rate = copy_rate_of(gpu);
    Sum sum;
    sum.choices.gpu = gpu_name();
    sum.choices.cublaslt = LtMatmul::version();
    fmt::print("cuBLASLt {}; copies {:.0f} GB/s; ' is transposed\n", LtMatmul::version(),
               copy_rate / 1e9);
    for (const std::string& name : names) {
      bench::Run run(name, memory_bytes());
      fmt::print(
          "\n{}, {} layers\n{:>7} {:>7} {:>7}  {:28} {:>6} {:>9} {:>6} {:>9} {:>6} {:>4} {:>9}\n",
          name, run.shape.layers, "m", "n", "k", "form", "calls", "first ms", "TF/s", "best ms",
          "TF/s", "no.", "to win ms");
      sum.step = {};
      for (const Product& product : products_of(run)) {
        try {
          measure(gpu, product, copy_rate, sum);
          // What has been measured is there even if the next one is too much.
          if (!file.empty()) write_file_atomic(file, to_text(sum.choices));
        } catch (const Error& error) {
          // The others are worth their time all the same.
          fmt::print("{} not measured: {}", words_of(product.args), error.what());
          code = static_cast<int>(error.exit());
        }
      }
      fmt::print("products of a step: {:.3f} ms, by the best {:.3f} ms ({:+.1f} %)\n",
                 1e3 * sum.step.first, 1e3 * sum.step.best,
                 100 * (sum.step.best / sum.step.first - 1));
    }
  } catch (const Error& error) {
    fmt::print(stderr, "{}", error.what());
    return static_cast<int>(error.exit());
  }
  return code;
}
