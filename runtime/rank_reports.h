// What is told of a rank's steps: numbers and how long the rest takes, GPUs that are slowed down,
// losses that stand out, ranks that the others wait for. Every rank takes part, since some of it is
// put together from all; rank 0 has the reporter.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/make_device.h"
#include "runtime/engine/gpu_watch.h"
#include "runtime/engine/spikes.h"
#include "runtime/engine/straggler_watch.h"
#include "runtime/engine/time_left.h"
#include "runtime/engine/trainer.h"
#include "runtime/engine/yardstick.h"
#include "runtime/metrics/reporter.h"
#include "runtime/run.h"

namespace mtl {

class RankReports {
 public:
  // Collective. All of them outlive it. `reporter`: null on ranks that report nothing. `time_left`
  // learns how long steps take.
  RankReports(const CheckedRun& run, const MadeDevice& device, const Yardstick& yardstick,
              Trainer& trainer, Communicator& all_ranks, Reporter* reporter, TimeLeft& time_left);

  // All ranks together: the step that is the run's `done`th took so many seconds.
  void step_done(int64_t done, const StepResult& result, double seconds);
  // Steps of the run that changed no weight; known where there is a reporter.
  int64_t skipped() const { return skipped_; }

 private:
  void tell(int64_t done, const StepResult& result, double seconds);
  StepReport report_of(int64_t done, const StepResult& result, double seconds) const;
  std::vector<GpuReading> read_gpus(int64_t done);

  const CheckedRun& run_;
  const Plan& plan_;
  const Yardstick yardstick_;
  Communicator& all_ranks_;
  Reporter* const reporter_;
  TimeLeft& time_left_;
  std::unique_ptr<GpuWatch> gpu_watch_;  // null on a CPU
  SlowGpus slow_gpus_;
  StepSpikes spikes_;
  std::unique_ptr<StragglerWatch> stragglers_;  // null where nobody is to be compared
  double reporting_s_ = 0;                      // after the step before
  int64_t steps_seen_ = 0;
  int64_t skipped_ = 0;
};

}  // namespace mtl
