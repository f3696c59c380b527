// A cuBLASLt that is none, for LtMatmul (runtime/device/cuda/lt_matmul.h) where there is no GPU: it
// keeps what it is told of products, and says it, or has somebody carry it out.
#pragma once

#include <functional>
#include <vector>

#include "runtime/device/cuda/matmul_plan.h"

struct CUstream_st;  // as cudaStream_t points to

namespace mtl::test {

// A product as cuBLASLt has been told of it.
struct LtCall {
  cuda::LtGemm gemm;
  cuda::LtOperands operands{};
  cuda::LtGemm chosen_for;  // when its algorithm was asked for
  int place = 0;            // of the algorithm among those that there are
};

struct FakeCublasLt {
  std::vector<LtCall> calls;
  int queries = 0;      // of its heuristics
  int descriptors = 0;  // that there are
  // Whether its heuristics may be asked now. Those of cuBLASLt 13.3 are reported to fail in a
  // thread that records a graph ("Could not obtain green context information").
  std::function<bool()> may_ask = [] { return true; };
  // How many algorithms there are for a product, and whether one of them does for other sizes.
  std::function<int(const cuda::LtGemm&)> algorithms = [](const cuda::LtGemm&) { return 1; };
  std::function<bool(const LtCall&)> does = [](const LtCall&) { return true; };
  // The tile of an algorithm, by which alone they differ.
  std::function<int(int place)> tile = [](int place) { return place; };
  // Whether it refuses, when it comes to it, what it has named.
  std::function<bool(const LtCall&)> refuses = [](const LtCall&) { return false; };
  // Who is given the products, in place of `calls`.
  std::function<void(const LtCall&, CUstream_st* stream)> carries_out;
};
// Of this test; a new one is as above.
inline FakeCublasLt fake_cublaslt;

}  // namespace mtl::test
