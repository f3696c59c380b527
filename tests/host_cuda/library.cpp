// What makes a libmtl_cuda.so of the parts: its products are carried out.
#include "host_cuda/products.h"

namespace {
[[maybe_unused]] const bool ready = [] {
  mtl::host_cuda::carry_out_products();
  return true;
}();
}  // namespace
