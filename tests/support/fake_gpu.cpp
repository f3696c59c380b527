#include "support/fake_gpu.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "runtime/comm/reduce.h"
#include "runtime/device/cpu/threads.h"
#include "runtime/device/replays.h"

namespace mtl::test {

namespace {

// A rank that waits so long for another waits for ever.
constexpr auto kHopeless = std::chrono::seconds(20);

}  // namespace

const char* name_of(When when) {
  return when == When::late ? "late" : when == When::early ? "early" : "threads";
}

// --- streams

struct FakeGpu::Item {
  Kind kind = Kind::plain;
  std::function<void()> work;  // none: waits for `event`
  Event event;
};

FakeGpu::FakeGpu(When when)
    : when_(when), owner_(std::this_thread::get_id()), compute_(std::make_unique<Stream>()) {
  compute_->computes = true;
  if (when_ == When::threads) {
    compute_->thread = std::thread([this, stream = compute_.get()] { serve(stream); });
  }
}

FakeGpu::~FakeGpu() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (compute_->thread.joinable()) compute_->thread.join();
  for (const auto& stream : streams_) {
    if (stream->thread.joinable()) stream->thread.join();
  }
}

FakeGpu::Stream* FakeGpu::make_stream() {
  const std::scoped_lock lock(mutex_);
  streams_.push_back(std::make_unique<Stream>());
  Stream* stream = streams_.back().get();
  if (when_ == When::threads) stream->thread = std::thread([this, stream] { serve(stream); });
  return stream;
}

void FakeGpu::enqueue(Stream* stream, Kind kind, std::function<void()> work) {
  {
    const std::scoped_lock lock(mutex_);
    items_[stream].push_back({kind, std::move(work), {}});
    ++stream->enqueued;
  }
  changed_.notify_all();
  if (when_ == When::early && !stream->computes && std::this_thread::get_id() == owner_)
    run_until(stream, stream->enqueued);
}

void FakeGpu::wait(Stream* stream, Event event) {
  {
    const std::scoped_lock lock(mutex_);
    items_[stream].push_back({Kind::plain, nullptr, event});
    ++stream->enqueued;
  }
  changed_.notify_all();
}

bool FakeGpu::reached(const Event& event) {
  // The host that asks is about to wait.
  if (when_ != When::threads && std::this_thread::get_id() == owner_ && event.stream != nullptr) {
    run_until(event.stream, event.position);
  }
  const std::scoped_lock lock(mutex_);
  return event.stream == nullptr || event.stream->done >= event.position;
}

void FakeGpu::run_until(Stream* stream, uint64_t position) {
  if (when_ != When::threads) {
    advance(stream, position);
  } else {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return error_ || stream->done >= position; });
  }
  rethrow();
}

void FakeGpu::rethrow() {
  const std::scoped_lock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void FakeGpu::finish() {
  run_until(compute_.get(), compute_->enqueued);
  for (const auto& stream : streams_) run_until(stream.get(), stream->enqueued);
}

// In the thread of the rank alone.
void FakeGpu::advance(Stream* stream, uint64_t position) {
  while (stream->done < position) {
    Item item;
    {
      const std::scoped_lock lock(mutex_);
      if (stream->busy) throw std::logic_error("a stream waits for itself");
      item = std::move(items_[stream].front());
      items_[stream].pop_front();
      stream->busy = true;
    }
    if (!item.work) {
      if (item.event.stream != nullptr) advance(item.event.stream, item.event.position);
    } else {
      if (item.kind == Kind::meets_peers) run_sends();
      run(item);
    }
    const std::scoped_lock lock(mutex_);
    stream->busy = false;
    ++stream->done;
  }
}

void FakeGpu::run(const Item& item) {
  const bool communicates = item.kind != Kind::plain;
  if (communicates) ++communicating_;
  try {
    item.work();
  } catch (...) {
    if (communicates) --communicating_;
    throw;
  }
  if (communicates) --communicating_;
}

// What peers may be waiting for, as far as nothing that meets peers is in front of it.
void FakeGpu::run_sends() {
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& stream : streams_) {
      {
        const std::scoped_lock lock(mutex_);
        if (stream->busy || items_[stream.get()].empty()) continue;
        const Item& next = items_[stream.get()].front();
        const FakeGpu::Event& event = next.event;
        const bool waits =
            !next.work && event.stream != nullptr && event.stream->done < event.position;
        if (waits || next.kind == Kind::meets_peers) continue;
      }
      advance(stream.get(), stream->done + 1);
      moved = true;
    }
  }
}

