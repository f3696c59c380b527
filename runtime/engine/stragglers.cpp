#include "runtime/engine/stragglers.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace mtl {

namespace {

double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double sum_of(const std::array<double, kBusyPhases>& busy) {
  return std::accumulate(busy.begin(), busy.end(), 0.0);
}

std::string time_words(double seconds) {
  return seconds < 1 ? fmt::format("{:.3g} ms", 1000 * seconds) : fmt::format("{:.3g} s", seconds);
}

const char* where_to_look(Phase phase) {
  switch (phase) {
    case Phase::data:
      return "look at the disk or the file system that it reads data.train from, and at what else "
             "runs on its host (data.workers)";
    case Phase::save:
      return "look at the disk or the network that it writes checkpoints to";
    default:
      return "look at what else runs on its host and at what keeps it from its CPUs (top; cpuset "
             "and quota of its cgroup), on a GPU at clock, heat and power (nvidia-smi -q -d "
             "PERFORMANCE); mtl test compares machines";
  }
}

}  // namespace

const char* phase_words(Phase phase) {
  switch (phase) {
    case Phase::data:
      return "reading data";
    case Phase::optimizer:
      return "the optimizer";
    case Phase::save:
      return "writing checkpoints";
    default:
      return "forward and backward";
  }
}

StragglerJudge::StragglerJudge(double threshold, const std::vector<std::vector<int>>& peers)
    : threshold_(threshold),
      lone_(std::all_of(peers.begin(), peers.end(),
                        [](const std::vector<int>& group) { return group.size() == 1; })) {
  for (const std::vector<int>& group : peers) {
    if (groups_.empty() || !lone_) groups_.emplace_back();
    groups_.back().insert(groups_.back().end(), group.begin(), group.end());
    states_.resize(states_.size() + group.size());
  }
  group_of_.resize(states_.size());
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (const size_t rank : groups_[group]) group_of_[rank] = group;
  }
}

std::vector<double> StragglerJudge::factors(const std::vector<double>& values) const {
  std::vector<double> factors(values.size(), 1.0);
  for (const std::vector<size_t>& group : groups_) {
    if (group.size() < 2) continue;
    std::vector<double> of_group;
    for (const size_t rank : group) of_group.push_back(values[rank]);
    const double measure = lower_median(std::move(of_group));
    if (measure <= 0) continue;
    for (const size_t rank : group) factors[rank] = values[rank] / measure;
  }
  return factors;
}

std::vector<StragglerVerdict> StragglerJudge::judge(int64_t step, int64_t steps, int64_t sequences,
                                                    const std::vector<RankTimes>& times) {
  Window window;
  window.sequences = static_cast<double>(sequences) / static_cast<double>(steps);
  for (const RankTimes& rank : times) {
    Busy busy = rank.busy;
    for (double& phase : busy) phase /= static_cast<double>(sequences);
    window.busy.push_back(busy);
    // Saves lie between steps: the job takes at least as long as its busiest rank.
    const double took = std::max(rank.total, sum_of(rank.busy));
    window.total_s = std::max(window.total_s, took / static_cast<double>(steps));
  }
  windows_.push_back(std::move(window));
  if (windows_.size() > kSustained) windows_.pop_front();

  std::vector<double> values;
  for (size_t rank = 0; rank < states_.size(); ++rank) {
    double value = sum_of(windows_.back().busy[rank]);
    State& state = states_[rank];
    if (lone_) {
      Busy mean = {};
      for (const Window& one : windows_) {
        for (size_t phase = 0; phase < kBusyPhases; ++phase) {
          mean[phase] += one.busy[rank][phase] / static_cast<double>(windows_.size());
        }
      }
      if (windows_.size() == kSustained && sum_of(mean) < state.best) {
        state.best = sum_of(mean);
        state.at_best = mean;
      }
      value = state.best > 0 ? value / state.best : 1;
    }
    values.push_back(value);
  }
  // Nothing has been best yet.
  if (lone_ && windows_.size() < kSustained) return {};

  const std::vector<double> now = factors(values);
  std::vector<StragglerVerdict> verdicts;
  for (size_t rank = 0; rank < states_.size(); ++rank) {
    State& state = states_[rank];
    state.factors.push_back(now[rank]);
    if (state.factors.size() > kSustained) state.factors.pop_front();
    if (state.factors.size() < kSustained) continue;
    const auto [least, most] = std::minmax_element(state.factors.begin(), state.factors.end());
    if (state.since < 0 && *least > threshold_) {
      state.since = step;
      verdicts.push_back(verdict(rank));
    } else if (state.since >= 0 && *most < 1 + (threshold_ - 1) / 2) {
      verdicts.push_back(verdict(rank));
      verdicts.back().recovered = true;
      state.since = -1;
    }
  }
  std::stable_sort(
      verdicts.begin(), verdicts.end(),
      [](const StragglerVerdict& a, const StragglerVerdict& b) { return a.factor > b.factor; });
  return verdicts;
}

