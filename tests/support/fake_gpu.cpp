#include "support/fake_gpu.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "runtime/device/cpu/threads.h"

namespace mtl::test {

const char* name_of(When when) {
  return when == When::late ? "late" : when == When::early ? "early" : "threads";
}

struct FakeGpu::Item {
  Kind kind = Kind::plain;
  std::function<void()> work;  // none: waits for `event`
  Event event;
};

FakeGpu::FakeGpu(When when, bool lazy)
    : when_(when),
      lazy_(lazy && when == When::threads),
      owner_(std::this_thread::get_id()),
      compute_(std::make_unique<Stream>()) {
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
  if (when_ == When::early && !stream->computes && is_owner()) run_until(stream, stream->enqueued);
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
  if (when_ != When::threads && is_owner() && event.stream != nullptr) {
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
  if (when_ != When::threads && is_owner()) run_sends();
}

void FakeGpu::load(const std::string& kernel) {
  if (!lazy_ || !loaded_.insert(kernel).second) return;
  {
    std::unique_lock lock(mutex_);
    std::vector<std::pair<Stream*, uint64_t>> busy = {{compute_.get(), compute_->enqueued}};
    for (const auto& stream : streams_) busy.emplace_back(stream.get(), stream->enqueued);
    changed_.wait(lock, [&] {
      return error_ || std::all_of(busy.begin(), busy.end(),
                                   [](const auto& one) { return one.first->done >= one.second; });
    });
  }
  rethrow();
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
  seen.bytes += static_cast<int64_t>(bytes);
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
  using Handle = FakeGpu::Handle;

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
    if (!gpu_.is_owner()) throw std::logic_error("a copy beside the thread of the rank");
    gpu_.enqueue(static_cast<Handle*>(stream)->stream, Kind::plain, [=] {
      if (bytes > 0) std::memcpy(to, from, bytes);
    });
  }
  std::string device_id() const override { return fmt::format("fake {}", rank_); }
  void host_waits() override { gpu_.idle(); }
  void enter_thread() override {}

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

}  // namespace

std::unique_ptr<nccl::Streams> make_fake_streams(FakeGpu& gpu, int rank) {
  return std::make_unique<FakeStreams>(gpu, rank);
}

}  // namespace mtl::test