std::string FakeGpu::describe() {
  const std::scoped_lock lock(mutex_);
  std::string text;
  const auto add = [&](Stream* stream, const std::string& name) {
    text += fmt::format("{}: {} of {}{}", name, stream->done.load(), stream->enqueued.load(),
                        stream->busy ? ", busy" : "");
    if (!items_[stream].empty()) {
      const Item& next = items_[stream].front();
      text += next.work ? fmt::format(", next of kind {}", static_cast<int>(next.kind))
              : next.event.stream == nullptr
                  ? std::string(", next waits for nothing")
                  : fmt::format(", next waits for {} of {}", next.event.position,
                                next.event.stream->done.load());
    }
    text += "; ";
  };
  add(compute_.get(), "compute");
  for (size_t i = 0; i < streams_.size(); ++i) add(streams_[i].get(), fmt::format("stream {}", i));
  return text;
}

void FakeGpu::idle() {
  if (when_ != When::threads && std::this_thread::get_id() == owner_) run_sends();
}

void FakeGpu::serve(Stream* stream) {
  use_threads(1);  // the device's; oneDNN's products have other bits with more
  for (;;) {
    Item item;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ending_ || !items_[stream].empty(); });
      if (items_[stream].empty() || error_) return;
      item = std::move(items_[stream].front());
      items_[stream].pop_front();
      if (!item.work) {
        changed_.wait(lock, [&] {
          return error_ || item.event.stream == nullptr ||
                 item.event.stream->done >= item.event.position;
        });
      }
    }
    try {
      if (item.work) run(item);
    } catch (...) {
      const std::scoped_lock lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
    {
      const std::scoped_lock lock(mutex_);
      ++stream->done;
    }
    changed_.notify_all();
  }
}

void* FakeGpu::allocate(size_t bytes) {
  constexpr size_t kAlign = 4096;
  auto block = std::make_unique<std::vector<char>>(bytes + kAlign, 0);
  const auto address = reinterpret_cast<uintptr_t>(block->data());
  char* memory = block->data() + ((address + kAlign - 1) / kAlign * kAlign - address);
  const std::scoped_lock lock(mutex_);
  memory_[memory] = std::move(block);
  return memory;
}

void FakeGpu::free(void* memory) {
  try {
    finish();  // as cudaFree, which does not throw either
  } catch (const std::exception&) {
  }
  const std::scoped_lock lock(mutex_);
  memory_.erase(static_cast<const char*>(memory));
}

bool FakeGpu::owns(const void* memory) {
  const std::scoped_lock lock(mutex_);
  const auto* at = static_cast<const char*>(memory);
  auto behind = memory_.upper_bound(at);
  if (behind == memory_.begin()) return false;
  --behind;
  return at < behind->second->data() + behind->second->size();
}

