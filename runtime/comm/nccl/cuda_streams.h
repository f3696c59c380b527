// The GPU's streams, for NCCL.
#pragma once

#include <memory>

#include "runtime/comm/nccl/streams.h"

namespace mtl::nccl {

// Of the device that is current in the calling thread. `compute` (a cudaStream_t) is the stream
// that the device's ops are enqueued in; it outlives this.
std::unique_ptr<Streams> make_cuda_streams(Stream compute);

}  // namespace mtl::nccl
