// Samples of which only some targets count in the loss, as of conversations.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "runtime/data/samples.h"

namespace mtl::test {

class SomeCount final : public Samples {
 public:
  // `counts`: of a sample and a position in it.
  SomeCount(std::shared_ptr<const Samples> all, int64_t seq,
            std::function<bool(int64_t sample, int64_t position)> counts)
      : all_(std::move(all)), seq_(seq), counts_(std::move(counts)) {}
  int64_t size() const override { return all_->size(); }
  void fill(int64_t first, int64_t count, const SampleBatch& batch) const override {
    all_->fill(first, count, batch);
    for (int64_t i = 0; i < count * seq_; ++i) {
      if (!counts_(first + i / seq_, i % seq_)) batch.targets[static_cast<size_t>(i)] = -1;
    }
  }

 private:
  std::shared_ptr<const Samples> all_;
  int64_t seq_;
  std::function<bool(int64_t, int64_t)> counts_;
};

// As much of each sample as it likes, from nothing to all, in spans.
inline bool answered(int64_t sample, int64_t position) {
  return (position + 3 * sample) % 16 < (sample * 5) % 18;
}

}  // namespace mtl::test
