#include "runtime/device/cuda/lt_matmul.h"

#include <bit>
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/error.h"
#include "runtime/device/cuda/cuda_errors.h"
#include "runtime/device/cuda/lt_words.h"
#include "runtime/device/kernel_scratch.h"

namespace mtl::cuda {

namespace {

constexpr auto kWorkspaceBytes = static_cast<size_t>(kProductWorkspaceBytes);

void check_cublas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(Exit::run_failed,
              {.code = "device.matmul",
               .what = fmt::format("{}: cuBLASLt says: {}", what, cublasLtGetStatusString(status)),
               .help = "this is a defect of mtl; please report it with the command line"});
}

bool is_refusal(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    case DType::f8_e4m3:
      return CUDA_R_8F_E4M3;
    case DType::f8_e5m2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_32F;
  }
}

cublasLtEpilogue_t epilogue_of(LtEpilogue epilogue) {
  switch (epilogue) {
    case LtEpilogue::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case LtEpilogue::gelu_aux:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case LtEpilogue::gelu_aux_bias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case LtEpilogue::dgelu:
      return CUBLASLT_EPILOGUE_DGELU;
    case LtEpilogue::sums_of_first:
      return CUBLASLT_EPILOGUE_BGRADA;
    case LtEpilogue::sums_of_second:
      return CUBLASLT_EPILOGUE_BGRADB;
    case LtEpilogue::none:
      break;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// Up to 16 bytes, the most that one load or a bulk copy wants: what lies beyond is chance, and the
// choice of an algorithm, so the order of its sums, is not to depend on where an arena begins or on
// how a layout of ranks cuts it.
uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  for (uint32_t bytes = 16; bytes > 1; bytes /= 2) {
    if (address % bytes == 0) return bytes;
  }
  return 1;
}

// cuBLASLt's descriptors end with their owner.
template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ != nullptr) kDestroy(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Handle* out() { return &handle_; }
  operator Handle() const { return handle_; }  // NOLINT: as the library takes it

 private:
  Handle handle_ = nullptr;
};
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

template <typename T>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, T value) {
  check_cublas(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value),
               "describing a product");
}
template <typename T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         T value) {
  check_cublas(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
               "choosing an algorithm");
}

// Of a matrix as stored, before op().
struct Size {
  int64_t rows, columns;
};
Size size_of(int64_t rows, int64_t columns, bool transpose) {
  return transpose ? Size{columns, rows} : Size{rows, columns};
}
Size first_size(const LtGemm& gemm) {
  return size_of(gemm.rows, gemm.k, gemm.transpose_first);
}
Size second_size(const LtGemm& gemm) {
  return size_of(gemm.k, gemm.columns, gemm.transpose_second);
}

void create(Layout& out, DType type, Size size, int64_t ld) {
  check_cublas(
      cublasLtMatrixLayoutCreate(out.out(), type_of(type), static_cast<uint64_t>(size.rows),
                                 static_cast<uint64_t>(size.columns), ld),
      "describing a matrix");
}
void resize(cublasLtMatrixLayout_t layout, Size size) {
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, int64_t count) {
    const auto value = static_cast<uint64_t>(count);
    check_cublas(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof value),
                 "describing a matrix");
  };
  set(CUBLASLT_MATRIX_LAYOUT_ROWS, size.rows);
  set(CUBLASLT_MATRIX_LAYOUT_COLS, size.columns);
}

// Before the heuristics' first place.
constexpr int kMeasured = -1;

struct Prepared {
  Description description;
  Layout first, second, result;
  LtGemm asked;  // for
  LtGemm sizes;  // that the layouts have
  cublasLtMatmulAlgo_t algorithm{};
  // Of it, among those that the heuristics name; kMeasured: it is one of `choices`.
  int place = 0;
  bool there = false;

  // Of a product that differs in sizes only.
  void take_sizes(const LtGemm& gemm) {
    if (gemm == sizes) return;
    resize(first, first_size(gemm));
    resize(second, second_size(gemm));
    resize(result, {gemm.rows, gemm.columns});
    sizes = gemm;
  }
};

LtForm form_of(const LtGemm& gemm, const LtOperands& operands) {
  uint32_t alignments = 0;  // each at most 16: five bits
  for (const void* pointer :
       {operands.first, operands.second, static_cast<const void*>(operands.result), operands.bias,
        static_cast<const void*>(operands.aux)}) {
    alignments = alignments << 5 | alignment_of(pointer);
  }
  return {gemm, alignments};
}

