// Matmul on the CPU: oneDNN underneath, with the fastest way per form and type chosen by a fixed
// rule (so that results are bit-equal from run to run for a given number of threads), plus the
// epilogues that oneDNN cannot fuse. f16, FP8, and bf16 on a CPU without AMX are widened to f32,
// block by block in workspaces of 8 MB, and multiplied there: the results are those of f32 for the
// same inputs, rounded. With AMX a product with a long k has its f32 sums, 32 MB at most.
#pragma once

#include <memory>

#include "runtime/device/device.h"

namespace mtl {

class CpuMatmul {
 public:
  CpuMatmul();
  ~CpuMatmul();
  CpuMatmul(const CpuMatmul&) = delete;
  CpuMatmul& operator=(const CpuMatmul&) = delete;

  // Throws mtl::Error (device.matmul) when shapes or types do not fit. Not for use by two threads
  // at a time: workspaces and the primitives are reused from call to call.
  void run(const Matmul& args);
  // c = gelu_tanh(aux), one type and size, not the same memory: what Epilogue::gelu ends with.
  void gelu(const Tensor& aux, const Tensor& c) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mtl
