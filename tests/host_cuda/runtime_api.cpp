// The functions of CUDA's runtime. What each may return is from its documentation ("CUDA Runtime
// API", 13.0).
#include <algorithm>
#include <cstring>
#include <cuda_runtime_api.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "host_cuda/gpu.h"
#include "host_cuda/memory.h"
#include "support/gpu_on_host.h"

using namespace mtl::host_cuda;

struct CUevent_st {
  bool timed = true;
  std::shared_ptr<Mark> mark;  // null: it was never recorded
};
struct CUgraph_st {
  std::vector<Capture::Node> nodes;
};
struct CUgraphExec_st {
  std::shared_ptr<const std::vector<Capture::Node>> nodes;
};

namespace {

constexpr int kVersion = 13000;

thread_local int current = 0;
thread_local cudaError_t last_error = cudaSuccess;
// That this thread has begun, and not ended.
thread_local std::vector<std::shared_ptr<Capture>> captures;

cudaError_t done(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}
// An error of before is everybody's.
cudaError_t broken() {
  return gpu(current).failed() ? cudaErrorLaunchFailure : cudaSuccess;
}
// What may wait for the GPU is no call of a thread that records
// (cudaThreadExchangeStreamCaptureMode).
cudaError_t unsafe() {
  for (const auto& capture : captures) capture->broken = true;
  return captures.empty() ? broken() : cudaErrorStreamCaptureUnsupported;
}
// Whether `bytes` from `memory` on begin in a piece and end behind it.
bool overruns(const void* memory, size_t bytes) {
  return piece_at(memory, 0).begin != nullptr && piece_at(memory, bytes).begin == nullptr;
}
Stream& of(cudaStream_t stream) {
  if (stream == nullptr) throw std::logic_error("the default stream, which nothing of ours uses");
  return static_cast<Stream&>(*stream);
}

// What may not be asked of a stream that is recorded, by this thread or another one.
cudaError_t recorded(Stream& stream) {
  if (!stream.capture) return cudaSuccess;
  stream.capture->broken = true;
  return cudaErrorStreamCaptureUnsupported;
}

// Of kernels.
void launch(void* stream, std::function<void()> work) {
  of(static_cast<cudaStream_t>(stream)).enqueue(std::move(work));
}
const bool kLaunches = [] {
  mtl::gpu_on_host::enqueue = ::launch;
  return true;
}();

}  // namespace

bool mtl::host_cuda::records() {
  return !captures.empty();
}
cudaError_t mtl::host_cuda::fails_with(cudaError_t error) {
  return done(error);
}

extern "C" {

// --- errors and devices

cudaError_t cudaGetLastError() {
  if (const cudaError_t error = broken(); error != cudaSuccess) return error;
  return std::exchange(last_error, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t error) {
  static thread_local std::string words;
  words = "error " + std::to_string(static_cast<int>(error)) + " of the CUDA on the host";
  return words.c_str();
}
const char* cudaGetErrorName(cudaError_t) {
  return "an error of the CUDA on the host";
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = gpu_count();
  return done(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= gpu_count()) return done(cudaErrorInvalidDevice);
  current = device;
  return done(broken());
}
cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= gpu_count()) return done(cudaErrorInvalidDevice);
  const int number = gpu(device).number();
  *properties = {};
  // Names of the catalogue: of others the program measures how fast they multiply.
  std::strcpy(properties->name, capability() >= 100  ? "NVIDIA B200"
                                : capability() == 90 ? "NVIDIA H200"
                                                     : "NVIDIA A100-SXM4-80GB");
  properties->uuid.bytes[15] = static_cast<char>(number + 1);
  properties->totalGlobalMem = memory_bytes();
  properties->major = capability() / 10;
  properties->minor = capability() % 10;
  properties->multiProcessorCount = 2;
  properties->l2CacheSize = (capability() >= 90 ? 50 : 40) << 20;
  properties->sharedMemPerBlockOptin = most_shared_bytes();
  properties->pciBusID = 16 + number;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) return cudaErrorInvalidDevice;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = properties.l2CacheSize;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      return cudaSuccess;
    default:
      return done(cudaErrorInvalidValue);
  }
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}

