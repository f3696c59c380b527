#include "runtime/comm/nccl/api.h"

#include <dlfcn.h>

#include <fmt/format.h>

#include "common/error.h"

namespace mtl::nccl {

namespace {

constexpr int kOldest = 21800;

[[noreturn]] void refuse(std::string what) {
  throw Error(Exit::environment,
              {.code = "comm.nccl_missing",
               .what = std::move(what),
               .help = fmt::format("install NCCL {} or later for this CUDA, or put the folder of "
                                   "its libnccl.so.2 into LD_LIBRARY_PATH (PyTorch brings one in "
                                   "site-packages/nvidia/nccl/lib); one GPU needs no NCCL",
                                   version_text(kOldest))});
}

template <typename Function>
void find(void* handle, const char* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(handle, name));
  if (function == nullptr) refuse(fmt::format("{} has no function {}", library, name));
}

Api open_api(const char* library) {
  void* handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    refuse(fmt::format("several GPUs need NCCL, and it cannot be opened: {}",
                       why != nullptr ? why : library));
  }
  Api api;
  find(handle, library, "ncclGetVersion", api.get_version);
  find(handle, library, "ncclGetUniqueId", api.get_unique_id);
  find(handle, library, "ncclCommInitRankConfig", api.comm_init_rank_config);
  find(handle, library, "ncclCommFinalize", api.comm_finalize);
  find(handle, library, "ncclCommDestroy", api.comm_destroy);
  find(handle, library, "ncclCommAbort", api.comm_abort);
  find(handle, library, "ncclCommGetAsyncError", api.comm_get_async_error);
  find(handle, library, "ncclGetErrorString", api.get_error_string);
  find(handle, library, "ncclGetLastError", api.get_last_error);
  find(handle, library, "ncclAllReduce", api.all_reduce);
  find(handle, library, "ncclReduceScatter", api.reduce_scatter);
  find(handle, library, "ncclAllGather", api.all_gather);
  find(handle, library, "ncclBroadcast", api.broadcast);
  find(handle, library, "ncclGroupStart", api.group_start);
  find(handle, library, "ncclGroupEnd", api.group_end);
  find(handle, library, "ncclSend", api.send);
  find(handle, library, "ncclRecv", api.recv);
  int version = 0;
  if (api.get_version(&version) != kSuccess || version < kOldest) {
    refuse(fmt::format("{} is NCCL {}, which is too old", library, version_text(version)));
  }
  return api;
}

}  // namespace

const Api& load_api(const char* library) {
  static const Api api = open_api(library);
  return api;
}

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace mtl::nccl
