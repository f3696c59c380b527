#include "support/fake_cublaslt.h"

#include <algorithm>
#include <cstring>
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <map>
#include <optional>
#include <stdexcept>

using namespace mtl;
using namespace mtl::cuda;
using mtl::test::fake_cublaslt;
using mtl::test::LtCall;

namespace {

// Whatever its attributes are, by their numbers.
struct Described {
  Described() { ++fake_cublaslt.descriptors; }
  ~Described() { --fake_cublaslt.descriptors; }
  Described(const Described&) = delete;
  Described& operator=(const Described&) = delete;

  std::map<int, std::vector<char>> values;
  cublasStatus_t set(int attribute, const void* value, size_t bytes) {
    const auto* const from = static_cast<const char*>(value);
    values[attribute].assign(from, from + bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  // With the size that the documentation gives it, or cuBLASLt would refuse.
  template <typename T>
  std::optional<T> get(int attribute) const {
    const auto found = values.find(attribute);
    if (found == values.end()) return std::nullopt;
    T value;
    if (found->second.size() != sizeof value) throw std::logic_error("an attribute's size");
    std::memcpy(&value, found->second.data(), sizeof value);
    return value;
  }
};
const Described& described(const void* handle) {
  return *static_cast<const Described*>(handle);
}
template <typename Handle>
cublasStatus_t make(Handle* out) {
  *out = reinterpret_cast<Handle>(new Described);
  return CUBLAS_STATUS_SUCCESS;
}
template <typename Handle>
cublasStatus_t end(Handle handle) {
  delete reinterpret_cast<Described*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

struct Stored {
  explicit Stored(const Described& layout)
      : type(layout.get<uint32_t>(CUBLASLT_MATRIX_LAYOUT_TYPE).value()),
        rows(static_cast<int64_t>(layout.get<uint64_t>(CUBLASLT_MATRIX_LAYOUT_ROWS).value())),
        columns(static_cast<int64_t>(layout.get<uint64_t>(CUBLASLT_MATRIX_LAYOUT_COLS).value())),
        ld(layout.get<int64_t>(CUBLASLT_MATRIX_LAYOUT_LD).value()) {
    if (ld < rows) throw std::logic_error("a leading dimension that is too small");
  }
  uint32_t type;
  int64_t rows, columns, ld;
};

DType type_of(uint32_t type) {
  switch (type) {
    case CUDA_R_16BF:
      return DType::bf16;
    case CUDA_R_16F:
      return DType::f16;
    case CUDA_R_8F_E4M3:
      return DType::f8_e4m3;
    case CUDA_R_8F_E5M2:
      return DType::f8_e5m2;
    case CUDA_R_32F:
      return DType::f32;
    default:
      throw std::logic_error("a type that no product has");
  }
}
LtEpilogue epilogue_of(uint32_t epilogue) {
  switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
      return LtEpilogue::none;
    case CUBLASLT_EPILOGUE_BIAS:
      return LtEpilogue::bias;
    case CUBLASLT_EPILOGUE_GELU_AUX:
      return LtEpilogue::gelu_aux;
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
      return LtEpilogue::gelu_aux_bias;
    case CUBLASLT_EPILOGUE_DGELU:
      return LtEpilogue::dgelu;
    case CUBLASLT_EPILOGUE_BGRADA:
      return LtEpilogue::sums_of_first;
    case CUBLASLT_EPILOGUE_BGRADB:
      return LtEpilogue::sums_of_second;
    default:
      throw std::logic_error("an epilogue that no product has");
  }
}

LtGemm gemm_of(const void* description, const void* a, const void* b, const void* c,
               const void* d) {
  const Described& how = described(description);
  if (c != d) throw std::logic_error("C and D have different layouts");
  if (how.get<int32_t>(-1) != CUBLAS_COMPUTE_32F || how.get<int32_t>(-2) != CUDA_R_32F) {
    throw std::logic_error("sums that are not f32");
  }
  const Stored first(described(a)), second(described(b)), result(described(d));
  const auto transposed = [&](cublasLtMatmulDescAttributes_t attribute) {
    const int32_t op = how.get<int32_t>(attribute).value_or(CUBLAS_OP_N);
    if (op != CUBLAS_OP_N && op != CUBLAS_OP_T) throw std::logic_error("an operation");
    return op == CUBLAS_OP_T;
  };
  LtGemm gemm;
  gemm.first_type = type_of(first.type);
  gemm.second_type = type_of(second.type);
  gemm.result_type = type_of(result.type);
  gemm.transpose_first = transposed(CUBLASLT_MATMUL_DESC_TRANSA);
  gemm.transpose_second = transposed(CUBLASLT_MATMUL_DESC_TRANSB);
  gemm.rows = result.rows;
  gemm.columns = result.columns;
  gemm.k = gemm.transpose_first ? first.rows : first.columns;
  const int64_t first_rows = gemm.transpose_first ? first.columns : first.rows;
  const int64_t second_k = gemm.transpose_second ? second.columns : second.rows;
  const int64_t second_columns = gemm.transpose_second ? second.rows : second.columns;
  if (first_rows != gemm.rows || second_k != gemm.k || second_columns != gemm.columns) {
    throw std::logic_error("matrices that do not fit together");
  }
  gemm.ld_first = first.ld;
  gemm.ld_second = second.ld;
  gemm.ld_result = result.ld;
  gemm.epilogue = epilogue_of(
      how.get<uint32_t>(CUBLASLT_MATMUL_DESC_EPILOGUE).value_or(CUBLASLT_EPILOGUE_DEFAULT));
  if (const auto type = how.get<int32_t>(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE)) {
    gemm.bias_type = type_of(static_cast<uint32_t>(*type));
  }
  gemm.ld_aux = how.get<int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD).value_or(0);
  gemm.fast_sums = how.get<int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM).value_or(0) != 0;
  return gemm;
}

// What lies in an algorithm: which one it is. Its product is kept here.
std::vector<LtGemm> asked_for;
struct Named {
  uint64_t asked, place;
};
LtCall call_of(const LtGemm& gemm, const cublasLtMatmulAlgo_t& algorithm) {
  Named named{};
  std::memcpy(&named, &algorithm, sizeof named);
  // One that another process has kept is for what it is said to be for.
  return {.gemm = gemm,
          .chosen_for = named.asked < asked_for.size() ? asked_for[named.asked] : gemm,
          .place = static_cast<int>(named.place)};
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return make(handle);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return end(handle);
}
size_t cublasLtGetVersion() {
  return 130102;
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "another status";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* out, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  make(out);
  auto* const made = reinterpret_cast<Described*>(*out);
  const int32_t types[] = {compute, scale};
  made->set(-1, &types[0], sizeof types[0]);
  made->set(-2, &types[1], sizeof types[1]);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  return end(description);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  return reinterpret_cast<Described*>(description)->set(attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* out, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  make(out);
  auto* const made = reinterpret_cast<Described*>(*out);
  const auto number = static_cast<uint32_t>(type);
  made->set(CUBLASLT_MATRIX_LAYOUT_TYPE, &number, sizeof number);
  made->set(CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof rows);
  made->set(CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns);
  made->set(CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return end(layout);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  return reinterpret_cast<Described*>(layout)->set(attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* out) {
  return make(out);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return end(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  return reinterpret_cast<Described*>(preference)->set(attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  const Described& wanted = described(preference);
  // Sums in no other order than that of the parts, in f32.
  if (wanted.get<uint32_t>(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) !=
          static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) ||
      wanted.get<uint64_t>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) < uint64_t{32} << 20) {
    throw std::logic_error("other preferences than ours");
  }
  ++fake_cublaslt.queries;
  if (!fake_cublaslt.may_ask()) return CUBLAS_STATUS_INTERNAL_ERROR;
  const LtGemm gemm = gemm_of(description, a, b, c, d);
  *count = std::min(most, fake_cublaslt.algorithms(gemm));
  if (*count == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  asked_for.push_back(gemm);
  for (int i = 0; i < *count; ++i) {
    const Named named = {asked_for.size() - 1, static_cast<uint64_t>(i)};
    std::memcpy(&results[i].algo, &named, sizeof named);
    results[i].state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  const LtCall call = call_of(gemm_of(description, a, b, c, d), *algorithm);
  return fake_cublaslt.does(call) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t* written) {
  // Of all only the tile is another.
  Named named{};
  std::memcpy(&named, algorithm, sizeof named);
  const bool small = attribute == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID ||
                     attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
  if (bytes != (small ? 2 : 4)) return CUBLAS_STATUS_INVALID_VALUE;
  const int place = static_cast<int>(named.place);
  const auto tile = static_cast<uint32_t>(
      attribute == CUBLASLT_ALGO_CONFIG_TILE_ID ? fake_cublaslt.tile(place) : 0);
  std::memcpy(value, &tile, bytes);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* first, cublasLtMatrixLayout_t a, const void* second,
                              cublasLtMatrixLayout_t b, const void* beta, const void* before,
                              cublasLtMatrixLayout_t c, void* result, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t,
                              cudaStream_t stream) {
  LtCall call = call_of(gemm_of(description, a, b, c, d), *algorithm);
  if (*static_cast<const float*>(alpha) != 1 || before != result || workspace == nullptr) {
    throw std::logic_error("not a sum of ours");
  }
  if (!(call.gemm == call.chosen_for) && !fake_cublaslt.does(call)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  call.gemm.add = *static_cast<const float*>(beta) != 0;
  call.chosen_for.add = call.gemm.add;
  if (fake_cublaslt.refuses(call)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const Described& how = described(description);
  const auto pointer = [&](cublasLtMatmulDescAttributes_t attribute) {
    return how.get<void*>(attribute).value_or(nullptr);
  };
  call.operands = {.first = first,
                   .second = second,
                   .result = result,
                   .bias = pointer(CUBLASLT_MATMUL_DESC_BIAS_POINTER),
                   .aux = pointer(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER),
                   .scale_first = pointer(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER),
                   .scale_second = pointer(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER)};
  if (fake_cublaslt.carries_out) {
    fake_cublaslt.carries_out(call, stream);
  } else {
    fake_cublaslt.calls.push_back(call);
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
