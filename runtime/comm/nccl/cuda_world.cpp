// NCCL's world on a device of libmtl_cuda.so, as its plugin gives it to mtl (cuda_plugin.h).
#include "runtime/comm/nccl/cuda_streams.h"
#include "runtime/comm/nccl/nccl_world.h"
#include "runtime/device/cuda/cuda_device.h"

namespace mtl {

std::unique_ptr<CommWorld> make_nccl_world(Store& store, const WorldOptions& options,
                                           Device& device, const std::string& crash_dir) {
  NcclOptions nccl;
  nccl.crash_dir = crash_dir;
  return make_nccl_world(store, options, nccl::make_cuda_streams(cuda::handle_of(device).compute),
                         nccl);
}

}  // namespace mtl
