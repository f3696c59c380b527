#include "runtime/device/cuda/cudnn_api.h"

#include <array>
#include <dlfcn.h>

#include <fmt/format.h>

#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>
#define MTL_HAS_CUDNN_HEADER 1
#endif

namespace mtl::cudnn {

#ifdef MTL_HAS_CUDNN_HEADER
// Our own declarations against the header.
static_assert(int(Kind::pointwise) == CUDNN_BACKEND_POINTWISE_DESCRIPTOR &&
              int(Kind::engine) == CUDNN_BACKEND_ENGINE_DESCRIPTOR &&
              int(Kind::engine_config) == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR &&
              int(Kind::heuristics) == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR &&
              int(Kind::plan) == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR &&
              int(Kind::operation_pointwise) == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR &&
              int(Kind::operation_graph) == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR &&
              int(Kind::variant_pack) == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR &&
              int(Kind::tensor) == CUDNN_BACKEND_TENSOR_DESCRIPTOR &&
              int(Kind::matmul) == CUDNN_BACKEND_MATMUL_DESCRIPTOR &&
              int(Kind::operation_matmul) == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR &&
              int(Kind::reduction) == CUDNN_BACKEND_REDUCTION_DESCRIPTOR &&
              int(Kind::operation_reduction) == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR &&
              int(Kind::operation_reshape) == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR &&
              int(Kind::device_properties) == CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
static_assert(int(Type::handle) == CUDNN_TYPE_HANDLE &&
              int(Type::data_type) == CUDNN_TYPE_DATA_TYPE &&
              int(Type::boolean) == CUDNN_TYPE_BOOLEAN && int(Type::int64) == CUDNN_TYPE_INT64 &&
              int(Type::pointer) == CUDNN_TYPE_VOID_PTR &&
              int(Type::heuristic_mode) == CUDNN_TYPE_HEUR_MODE &&
              int(Type::numerical_note) == CUDNN_TYPE_NUMERICAL_NOTE &&
              int(Type::pointwise_mode) == CUDNN_TYPE_POINTWISE_MODE &&
              int(Type::descriptor) == CUDNN_TYPE_BACKEND_DESCRIPTOR &&
              int(Type::reduction_operator) == CUDNN_TYPE_REDUCTION_OPERATOR_TYPE &&
              int(Type::int32) == CUDNN_TYPE_INT32 && int(Type::character) == CUDNN_TYPE_CHAR);
static_assert(int(Attribute::pointwise_mode) == CUDNN_ATTR_POINTWISE_MODE &&
              int(Attribute::pointwise_math) == CUDNN_ATTR_POINTWISE_MATH_PREC &&
              int(Attribute::pointwise_axis) == CUDNN_ATTR_POINTWISE_AXIS &&
              int(Attribute::heuristics_mode) == CUDNN_ATTR_ENGINEHEUR_MODE &&
              int(Attribute::heuristics_graph) == CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH &&
              int(Attribute::heuristics_results) == CUDNN_ATTR_ENGINEHEUR_RESULTS &&
              int(Attribute::heuristics_device) == CUDNN_ATTR_ENGINEHEUR_DEVICEPROP &&
              int(Attribute::config_engine) == CUDNN_ATTR_ENGINECFG_ENGINE &&
              int(Attribute::plan_config) == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG &&
              int(Attribute::plan_workspace) == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE &&
              int(Attribute::plan_device) == CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP &&
              int(Attribute::operation_pointwise) == CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR &&
              int(Attribute::operation_pointwise_x) == CUDNN_ATTR_OPERATION_POINTWISE_XDESC &&
              int(Attribute::operation_pointwise_b) == CUDNN_ATTR_OPERATION_POINTWISE_BDESC &&
              int(Attribute::operation_pointwise_y) == CUDNN_ATTR_OPERATION_POINTWISE_YDESC &&
              int(Attribute::operation_pointwise_t) == CUDNN_ATTR_OPERATION_POINTWISE_TDESC &&
              int(Attribute::graph_operations) == CUDNN_ATTR_OPERATIONGRAPH_OPS &&
              int(Attribute::tensor_alignment) == CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT &&
              int(Attribute::tensor_type) == CUDNN_ATTR_TENSOR_DATA_TYPE &&
              int(Attribute::tensor_dimensions) == CUDNN_ATTR_TENSOR_DIMENSIONS &&
              int(Attribute::tensor_strides) == CUDNN_ATTR_TENSOR_STRIDES &&
              int(Attribute::tensor_id) == CUDNN_ATTR_TENSOR_UNIQUE_ID &&
              int(Attribute::tensor_is_virtual) == CUDNN_ATTR_TENSOR_IS_VIRTUAL &&
              int(Attribute::tensor_is_by_value) == CUDNN_ATTR_TENSOR_IS_BY_VALUE &&
              int(Attribute::pack_ids) == CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS &&
              int(Attribute::pack_pointers) == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS &&
              int(Attribute::pack_workspace) == CUDNN_ATTR_VARIANT_PACK_WORKSPACE &&
              int(Attribute::engine_notes) == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE &&
              int(Attribute::matmul_type) == CUDNN_ATTR_MATMUL_COMP_TYPE &&
              int(Attribute::operation_matmul_a) == CUDNN_ATTR_OPERATION_MATMUL_ADESC &&
              int(Attribute::operation_matmul_b) == CUDNN_ATTR_OPERATION_MATMUL_BDESC &&
              int(Attribute::operation_matmul_c) == CUDNN_ATTR_OPERATION_MATMUL_CDESC &&
              int(Attribute::operation_matmul) == CUDNN_ATTR_OPERATION_MATMUL_DESC &&
              int(Attribute::reduction_operator) == CUDNN_ATTR_REDUCTION_OPERATOR &&
              int(Attribute::reduction_type) == CUDNN_ATTR_REDUCTION_COMP_TYPE &&
              int(Attribute::operation_reduction_x) == CUDNN_ATTR_OPERATION_REDUCTION_XDESC &&
              int(Attribute::operation_reduction_y) == CUDNN_ATTR_OPERATION_REDUCTION_YDESC &&
              int(Attribute::operation_reduction) == CUDNN_ATTR_OPERATION_REDUCTION_DESC &&
              int(Attribute::operation_reshape_x) == CUDNN_ATTR_OPERATION_RESHAPE_XDESC &&
              int(Attribute::operation_reshape_y) == CUDNN_ATTR_OPERATION_RESHAPE_YDESC &&
              int(Attribute::device_handle) == CUDNN_ATTR_DEVICEPROP_HANDLE &&
              int(Attribute::device_json) == CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
static_assert(int(Data::f32) == CUDNN_DATA_FLOAT && int(Data::f16) == CUDNN_DATA_HALF &&
              int(Data::i32) == CUDNN_DATA_INT32 && int(Data::bf16) == CUDNN_DATA_BFLOAT16 &&
              int(Data::boolean) == CUDNN_DATA_BOOLEAN);
static_assert(int(Pointwise::add) == CUDNN_POINTWISE_ADD &&
              int(Pointwise::mul) == CUDNN_POINTWISE_MUL &&
              int(Pointwise::div) == CUDNN_POINTWISE_DIV &&
              int(Pointwise::sub) == CUDNN_POINTWISE_SUB &&
              int(Pointwise::exp) == CUDNN_POINTWISE_EXP &&
              int(Pointwise::log) == CUDNN_POINTWISE_LOG &&
              int(Pointwise::greater_or_equal) == CUDNN_POINTWISE_CMP_GE &&
              int(Pointwise::index) == CUDNN_POINTWISE_GEN_INDEX &&
              int(Pointwise::select) == CUDNN_POINTWISE_BINARY_SELECT);
static_assert(int(Reduction::add) == CUDNN_REDUCE_TENSOR_ADD &&
              int(Reduction::max) == CUDNN_REDUCE_TENSOR_MAX && kHeuristicA == CUDNN_HEUR_MODE_A &&
              kNondeterministic == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC &&
              kMostNotes == CUDNN_NUMERICAL_NOTE_TYPE_COUNT && kSuccess == CUDNN_STATUS_SUCCESS);
#endif

namespace {

constexpr const char* kLibrary = "libcudnn.so.9";
constexpr size_t kOldest = 90800;  // plans for a device's properties

template <typename Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (function == nullptr) throw Failure{fmt::format("{} has no function {}", kLibrary, name)};
}

Api open_api() {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    throw Failure{fmt::format("cuDNN cannot be opened: {}", why != nullptr ? why : kLibrary)};
  }
  Api api;
  find(library, "cudnnGetVersion", api.get_version);
  if (api.get_version() < kOldest) {
    throw Failure{fmt::format("cuDNN {} is too old, {} is the oldest that serves",
                              version_text(api.get_version()), version_text(kOldest))};
  }
  find(library, "cudnnCreate", api.create);
  find(library, "cudnnDestroy", api.destroy);
  find(library, "cudnnSetStream", api.set_stream);
  find(library, "cudnnGetErrorString", api.get_error_string);
  find(library, "cudnnGetLastErrorString", api.get_last_error_string);
  find(library, "cudnnBackendCreateDescriptor", api.create_descriptor);
  find(library, "cudnnBackendDestroyDescriptor", api.destroy_descriptor);
  find(library, "cudnnBackendSetAttribute", api.set_attribute);
  find(library, "cudnnBackendGetAttribute", api.get_attribute);
  find(library, "cudnnBackendFinalize", api.finalize);
  find(library, "cudnnBackendExecute", api.execute);
  return api;
}

}  // namespace

const Api& load_api() {
  static const Api api = open_api();
  return api;
}

std::string version_text(size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void check(const Api& api, int status, const std::string& what) {
  if (status == kSuccess) return;
  std::array<char, 1024> message = {};
  api.get_last_error_string(message.data(), message.size());
  throw Failure{fmt::format("cuDNN, {}: {} ({}){}{}", what, api.get_error_string(status), status,
                            message[0] != '\0' ? ": " : "", message.data())};
}

}  // namespace mtl::cudnn
