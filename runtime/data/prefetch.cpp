#include "runtime/data/prefetch.h"

#include <algorithm>
#include <utility>

#include "common/threads.h"

namespace mtl {

Prefetch::Prefetch(const Samples& samples, int64_t seq_len, int workers, bool documents)
    : samples_(samples), seq_len_(seq_len), documents_(documents) {
  // Fewer do, and none, too: it is only slower.
  start_threads(workers_, static_cast<size_t>(workers), [this] { work(); });
}

Prefetch::~Prefetch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Prefetch::announce(const std::vector<Range>& step) {
  if (workers_.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    before_ = std::exchange(now_, {});
    for (const Range& range : step) {
      now_.push_back(std::make_shared<Entry>());
      now_.back()->range = range;
      waiting_.push_back(now_.back());
    }
  }
  changed_.notify_all();
}

void Prefetch::read(Entry& entry) const {
  const auto tokens = static_cast<size_t>(entry.range.count * seq_len_);
  entry.inputs.resize(tokens);
  entry.targets.resize(tokens);
  if (documents_) {
    entry.first_key.resize(tokens);
    entry.positions.resize(tokens);
  }
  samples_.fill(entry.range.first, entry.range.count,
                {entry.inputs, entry.targets, entry.first_key, entry.positions});
}

void Prefetch::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    const std::shared_ptr<Entry> entry = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      read(*entry);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    entry->error = error;
    entry->ready = true;
    changed_.notify_all();
  }
}

void Prefetch::fill(int64_t first, int64_t count, const SampleBatch& batch) const {
  std::shared_ptr<Entry> entry;
  {
    std::unique_lock lock(mutex_);
    for (const auto* step : {&before_, &now_}) {
      for (const std::shared_ptr<Entry>& announced : *step) {
        if (announced->range.first == first && announced->range.count == count) entry = announced;
      }
    }
    if (entry) changed_.wait(lock, [&] { return entry->ready; });
  }
  if (!entry) return samples_.fill(first, count, batch);
  // Nobody writes an entry that is ready.
  if (entry->error) std::rethrow_exception(entry->error);
  const auto copy = [](const std::vector<int32_t>& from, std::span<int32_t> to) {
    if (!to.empty()) std::copy(from.begin(), from.end(), to.begin());
  };
  copy(entry->inputs, batch.inputs);
  copy(entry->targets, batch.targets);
  copy(entry->first_key, batch.first_key);
  copy(entry->positions, batch.positions);
}

}  // namespace mtl
