// The products of a step, each once.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "bench/gpu_runs.h"
#include "bench/timed_device.h"

namespace mtl::bench {

// Everything of a Matmul but where its tensors lie.
using ProductForm = std::tuple<int64_t, int64_t, int64_t, bool, bool, bool, DType, DType, DType,
                               int, bool, int, bool, bool>;
inline int64_t k_of(const Matmul& args) {
  return args.transpose_a ? args.a.rows() : args.a.cols();
}
inline ProductForm form_of(const Matmul& args) {
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
inline std::vector<Product> products_of(Run& run) {
  TimedDevice counting(nullptr, {});
  std::vector<Product> products;
  std::map<ProductForm, size_t> known;
  counting.on_matmul = [&](const Matmul& args) {
    const auto [found, is_new] = known.try_emplace(form_of(args), products.size());
    if (is_new) products.push_back({args});
    ++products[found->second].calls;
  };
  Trainer trainer(run.plan, run.resolved.spec, counting, *run.world);
  trainer.step(0, *run.samples, {});
  return products;
}

inline std::string words_of(const Matmul& args) {
  std::string text = fmt::format("{}{} {}{} -> {}", safetensors_name(args.a.dtype),
                                 args.transpose_a ? "'" : "", safetensors_name(args.b.dtype),
                                 args.transpose_b ? "'" : "", safetensors_name(args.c.dtype));
  if (args.accumulate) text += " +=";
  if (args.bias) text += " bias";
  if (args.epilogue == Epilogue::gelu) text += args.gelu_once ? " gelu once" : " gelu";
  if (args.epilogue == Epilogue::gelu_grad) text += " dgelu";
  return text;
}

inline double flops_of(const Matmul& args) {
  return 2.0 * static_cast<double>(args.c.numel()) * static_cast<double>(k_of(args));
}
// Of a step.
inline double flops_of(const Product& product) {
  return static_cast<double>(product.calls) * flops_of(product.args);
}
// TFLOP/s.
inline double tera(const Matmul& args, double seconds) {
  return flops_of(args) / seconds / 1e12;
}

}  // namespace mtl::bench
