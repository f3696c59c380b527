// How one of cuBLASLt's algorithms multiplies, in its own numbers: what tells them apart.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cublasLt.h>
#include <string>

#include <fmt/format.h>

#include "runtime/device/cuda/product_choices.h"

namespace mtl::cuda {

// "id 66 tile 20 stages 35 ...".
inline std::string words_of(const LtAlgorithm& algorithm) {
  struct Value {
    cublasLtMatmulAlgoConfigAttributes_t attribute;
    size_t bytes;
    const char* name;
  };
  static constexpr Value kValues[] = {{CUBLASLT_ALGO_CONFIG_ID, 4, "id"},
                                      {CUBLASLT_ALGO_CONFIG_TILE_ID, 4, "tile"},
                                      {CUBLASLT_ALGO_CONFIG_STAGES_ID, 4, "stages"},
                                      {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2, "cluster"},
                                      {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4, "parts"},
                                      {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4, "reduction"},
                                      {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4, "swizzle"},
                                      {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2, "inner"},
                                      {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4, "custom"}};
  const auto of = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
  std::string words;
  for (const Value& value : kValues) {
    uint32_t number = 0;
    size_t written = 0;
    // One that this cuBLASLt does not know tells nothing apart.
    if (cublasLtMatmulAlgoConfigGetAttribute(&of, value.attribute, &number, value.bytes,
                                             &written) != CUBLAS_STATUS_SUCCESS) {
      continue;
    }
    words += fmt::format("{}{} {}", words.empty() ? "" : " ", value.name, number);
  }
  return words;
}

}  // namespace mtl::cuda
