#include "host_cuda/gpu.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace mtl::host_cuda {

namespace {

using SteadyClock = std::chrono::steady_clock;

int said(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

std::chrono::milliseconds lateness(bool urgent) {
  return std::chrono::milliseconds(
      said(urgent ? "MTL_HOST_CUDA_URGENT_LATE_MS" : "MTL_HOST_CUDA_LATE_MS", 0));
}

std::atomic<int64_t> taken_ns = -1;  // by what takes() was told of; -1: nothing yet
SteadyClock::time_point event_time() {
  const int64_t taken = taken_ns;
  return taken < 0 ? SteadyClock::now() : SteadyClock::time_point(std::chrono::nanoseconds(taken));
}

// Threads of theirs may be at work until the process has ended.
const std::vector<std::unique_ptr<Gpu>>& visible() {
  static const auto& all = *[] {
    auto* const gpus = new std::vector<std::unique_ptr<Gpu>>;
    const int count = said("MTL_HOST_CUDA_DEVICES", 1);
    const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
    if (text == nullptr) {
      for (int i = 0; i < count; ++i) gpus->push_back(std::make_unique<Gpu>(i));
      return gpus;
    }
    // As CUDA reads it: up to the first that is not there.
    std::istringstream in(text);
    std::string word;
    while (std::getline(in, word, ',')) {
      const bool number = !word.empty() && word.find_first_not_of("0123456789") == word.npos;
      if (!number || std::stoi(word) >= count) break;
      gpus->push_back(std::make_unique<Gpu>(std::stoi(word)));
    }
    return gpus;
  }();
  return all;
}

void merge(Capture::Clock& into, const Capture::Clock& from) {
  for (const auto& [stream, nodes] : from) into[stream] = std::max(into[stream], nodes);
}

}  // namespace

void takes(std::chrono::nanoseconds time) {
  int64_t nothing = -1;
  taken_ns.compare_exchange_strong(nothing, 0);
  taken_ns += time.count();
}

void copies(size_t bytes) {
  if (taken_ns >= 0) takes(std::chrono::nanoseconds(bytes));
}

void replay(const std::vector<Capture::Node>& nodes) {
  static std::atomic<unsigned> times = 0;
  std::minstd_rand random(++times);
  Capture::Clock reached;
  std::map<const Stream*, std::deque<const Capture::Node*>> waiting;
  for (const Capture::Node& node : nodes) waiting[node.stream].push_back(&node);
  while (!waiting.empty()) {
    std::vector<const Stream*> ready;
    for (const auto& [stream, queue] : waiting) {
      const Capture::Clock& behind = queue.front()->behind;
      const bool may_come = std::all_of(behind.begin(), behind.end(), [&](const auto& before) {
        return reached[before.first] >= before.second;
      });
      if (may_come) ready.push_back(stream);
    }
    const Stream* const next = ready.at(random() % ready.size());
    waiting[next].front()->work();
    ++reached[next];
    waiting[next].pop_front();
    if (waiting[next].empty()) waiting.erase(next);
  }
}

int gpu_count() {
  return static_cast<int>(visible().size());
}
Gpu& gpu(int index) {
  return *visible().at(static_cast<size_t>(index));
}
size_t memory_bytes() {
  static const auto bytes = static_cast<size_t>(said("MTL_HOST_CUDA_MEMORY_MB", 1024)) << 20;
  return bytes;
}
int capability() {
  static const int value = said("MTL_HOST_CUDA_CAPABILITY", 90);
  return value;
}

size_t most_shared_bytes() {
  return size_t{capability() < 90 ? 163u : 227u} << 10;
}

Stream::Stream(Gpu& gpu, bool urgent)
    : gpu_(gpu), late_(lateness(urgent)), thread_([this] { serve(); }) {}

Stream::~Stream() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
    wanted_ = enqueued_;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !items_.empty(); });
    if (items_.empty()) return;
    changed_.wait_until(lock, items_.front().from, [&] { return wanted_ > done_; });
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    if (!gpu_.failed()) {
      try {
        gpu_.work();
        item.work();
      } catch (const std::exception& error) {
        gpu_.fail(error.what());
      }
    }
    item.work = nullptr;
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

