#include "runtime/device/step_clock.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/device/device.h"

namespace mtl {

namespace {

class HostClock final : public DeviceClock {
 public:
  bool mark() override {
    marks_.push_back(Clock::now());
    return true;
  }
  std::vector<double> take() override {
    std::vector<double> seconds;
    for (size_t i = 1; i < marks_.size(); ++i) {
      seconds.push_back(std::chrono::duration<double>(marks_[i] - marks_[i - 1]).count());
    }
    if (!marks_.empty()) marks_ = {marks_.back()};
    return seconds;
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> marks_;
};

}  // namespace

std::unique_ptr<DeviceClock> make_host_clock() {
  return std::make_unique<HostClock>();
}

std::unique_ptr<DeviceClock> Device::make_clock() {
  return make_host_clock();
}

StepClock::StepClock(Device& device) : marks_(device.make_clock()) {}

void StepClock::start() {
  runs_ = marks_->mark();
  phase_ = Phase::other;
}

PhaseTimes StepClock::take() {
  PhaseTimes times = {};
  if (!runs_) return times;
  const std::vector<double> seconds = marks_->take();
  for (size_t i = 0; i < seconds.size(); ++i) {
    times[static_cast<size_t>(phases_[i])] += seconds[i];
  }
  phases_.clear();
  return times;
}

void StepClock::enter(Phase phase) {
  if (phase == phase_ || !marks_->mark()) return;
  phases_.push_back(phase_);
  phase_ = phase;
}

StepClock::Scope::Scope(StepClock* clock, Phase phase)
    : clock_(clock != nullptr && std::this_thread::get_id() == clock->thread_ && clock->runs_
                 ? clock
                 : nullptr) {
  if (clock_ == nullptr) return;
  before_ = clock_->phase_;
  clock_->enter(phase);
}

StepClock::Scope::~Scope() {
  if (clock_ != nullptr) clock_->enter(before_);
}

}  // namespace mtl
