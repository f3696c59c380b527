// Which of cuBLASLt's algorithms a product gets where they have been measured: a file that
// tests/bench/gpu/products_gpu.cpp (--choose) writes and MTL_PRODUCTS names. Measured once and
// kept, and not at every start: two measurements may choose differently, and another algorithm has
// another order of sums, so the ranks of a run, and the run that goes on with it, would have other
// bits.
//
// Lines: `mtl-products 1`, `gpu NAME`, `cublaslt VERSION`, then one `product` for each choice; `#`
// begins a comment.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "runtime/device/cuda/matmul_plan.h"

namespace mtl::cuda {

// What an algorithm is chosen for: a product, and how its operands are aligned (lt_matmul.cpp).
struct LtForm {
  LtGemm gemm;
  uint32_t alignments = 0;
  auto operator<=>(const LtForm&) const = default;
};

// The words of a cublasLtMatmulAlgo_t. cuBLAS' documentation lets one be kept, for the same
// version.
using LtAlgorithm = std::array<uint64_t, 8>;

struct ProductChoices {
  std::string gpu, cublaslt;  // where they have been measured; the version as LtMatmul says it
  std::map<LtForm, LtAlgorithm> algorithms;
};

std::string to_text(const ProductChoices& choices);
// Throws Error (Exit::usage) "gpu.products", with the line of `path` that is wrong.
ProductChoices parse_product_choices(const std::string& text, const std::string& path);

// Of the file that MTL_PRODUCTS names; none where it is null or empty. Measured on another GPU or
// with another cuBLASLt they are nothing here: none either, and `tell` is given the reason. Throws
// Error (Exit::usage) "gpu.products", where the file is missing as well.
std::map<LtForm, LtAlgorithm> product_choices(const char* variable, const std::string& gpu,
                                              const std::string& cublaslt,
                                              const std::function<void(const std::string&)>& tell);

}  // namespace mtl::cuda
