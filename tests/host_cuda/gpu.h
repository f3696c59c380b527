// A CUDA that is none. Its functions (runtime_api.cpp) are those of CUDA's runtime that mtl calls,
// over memory and threads of the host, and kernels are run by tests/support/gpu_on_host.h; so the
// very sources of libmtl_cuda.so run, as a library that the program loads, where there is no GPU.
//
// Where CUDA has rules it has them: nothing may be waited for, allocated or asked (of cuBLASLt's
// heuristics neither) while a stream is recorded, recordings on several streams have to come
// together again and are replayed in no order but that of their dependencies, freeing waits for the
// whole GPU, what is allocated is full of NaN, and after a kernel has failed everything fails. What
// it cannot show: what a driver, a compiler or real libraries do, and how fast anything is.
//
// The environment says which GPUs there are (all of one kind):
//   MTL_HOST_CUDA_DEVICES         how many (1)
//   MTL_HOST_CUDA_MEMORY_MB       memory of each (1024)
//   MTL_HOST_CUDA_CAPABILITY      80, 90 or 100 (90)
//   MTL_HOST_CUDA_LATE_MS         work begins so long after it was enqueued, unless somebody waits
//   MTL_HOST_CUDA_URGENT_LATE_MS  for it (0); the second is of streams with a priority, which are
//                                 those that communicate. Of one kind late and the other not, what
//                                 does not wait for its data shows
//   MTL_HOST_CUDA_FAILS=G:N       GPU G fails when it has done N things
//   MTL_HOST_CUDA_PRODUCT_US="A B ..."  what a product takes by each of cuBLASLt's algorithms: for
//                                 events that is all the time there is. Without it cuBLASLt names
//                                 one
//   CUDA_LAUNCH_BLOCKING=1        as CUDA has it
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "host_cuda/stream.h"

namespace mtl::host_cuda {

class Gpu;
class Stream;
using Work = std::function<void()>;

// What is enqueued between cudaStreamBeginCapture and cudaStreamEndCapture, on the stream where it
// began and on those that wait for it.
struct Capture {
  // How many nodes of each stream come before a point in one of them.
  using Clock = std::map<const Stream*, size_t>;
  struct Node {
    Work work;
    const Stream* stream = nullptr;
    Clock behind;  // what comes before it, of its own stream as well
  };
  Stream* origin = nullptr;
  std::vector<Node> nodes;  // as they came: an order that all dependencies allow
  std::map<Stream*, Clock> clocks;
  bool broken = false;  // by a call that may not be
};

// For events: no time of the machine from now on, but what is said here.
void takes(std::chrono::nanoseconds time);
// And then so much for a copy.
void copies(size_t bytes);

// Does what was recorded, one thing after the other, in an order that is another every time: of
// those that may come next one at random. So what only the order of recording keeps apart shows.
void replay(const std::vector<Capture::Node>& nodes);

// A point in a stream, as an event marks it.
struct Mark {
  Stream* stream = nullptr;
  uint64_t position = 0;
  std::shared_ptr<Capture> capture;  // null: of work that runs
  Capture::Clock clock;
  std::chrono::steady_clock::time_point when;  // it was reached
};

class Stream final : public CUstream_st {
 public:
  Stream(Gpu& gpu, bool urgent);
  ~Stream() override;

  void enqueue(Work work) override;
  std::shared_ptr<Mark> mark();
  // What comes from now on waits for `mark`.
  cudaError_t wait(const std::shared_ptr<Mark>& mark);
  bool reached(uint64_t position);
  void wait_for(uint64_t position);
  void finish();

  std::shared_ptr<Capture> capture;  // that is going on
  Gpu& gpu() { return gpu_; }

 private:
  struct Item {
    Work work;
    std::chrono::steady_clock::time_point from;  // it may begin
  };
  void serve();

  Gpu& gpu_;
  const std::chrono::milliseconds late_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  uint64_t enqueued_ = 0, done_ = 0, wanted_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

class Gpu {
 public:
  explicit Gpu(int number) : number_(number) {}
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  int number() const { return number_; }  // of the machine's
  Stream* make_stream(bool urgent);
  // Its work is still done, and marks of it may be asked for: it stays in memory.
  void end_stream(Stream* stream);
  // Everything that was enqueued is done.
  void finish();
  // For good.
  void fail(const std::string& why);
  bool failed() const { return failed_; }
  // Called before each thing that it does.
  void work();

  size_t used = 0;  // bytes, see memory.h

 private:
  const int number_;
  std::atomic<bool> failed_ = false;
  std::atomic<int> worked_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Stream>> streams_, ended_;
};

// Those that CUDA_VISIBLE_DEVICES leaves to this process.
int gpu_count();
Gpu& gpu(int index);
// Whether this thread records a graph.
bool records();
// Returns it, and cudaGetLastError will once more.
cudaError_t fails_with(cudaError_t error);
// As the environment says.
size_t memory_bytes();
int capability();
// Static and dynamic ones of a block together ("CUDA C++ Programming Guide", Technical
// Specifications per Compute Capability).
size_t most_shared_bytes();

}  // namespace mtl::host_cuda