// By the means of the last windows.
StragglerVerdict StragglerJudge::verdict(size_t rank) const {
  const State& state = states_[rank];
  const auto mean = [&](const auto& of_window) {
    double sum = 0;
    for (const Window& window : windows_) sum += of_window(window);
    return sum / static_cast<double>(windows_.size());
  };
  StragglerVerdict verdict;
  verdict.rank = static_cast<int>(rank);
  verdict.since = state.since;
  verdict.factor = std::accumulate(state.factors.begin(), state.factors.end(), 0.0) /
                   static_cast<double>(state.factors.size());
  verdict.busy_s = mean([&](const Window& w) { return sum_of(w.busy[rank]) * w.sequences; });
  verdict.peers_s = verdict.busy_s / verdict.factor;
  const double total = mean([](const Window& w) { return w.total_s; });
  if (total > 0) {
    verdict.job_speed = std::clamp(1 - (verdict.busy_s - verdict.peers_s) / total, 0.0, 1.0);
  }
  double most = -std::numeric_limits<double>::infinity();
  for (size_t phase = 0; phase < kBusyPhases; ++phase) {
    const auto of = [&](size_t other) {
      return mean([&](const Window& w) { return w.busy[other][phase]; });
    };
    double measure = state.at_best[phase];
    if (!lone_) {
      std::vector<double> of_group;
      for (const size_t one : groups_[group_of_[rank]]) of_group.push_back(of(one));
      measure = lower_median(std::move(of_group));
    }
    if (const double more = of(rank) - measure; more > most) {
      most = more;
      verdict.phase = static_cast<Phase>(phase);
    }
  }
  return verdict;
}

Diagnostic straggler_words(const StragglerVerdict& verdict, const std::string& name, bool lone,
                           bool experts, int64_t step) {
  Diagnostic words;
  words.code = "rank.straggler";
  words.severity = Diagnostic::Severity::warning;
  if (verdict.recovered) {
    words.what = fmt::format(
        "{} keeps up again since step {}, after {} steps: {:.2f} x the time {}", name, step,
        step - verdict.since, verdict.factor, lone ? "of before" : "of its peers");
    return words;
  }
  words.what = fmt::format(
      "{} is slow: {} of a step where {} {} ({:.2f} x), most of it in {}; the others wait, and the "
      "job runs at about {:.2f} of its speed",
      name, time_words(verdict.busy_s), lone ? "it needed" : "its peers need",
      time_words(verdict.peers_s), verdict.factor, phase_words(verdict.phase), verdict.job_speed);
  words.help = where_to_look(verdict.phase);
  if (experts && verdict.phase == Phase::compute) {
    words.help += "; or its experts are given more tokens than others (moe_aux_loss)";
  }
  return words;
}

}  // namespace mtl
