// Compiled into the CUDA plug-in only: the one file of this folder that sees CUDA's headers.
#include "runtime/comm/nccl/cuda_streams.h"

#include <cstddef>
#include <cuda_runtime.h>

#include <fmt/format.h>

#include "common/error.h"
#include "runtime/device/cuda/cuda_errors.h"

#if __has_include(<nccl.h>)
#include <nccl.h>
#define MTL_HAS_NCCL_HEADER 1
#endif

namespace mtl::nccl {

#ifdef MTL_HAS_NCCL_HEADER
// Our own declarations against the header.
static_assert(int{kSuccess} == ncclSuccess && int{kUnhandledCudaError} == ncclUnhandledCudaError &&
              int{kSystemError} == ncclSystemError && int{kInternalError} == ncclInternalError &&
              int{kInvalidArgument} == ncclInvalidArgument &&
              int{kInvalidUsage} == ncclInvalidUsage && int{kRemoteError} == ncclRemoteError &&
              int{kInProgress} == ncclInProgress);
static_assert(int{kUint8} == ncclUint8 && int{kInt32} == ncclInt32 &&
              int{kFloat16} == ncclFloat16 && int{kFloat32} == ncclFloat32 &&
              int{kFloat64} == ncclFloat64 && int{kBfloat16} == ncclBfloat16 &&
              int{kSum} == ncclSum && int{kMax} == ncclMax);
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId) && sizeof(Result) == sizeof(ncclResult_t) &&
              sizeof(DataType) == sizeof(ncclDataType_t) && sizeof(RedOp) == sizeof(ncclRedOp_t));
static_assert(offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking) &&
              offsetof(Config, net_name) == offsetof(ncclConfig_t, netName) &&
              offsetof(Config, split_share) == offsetof(ncclConfig_t, splitShare) &&
              Config::kUndefined == NCCL_CONFIG_UNDEF_INT &&
              sizeof(Config) <= sizeof(ncclConfig_t));
#endif

namespace {

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw Error(
      Exit::run_failed,
      {.code = "device.cuda",
       .what = fmt::format("{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error)),
       .help = "nvidia-smi and the kernel's log (dmesg) show whether the GPU is well; on one GPU "
               "CUDA_LAUNCH_BLOCKING=1 shows which operation failed (with several it hangs)"});
}

cudaStream_t of(Stream stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t event_of(Event event) {
  return static_cast<cudaEvent_t>(event);
}

class CudaStreams final : public Streams {
 public:
  explicit CudaStreams(Stream compute) : compute_(compute) {
    must(cudaGetDevice(&device_), "finding the current GPU");
    int lowest = 0;
    must(cudaDeviceGetStreamPriorityRange(&lowest, &highest_), "asking for stream priorities");
    clearing_ = make_stream();
  }
  ~CudaStreams() override { destroy_stream(clearing_); }

  Stream compute() const override { return compute_; }
  Stream make_stream() override {
    cudaStream_t stream = nullptr;
    must(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest_),
         "making a stream for communication");
    return stream;
  }
  // What is still enqueued goes on; the stream goes when that is done.
  void destroy_stream(Stream stream) override { cudaStreamDestroy(of(stream)); }
  Event make_event() override {
    cudaEvent_t event = nullptr;
    must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    return event;
  }
  void destroy_event(Event event) override { cudaEventDestroy(event_of(event)); }
  void record(Event event, Stream stream) override {
    must(cudaEventRecord(event_of(event), of(stream)), "recording an event");
  }
  void wait(Stream stream, Event event) override {
    must(cudaStreamWaitEvent(of(stream), event_of(event), 0), "making a stream wait");
  }
  bool reached(Event event) override {
    const cudaError_t error = cudaEventQuery(event_of(event));
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // it is no error, and must not be found by the next check
      return false;
    }
    must(error, "an operation of the GPU failed");
    return true;
  }
  // Not in the stream of all others, nor by waiting for the device: a message that is under way may
  // wait for a peer that waits for us.
  void* allocate(size_t bytes) override {
    void* const memory = cuda::gpu_memory(bytes);
    must(cudaMemsetAsync(memory, 0, bytes, of(clearing_)), "clearing memory");
    must(cudaStreamSynchronize(of(clearing_)), "clearing memory");
    return memory;
  }
  void free(void* memory) override { cudaFree(memory); }
  bool on_device(const void* memory) override {
    cudaPointerAttributes attributes = {};
    must(cudaPointerGetAttributes(&attributes, memory), "asking what a pointer points to");
    return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  }
  void copy(void* to, const void* from, size_t bytes, Stream stream) override {
    must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, of(stream)), "copying");
  }
  std::string device_id() const override {
    cudaDeviceProp properties = {};
    must(cudaGetDeviceProperties(&properties, device_), "asking for the GPU's properties");
    std::string id = fmt::format("{} ", properties.name);
    for (const char byte : properties.uuid.bytes) {
      id += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    }
    return id;
  }
  void enter_thread() override { must(cudaSetDevice(device_), "choosing the GPU"); }

 private:
  const Stream compute_;
  Stream clearing_ = nullptr;
  int device_ = 0;
  int highest_ = 0;
};

}  // namespace

std::unique_ptr<Streams> make_cuda_streams(Stream compute) {
  return std::make_unique<CudaStreams>(compute);
}

}  // namespace mtl::nccl
