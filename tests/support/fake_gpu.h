// A GPU that is none: streams and events on the host over the CPU's ops, and an NCCL whose ranks
// are threads of this process. What the ordering of communication by streams and events is proven
// with where there is no GPU: an operation runs no earlier, or no later, than its dependencies make
// it, so that one that is missing gives wrong numbers every time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/comm/nccl/nccl_world.h"
#include "runtime/device/device.h"

namespace mtl::test {

// When enqueued work runs.
//  late:    when the host waits for it, or something that runs waits for it (sends: before their
//           rank waits for a peer). Finds who does not wait for communication.
//  early:   communication at once, with what it waits for; the rest late. Finds communication that
//           does not wait for its data.
//  threads: a thread per stream, and sends last until they are received, as on a GPU. Finds those
//           who wait for each other.
enum class When { late, early, threads };
constexpr When kWhen[] = {When::late, When::early, When::threads};
const char* name_of(When when);

class FakeGpu {
 public:
  // `lazy`, with threads: the first launch of a kernel waits for all that the GPU is at, as CUDA
  // may when it loads one. Ranks whose messages are only received behind that wait for ever.
  explicit FakeGpu(When when, bool lazy = false);
  ~FakeGpu();
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  When when() const { return when_; }
  // Everything in every stream has run. Throws what work has thrown.
  void finish();

  // --- for the device, the streams and the NCCL below
  struct Stream {
    std::atomic<uint64_t> enqueued = 0, done = 0;
    bool busy = false;
    bool computes = false;
    std::thread thread;
  };
  struct Event {
    Stream* stream = nullptr;
    uint64_t position = 0;
  };
  enum class Kind { plain, send, meets_peers };
  // What a stream is to NCCL, which so knows its GPU.
  struct Handle {
    FakeGpu* gpu;
    Stream* stream;
  };
  Stream* compute() { return compute_.get(); }
  Stream* make_stream();
  void enqueue(Stream* stream, Kind kind, std::function<void()> work);
  // Whether this is the thread that made it, the rank's: what another one enqueues has no place
  // among that one's ops, and would land in whatever that one records.
  bool is_owner() const { return std::this_thread::get_id() == owner_; }
  void wait(Stream* stream, Event event);
  bool reached(const Event& event);
  void run_until(Stream* stream, uint64_t position);
  // Called while work waits for a peer, which may be waiting for us.
  void idle();
  // Before a kernel is launched.
  void load(const std::string& kernel);
  // Whether an operation of communication is under way.
  bool communicates() const { return communicating_ > 0; }
  // What each stream has done, and what is next.
  std::string describe();
  void* allocate(size_t bytes);
  void free(void* memory);
  bool owns(const void* memory);

  // What the host has made the device do for it so far.
  struct Seen {
    int64_t copies_to_host = 0;
    int64_t waits = 0;                     // other than those
    int64_t ops = 0;                       // enqueued, copies from the host included
    int64_t recordings = 0, launches = 0;  // of Device::replay
    int64_t bytes = 0;                     // allocated
  };
  Seen seen;

 private:
  struct Item;
  void advance(Stream* stream, uint64_t position);
  void run_sends();
  void serve(Stream* stream);
  void rethrow();
  void run(const Item& item);

  const When when_;
  const bool lazy_;
  const std::thread::id owner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::unique_ptr<Stream> compute_;
  std::map<Stream*, std::deque<Item>> items_;
  std::map<const char*, std::unique_ptr<std::vector<char>>> memory_;
  std::set<std::string> loaded_;
  std::exception_ptr error_;
  std::atomic<int> communicating_ = 0;
  bool ending_ = false;
};

// The CPU's ops in the compute stream of `gpu`, which outlives the device.
std::unique_ptr<Device> make_fake_device(FakeGpu& gpu);
std::unique_ptr<nccl::Streams> make_fake_streams(FakeGpu& gpu, int rank);
// Ranks are told apart by their streams. Sums in rank order, with the bits of the CPU's transports.
const nccl::Api& fake_nccl();
// Aborts so far that have waited for ever for operations of groups that were not aborted.
int hopeless_aborts();

}  // namespace mtl::test
