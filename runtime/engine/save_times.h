// When a checkpoint is wanted beside every so manieth step: after some time, and again after a
// failed attempt. Kept by rank 0; the others learn of it as of any request.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace mtl {

class SaveTimes {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // `interval`: 0 = no matter how long it takes.
  SaveTimes(std::chrono::seconds interval, Time now) : interval_(interval), last_(now) {}

  // Before step `step`.
  bool due(int64_t step, Time now) const {
    return (interval_.count() > 0 && now - last_ >= interval_) ||
           (failures_ > 0 && step >= again_at_);
  }
  // Until it has succeeded or failed, it is not wanted again.
  void began(Time now) {
    last_ = now;
    again_at_ = INT64_MAX;
  }
  void succeeded() { failures_ = 0; }
  // At first after one step, then after twice as many each time, so that a disk that stays full
  // does not slow down all of the training.
  void failed(int64_t step) {
    again_at_ = step + (int64_t{1} << std::min(failures_, kMostDoublings));
    ++failures_;
  }
  int failures() const { return failures_; }  // in a row

 private:
  static constexpr int kMostDoublings = 8;
  std::chrono::seconds interval_;
  Time last_;
  int failures_ = 0;
  int64_t again_at_ = 0;
};

}  // namespace mtl
