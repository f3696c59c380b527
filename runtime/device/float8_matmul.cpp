#include "runtime/device/float8_matmul.h"

#include <fmt/format.h>

#include "common/float8.h"

namespace mtl {

std::string float8_misfit(const Matmul& args) {
  const int64_t m = args.c.rows(), n = args.c.cols(), k = args.a.cols();
  if (!is_float8(args.a.dtype) || !is_float8(args.b.dtype) ||
      (args.a.dtype == DType::f8_e5m2 && args.b.dtype == DType::f8_e5m2) ||
      (args.c.dtype != DType::bf16 && args.c.dtype != DType::f32)) {
    return "FP8 matmul of unsupported element types";
  }
  if (args.transpose_a || !args.transpose_b) return "FP8 matmul of operands that lie along m or n";
  for (const int64_t size : {n, k}) {
    if (size % kFloat8Multiple != 0) {
      return fmt::format("FP8 matmul of [{}, {}] by [{}, {}]: rows have to be a multiple of {}", m,
                         k, k, n, kFloat8Multiple);
    }
  }
  for (const Tensor& scale : {args.scale_a, args.scale_b}) {
    if (!scale || scale.dtype != DType::f32) return "FP8 matmul without scales";
    if (reinterpret_cast<uintptr_t>(scale.data) % kFloat8Multiple != 0) {
      return fmt::format("FP8 matmul with a scale that is at no multiple of {} bytes",
                         kFloat8Multiple);
    }
  }
  return {};
}

}  // namespace mtl
