// Watches a run for ranks that the others wait for (stragglers.h): each rank adds up its phases
// over a window of steps, at its end the ranks put their sums together, five numbers each, and rank
// 0 judges. A window has at least kSteps steps and takes about kSeconds, so that what a scheduler
// does within milliseconds is none of it, and so that the exchange costs nothing that can be
// measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/engine/stragglers.h"
#include "runtime/metrics/reporter.h"
#include "runtime/plan/grid.h"

namespace mtl {

class StragglerWatch {
 public:
  static constexpr int64_t kWarmUp = 3;  // steps that build caches, and record what is replayed
  static constexpr int64_t kSteps = 4, kMostSteps = 1000;
  static constexpr double kSeconds = 1;

  // Collective over `all_ranks`, which outlives this as `clock` does. `device`: what this rank
  // computes on, in a word or two. `threshold` above 1. A window takes about `window_s`.
  StragglerWatch(double threshold, const Grid& grid, Communicator& all_ranks, StepClock& clock,
                 const std::string& device, double window_s = kSeconds);

  struct News {
    StragglerReport report;
    Diagnostic words;
    bool shown = true;  // also where the progress is seen
  };
  // Every rank after step `step` (from 1) of so many sequences, which took `seconds`; collective
  // where a window ends. On rank 0: what there is to tell, of which at most kMostShown of each kind
  // at a time are shown: a host that is slow has many ranks.
  std::vector<News> step_done(int64_t step, int64_t sequences, double seconds);

 private:
  static constexpr size_t kMostShown = 4;

  std::vector<RankTimes> gather() const;
  News news_of(const StragglerVerdict& verdict, int64_t step) const;

  Communicator& all_ranks_;
  StepClock& clock_;
  const bool experts_;
  const double window_s_;
  StragglerJudge judge_;
  struct Card {
    std::string host, device;
  };
  std::vector<Card> cards_;  // by rank
  RankTimes times_;          // of the window under way
  int64_t seen_ = 0, steps_ = 0, sequences_ = 0;
  int64_t wanted_ = kSteps;
};

}  // namespace mtl
