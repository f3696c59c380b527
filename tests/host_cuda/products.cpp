#include "host_cuda/products.h"

#include "host_cuda/gpu.h"
#include "support/fake_cublaslt.h"
#include "support/lt_product.h"

namespace mtl::host_cuda {

void carry_out_products() {
  test::fake_cublaslt.may_ask = [] { return !records(); };
  test::fake_cublaslt.carries_out = [](const test::LtCall& call, CUstream_st* stream) {
    stream->enqueue([call] { test::multiply(call.gemm, call.operands); });
  };
}

}  // namespace mtl::host_cuda
