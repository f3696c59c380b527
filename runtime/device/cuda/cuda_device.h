// The engine on one GPU, as the rest of libmtl_cuda.so sees it. No kernel's header in here, so that
// files compiled by the C++ compiler may include it.
#pragma once

#include <memory>
#include <string>

#include "runtime/device/device.h"

struct CUstream_st;  // as cudaStream_t points to

namespace mtl::cuda {

// Makes device `index` the current one of the calling thread and takes it into use. Throws Error.
// `description` is what Device::description() says.
std::unique_ptr<Device> make_cuda_device(int index, const std::string& description);

// CudaPlugin::choose_attention, of a device made here.
std::string choose_attention(Device& device, const AttentionShape& shape, DType dtype);

// What a transport needs of a device made here: ops are enqueued on `compute`.
struct CudaHandle {
  int index = 0;
  CUstream_st* compute = nullptr;
};
CudaHandle handle_of(Device& device);

}  // namespace mtl::cuda
