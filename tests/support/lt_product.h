// A product that cuBLASLt is asked for, carried out by the host as cuBLASLt's documentation
// describes it.
#pragma once

#include "runtime/device/cuda/matmul_plan.h"

namespace mtl::test {

// Sums in double precision, and the hardware's tanh. Throws std::logic_error with the reason where
// cuBLASLt would refuse it.
void multiply(const cuda::LtGemm& gemm, const cuda::LtOperands& operands);

}  // namespace mtl::test