void Stream::enqueue(Work work) {
  if (capture) {
    Capture::Clock& known = capture->clocks[this];
    capture->nodes.push_back({std::move(work), this, known});
    ++known[this];
    return;
  }
  {
    const std::scoped_lock lock(mutex_);
    ++enqueued_;
    items_.push_back({std::move(work), SteadyClock::now() + late_});
    changed_.notify_all();
  }
  static const bool blocks = said("CUDA_LAUNCH_BLOCKING", 0) == 1;
  if (blocks) finish();
}

std::shared_ptr<Mark> Stream::mark() {
  auto made = std::make_shared<Mark>();
  made->stream = this;
  made->capture = capture;
  if (capture) {
    made->clock = capture->clocks[this];
    return made;
  }
  enqueue([made] { made->when = event_time(); });
  const std::scoped_lock lock(mutex_);
  made->position = enqueued_;
  return made;
}

cudaError_t Stream::wait(const std::shared_ptr<Mark>& mark) {
  if (mark->capture) {
    if (mark->capture->origin == nullptr) return cudaErrorCapturedEvent;  // it has ended
    if (!capture) capture = mark->capture;
    if (capture != mark->capture) {
      capture->broken = mark->capture->broken = true;
      return cudaErrorStreamCaptureMerge;
    }
    merge(capture->clocks[this], mark->clock);
    return cudaSuccess;
  }
  if (capture) {
    // Work outside of a graph is no part of it.
    capture->broken = true;
    return cudaErrorStreamCaptureIsolation;
  }
  if (mark->stream != this) {
    enqueue([mark] { mark->stream->wait_for(mark->position); });
  }
  return cudaSuccess;
}

bool Stream::reached(uint64_t position) {
  const std::scoped_lock lock(mutex_);
  return done_ >= position;
}

void Stream::wait_for(uint64_t position) {
  std::unique_lock lock(mutex_);
  wanted_ = std::max(wanted_, position);
  changed_.notify_all();
  changed_.wait(lock, [&] { return done_ >= position; });
}

void Stream::finish() {
  uint64_t position = 0;
  {
    const std::scoped_lock lock(mutex_);
    position = enqueued_;
  }
  wait_for(position);
}

Stream* Gpu::make_stream(bool urgent) {
  const std::scoped_lock lock(mutex_);
  return streams_.emplace_back(std::make_unique<Stream>(*this, urgent)).get();
}

void Gpu::end_stream(Stream* stream) {
  const std::scoped_lock lock(mutex_);
  for (auto& one : streams_) {
    if (one.get() != stream) continue;
    ended_.push_back(std::move(one));
    std::swap(one, streams_.back());
    streams_.pop_back();
    return;
  }
}

void Gpu::finish() {
  std::vector<Stream*> all;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& list : {&streams_, &ended_}) {
      for (const auto& one : *list) all.push_back(one.get());
    }
  }
  for (Stream* const stream : all) stream->finish();
}

void Gpu::work() {
  static const auto [gpu, things] = [] {
    std::pair<int, int> told(-1, 0);
    const char* const text = std::getenv("MTL_HOST_CUDA_FAILS");
    if (text != nullptr) std::sscanf(text, "%d:%d", &told.first, &told.second);
    return told;
  }();
  if (number_ == gpu && ++worked_ > things) throw std::runtime_error("it was told to");
}

void Gpu::fail(const std::string& why) {
  if (!failed_.exchange(true)) {
    std::fprintf(stderr, "host cuda: GPU %d has failed: %s\n", number_, why.c_str());
  }
}

}  // namespace mtl::host_cuda