static_assert(sizeof(LtAlgorithm) == sizeof(cublasLtMatmulAlgo_t));

void set_pointers(const Prepared& prepared, const LtOperands& operands) {
  if (operands.bias != nullptr) {
    set(prepared.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  }
  if (operands.aux != nullptr) {
    set(prepared.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.aux);
  }
  if (operands.scale_first != nullptr) {
    set(prepared.description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.scale_first);
    set(prepared.description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.scale_second);
  }
}

}  // namespace

struct LtMatmul::Impl {
  Owned<cublasLtHandle_t, cublasLtDestroy> handle;
  void* workspace = nullptr;
  const std::map<LtForm, LtAlgorithm> choices;
  std::map<LtForm, Prepared> cache;

  explicit Impl(std::map<LtForm, LtAlgorithm> chosen) : choices(std::move(chosen)) {
    check_cublas(cublasLtCreate(handle.out()), "starting cuBLASLt");
    workspace = cuda::gpu_memory(kWorkspaceBytes);
  }
  ~Impl() { cudaFree(workspace); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // With the product's sizes: by the algorithm for its choice, where that does for it.
  Prepared& prepared(const LtGemm& gemm, const LtOperands& operands) {
    const LtGemm choice = choice_of(gemm);
    const LtForm form = form_of(gemm, operands);
    // Of its own, and not the choice: that did not do, or a measurement has taken another one.
    if (gemm == choice || choices.contains(form) || cache.contains(form)) {
      Prepared& own = of_form(gemm, operands);
      own.take_sizes(gemm);
      return own;
    }
    Prepared& chosen = of_form(choice, operands);
    if (gemm == chosen.sizes || does_for(chosen, gemm)) return chosen;
    return of_form(gemm, operands);
  }
  Prepared& of_form(const LtGemm& gemm, const LtOperands& operands) {
    const auto [entry, is_new] = cache.try_emplace(form_of(gemm, operands));
    if (is_new) prepare(gemm, operands, kMeasured, entry->second);
    return entry->second;
  }
  bool does_for(Prepared& made, const LtGemm& gemm) {
    if (!made.there) return false;
    made.take_sizes(gemm);
    cublasLtMatmulHeuristicResult_t checked{};
    return cublasLtMatmulAlgoCheck(handle, made.description, made.first, made.second, made.result,
                                   made.result, &made.algorithm,
                                   &checked) == CUBLAS_STATUS_SUCCESS &&
           checked.workspaceSize <= kWorkspaceBytes;
  }
  // What the heuristics have named is refused all the same: the next one that they name, if any.
  void next(const Prepared& refused, const LtOperands& operands) {
    const LtGemm asked = refused.asked;
    const int place = refused.place + 1;
    cache.erase(form_of(asked, operands));
    prepare(asked, operands, place, cache[form_of(asked, operands)]);
  }

  void prepare(const LtGemm& gemm, const LtOperands& operands, int place, Prepared& made) {
    describe(gemm, operands, made);
    made.place = place;
    if (place == kMeasured) {
      const auto chosen = choices.find(form_of(gemm, operands));
      if (chosen != choices.end() && take(chosen->second, made)) return;
      made.place = place = 0;
    }
    const std::vector<cublasLtMatmulAlgo_t> named = named_for(made, operands, place + 1);
    made.there = named.size() > static_cast<size_t>(place);
    if (made.there) made.algorithm = named.back();
  }
  bool take(const LtAlgorithm& algorithm, Prepared& described) {
    described.place = kMeasured;
    described.algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
    described.there = true;
    return described.there = does_for(described, described.asked);
  }

  void describe(const LtGemm& gemm, const LtOperands& operands, Prepared& made) {
    // f32 sums; and f32 factors as they are: TF32 would keep 10 bits of them.
    check_cublas(cublasLtMatmulDescCreate(made.description.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F),
                 "describing a product");
    const auto op = [](bool transpose) {
      return static_cast<int32_t>(transpose ? CUBLAS_OP_T : CUBLAS_OP_N);
    };
    set(made.description, CUBLASLT_MATMUL_DESC_TRANSA, op(gemm.transpose_first));
    set(made.description, CUBLASLT_MATMUL_DESC_TRANSB, op(gemm.transpose_second));
    set(made.description, CUBLASLT_MATMUL_DESC_EPILOGUE,
        static_cast<uint32_t>(epilogue_of(gemm.epilogue)));
    if (operands.bias != nullptr) {
      set(made.description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
          static_cast<int32_t>(type_of(gemm.bias_type)));
    }
    if (operands.aux != nullptr) {
      set(made.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, gemm.ld_aux);
    }
    if (gemm.fast_sums) set(made.description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
    set_pointers(made, operands);

    create(made.first, gemm.first_type, first_size(gemm), gemm.ld_first);
    create(made.second, gemm.second_type, second_size(gemm), gemm.ld_second);
    create(made.result, gemm.result_type, {gemm.rows, gemm.columns}, gemm.ld_result);
    made.asked = made.sizes = gemm;
  }

  // The first `most` that cuBLASLt's heuristics name, the best first by their reckoning.
  std::vector<cublasLtMatmulAlgo_t> named_for(const Prepared& made, const LtOperands& operands,
                                              int most) {
    Preference preference;
    check_cublas(cublasLtMatmulPreferenceCreate(preference.out()), "choosing an algorithm");
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
    // A product may be cut along k only if its parts are summed in f32 in the workspace: neither in
    // the result's own type nor in place, part after part.
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(operands.first));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(operands.second));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(operands.result));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(operands.result));
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, made.description, made.first, made.second, made.result, made.result, preference,
        most, results.data(), &count);
    // Not every form has one; that is what the callers' other plans are for.
    if (!is_refusal(status)) check_cublas(status, "choosing an algorithm");
    std::vector<cublasLtMatmulAlgo_t> named;
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
      const auto& result = results[static_cast<size_t>(i)];
      if (result.state != CUBLAS_STATUS_SUCCESS) break;
      named.push_back(result.algo);
    }
    return named;
  }
};

