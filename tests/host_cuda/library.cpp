// What makes a libmtl_cuda.so of the parts: its products are carried out.
#include "host_cuda/products.h"
// With it the stand-in is made before `ready`, in whatever order files are linked.
#include "support/fake_cublaslt.h"

namespace {
[[maybe_unused]] const bool ready = [] {
  mtl::host_cuda::carry_out_products();
  return true;
}();
}  // namespace