namespace {

using Kind = FakeGpu::Kind;

class FakeStreams final : public nccl::Streams {
 public:
  FakeStreams(FakeGpu& gpu, int rank) : gpu_(gpu), rank_(rank), compute_{&gpu, gpu.compute()} {}
  ~FakeStreams() override {
    for (FakeGpu::Event* event : events_) delete event;
  }
  nccl::Stream compute() const override { return handle(gpu_.compute()); }
  nccl::Stream make_stream() override { return handle(gpu_.make_stream()); }
  void destroy_stream(nccl::Stream stream) override { delete static_cast<Handle*>(stream); }
  nccl::Event make_event() override {
    const std::scoped_lock lock(mutex_);
    events_.push_back(new FakeGpu::Event);
    return events_.back();
  }
  void destroy_event(nccl::Event) override {}
  void record(nccl::Event event, nccl::Stream stream) override {
    FakeGpu::Stream* of = static_cast<Handle*>(stream)->stream;
    const std::scoped_lock lock(mutex_);
    *static_cast<FakeGpu::Event*>(event) = {of, of->enqueued.load()};
  }
  void wait(nccl::Stream stream, nccl::Event event) override {
    gpu_.wait(static_cast<Handle*>(stream)->stream, value_of(event));
  }
  bool reached(nccl::Event event) override { return gpu_.reached(value_of(event)); }
  void* allocate(size_t bytes) override { return gpu_.allocate(bytes); }
  void free(void* memory) override { gpu_.free(memory); }
  bool on_device(const void* memory) override { return gpu_.owns(memory); }
  void copy(void* to, const void* from, size_t bytes, nccl::Stream stream) override {
    gpu_.enqueue(static_cast<Handle*>(stream)->stream, Kind::plain, [=] {
      if (bytes > 0) std::memcpy(to, from, bytes);
    });
  }
  std::string device_id() const override { return fmt::format("fake {}", rank_); }
  void host_waits() override { gpu_.idle(); }
  void enter_thread() override {}

  // A stream's handle knows its GPU, so that NCCL does.
  struct Handle {
    FakeGpu* gpu;
    FakeGpu::Stream* stream;
  };

 private:
  nccl::Stream handle(FakeGpu::Stream* stream) const {
    if (stream != gpu_.compute()) return new Handle{&gpu_, stream};
    return &compute_;
  }
  FakeGpu::Event value_of(nccl::Event event) {
    const std::scoped_lock lock(mutex_);
    return *static_cast<FakeGpu::Event*>(event);
  }