// --- memory

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (const cudaError_t error = unsafe(); error != cudaSuccess) return done(error);
  *memory = bytes > 0 ? allocate(gpu(current), bytes) : nullptr;
  return done(*memory == nullptr && bytes > 0 ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  if (!captures.empty()) return done(unsafe());
  return done(free_piece(memory, false) ? broken() : cudaErrorInvalidValue);
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  if (const cudaError_t error = unsafe(); error != cudaSuccess) return done(error);
  *memory = allocate_pinned(bytes);
  return done(*memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaFreeHost(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  if (!captures.empty()) return done(unsafe());
  gpu(current).finish();
  return done(free_piece(memory, true) ? broken() : cudaErrorInvalidValue);
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = free_bytes(gpu(current));
  *total = memory_bytes();
  return done(broken());
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  const Piece piece = piece_at(pointer, 0);
  *attributes = {};
  attributes->type = piece.begin == nullptr ? cudaMemoryTypeUnregistered
                     : piece.gpu == nullptr ? cudaMemoryTypeHost
                                            : cudaMemoryTypeDevice;
  attributes->device = piece.gpu == nullptr ? -2 : current;
  return done(broken());
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  if (piece_at(memory, bytes).begin == nullptr) return done(cudaErrorInvalidValue);
  of(stream).enqueue([=] { std::memset(memory, value, bytes); });
  return done(broken());
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (kind != cudaMemcpyDefault) return done(cudaErrorInvalidMemcpyDirection);
  const bool knows_to = piece_at(to, bytes).begin != nullptr;
  const bool knows_from = piece_at(from, bytes).begin != nullptr;
  if ((!knows_to && !knows_from) || overruns(to, bytes) || overruns(from, bytes)) {
    return done(cudaErrorInvalidValue);
  }
  // Memory that is not pinned goes through CUDA's own: it is read before the call returns, and is
  // written by then.
  if (!knows_to || !knows_from) {
    if (const cudaError_t error = recorded(of(stream)); error != cudaSuccess) return done(error);
  }
  if (!knows_from) {
    const auto* const begin = static_cast<const char*>(from);
    of(stream).enqueue([to, staged = std::vector<char>(begin, begin + bytes)] {
      std::memcpy(to, staged.data(), staged.size());
    });
  } else {
    of(stream).enqueue([=] {
      copies(bytes);
      std::memcpy(to, from, bytes);
    });
    if (!knows_to) of(stream).finish();
  }
  return done(broken());
}

// --- streams and events

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  if (flags != cudaStreamNonBlocking || priority > 0 || priority < -5) {
    return done(cudaErrorInvalidValue);
  }
  *stream = gpu(current).make_stream(priority < 0);
  return done(broken());
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (const cudaError_t error = recorded(of(stream)); error != cudaSuccess) return done(error);
  of(stream).gpu().end_stream(&of(stream));
  return done(broken());
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (!captures.empty()) return done(unsafe());
  if (const cudaError_t error = recorded(of(stream)); error != cudaSuccess) return done(error);
  of(stream).finish();
  return done(broken());
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st{.timed = (flags & cudaEventDisableTiming) == 0, .mark = {}};
  return done(broken());
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->mark = of(stream).mark();
  return done(broken());
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->mark == nullptr) return done(broken());
  if (const cudaError_t error = of(stream).wait(event->mark); error != cudaSuccess) {
    return done(error);
  }
  return done(broken());
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!captures.empty()) return done(unsafe());
  if (event->mark != nullptr && event->mark->capture) return done(cudaErrorCapturedEvent);
  if (event->mark != nullptr && !event->mark->stream->reached(event->mark->position)) {
    return done(cudaErrorNotReady);
  }
  return done(broken());
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (!captures.empty()) return done(unsafe());
  if (event->mark != nullptr && event->mark->capture) return done(cudaErrorCapturedEvent);
  if (event->mark != nullptr) event->mark->stream->wait_for(event->mark->position);
  return done(broken());
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  for (const cudaEvent_t event : {start, end}) {
    if (event->mark == nullptr || !event->timed) return done(cudaErrorInvalidResourceHandle);
    if (event->mark->capture) return done(cudaErrorCapturedEvent);
    if (!event->mark->stream->reached(event->mark->position)) return done(cudaErrorNotReady);
  }
  *ms = std::chrono::duration<float, std::milli>(end->mark->when - start->mark->when).count();
  return done(broken());
}

// --- graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (of(stream).capture || mode != cudaStreamCaptureModeThreadLocal) {
    return done(cudaErrorIllegalState);
  }
  const auto capture = std::make_shared<Capture>();
  capture->origin = &of(stream);
  of(stream).capture = capture;
  captures.push_back(capture);
  return done(broken());
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = of(stream).capture;
  if (!capture) return done(cudaErrorIllegalState);
  if (capture->origin != &of(stream)) return done(cudaErrorStreamCaptureUnmatched);
  const auto own = std::find(captures.begin(), captures.end(), capture);
  if (own == captures.end()) return done(cudaErrorStreamCaptureWrongThread);
  captures.erase(own);
  capture->origin = nullptr;
  Capture::Clock& known = capture->clocks[&of(stream)];
  bool joined = true;
  for (const auto& [other, clock] : capture->clocks) {
    const auto nodes = clock.find(other);
    if (nodes != clock.end() && known[other] < nodes->second) joined = false;
    other->capture = nullptr;
  }
  of(stream).capture = nullptr;
  if (capture->broken) return done(cudaErrorStreamCaptureInvalidated);
  if (!joined) return done(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{std::move(capture->nodes)};
  return done(broken());
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes != nullptr) return done(cudaErrorInvalidValue);
  *count = graph->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{std::make_shared<const std::vector<Capture::Node>>(graph->nodes)};
  return done(broken());
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  of(stream).enqueue([nodes = exec->nodes] { replay(*nodes); });
  return done(broken());
}

}  // extern "C"
