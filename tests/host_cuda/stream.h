// What a cudaStream_t points to in the CUDA of this folder, as far as a library of its own
// (nccl.cpp, which the transport opens as it opens NCCL) needs it.
#pragma once

#include <functional>

struct CUstream_st {
  virtual ~CUstream_st() = default;
  // `work` runs behind what was enqueued before, on a thread of the stream's; where the stream is
  // recorded it goes into the graph instead. What it throws is the end of the GPU.
  virtual void enqueue(std::function<void()> work) = 0;
};
