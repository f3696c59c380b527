// Which ranks the others wait for: numbers in, verdicts out.
//
// A rank is compared with its peers, the ranks of the plan that have the same work, by the time for
// which it was itself busy (StepClock: without what it waited for others), window of steps by
// window. Its factor is that time over the median of all of them, of an even number the lower one:
// of two ranks the faster one is the measure, of three the middle one, since one that is lucky with
// its cores makes the other two look slow. It is named when the factor of each of the last
// kSustained windows is above the threshold, and has recovered when each is closer to 1 than half
// of it: so a hiccup is none, and an episode is told once.
//
// Where no rank has peers (each is a stage of its own, say), work differs by plan, and a rank is
// compared with what it has itself needed at best, in proportion to what happened to the other
// ranks meanwhile. That finds who becomes slow, not who has always been.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "common/error.h"
#include "runtime/device/step_clock.h"

namespace mtl {

// Phases in which a rank is busy itself; the first ones of Phase.
constexpr size_t kBusyPhases = 4;

// Of one rank over a window of steps, in seconds.
struct RankTimes {
  std::array<double, kBusyPhases> busy = {};
  double total = 0;  // that the steps took, without the saves between them
};

struct StragglerVerdict {
  int rank = 0;
  bool recovered = false;  // else it is slow
  double factor = 1;       // of its peers' time
  Phase phase = Phase::compute;
  double busy_s = 0, peers_s = 0;  // of a step
  double job_speed = 1;            // about, of what the job would have if the rank kept up
  int64_t since = 0;               // the step at which it was named
};

class StragglerJudge {
 public:
  static constexpr size_t kSustained = 4;  // windows

  // `peers`: all ranks, those with the same work together.
  StragglerJudge(double threshold, const std::vector<std::vector<int>>& peers);

  // Of the window that ends with step `step`, had so many steps and sequences; by rank. The slowest
  // first.
  std::vector<StragglerVerdict> judge(int64_t step, int64_t steps, int64_t sequences,
                                      const std::vector<RankTimes>& times);
  // Whether nobody has a peer.
  bool lone() const { return lone_; }

 private:
  using Busy = std::array<double, kBusyPhases>;
  struct State {
    std::deque<double> factors;                             // of the last windows
    double best = std::numeric_limits<double>::infinity();  // lone: s per sequence
    Busy at_best = {};
    int64_t since = -1;  // -1: not named
  };
  std::vector<double> factors(const std::vector<double>& values) const;
  StragglerVerdict verdict(size_t rank) const;

  const double threshold_;
  const bool lone_;
  std::vector<std::vector<size_t>> groups_;
  std::vector<size_t> group_of_;
  std::vector<State> states_;
  // Of the last windows: seconds per sequence, and per step what it had of these and took.
  struct Window {
    std::vector<Busy> busy;
    double sequences = 0, total_s = 0;
  };
  std::deque<Window> windows_;
};

// What a person reads. `name`: who the rank is, "rank 3 (node7, GPU 3)". Code rank.straggler.
Diagnostic straggler_words(const StragglerVerdict& verdict, const std::string& name, bool lone,
                           bool experts, int64_t step);
// "forward and backward"
const char* phase_words(Phase phase);

}  // namespace mtl
