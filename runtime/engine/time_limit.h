// When a run that may last only so long has to stop, so that what is still to be done ends in time:
// steps, evaluations and the save at the end, judged by those that have been. Kept by rank 0; the
// others learn of it as of any request.
#pragma once

#include <algorithm>
#include <chrono>

namespace mtl {

class TimeLimit {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // `limit`: 0 = none. `began`: when the job did, also if these ranks are not its first.
  TimeLimit(std::chrono::seconds limit, Time began) : limit_(limit), began_(began) {}

  // How long one took. The longest counts: the last one must not be it.
  void evaluated(double seconds) { evaluation_s_ = std::max(evaluation_s_, seconds); }
  void saved(double seconds) { save_s_ = std::max(save_s_, seconds); }

  // From the begin of a step on, should the run go on after it for one more.
  struct Ahead {
    double steps_s = 0;   // of both
    int evaluations = 0;  // that are due after either
    int saves = 1;        // the last one, and those that it waits for
  };
  // Whether that would end too late, so that the step which begins is the last one.
  bool is_over(const Ahead& ahead, Time now) const {
    if (limit_.count() == 0) return false;
    const std::chrono::duration<double> rest(ahead.steps_s + ahead.evaluations * evaluation_s_ +
                                             ahead.saves * save_s_);
    return now - began_ + rest > limit_;
  }

 private:
  const std::chrono::seconds limit_;
  const Time began_;
  double evaluation_s_ = 0;
  double save_s_ = 0;
};

}  // namespace mtl