  FakeGpu& gpu_;
  const int rank_;
  mutable Handle compute_;
  std::mutex mutex_;
  std::vector<FakeGpu::Event*> events_;
};

// --- NCCL

// The ranks of a communicator, and what they have brought to it.
struct Group {
  struct Round {
    std::map<int, std::vector<char>> inputs;
    size_t left = 0;
  };
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0, joined = 0;
  std::map<uint64_t, Round> rounds;
  std::set<int> exchanged;  // ranks that have called their first send or receive
  std::deque<std::vector<char>> messages;
  uint64_t received = 0;
  // Of grouped sends: by sender and receiver.
  std::map<std::pair<int, int>, std::deque<std::vector<char>>> mail;
};

struct FakeComm {
  std::shared_ptr<Group> group;
  int rank = 0;
  uint64_t enqueued = 0, run = 0;
  std::atomic<bool> aborted{false};
  std::atomic<FakeGpu*> gpu{nullptr};  // on which it has operations
};

std::mutex registry_mutex;
std::map<std::string, std::shared_ptr<Group>> registry;
uint64_t next_id = 0;
std::vector<std::shared_ptr<FakeComm>> all_comms;  // they outlive those who abort them

FakeComm* of(nccl::CommHandle handle) {
  return reinterpret_cast<FakeComm*>(handle);
}

void wait_in(FakeGpu* gpu, FakeComm* comm, std::unique_lock<std::mutex>& lock,
             const std::function<bool()>& ready) {
  const auto until = std::chrono::steady_clock::now() + kHopeless;
  while (!comm->group->changed.wait_for(lock, std::chrono::milliseconds(1),
                                        [&] { return comm->aborted || ready(); })) {
    if (std::chrono::steady_clock::now() > until) {
      throw std::runtime_error("a rank has waited for its peers for ever; its streams: " +
                               gpu->describe());
    }
    lock.unlock();
    gpu->idle();
    lock.lock();
  }
}

void begin(FakeComm* comm, uint64_t number) {
  if (++comm->run != number) {
    throw std::runtime_error("operations of a communicator have overtaken each other");
  }
}

using Finish = std::function<void(const std::vector<const void*>&)>;

// Everybody's input to everybody.
nccl::Result collective(nccl::CommHandle handle, nccl::Stream stream, const void* input,
                        size_t bytes, Finish finish) {
  FakeComm* comm = of(handle);
  const auto [gpu, where] = *static_cast<FakeStreams::Handle*>(stream);
  const uint64_t number = ++comm->enqueued;
  comm->gpu = gpu;
  gpu->enqueue(where, Kind::meets_peers, [=, gpu = gpu, finish = std::move(finish)] {
    begin(comm, number);
    Group& group = *comm->group;
    std::vector<std::vector<char>> inputs;
    {
      std::unique_lock lock(group.mutex);
      const char* from = static_cast<const char*>(input);
      group.rounds[number].inputs[comm->rank].assign(from, from + bytes);
      group.changed.notify_all();
      Group::Round& round = group.rounds[number];
      wait_in(gpu, comm, lock,
              [&] { return round.inputs.size() == static_cast<size_t>(group.size); });
      // Where the ranks call different things NCCL hangs, if they are lucky.
      for (const auto& [rank, data] : round.inputs) {
        if (data.size() != bytes) wait_in(gpu, comm, lock, [] { return false; });
      }
      if (comm->aborted) return;
      for (const auto& [rank, data] : round.inputs) inputs.push_back(data);
      if (++round.left == inputs.size()) group.rounds.erase(number);
    }
    std::vector<const void*> addresses;
    for (const auto& data : inputs) addresses.push_back(data.data());
    finish(addresses);
  });
  return nccl::kSuccess;
}

// Sends and receives between ncclGroupStart and ncclGroupEnd: one operation, in which all go on at
// once. Of the thread that calls them.
struct GroupedCalls {
  struct Part {
    int peer;
    const char* from;  // null: a receive
    char* to;
    size_t bytes;
  };
  bool open = false;
  nccl::CommHandle handle = nullptr;
  nccl::Stream stream = nullptr;
  std::vector<Part> parts;
  std::vector<FakeComm*> aborts;
};
thread_local GroupedCalls grouped;

std::atomic<int> hopeless = 0;

// Frees memory when the flags are set, and that waits for the device.
void abort_together(const std::vector<FakeComm*>& comms) {
  for (FakeComm* comm : comms) {
    const std::scoped_lock lock(comm->group->mutex);
    comm->aborted = true;
    comm->group->changed.notify_all();
  }
  const auto until = std::chrono::steady_clock::now() + kHopeless / 4;
  for (FakeComm* comm : comms) {
    while (comm->gpu != nullptr && comm->gpu.load()->communicates()) {
      if (std::chrono::steady_clock::now() > until) {
        ++hopeless;
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

// Two ranks connect when both have called something: until then the host's part is not done.
nccl::Result exchange(FakeComm* comm, FakeGpu* gpu) {
  comm->gpu = gpu;
  Group& group = *comm->group;
  const std::scoped_lock lock(group.mutex);
  group.exchanged.insert(comm->rank);
  return group.exchanged.size() == 2 ? nccl::kSuccess : nccl::kInProgress;
}

void run_grouped(FakeGpu* gpu, FakeComm* comm, const std::vector<GroupedCalls::Part>& parts) {
  Group& group = *comm->group;
  std::unique_lock lock(group.mutex);
  for (const auto& part : parts) {
    if (part.from == nullptr) continue;
    group.mail[{comm->rank, part.peer}].emplace_back(part.from, part.from + part.bytes);
  }
  group.changed.notify_all();
  for (const auto& part : parts) {
    if (part.from != nullptr) continue;
    auto& mail = group.mail[{part.peer, comm->rank}];
    wait_in(gpu, comm, lock, [&] { return !mail.empty(); });
    // Another size: NCCL waits for the rest, if it is lucky.
    if (!comm->aborted && mail.front().size() != part.bytes) {
      wait_in(gpu, comm, lock, [] { return false; });
    }
    if (comm->aborted) return;
    std::memcpy(part.to, mail.front().data(), part.bytes);
    mail.pop_front();
  }
}

DType dtype_of(nccl::DataType type) {
  switch (type) {
    case nccl::kInt32:
      return DType::i32;
    case nccl::kFloat16:
      return DType::f16;
    case nccl::kFloat32:
      return DType::f32;
    case nccl::kFloat64:
      return DType::f64;
    case nccl::kBfloat16:
      return DType::bf16;
    case nccl::kUint8:
      return DType::u8;
  }
  return DType::u8;
}

// Elements [first, first + count) of the inputs.
void reduce(nccl::DataType type, nccl::RedOp op, const std::vector<const void*>& all, size_t first,
            size_t count, void* output) {
  const DType dtype = dtype_of(type);
  std::vector<const void*> inputs;
  for (const void* input : all) {
    inputs.push_back(static_cast<const char*>(input) +
                     first * static_cast<size_t>(bytes_of(dtype)));
  }
  reduce_in_order(dtype, op == nccl::kSum ? Reduce::sum : Reduce::max, inputs, {&output, 1},
                  static_cast<int64_t>(count));
}

size_t size_of(nccl::DataType type) {
  return static_cast<size_t>(bytes_of(dtype_of(type)));
}

nccl::Api make_api() {
  using namespace nccl;
  Api api;
  api.get_version = [](int* version) {
    *version = 22809;
    return kSuccess;
  };
  api.get_unique_id = [](UniqueId* id) {
    const std::scoped_lock lock(registry_mutex);
    *id = {};
    std::snprintf(id->bytes, sizeof(id->bytes), "%llu", static_cast<unsigned long long>(++next_id));
    return kSuccess;
  };
  api.comm_init_rank_config = [](CommHandle* handle, int size, UniqueId id, int rank, Config*) {
    const std::scoped_lock lock(registry_mutex);
    std::shared_ptr<Group>& group = registry[id.bytes];
    if (!group) group = std::make_shared<Group>();
    auto comm = std::make_shared<FakeComm>();
    comm->group = group;
    comm->rank = rank;
    const std::scoped_lock inner(group->mutex);
    group->size = size;
    ++group->joined;
    all_comms.push_back(comm);
    *handle = reinterpret_cast<CommHandle>(comm.get());
    return kInProgress;
  };
  api.comm_get_async_error = [](CommHandle handle, Result* result) {
    const std::scoped_lock lock(of(handle)->group->mutex);
    const Group& group = *of(handle)->group;
    const bool alone = group.exchanged.size() == 1 && group.exchanged.count(of(handle)->rank) == 1;
    *result = group.joined == group.size && !alone ? kSuccess : kInProgress;
    return kSuccess;
  };
  api.comm_finalize = [](CommHandle) { return kSuccess; };
  api.comm_destroy = [](CommHandle) { return kSuccess; };
  api.comm_abort = [](CommHandle handle) {
    if (grouped.open) {
      grouped.aborts.push_back(of(handle));
    } else {
      abort_together({of(handle)});
    }
    return kSuccess;
  };
  api.get_error_string = [](Result) { return "an error"; };
  api.get_last_error = [](CommHandle) { return ""; };
  api.all_reduce = [](const void* from, void* to, size_t count, DataType type, RedOp op,
                      CommHandle handle, Stream stream) {
    return collective(
        handle, stream, from, count * size_of(type),
        [=](const std::vector<const void*>& all) { reduce(type, op, all, 0, count, to); });
  };
  api.reduce_scatter = [](const void* from, void* to, size_t count, DataType type, RedOp op,
                          CommHandle handle, Stream stream) {
    const size_t size = static_cast<size_t>(of(handle)->group->size);
    const size_t rank = static_cast<size_t>(of(handle)->rank);
    return collective(handle, stream, from, size * count * size_of(type),
                      [=](const std::vector<const void*>& all) {
                        reduce(type, op, all, rank * count, count, to);
                      });
  };
  api.all_gather = [](const void* from, void* to, size_t count, DataType type, CommHandle handle,
                      Stream stream) {
    const size_t bytes = count * size_of(type);
    return collective(handle, stream, from, bytes, [=](const std::vector<const void*>& all) {
      for (size_t i = 0; i < all.size() && bytes > 0; ++i) {
        std::memcpy(static_cast<char*>(to) + i * bytes, all[i], bytes);
      }
    });
  };
  api.broadcast = [](const void* from, void* to, size_t count, DataType type, int root,
                     CommHandle handle, Stream stream) {
    const size_t bytes = count * size_of(type);
    return collective(handle, stream, from, bytes, [=](const std::vector<const void*>& all) {
      if (bytes > 0) std::memcpy(to, all[static_cast<size_t>(root)], bytes);
    });
  };
  api.group_start = [] {
    grouped = {};
    grouped.open = true;
    return kSuccess;
  };
  api.group_end = [] {
    GroupedCalls calls = std::exchange(grouped, {});
    if (!calls.aborts.empty()) abort_together(calls.aborts);
    if (calls.parts.empty()) return kSuccess;
    FakeComm* comm = of(calls.handle);
    const auto [gpu, where] = *static_cast<FakeStreams::Handle*>(calls.stream);
    const uint64_t number = ++comm->enqueued;
    comm->gpu = gpu;
    gpu->enqueue(where, Kind::meets_peers, [=, gpu = gpu, parts = std::move(calls.parts)] {
      begin(comm, number);
      run_grouped(gpu, comm, parts);
    });
    return kSuccess;
  };
  api.send = [](const void* from, size_t count, DataType type, int peer, CommHandle handle,
                Stream stream) {
    if (grouped.open) {
      grouped.handle = handle;
      grouped.stream = stream;
      grouped.parts.push_back(
          {peer, static_cast<const char*>(from), nullptr, count * size_of(type)});
      return kSuccess;
    }
    FakeComm* comm = of(handle);
    const auto [gpu, where] = *static_cast<FakeStreams::Handle*>(stream);
    const uint64_t number = ++comm->enqueued;
    const size_t bytes = count * size_of(type);
    const bool until_received = gpu->when() == When::threads;
    gpu->enqueue(where, Kind::send, [=, gpu = gpu] {
      begin(comm, number);
      Group& group = *comm->group;
      std::unique_lock lock(group.mutex);
      const char* data = static_cast<const char*>(from);
      group.messages.emplace_back(data, data + bytes);
      group.changed.notify_all();
      if (until_received) {
        wait_in(gpu, comm, lock, [&] { return group.received >= number; });
      }
    });
    return exchange(comm, gpu);
  };
  api.recv = [](void* to, size_t count, DataType type, int peer, CommHandle handle, Stream stream) {
    if (grouped.open) {
      grouped.handle = handle;
      grouped.stream = stream;
      grouped.parts.push_back({peer, nullptr, static_cast<char*>(to), count * size_of(type)});
      return kSuccess;
    }
    FakeComm* comm = of(handle);
    const auto [gpu, where] = *static_cast<FakeStreams::Handle*>(stream);
    const uint64_t number = ++comm->enqueued;
    const size_t bytes = count * size_of(type);
    gpu->enqueue(where, Kind::meets_peers, [=, gpu = gpu] {
      begin(comm, number);
      Group& group = *comm->group;
      std::unique_lock lock(group.mutex);
      wait_in(gpu, comm, lock, [&] { return !group.messages.empty(); });
      if (comm->aborted) return;
      if (group.messages.front().size() != bytes) throw std::runtime_error("another message");
      if (bytes > 0) std::memcpy(to, group.messages.front().data(), bytes);
      group.messages.pop_front();
      ++group.received;
      group.changed.notify_all();
    });
    return exchange(comm, gpu);
  };
  return api;
}

// --- the device

// Records what replay() is given as a GPU does: by value, once, and not again.
class FakeDevice final : public Device, private Recorder {
 public:
  explicit FakeDevice(FakeGpu& gpu) : gpu_(gpu), cpu_(make_cpu_device(1)) {}

  bool replays() const override { return true; }
  void replay(const std::string& key, const std::function<void()>& enqueue) override {
    replays_.run(key, enqueue);
  }
  void anew(std::function<void()> what) override { replays_.anew(std::move(what)); }

  bool communicates_beside() const override { return true; }
  std::string description() const override { return "fake gpu"; }
  void* allocate(size_t bytes) override {
    no_recording();
    return gpu_.allocate(bytes);
  }
  void free(void* memory) override { gpu_.free(memory); }
  void copy_from_host(Tensor to, const void* source) override {
    no_recording();
    if (to.bytes() == 0) return;  // a rank without a part: null pointers are fine
    const auto* from = static_cast<const char*>(source);
    later([to, data = std::vector<char>(from, from + to.bytes())] {
      std::memcpy(to.data, data.data(), data.size());
    });
  }
  void copy_to_host(void* to, Tensor source) override {
    ++gpu_.seen.copies_to_host;
    wait();
    if (source.bytes() > 0) std::memcpy(to, source.data, static_cast<size_t>(source.bytes()));
  }
  void synchronize() override {
    ++gpu_.seen.waits;
    wait();
  }
  bool all_finite(Tensor x) override {
    synchronize();
    return cpu_->all_finite(x);
  }

  void fill(Tensor x, float value) override {
    later([=, this] { cpu_->fill(x, value); });
  }
  void cast(Tensor from, Tensor to) override {
    later([=, this] { cpu_->cast(from, to); });
  }
  void scale(Tensor x, float f) override {
    later([=, this] { cpu_->scale(x, f); });
  }
  void add(Tensor x, Tensor y) override {
    later([=, this] { cpu_->add(x, y); });
  }
  void copy(Tensor from, Tensor to) override {
    later([=, this] { cpu_->copy(from, to); });
  }
  void regroup_columns(const ColumnBlocks& args) override {
    later([=, this] { cpu_->regroup_columns(args); });
  }
  void matmul(const Matmul& args) override {
    later([=, this] { cpu_->matmul(args); });
  }
  void amax(Tensor x, Tensor out) override {
    later([=, this] { cpu_->amax(x, out); });
  }
  void quantize(const Quantize& args) override {
    later([=, this] { cpu_->quantize(args); });
  }
  void sum_rows(Tensor rows, Tensor sum, bool accumulate) override {
    later([=, this] { cpu_->sum_rows(rows, sum, accumulate); });
  }
  void bias_grad(Tensor dy, Tensor db, bool accumulate) override {
    later([=, this] { cpu_->bias_grad(dy, db, accumulate); });
  }
  void layernorm_forward(const LayerNorm& args) override {
    later([=, this] { cpu_->layernorm_forward(args); });
  }
  void layernorm_backward(const LayerNormBackward& args) override {
    later([=, this] { cpu_->layernorm_backward(args); });
  }
  void head_norm_forward(const HeadNorm& args) override {
    later([=, this] { cpu_->head_norm_forward(args); });
  }
  void head_norm_backward(const HeadNormBackward& args) override {
    later([=, this] { cpu_->head_norm_backward(args); });
  }
  void gelu_forward(Tensor x, Tensor y) override {
    later([=, this] { cpu_->gelu_forward(x, y); });
  }
  void swiglu_forward(const Swiglu& args) override {
    later([=, this] { cpu_->swiglu_forward(args); });
  }
  void swiglu_backward(const SwigluBackward& args) override {
    later([=, this] { cpu_->swiglu_backward(args); });
  }
  void route_experts(const RouteExperts& args) override {
    later([=, this] { cpu_->route_experts(args); });
  }
  void route_experts_backward(const RouteExpertsBackward& args) override {
    later([=, this] { cpu_->route_experts_backward(args); });
  }
  void gather_rows(const GatherRows& args) override {
    later([=, this] { cpu_->gather_rows(args); });
  }
  void combine_rows(const CombineRows& args) override {
    later([=, this] { cpu_->combine_rows(args); });
  }
  void weigh_rows_backward(const WeighRowsBackward& args) override {
    later([=, this] { cpu_->weigh_rows_backward(args); });
  }
  void rope(const Rope& args) override {
    later([=, this] { cpu_->rope(args); });
  }
  void attention_forward(const Attention& args) override {
    later([=, this] { cpu_->attention_forward(args); });
  }
  void attention_backward(const AttentionBackward& args) override {
    later([=, this] { cpu_->attention_backward(args); });
  }
  void embedding_forward(Tensor tokens, Tensor table, int64_t first, Tensor out) override {
    later([=, this] { cpu_->embedding_forward(tokens, table, first, out); });
  }
  void embedding_backward(Tensor tokens, Tensor dout, int64_t first, Tensor dtable) override {
    later([=, this] { cpu_->embedding_backward(tokens, dout, first, dtable); });
  }
  void position_forward(Tensor x, Tensor positions, int64_t seq, Tensor out, Dropout dropout,
                        int64_t first_row) override {
    later([=, this] { cpu_->position_forward(x, positions, seq, out, dropout, first_row); });
  }
  void position_backward(Tensor dout, int64_t seq, Tensor dx, Tensor dpositions, bool accumulate,
                         Dropout dropout, int64_t first_row) override {
    later([=, this] {
      cpu_->position_backward(dout, seq, dx, dpositions, accumulate, dropout, first_row);
    });
  }
  void bias_dropout_add(const ResidualAdd& args) override {
    later([=, this] { cpu_->bias_dropout_add(args); });
  }
  void dropout_backward(Tensor dout, Tensor dx, Dropout dropout, int64_t first_row) override {
    later([=, this] { cpu_->dropout_backward(dout, dx, dropout, first_row); });
  }
  void cross_entropy_max(const CrossEntropy& args) override {
    later([=, this] { cpu_->cross_entropy_max(args); });
  }
  void cross_entropy_sum(const CrossEntropy& args) override {
    later([=, this] { cpu_->cross_entropy_sum(args); });
  }
  void cross_entropy_loss(const CrossEntropy& args) override {
    later([=, this] { cpu_->cross_entropy_loss(args); });
  }
  void cross_entropy_backward(const CrossEntropy& args, float scale) override {
    later([=, this] { cpu_->cross_entropy_backward(args, scale); });
  }
  void sum(Tensor x, Tensor out, bool accumulate) override {
    later([=, this] { cpu_->sum(x, out, accumulate); });
  }
  void sum_squares(const SumSquares& args) override {
    later([=, this] { cpu_->sum_squares(args); });
  }
  void sum_ranges(Tensor x, Tensor ranges, Tensor out) override {
    later([=, this] { cpu_->sum_ranges(x, ranges, out); });
  }
  void gradient_scale(const GradientScale& args) override {
    later([=, this] { cpu_->gradient_scale(args); });
  }
  void adamw(const AdamW& args) override {
    later([=, this] { cpu_->adamw(args); });
  }
  void sgd(const Sgd& args) override {
    later([=, this] { cpu_->sgd(args); });
  }

 private:
  using Work = std::vector<std::function<void()>>;

  void begin() override { recorded_ = std::make_unique<Work>(); }
  Recording end() override {
    std::unique_ptr<Work> made = std::move(recorded_);
    if (made->empty()) return nullptr;
    ++gpu_.seen.recordings;
    return made.release();
  }
  void abandon() override { recorded_.reset(); }
  void launch(Recording recording) override {
    ++gpu_.seen.launches;
    for (const auto& work : *static_cast<Work*>(recording)) later(work);
  }
  void destroy(Recording recording) override { delete static_cast<Work*>(recording); }
  void no_recording() const {
    if (replays_.recording()) throw std::logic_error("no op, and in a recording");
  }

  void wait() {
    no_recording();
    gpu_.run_until(gpu_.compute(), gpu_.compute()->enqueued);
  }
  void later(std::function<void()> work) {
    if (recorded_) {
      recorded_->push_back(std::move(work));
      return;
    }
    ++gpu_.seen.ops;
    gpu_.enqueue(gpu_.compute(), Kind::plain, std::move(work));
  }

  FakeGpu& gpu_;
  const std::unique_ptr<Device> cpu_;
  std::unique_ptr<Work> recorded_;
  Replays replays_{*this};
};

}  // namespace

std::unique_ptr<Device> make_fake_device(FakeGpu& gpu) {
  return std::make_unique<FakeDevice>(gpu);
}

std::unique_ptr<nccl::Streams> make_fake_streams(FakeGpu& gpu, int rank) {
  return std::make_unique<FakeStreams>(gpu, rank);
}

int hopeless_aborts() {
  return hopeless;
}

const nccl::Api& fake_nccl() {
  static const nccl::Api api = make_api();
  return api;
}

}  // namespace mtl::test
