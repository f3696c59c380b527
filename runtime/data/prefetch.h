// Reads samples ahead of the trainer in threads of its own, so that a step does not wait for the
// disk. What comes out is what the samples give: only the time of reading is another.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/data/samples.h"

namespace mtl {

class Prefetch : public Samples {
 public:
  using Range = SampleRange;
  // `samples` outlives it. With 0 workers, or where no thread can be started, everything is read
  // when it is asked for. `documents`: first_key and positions are read too.
  Prefetch(const Samples& samples, int64_t seq_len, int workers, bool documents);
  ~Prefetch() override;
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  // Reads what the next step will ask for. What was announced two calls ago is dropped.
  void announce(const std::vector<Range>& step);

  int64_t size() const override { return samples_.size(); }
  // Waits for a range that was announced; an error of its reading comes out here. Other ranges are
  // read at once.
  void fill(int64_t first, int64_t count, const SampleBatch& batch) const override;

 private:
  struct Entry {
    Range range;
    bool ready = false;  // guarded by mutex_; what follows belongs to its worker until then
    std::vector<int32_t> inputs, targets, first_key, positions;
    std::exception_ptr error;
  };
  void work();
  void read(Entry& entry) const;

  const Samples& samples_;
  const int64_t seq_len_;
  const bool documents_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<std::shared_ptr<Entry>> before_, now_;  // of the newest two announcements
  std::deque<std::shared_ptr<Entry>> waiting_;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace mtl
