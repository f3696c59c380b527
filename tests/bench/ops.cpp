// The vector ops of the CPU engine at the sizes of a GPT-2 124M, beside the memory rate of the same
// moment: a triad (a = b + s c over 3 x 256 MiB, counted as 12 bytes per element as STREAM does) is
// interleaved with each op, and both give their best of several runs.
//
//   build/bench/ops [threads] [words of op names...]
//
// GB/s counts the bytes that an op must read and write once; ops whose data fit into the caches can
// be above 100 % of the triad.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "runtime/device/device.h"

namespace {

using namespace mtl;

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Triad {
 public:
  Triad(Device& device, int threads) : threads_(threads) {
    for (float*& p : arrays_) {
      p = static_cast<float*>(device.allocate(kElements * sizeof(float)));
      device.fill(Tensor(p, DType::f32, {kElements}), 1);
    }
  }
  double bytes_per_s() {
    const double time = seconds([&] {
      std::vector<std::jthread> team;
      for (int t = 1; t < threads_; ++t) team.emplace_back([this, t] { share(t); });
      share(0);
    });
    return 12.0 * kElements / time;
  }

 private:
  static constexpr int64_t kElements = int64_t{64} << 20;
  void share(int t) {
    const int64_t begin = kElements * t / threads_, end = kElements * (t + 1) / threads_;
    float* __restrict a = arrays_[0];
    const float *b = arrays_[1], *c = arrays_[2];
    for (int64_t i = begin; i < end; ++i) a[i] = b[i] + 3.0f * c[i];
  }
  int threads_;
  float* arrays_[3] = {};
};

class Bench {
 public:
  Bench(int threads, std::vector<std::string> words)
      : device(make_cpu_device(threads)), words_(std::move(words)), triad_(*device, threads) {
    fmt::print("{}\n", device->description());
    fmt::print("{:24} {:>14} {:>5} {:>9} {:>7} {:>8} {:>9}\n", "op", "shape", "type", "ms", "GB/s",
               "triad", "of triad");
  }

  Tensor make(DType type, std::initializer_list<int64_t> shape, float value = 0.5f) {
    Tensor t(nullptr, type, shape);
    t.data = device->allocate(static_cast<size_t>(t.bytes()));
    held_.push_back(t.data);
    if (type == DType::f32 || type == DType::bf16) device->fill(t, value);
    if (type == DType::f64) std::fill_n(t.as<double>(), t.numel(), 0.0);
    return t;
  }
  // Spread values, for ops whose time could depend on them.
  Tensor make_varied(DType type, std::initializer_list<int64_t> shape) {
    Tensor t = make(type, shape);
    uint32_t state = 1;
    for (int64_t i = 0; i < t.numel(); ++i) {
      state = state * 1664525u + 1013904223u;
      // +-8 in f32; bf16 by its upper half.
      const float value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-28f;
      if (type == DType::f32) {
        t.as<float>()[i] = value;
      } else {
        uint32_t bits;
        std::copy_n(reinterpret_cast<const char*>(&value), 4, reinterpret_cast<char*>(&bits));
        t.as<uint16_t>()[i] = static_cast<uint16_t>(bits >> 16);
      }
    }
    return t;
  }
  void release() {
    for (void* p : held_) device->free(p);
    held_.clear();
  }

  bool wants(const std::string& op) const {
    return words_.empty() || std::any_of(words_.begin(), words_.end(), [&](const std::string& w) {
             return op.find(w) != std::string::npos;
           });
  }

  void row(const std::string& op, const std::string& shape, DType type, double bytes,
           const std::function<void()>& work) {
    work();
    double best = 1e9, rate = 0;
    for (int i = 0; i < 7; ++i) {
      rate = std::max(rate, triad_.bytes_per_s());
      best = std::min(best, seconds(work));
    }
    fmt::print("{:24} {:>14} {:>5} {:9.3f} {:7.1f} {:8.1f} {:8.0f}%\n", op, shape,
               type == DType::f32 ? "f32" : "bf16", best * 1e3, bytes / best * 1e-9, rate * 1e-9,
               bytes / best / rate * 100);
  }

  std::unique_ptr<Device> device;

