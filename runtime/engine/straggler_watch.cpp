#include "runtime/engine/straggler_watch.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "rendezvous/network.h"

namespace mtl {

namespace {

constexpr size_t kCardText = 64;
using CardTexts = std::array<std::array<char, kCardText>, 2>;  // ended by zeros

constexpr size_t kTimes = kBusyPhases + 1;  // numbers that travel

void put_text(const std::string& text, std::array<char, kCardText>& into) {
  std::strncpy(into.data(), text.c_str(), into.size() - 1);
}

}  // namespace

StragglerWatch::StragglerWatch(double threshold, const Grid& grid, Communicator& all_ranks,
                               StepClock& clock, const std::string& device, double window_s)
    : all_ranks_(all_ranks),
      clock_(clock),
      experts_(grid.sizes()[Axis::ep] > 1),
      window_s_(window_s),
      judge_(threshold, grid.groups(Grid::kSameWork)) {
  std::vector<CardTexts> texts(static_cast<size_t>(all_ranks.size()));
  CardTexts& own = texts[static_cast<size_t>(all_ranks.rank())];
  put_text(host_name(), own[0]);
  put_text(device, own[1]);
  const auto bytes = static_cast<int64_t>(sizeof(CardTexts));
  const Tensor all(texts.data(), DType::u8, {bytes * all_ranks.size()});
  all_ranks.all_gather(all.slice(all_ranks.rank() * bytes, bytes), all);
  for (const CardTexts& one : texts) cards_.push_back({one[0].data(), one[1].data()});
  clock.start();
}

std::vector<RankTimes> StragglerWatch::gather() const {
  std::array<double, kTimes> own = {};
  std::copy(times_.busy.begin(), times_.busy.end(), own.begin());
  own.back() = times_.total;
  std::vector<double> all(kTimes * static_cast<size_t>(all_ranks_.size()));
  all_ranks_.all_gather(Tensor(own.data(), DType::f64, {kTimes}),
                        Tensor(all.data(), DType::f64, {static_cast<int64_t>(all.size())}));
  std::vector<RankTimes> ranks(static_cast<size_t>(all_ranks_.size()));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const double* const of = &all[rank * kTimes];
    std::copy(of, of + kBusyPhases, ranks[rank].busy.begin());
    ranks[rank].total = of[kBusyPhases];
  }
  return ranks;
}

std::vector<StragglerWatch::News> StragglerWatch::step_done(int64_t step, int64_t sequences,
                                                            double seconds) {
  const PhaseTimes times = clock_.take();
  if (++seen_ <= kWarmUp) return {};
  for (size_t phase = 0; phase < kBusyPhases; ++phase) times_.busy[phase] += times[phase];
  times_.total += seconds;
  sequences_ += sequences;
  if (++steps_ < wanted_) return {};

  const std::vector<RankTimes> all = gather();
  std::vector<StragglerVerdict> verdicts;
  if (all_ranks_.rank() == 0) verdicts = judge_.judge(step, steps_, sequences_, all);
  // All ranks from the same numbers.
  double longest = 0;
  for (const RankTimes& rank : all) longest = std::max(longest, rank.total);
  const double wanted = window_s_ / std::max(longest / static_cast<double>(steps_), 1e-6);
  wanted_ = std::clamp(static_cast<int64_t>(std::ceil(std::min(wanted, 1e6))), kSteps, kMostSteps);
  times_ = {};
  steps_ = sequences_ = 0;

  std::vector<News> news;
  size_t slow = 0, recovered = 0;
  for (const StragglerVerdict& verdict : verdicts) {
    size_t& told = verdict.recovered ? recovered : slow;
    news.push_back(news_of(verdict, step));
    news.back().shown = ++told <= kMostShown;
  }
  return news;
}

StragglerWatch::News StragglerWatch::news_of(const StragglerVerdict& verdict, int64_t step) const {
  const Card& card = cards_[static_cast<size_t>(verdict.rank)];
  const std::string name = fmt::format("rank {} ({}, {})", verdict.rank, card.host, card.device);
  return {.report = {.rank = verdict.rank,
                     .host = card.host,
                     .device = card.device,
                     .phase = phase_words(verdict.phase),
                     .factor = verdict.factor,
                     .job_speed = verdict.job_speed,
                     .recovered = verdict.recovered},
          .words = straggler_words(verdict, name, judge_.lone(), experts_, step)};
}

}  // namespace mtl
