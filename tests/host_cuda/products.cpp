#include "host_cuda/products.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <vector>

#include "host_cuda/gpu.h"
#include "support/fake_cublaslt.h"
#include "support/lt_product.h"

namespace mtl::host_cuda {

namespace {

// Microseconds of a product by each of its algorithms, as the environment says; none: it does not.
std::vector<std::chrono::microseconds> said_times() {
  const char* const text = std::getenv("MTL_HOST_CUDA_PRODUCT_US");
  std::istringstream words(text == nullptr ? "" : text);
  std::vector<std::chrono::microseconds> times;
  for (int us = 0; words >> us;) times.emplace_back(us);
  return times;
}

}  // namespace

void carry_out_products() {
  const std::vector<std::chrono::microseconds> times = said_times();
  const int algorithms = std::max(1, static_cast<int>(times.size()));
  test::fake_cublaslt.algorithms = [algorithms](const cuda::LtGemm&) { return algorithms; };
  test::fake_cublaslt.may_ask = [] { return !records(); };
  test::fake_cublaslt.carries_out = [times](const test::LtCall& call, CUstream_st* stream) {
    stream->enqueue([call, times] {
      if (!times.empty()) takes(times.at(static_cast<size_t>(call.place)));
      test::multiply(call.gemm, call.operands);
    });
  };
}

}  // namespace mtl::host_cuda
