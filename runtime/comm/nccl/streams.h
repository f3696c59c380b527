// What NCCL's communicators need of the device that computes: its stream, streams beside it, and
// events between them. cuda_streams.cpp is the GPU; the tests have streams that run on the host.
#pragma once

#include <cstddef>
#include <string>

#include "runtime/comm/nccl/api.h"

namespace mtl::nccl {

using Event = void*;  // cudaEvent_t

// Everything throws Error "device.cuda" when CUDA reports an error.
class Streams {
 public:
  virtual ~Streams() = default;
  // The stream that the device's ops are enqueued in.
  virtual Stream compute() const = 0;
  // Of the highest priority: what waits for a peer should not wait for our own kernels as well.
  virtual Stream make_stream() = 0;
  virtual void destroy_stream(Stream stream) = 0;
  virtual Event make_event() = 0;  // without timing
  virtual void destroy_event(Event event) = 0;
  virtual void record(Event event, Stream stream) = 0;
  // What is enqueued in the stream from now on begins when the event's last record is reached.
  virtual void wait(Stream stream, Event event) = 0;
  // Whether the event's last record has been reached. From any thread.
  virtual bool reached(Event event) = 0;
  // Of the device, zeroed. Throws Error (Exit::out_of_memory) where it has no more.
  virtual void* allocate(size_t bytes) = 0;
  virtual void free(void* memory) = 0;
  virtual bool on_device(const void* memory) = 0;
  // Between any two places, in the order of the stream; host memory may be reused when the stream
  // has come behind it.
  virtual void copy(void* to, const void* from, size_t bytes, Stream stream) = 0;
  // Tells two GPUs of a job apart (the UUID), and what people call it.
  virtual std::string device_id() const = 0;
  // The host waits for peers, and asks again and again. A GPU's streams run by themselves; those of
  // the tests go on here.
  virtual void host_waits() {}
  // Called first by every thread that helps.
  virtual void enter_thread() = 0;
};

}  // namespace mtl::nccl
