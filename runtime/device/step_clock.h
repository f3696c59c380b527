// StepClock: what the time of a rank goes into. At any moment the rank is in one phase; a Scope
// says which, and scopes nest: what is waited for others within the optimizer is waiting.
//
// Phases are told apart on the device's own time line (DeviceClock): where ops are done when they
// return, by the host's clock; where they are enqueued, by events among them. So waiting is what
// the ops of this rank have waited for others, not what its host has, and a host that comes late
// with its ops is found in the phase that it is late with. No mark waits for the device.
//
// Used by the thread that made it; other threads (a CommQueue's) may enter scopes, which do
// nothing: what goes on beside a rank's own work is not its time.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

namespace mtl {

class Device;

enum class Phase {
  data,       // the next tokens
  compute,    // forward and backward
  optimizer,  // the update
  save,       // a checkpoint's own part: the copy, or the files
  wait,       // for other ranks
  other,      // all else
};
constexpr size_t kPhases = 6;
// In seconds, by phase.
using PhaseTimes = std::array<double, kPhases>;

// Points in time among the ops of a device. Belongs to the thread of the device.
class DeviceClock {
 public:
  virtual ~DeviceClock() = default;
  // Between the ops enqueued so far and those to come. False: not now (a pass is being recorded,
  // the device has failed). Does not throw what the device's next op will: scopes end by errors
  // too.
  virtual bool mark() = 0;
  // The seconds from each mark to the next, from the last mark of the call before on (the first
  // call has none: one less than marks). Waits until the device has come to the last one.
  virtual std::vector<double> take() = 0;
};
// Where ops are done when they return.
std::unique_ptr<DeviceClock> make_host_clock();

class StepClock {
 public:
  // `device` outlives this. It stands still until start().
  explicit StepClock(Device& device);

  // From now on: in Phase::other. Costs nothing before.
  void start();
  // The times since start() or the last call; waits for the device.
  PhaseTimes take();

  class Scope {
   public:
    // `clock` null: nothing.
    Scope(StepClock* clock, Phase phase);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StepClock* const clock_;
    Phase before_ = Phase::other;
  };

 private:
  void enter(Phase phase);

  const std::thread::id thread_ = std::this_thread::get_id();
  const std::unique_ptr<DeviceClock> marks_;
  bool runs_ = false;
  Phase phase_ = Phase::other;
  std::vector<Phase> phases_;  // that the marks have ended
};

}  // namespace mtl
