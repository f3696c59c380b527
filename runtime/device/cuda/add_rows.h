// Adding rows (a bias, learned positions, the residual) with dropout, and the way back: what
// position.cu and dropout.cu share.
#pragma once

#include "runtime/device/cuda/kernels.h"

namespace mtl::cuda {

// out[r] = dropout(x[r] + addend[(row0 + r) % period]) + residual[r]; addend and residual may be
// absent, out may be x or the residual. The first row's elements are first_element on, of dropout.
struct AddRows {
  Tensor x, addend, residual, out;
  int64_t row0 = 0, period = 1;
  Dropout dropout;
  int64_t first_element = 0;
  float scale = 1;  // of (x + addend), behind dropout
};
void add_rows(Queue& queue, const AddRows& args);  // dropout.cu

}  // namespace mtl::cuda
