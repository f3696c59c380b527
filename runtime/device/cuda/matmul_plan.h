// How a Matmul of op_arguments.h becomes a call of cuBLASLt and, where cuBLASLt has no such
// epilogue, kernels of ours behind it. Pure, so that tests prove the indices without a GPU: they
// execute these plans literally on the host.
//
// cuBLASLt thinks in columns. A row-major [r, c] matrix is, bit for bit, a column-major [c, r] one
// with leading dimension c; so C = op(A) op(B) is asked for as C^T = op(B)^T op(A)^T: B comes
// first, the rows of D are the n columns of C, and a bias over n is what cuBLASLt calls a bias over
// D's rows.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "runtime/device/device.h"

namespace mtl::cuda {

// What cuBLASLt may do besides the product. It says only when asked for an algorithm whether it has
// one, so a plan is made with the first, and made again with the next where there is none.
enum class Fuse { all, bias, nothing };
// Whether plans have the sums of an operand in the product (LtEpilogue::sums_of_*), where that can
// be.
enum class Sums { in_product, behind };

// Its GELU is of the sum in f32, before that is rounded into aux: for activations that are not
// computed again, from aux, with the same bits (Matmul::gelu_once). Of results of 16 bits only.
// sums_of: an operand, after op(), summed over k besides, into where a bias would be: [rows] or
// [columns], of D's type. With the gradient of a weight they are the bias's. Whether they are
// faster than a pass of its own only a measurement says (product_choices.h).
enum class LtEpilogue { none, bias, gelu_aux, gelu_aux_bias, dgelu, sums_of_first, sums_of_second };

// D[rows, columns] = op(first)[rows, k] op(second)[k, columns] + beta D, all column-major.
struct LtGemm {
  DType first_type = DType::f32, second_type = DType::f32;  // they differ in FP8 only
  DType result_type = DType::f32;                           // of D
  int64_t rows = 0, columns = 0, k = 0;
  bool transpose_first = false, transpose_second = false;
  int64_t ld_first = 0, ld_second = 0, ld_result = 0;
  bool add = false;  // beta = 1
  LtEpilogue epilogue = LtEpilogue::none;
  DType bias_type = DType::f32;
  int64_t ld_aux = 0;
  // FP8: sums that stay in the tensor cores, with 13 bits behind the leading one, instead of going
  // to f32 every few steps of k. For forward alone: its error is far below that of the rounded
  // operands, while gradients sum over tokens, where small terms meet large sums (as Transformer
  // Engine's Float8CurrentScaling has it).
  bool fast_sums = false;
  auto operator<=>(const LtGemm&) const = default;
};

// The product that an algorithm is chosen for, in place of this one. Where tokens choose their
// experts, each has another number of rows every time: a query of cuBLASLt's heuristics, which
// takes longer than the product, for every one of them. So a number above 64 of what lies a leading
// dimension apart in all matrices is rounded up to a multiple of 64. What lies side by side is
// kept: an algorithm's loads depend on it.
LtGemm choice_of(const LtGemm& gemm);

// What a product is made of, as stored: `bias` and `aux` may be null, the scales (f32, on the
// device) are null but with FP8.
struct LtOperands {
  const void* first;
  const void* second;
  void* result;
  const void* bias = nullptr;
  void* aux = nullptr;
  const void* scale_first = nullptr;
  const void* scale_second = nullptr;
};

struct MatmulPlan {
  LtGemm gemm;
  bool bias_in_gemm = false;
  // The sums of an operand come from the product, to where it asks for them or, if they are to be
  // added to what is there, by way of memory beside the tensors. Else they are to be made behind
  // it.
  bool sums_in_gemm = false;
  // Where the product goes: to C, to aux (the value before a GELU), or, in f32, to memory beside
  // the tensors, of `slice_rows` rows of C at a time.
  enum class Into { c, aux, wide } into = Into::c;
  int64_t slice_rows = 0;
  // Then, in this order, by kernels of ours: the bias onto the product (from `wide` also onto what
  // C was), and the GELU.
  bool add_bias = false;
  bool add_before = false;
  enum class Then { nothing, gelu, gelu_grad } then = Then::nothing;
};

// The least that `wide` is meant to take, as far as 64 rows do.
inline constexpr int64_t kWideBytes = int64_t{32} << 20;

// `args` fit together (misfit() is empty); m, n and k > 0.
MatmulPlan plan_matmul(const Matmul& args, Fuse fuse, Sums sums = Sums::behind);

// Who carries out the steps of a plan: the GPU, or a test.
class MatmulSteps {
 public:
  virtual ~MatmulSteps() = default;
  virtual void gemm(const LtGemm& gemm, const LtOperands& operands) = 0;
  // f32 [rows, columns], until the next call.
  virtual Tensor wide(int64_t rows, int64_t columns) = 0;
  // to = (accumulate ? to : 0) + from + bias; `from` f32, may be `to`.
  virtual void add_bias(Tensor from, Tensor bias, Tensor to, bool accumulate) = 0;
  virtual void gelu_forward(Tensor x, Tensor y) = 0;
  virtual void gelu_backward(Tensor dy, Tensor aux) = 0;  // in place
  virtual void add(Tensor x, Tensor y) = 0;               // y += x, f32
};
// All but sums that are to be made behind it.
void run_matmul(const MatmulPlan& plan, const Matmul& args, MatmulSteps& steps);

// What does not fit, empty if everything does.
std::string misfit(const Matmul& args);

}  // namespace mtl::cuda