LtMatmul::LtMatmul(std::map<LtForm, LtAlgorithm> choices)
    : impl_(std::make_unique<Impl>(std::move(choices))) {}
LtMatmul::~LtMatmul() = default;

bool LtMatmul::has(const LtGemm& gemm, const LtOperands& operands) {
  return impl_->prepared(gemm, operands).there;
}

std::vector<LtAlgorithm> LtMatmul::candidates(const LtGemm& gemm, const LtOperands& operands,
                                              int most) {
  Prepared described;
  impl_->describe(gemm, operands, described);
  std::vector<LtAlgorithm> found;
  std::set<std::string> known;
  for (const cublasLtMatmulAlgo_t& named : impl_->named_for(described, operands, most)) {
    const auto algorithm = std::bit_cast<LtAlgorithm>(named);
    if (known.insert(words_of(algorithm)).second) found.push_back(algorithm);
  }
  return found;
}

bool LtMatmul::take(const LtGemm& gemm, const LtOperands& operands, const LtAlgorithm& algorithm) {
  const LtForm form = form_of(gemm, operands);
  impl_->cache.erase(form);
  Prepared& made = impl_->cache[form];
  impl_->describe(gemm, operands, made);
  return impl_->take(algorithm, made);
}

bool LtMatmul::has_choices() const {
  return !impl_->choices.empty();
}

bool LtMatmul::is_measured(const LtGemm& gemm, const LtOperands& operands) {
  if (!impl_->choices.contains(form_of(gemm, operands))) return false;
  const Prepared& made = impl_->prepared(gemm, operands);
  return made.there && made.place == kMeasured;
}

std::pair<LtForm, LtAlgorithm> LtMatmul::choice(const LtGemm& gemm, const LtOperands& operands) {
  const Prepared& made = impl_->prepared(gemm, operands);
  return {form_of(gemm, operands), std::bit_cast<LtAlgorithm>(made.algorithm)};
}

void LtMatmul::run(const LtGemm& gemm, const LtOperands& operands, cudaStream_t stream) {
  const float one = 1, before = gemm.add ? 1.0f : 0.0f;
  for (;;) {
    const Prepared& prepared = impl_->prepared(gemm, operands);
    if (!prepared.there) check_cublas(CUBLAS_STATUS_NOT_SUPPORTED, "a matrix product");
    set_pointers(prepared, operands);
    const cublasStatus_t status = cublasLtMatmul(
        impl_->handle, prepared.description, &one, operands.first, prepared.first, operands.second,
        prepared.second, &before, operands.result, prepared.result, operands.result,
        prepared.result, &prepared.algorithm, impl_->workspace, kWorkspaceBytes, stream);
    // A refusal, of which nothing has been enqueued.
    if (!is_refusal(status)) return check_cublas(status, "a matrix product");
    impl_->next(prepared, operands);
  }
}

std::string LtMatmul::version() {
  const size_t v = cublasLtGetVersion();
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

}  // namespace mtl::cuda
