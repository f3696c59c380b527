// What we use of NCCL, with declarations of our own: the library is opened at run time, so that one
// GPU works where NCCL is not installed, and tests can put their own functions in its place. Names
// and numbers are those of nccl.h (2.18 and later; cuda_streams.cpp compares them with the header).
#pragma once

#include <climits>
#include <cstddef>
#include <string>

namespace mtl::nccl {

using Stream = void*;  // cudaStream_t
struct CommHandleTag;
using CommHandle = CommHandleTag*;  // ncclComm_t

struct UniqueId {
  char bytes[128];
};

// ncclResult_t, the values that we look at.
enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// ncclDataType_t and ncclRedOp_t.
enum DataType : int {
  kUint8 = 1,
  kInt32 = 2,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};
enum RedOp : int { kSum = 0, kMax = 2 };

// ncclConfig_t as of 2.18. The library reads as many bytes as `size` says and takes its own
// defaults for what came later.
struct Config {
  static constexpr int kUndefined = INT_MIN;
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
};

struct Api {
  Result (*get_version)(int*) = nullptr;
  Result (*get_unique_id)(UniqueId*) = nullptr;
  Result (*comm_init_rank_config)(CommHandle*, int size, UniqueId, int rank, Config*) = nullptr;
  Result (*comm_finalize)(CommHandle) = nullptr;
  Result (*comm_destroy)(CommHandle) = nullptr;
  Result (*comm_abort)(CommHandle) = nullptr;
  Result (*comm_get_async_error)(CommHandle, Result*) = nullptr;
  const char* (*get_error_string)(Result) = nullptr;
  const char* (*get_last_error)(CommHandle) = nullptr;
  Result (*all_reduce)(const void*, void*, size_t, DataType, RedOp, CommHandle, Stream) = nullptr;
  Result (*reduce_scatter)(const void*, void*, size_t, DataType, RedOp, CommHandle,
                           Stream) = nullptr;
  Result (*all_gather)(const void*, void*, size_t, DataType, CommHandle, Stream) = nullptr;
  Result (*broadcast)(const void*, void*, size_t, DataType, int root, CommHandle, Stream) = nullptr;
  Result (*send)(const void*, size_t, DataType, int peer, CommHandle, Stream) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*recv)(void*, size_t, DataType, int peer, CommHandle, Stream) = nullptr;
};

// Opens `library` once; it stays open. Throws Error "comm.nccl_missing" (Exit::environment) when it
// cannot be opened, lacks a function or is older than 2.18.
const Api& load_api(const char* library = "libnccl.so.2");

// 22809 -> "2.28.9"
std::string version_text(int version);

}  // namespace mtl::nccl
