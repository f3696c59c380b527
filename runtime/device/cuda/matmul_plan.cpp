#include "runtime/device/cuda/matmul_plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/device/float8_matmul.h"

namespace mtl::cuda {

namespace {

struct Shape {
  explicit Shape(const Matmul& args)
      : m(args.c.rows()), n(args.c.cols()), k(args.transpose_a ? args.a.rows() : args.a.cols()) {}
  int64_t m, n, k;
};

bool is_aligned(const Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

// cuBLASLt's documentation: the leading dimension of the aux matrix is a multiple of 8 elements.
bool aux_fits(const Tensor& aux, int64_t n) {
  return n % 8 == 0 && is_aligned(aux);
}

}  // namespace

std::string misfit(const Matmul& args) {
  const Shape shape(args);
  const int64_t m = args.transpose_a ? args.a.cols() : args.a.rows();
  const int64_t n = args.transpose_b ? args.b.rows() : args.b.cols();
  const int64_t k_of_b = args.transpose_b ? args.b.cols() : args.b.rows();
  if (shape.k != k_of_b || shape.m != m || shape.n != n) {
    return fmt::format("matmul of [{}, {}] by [{}, {}] into [{}, {}]: the shapes do not fit", m,
                       shape.k, k_of_b, n, shape.m, shape.n);
  }
  // FP8 stands beside bf16.
  const DType type = is_float8_matmul(args) ? DType::bf16 : args.a.dtype;
  if (is_float8_matmul(args)) {
    if (std::string what = float8_misfit(args); !what.empty()) return what;
  } else if (!is_compute_type(type) || args.b.dtype != type ||
             (args.c.dtype != type && args.c.dtype != DType::f32)) {
    return "matmul of unsupported element types";
  }
  if (args.bias) {
    if (args.bias.numel() != n) {
      return fmt::format("matmul with {} columns and a bias of {} elements", n, args.bias.numel());
    }
    if (!is_compute_type(args.bias.dtype) ||
        (type != DType::f32 && args.bias.dtype != type && args.bias.dtype != DType::f32)) {
      return "matmul with a bias of an unsupported element type";
    }
  }
  if (args.sums_of_a || args.sums_of_b) {
    if (args.sums_of_a && (!args.transpose_a || args.sums_of_a.numel() != m)) {
      return "matmul with sums of A that it does not have";
    }
    if (args.sums_of_b && (args.transpose_b || args.sums_of_b.numel() != n)) {
      return "matmul with sums of B that it does not have";
    }
    if ((args.sums_of_a && args.sums_of_b) || is_float8_matmul(args) ||
        (args.sums_of_a ? args.sums_of_a : args.sums_of_b).dtype != DType::f32) {
      return "matmul with sums of both operands, of FP8 or of another type than f32";
    }
  }
  if (args.epilogue == Epilogue::none) return {};
  if (!args.aux || args.aux.numel() != shape.m * n || args.aux.dtype != args.c.dtype) {
    return "a GELU epilogue needs `aux` with the shape and type of the result";
  }
  if (args.accumulate) return "a GELU epilogue cannot accumulate";
  return {};
}

MatmulPlan plan_matmul(const Matmul& args, Fuse fuse, Sums sums) {
  const Shape shape(args);
  const bool gelu = args.epilogue == Epilogue::gelu;
  const bool gelu_grad = args.epilogue == Epilogue::gelu_grad;
  MatmulPlan plan;
  LtGemm& gemm = plan.gemm;
  gemm.first_type = args.b.dtype;
  gemm.second_type = args.a.dtype;
  gemm.fast_sums = args.a.dtype == DType::f8_e4m3 && args.b.dtype == DType::f8_e4m3;
  gemm.result_type = args.c.dtype;
  gemm.rows = shape.n;
  gemm.columns = shape.m;
  gemm.k = shape.k;
  // B [k, n] in rows is [n, k] in columns, as it is wanted; stored [n, k] it has to be turned.
  gemm.transpose_first = args.transpose_b;
  gemm.ld_first = args.transpose_b ? shape.k : shape.n;
  gemm.transpose_second = args.transpose_a;
  gemm.ld_second = args.transpose_a ? shape.m : shape.k;
  gemm.ld_result = shape.n;
  gemm.add = args.accumulate;
  // They are where a bias would be, of D's type. The gradient of a weight has nothing else.
  if (sums == Sums::in_product && (args.sums_of_a || args.sums_of_b) && !args.bias &&
      args.epilogue == Epilogue::none && args.c.dtype == DType::f32) {
    gemm.epilogue = args.sums_of_b ? LtEpilogue::sums_of_first : LtEpilogue::sums_of_second;
    gemm.bias_type = DType::f32;
    plan.sums_in_gemm = true;
    return plan;
  }

  // cuBLASLt's documentation: a bias has the type of D, and beside FP8 none is f32. Its heuristics
  // have been seen to forget how the bias is aligned.
  const bool bias_type_fits =
      args.bias.dtype == args.c.dtype && !(is_float8_matmul(args) && args.bias.dtype == DType::f32);
  const bool bias_in_gemm =
      args.bias && bias_type_fits && is_aligned(args.bias) && fuse != Fuse::nothing;
  if (args.bias) gemm.bias_type = args.bias.dtype;
  plan.bias_in_gemm = bias_in_gemm;
  const bool bias_is_done = !args.bias || bias_in_gemm;
  // Its tanh is the hardware's (MUFU.TANH), within 2^-11 of it: enough for 16 bits, f32 has ours.
  const bool half = args.c.dtype != DType::f32;
  if (fuse == Fuse::all && half && bias_is_done && aux_fits(args.aux, shape.n)) {
    if (gelu && args.gelu_once) {
      gemm.epilogue = args.bias ? LtEpilogue::gelu_aux_bias : LtEpilogue::gelu_aux;
    }
    // DGELU has no bias to add: its relative with one sums it up.
    if (gelu_grad && !args.bias) gemm.epilogue = LtEpilogue::dgelu;
    if (gemm.epilogue != LtEpilogue::none) {
      gemm.ld_aux = shape.n;
      return plan;
    }
  }
  if (bias_in_gemm) gemm.epilogue = LtEpilogue::bias;
  if (gelu) plan.then = MatmulPlan::Then::gelu;
  if (gelu_grad) plan.then = MatmulPlan::Then::gelu_grad;
  plan.into = gelu ? MatmulPlan::Into::aux : MatmulPlan::Into::c;
  if (bias_is_done) return plan;
  // In f32 the bias is added in place. A 16-bit sum would be rounded twice: a slice of it goes
  // through f32.
  plan.add_bias = true;
  if (args.c.dtype == DType::f32) return plan;
  plan.into = MatmulPlan::Into::wide;
  gemm.result_type = DType::f32;
  gemm.add = false;
  plan.add_before = args.accumulate;
  // Whole tiles of rows, and slices that begin as aligned as the whole.
  constexpr int64_t kTile = 64;
  const int64_t row_bytes = shape.n * bytes_of(DType::f32);
  plan.slice_rows = std::min(shape.m, std::max(kTile, kWideBytes / row_bytes / kTile * kTile));
  return plan;
}

LtGemm choice_of(const LtGemm& gemm) {
  constexpr int64_t kTile = 64;
  const auto rounded = [](int64_t n) { return n <= kTile ? n : (n + kTile - 1) / kTile * kTile; };
  LtGemm choice = gemm;
  if (!gemm.transpose_second) choice.columns = rounded(gemm.columns);
  if (!gemm.transpose_first && gemm.transpose_second) choice.k = rounded(gemm.k);
  return choice;
}

void run_matmul(const MatmulPlan& plan, const Matmul& args, MatmulSteps& steps) {
  const Shape shape(args);
  const bool gelu = args.epilogue == Epilogue::gelu;
  void* const bias = plan.bias_in_gemm ? args.bias.data : nullptr;
  const Tensor sum = gelu ? args.aux : args.c;  // what the GELU or its derivative begins with
  if (plan.into != MatmulPlan::Into::wide) {
    void* const aux = plan.gemm.ld_aux > 0 ? args.aux.data : nullptr;
    const Tensor& result = plan.into == MatmulPlan::Into::aux ? args.aux : args.c;
    const Tensor& asked = args.sums_of_b ? args.sums_of_b : args.sums_of_a;
    Tensor sums;
    if (plan.sums_in_gemm) sums = args.accumulate ? steps.wide(1, asked.numel()) : asked;
    steps.gemm(plan.gemm, {.first = args.b.data,
                           .second = args.a.data,
                           .result = result.data,
                           .bias = plan.sums_in_gemm ? sums.data : bias,
                           .aux = aux,
                           .scale_first = args.scale_b.data,
                           .scale_second = args.scale_a.data});
    if (plan.add_bias) steps.add_bias(result, args.bias, result, false);
    if (plan.sums_in_gemm && args.accumulate) {
      steps.add(Tensor(sums.data, DType::f32, {asked.numel()}), asked);
    }
  } else {
    for (int64_t first = 0; first < shape.m; first += plan.slice_rows) {
      LtGemm slice = plan.gemm;
      slice.columns = std::min(plan.slice_rows, shape.m - first);
      // Of a transposed A some columns: its rows stay as far apart as they are.
      const void* const a = static_cast<const char*>(args.a.data) +
                            first * (args.transpose_a ? 1 : shape.k) * bytes_of(args.a.dtype);
      const Tensor wide = steps.wide(slice.columns, shape.n);
      steps.gemm(slice, {.first = args.b.data,
                         .second = a,
                         .result = wide.data,
                         .bias = bias,
                         .scale_first = args.scale_b.data,
                         .scale_second = args.scale_a.data});
      const Tensor rows(sum.slice(first * shape.n, slice.columns * shape.n).data, sum.dtype,
                        {slice.columns, shape.n});
      steps.add_bias(wide, args.bias, rows, plan.add_before);
    }
  }
  if (plan.then == MatmulPlan::Then::gelu) steps.gelu_forward(args.aux, args.c);
  if (plan.then == MatmulPlan::Then::gelu_grad) steps.gelu_backward(args.c, args.aux);
}

}  // namespace mtl::cuda