 private:
  std::vector<std::string> words_;
  Triad triad_;
  std::vector<void*> held_;
};

constexpr int64_t kParameters = 124'439'808;

// All of a flat buffer as one piece.
Pieces whole(Bench& bench) {
  const Piece piece = {.count = kParameters};
  Pieces pieces = {.table = bench.make(DType::u8, {sizeof(Piece)}),
                   .cells = (kParameters + kNormChunk - 1) / kNormChunk};
  bench.device->copy_from_host(pieces.table, &piece);
  return pieces;
}

void optimizer(Bench& bench) {
  Device& device = *bench.device;
  if (!bench.wants("adamw")) return;
  const Tensor master = bench.make(DType::u16, {kParameters});
  const Tensor m = bench.make(DType::f32, {kParameters}, 0.01f);
  const Tensor v = bench.make(DType::f32, {kParameters}, 0.01f);
  const Tensor grad = bench.make(DType::f32, {kParameters}, 0.01f);
  const Tensor weights = bench.make(DType::bf16, {kParameters});
  AdamW args = {.pieces = whole(bench),
                .master = master,
                .exp_avg = m,
                .exp_avg_sq = v,
                .grad = grad,
                .weights = weights,
                .factor = bench.make(DType::f32, {1}, 1)};
  args.lr = 1e-4f;
  args.weight_decay = 0.1f;
  bench.row("adamw", "124M", DType::bf16, 28.0 * kParameters, [&] { device.adamw(args); });
  args.master = bench.make(DType::f32, {kParameters});
  args.weights = {};
  bench.row("adamw", "124M", DType::f32, 28.0 * kParameters, [&] { device.adamw(args); });
  bench.release();
}

void memory_bound(Bench& bench) {
  Device& device = *bench.device;
  const int64_t n = kParameters;
  if (bench.wants("elementwise")) {
    const Tensor x = bench.make(DType::f32, {n}), y = bench.make(DType::f32, {n});
    const Tensor half = bench.make(DType::bf16, {n}), half2 = bench.make(DType::bf16, {n});
    const Tensor partials = bench.make(DType::f64, {(n + 4095) / 4096});
    const double elements = static_cast<double>(n);
    const SumSquares squares = {.pieces = whole(bench), .x = x, .partials = partials};
    bench.row("sum_squares", "124M", DType::f32, 4 * elements,
              [&] { device.sum_squares(squares); });
    bench.row("fill", "124M", DType::f32, 4 * elements, [&] { device.fill(x, 1); });
    bench.row("scale", "124M", DType::f32, 8 * elements, [&] { device.scale(x, 1.0001f); });
    bench.row("scale", "124M", DType::bf16, 4 * elements, [&] { device.scale(half, 1.01f); });
    bench.row("add", "124M", DType::f32, 12 * elements, [&] { device.add(x, y); });
    bench.row("add", "124M", DType::bf16, 6 * elements, [&] { device.add(half, half2); });
    bench.row("cast to bf16", "124M", DType::bf16, 6 * elements, [&] { device.cast(x, half); });
    bench.row("cast to f32", "124M", DType::f32, 6 * elements, [&] { device.cast(half, x); });
    bench.release();
  }
}

void rows_of_activations(Bench& bench, DType type) {
  Device& device = *bench.device;
  const int64_t n = 4096, c = 768;
  const std::string shape = fmt::format("{}x{}", n, c);
  const double size = static_cast<double>(bytes_of(type)),
               bytes = static_cast<double>(n * c) * size;
  const Tensor x = bench.make_varied(type, {n, c}), dy = bench.make_varied(type, {n, c});
  const Tensor out = bench.make(type, {n, c}), gamma = bench.make(type, {c}, 1);
  const Tensor beta = bench.make(type, {c}, 1), positions = bench.make(type, {1024, c});
  const Tensor mean = bench.make(DType::f32, {n}), rstd = bench.make(DType::f32, {n}, 1);
  const Tensor dgamma = bench.make(DType::f32, {c}), dbeta = bench.make(DType::f32, {c});
  const Tensor dpositions = bench.make(DType::f32, {1024, c});
  const Dropout dropout = {.probability = 0.1f, .pass = bench.make(DType::u8, {16})};
  if (bench.wants("layernorm")) {
    bench.row("layernorm forward", shape, type, 2 * bytes, [&] {
      device.layernorm_forward(
          {.x = x, .gamma = gamma, .beta = beta, .y = out, .mean = mean, .rstd = rstd});
    });
    bench.row("layernorm backward", shape, type, 4 * bytes, [&] {
      device.layernorm_backward({.dy = dy,
                                 .x = x,
                                 .gamma = gamma,
                                 .mean = mean,
                                 .rstd = rstd,
                                 .dx = out,
                                 .dgamma = dgamma,
                                 .dbeta = dbeta,
                                 .add_to_dx = true,
                                 .accumulate = true});
    });
  }
  if (bench.wants("bias")) {
    bench.row("bias_grad", shape, type, bytes, [&] { device.bias_grad(dy, dbeta, true); });
    bench.row("bias_dropout_add", shape, type, 3 * bytes,
              [&] { device.bias_dropout_add({.x = x, .bias = beta, .residual = dy, .out = out}); });
    bench.row("bias_dropout_add p=0.1", shape, type, 3 * bytes, [&] {
      device.bias_dropout_add(
          {.x = x, .bias = beta, .residual = dy, .out = out, .dropout = dropout});
    });
    bench.row("dropout_backward p=0.1", shape, type, 2 * bytes,
              [&] { device.dropout_backward({.dout = x, .dx = out, .dropout = dropout}); });
  }
  if (bench.wants("position")) {
    bench.row("position_forward", shape, type, 2 * bytes,
              [&] { device.position_forward(x, positions, 1024, out, {}, 0); });
    bench.row("position_backward", shape, type, 2 * bytes,
              [&] { device.position_backward(x, 1024, out, dpositions, true, {}, 0); });
  }
  if (bench.wants("embedding")) {
    const int64_t vocabulary = 50304;
    const Tensor tokens = bench.make(DType::i32, {n});
    for (int64_t i = 0; i < n; ++i) {
      tokens.as<int32_t>()[i] = static_cast<int32_t>(i * 7919 % vocabulary);
    }
    const Tensor table = bench.make(type, {vocabulary, c});
    const Tensor dtable = bench.make(DType::f32, {vocabulary, c});
    bench.row("embedding_forward", shape, type, 2 * bytes,
              [&] { device.embedding_forward(tokens, table, 0, out); });
    bench.row("embedding_backward", shape, type, bytes + 8.0 * static_cast<double>(n * c),
              [&] { device.embedding_backward(tokens, dy, 0, dtable); });
  }
  bench.release();
}

void cross_entropy(Bench& bench, int64_t n, DType type) {
  if (!bench.wants("cross_entropy")) return;
  Device& device = *bench.device;
  const int64_t columns = 50304;
  const Tensor logits = bench.make_varied(type, {n, columns});
  const Tensor targets = bench.make(DType::i32, {n});
  for (int64_t i = 0; i < n; ++i) targets.as<int32_t>()[i] = static_cast<int32_t>(i * 7919 % 50257);
  const CrossEntropy args = {.logits = logits,
                             .targets = targets,
                             .first = 0,
                             .valid = 50257,
                             .row_max = bench.make(DType::f32, {n}),
                             .sum_exp = bench.make(DType::f32, {n}),
                             .target_logit = bench.make(DType::f32, {n}),
                             .loss = bench.make(DType::f32, {n})};
  const std::string shape = fmt::format("{}x{}", n, columns);
  const double bytes = static_cast<double>(logits.bytes());
  bench.row("cross_entropy max", shape, type, bytes, [&] { device.cross_entropy_max(args); });
  bench.row("cross_entropy sum", shape, type, bytes, [&] { device.cross_entropy_sum(args); });
  bench.row("cross_entropy losses", shape, type, bytes, [&] { device.cross_entropy_losses(args); });
  bench.row("cross_entropy backward", shape, type, 2 * bytes,
            [&] { device.cross_entropy_backward(args, 1e-3f); });
  bench.row("cross_entropy both", shape, type, 3 * bytes,
            [&] { device.cross_entropy_both(args, 1e-3f); });
  bench.release();
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  if (threads < 1) {
    fmt::print(stderr, "usage: {} [threads] [words of op names...]\n", argv[0]);
    return 2;
  }
  Bench bench(threads, std::vector<std::string>(argv + std::min(argc, 2), argv + argc));
  optimizer(bench);
  memory_bound(bench);
  for (const DType type : {DType::bf16, DType::f32}) {
    rows_of_activations(bench, type);
    cross_entropy(bench, 256, type);
    cross_entropy(bench, 4096, type);
  }
  return 0;
}
