// What we use of cuDNN's backend API, with declarations of our own: the library is opened at run
// time, so that GPUs work where cuDNN is not installed. Names and numbers are those of
// cudnn_graph.h (9.8 and later; cudnn_api.cpp compares them with the header where there is one).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct CUstream_st;  // as cudaStream_t points to

namespace mtl::cudnn {

using Handle = struct HandleTag*;   // cudnnHandle_t
using Descriptor = void*;           // cudnnBackendDescriptor_t
using Stream = CUstream_st*;        // cudaStream_t
inline constexpr int kSuccess = 0;  // cudnnStatus_t

// cudnnBackendDescriptorType_t
enum class Kind : int {
  pointwise = 0,
  engine = 2,
  engine_config = 3,
  heuristics = 4,
  plan = 5,
  operation_pointwise = 13,
  operation_graph = 15,
  variant_pack = 16,
  tensor = 17,
  matmul = 18,
  operation_matmul = 19,
  reduction = 21,
  operation_reduction = 22,
  operation_reshape = 31,
  device_properties = 38,
};

// cudnnBackendAttributeType_t
enum class Type : int {
  handle = 0,
  data_type = 1,
  boolean = 2,
  int64 = 3,
  pointer = 6,
  heuristic_mode = 8,
  numerical_note = 11,
  pointwise_mode = 14,
  descriptor = 15,
  reduction_operator = 18,
  int32 = 23,
  character = 24,
};

// cudnnBackendAttributeName_t
enum class Attribute : int {
  pointwise_mode = 0,
  pointwise_math = 1,
  pointwise_axis = 9,
  heuristics_mode = 200,
  heuristics_graph = 201,
  heuristics_results = 202,
  heuristics_device = 204,
  config_engine = 300,
  plan_config = 401,
  plan_workspace = 402,
  plan_device = 407,
  operation_pointwise = 750,
  operation_pointwise_x = 751,
  operation_pointwise_b = 752,
  operation_pointwise_y = 753,
  operation_pointwise_t = 758,
  graph_operations = 801,
  tensor_alignment = 900,
  tensor_type = 901,
  tensor_dimensions = 902,
  tensor_strides = 903,
  tensor_id = 906,
  tensor_is_virtual = 907,
  tensor_is_by_value = 908,
  pack_ids = 1000,
  pack_pointers = 1001,
  pack_workspace = 1003,
  engine_notes = 1303,
  matmul_type = 1500,
  operation_matmul_a = 1520,
  operation_matmul_b = 1521,
  operation_matmul_c = 1522,
  operation_matmul = 1523,
  reduction_operator = 1600,
  reduction_type = 1601,
  operation_reduction_x = 1610,
  operation_reduction_y = 1611,
  operation_reduction = 1612,
  operation_reshape_x = 2200,
  operation_reshape_y = 2201,
  device_handle = 2701,
  device_json = 2702,
};

// cudnnDataType_t
enum class Data : int { f32 = 0, f16 = 2, i32 = 4, bf16 = 9, boolean = 11 };
// cudnnPointwiseMode_t
enum class Pointwise : int {
  add = 0,
  mul = 1,
  div = 6,
  sub = 9,
  exp = 13,
  log = 15,
  greater_or_equal = 303,
  index = 501,
  select = 601,
};
// cudnnReduceTensorOp_t
enum class Reduction : int { add = 0, max = 3 };
inline constexpr int kHeuristicA = 3;        // cudnnBackendHeurMode_t
inline constexpr int kNondeterministic = 4;  // cudnnBackendNumericalNote_t
inline constexpr int kMostNotes = 10;

struct Api {
  size_t (*get_version)() = nullptr;
  int (*create)(Handle*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*set_stream)(Handle, Stream) = nullptr;
  const char* (*get_error_string)(int) = nullptr;
  void (*get_last_error_string)(char*, size_t) = nullptr;
  int (*create_descriptor)(Kind, Descriptor*) = nullptr;
  int (*destroy_descriptor)(Descriptor) = nullptr;
  int (*set_attribute)(Descriptor, Attribute, Type, int64_t, const void*) = nullptr;
  int (*get_attribute)(Descriptor, Attribute, Type, int64_t, int64_t*, void*) = nullptr;
  int (*finalize)(Descriptor) = nullptr;
  int (*execute)(Handle, Descriptor plan, Descriptor pack) = nullptr;
};

// What could not be done, as a value: nobody needs cuDNN.
struct Failure {
  std::string why;
};

// Opens the library once; it stays open. Throws Failure when it cannot be opened, lacks a function
// or is older than 9.8.
const Api& load_api();
// 91900 -> "9.19.0"
std::string version_text(size_t version);
// Throws Failure with the status and cuDNN's own message if `status` is not kSuccess.
void check(const Api& api, int status, const std::string& what);

}  // namespace mtl::cudnn
