// Products by cuBLASLt: one handle, workspace and cache of algorithms per device. Thin on purpose:
// what is decided about a product is decided in matmul_plan.h, which tests prove on the host.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/cuda/matmul_plan.h"
#include "runtime/device/cuda/product_choices.h"

struct CUstream_st;  // as cudaStream_t points to

namespace mtl::cuda {

class LtMatmul {
 public:
  // On the current device. What is not among `choices`, or does not do any more, cuBLASLt's
  // heuristics choose.
  explicit LtMatmul(std::map<LtForm, LtAlgorithm> choices = {});
  ~LtMatmul();
  LtMatmul(const LtMatmul&) = delete;
  LtMatmul& operator=(const LtMatmul&) = delete;

  // Whether cuBLASLt has an algorithm for it. Asked, as a rule, once for a form, alignment and
  // choice_of() shape.
  bool has(const LtGemm& gemm, const LtOperands& operands);
  // By the first algorithm of those named that cuBLASLt does not refuse. Throws Error
  // "device.matmul"; if it has refused all, has() says from now on that there is none.
  void run(const LtGemm& gemm, const LtOperands& operands, CUstream_st* stream);
  // For measurements: of the first `most` algorithms that cuBLASLt's heuristics name those that
  // differ (lt_words.h), the first one first; and, from now on, the one that run() takes. False if
  // it does not do here.
  std::vector<LtAlgorithm> candidates(const LtGemm& gemm, const LtOperands& operands, int most);
  bool take(const LtGemm& gemm, const LtOperands& operands, const LtAlgorithm& algorithm);

  bool has_choices() const;
  // Whether run() takes what the choices have for it.
  bool is_measured(const LtGemm& gemm, const LtOperands& operands);
  // What run() takes, for a file of choices.
  std::pair<LtForm, LtAlgorithm> choice(const LtGemm& gemm, const LtOperands& operands);

  static std::string version();  // "13.1.0"

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mtl::cuda
