// Which ranks are named as slow, when, and which are not; and the clock that it is told by, in runs
// of threads of which one is really slow.
#include "runtime/engine/stragglers.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include <doctest/doctest.h>

#include "runtime/engine/straggler_watch.h"
#include "runtime/plan/grid.h"
#include "support/layouts.h"
#include "support/specs.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;

namespace stragglers_test {

namespace {

constexpr double kThreshold = 1.2;
constexpr int64_t kWindow = 5;  // steps

// The busy time of a rank in a window, in units of what is usual.
using Slowness = std::function<double(int rank, int window)>;

struct Told {
  int window = 0;
  StragglerVerdict verdict;
};

using Peers = std::vector<std::vector<int>>;

// What is told of `windows` windows; `phase` is what a slow rank is slow in.
std::vector<Told> told_of(const Peers& peers, int windows, const Slowness& slowness,
                          double noise = 0, Phase phase = Phase::compute, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> varies(0, noise);
  StragglerJudge judge(kThreshold, peers);
  size_t ranks = 0;
  for (const std::vector<int>& group : peers) ranks += group.size();
  std::vector<Told> told;
  for (int window = 0; window < windows; ++window) {
    std::vector<RankTimes> times(ranks);
    double longest = 0;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const double more = slowness(static_cast<int>(rank), window) - 1;
      std::array<double, kBusyPhases>& busy = times[rank].busy;
      busy = {0.002, 0.080, 0.018, 0};
      busy[static_cast<size_t>(phase)] += 0.1 * more;
      double sum = 0;
      for (double& one : busy) sum += one *= kWindow * std::max(0.5, 1 + varies(random));
      longest = std::max(longest, sum);
    }
    for (RankTimes& rank : times) rank.total = longest;
    const int64_t step = 3 + kWindow * (window + 1);
    for (const StragglerVerdict& verdict : judge.judge(step, kWindow, 4 * kWindow, times)) {
      told.push_back({window, verdict});
    }
  }
  return told;
}

Peers all_alike(int ranks) {
  std::vector<int> everybody(static_cast<size_t>(ranks));
  std::iota(everybody.begin(), everybody.end(), 0);
  return {everybody};
}

}  // namespace

TEST_CASE("noise names nobody, a rank that is 1.3 times slower is found in it") {
  for (const int ranks : {2, 3, 4, 8, 64}) {
    for (uint32_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(ranks);
      CAPTURE(seed);
      const auto none = told_of(
          all_alike(ranks), 200, [](int, int) { return 1.0; }, 0.04, Phase::compute, seed);
      CHECK(none.empty());
      const auto told = told_of(
          all_alike(ranks), 40, [](int rank, int) { return rank == 1 ? 1.3 : 1.0; }, 0.02,
          Phase::compute, seed);
      REQUIRE(!told.empty());
      CHECK(told.front().verdict.rank == 1);
      CHECK(told.front().verdict.factor == doctest::Approx(1.3).epsilon(0.06));
      for (const Told& one : told) CHECK(one.verdict.rank == 1);
    }
  }
}

TEST_CASE("slow from the start, later, in each phase: after four windows, with phase and cost") {
  for (const Phase phase : {Phase::data, Phase::compute, Phase::optimizer, Phase::save}) {
    for (const int from : {0, 7}) {
      CAPTURE(from);
      CAPTURE(phase_words(phase));
      const auto told = told_of(
          all_alike(4), 30,
          [&](int rank, int window) { return rank == 2 && window >= from ? 1.5 : 1.0; }, 0, phase);
      REQUIRE(told.size() == 1);
      const StragglerVerdict& verdict = told[0].verdict;
      CHECK(told[0].window == from + 3);
      CHECK(verdict.rank == 2);
      CHECK_FALSE(verdict.recovered);
      CHECK(verdict.phase == phase);
      CHECK(verdict.factor == doctest::Approx(1.5));
      CHECK(verdict.busy_s == doctest::Approx(0.15));
      CHECK(verdict.peers_s == doctest::Approx(0.1));
      CHECK(verdict.job_speed == doctest::Approx(1 / 1.5));
    }
  }
}

TEST_CASE("what saves cost is told of the time with them, which lies between the steps") {
  StragglerJudge judge(kThreshold, all_alike(3));
  std::vector<StragglerVerdict> told;
  for (int64_t window = 1; window <= 4; ++window) {
    std::vector<RankTimes> times(3, {.busy = {0, 0.5, 0, 2.5}, .total = 0.5});
    times[1].busy = {0, 0.5, 0, 5.5};
    told = judge.judge(kWindow * window, kWindow, kWindow, times);
  }
  REQUIRE(told.size() == 1);
  CHECK(told[0].rank == 1);
  CHECK(told[0].phase == Phase::save);
  CHECK(told[0].factor == doctest::Approx(2));
  CHECK(told[0].job_speed == doctest::Approx(0.5));
}

TEST_CASE("a hiccup is nothing, one that comes again and again neither") {
  CHECK(told_of(all_alike(4), 50, [](int rank, int window) {
          return rank == 1 && window == 20 ? 30.0 : 1.0;
        }).empty());
  // A checkpoint of one rank takes long, now and then.
  CHECK(told_of(all_alike(4), 50, [](int rank, int window) {
          return rank == 0 && window % 3 == 0 ? 2.0 : 1.0;
        }).empty());
}

TEST_CASE("an episode is told once, and its end; a factor that goes about the threshold is one") {
  const auto told = told_of(all_alike(3), 80, [](int rank, int window) {
    const double about = window % 2 == 0 ? 1.15 : 1.3;
    return rank != 2 || window < 10 || window >= 60 ? 1.0 : window < 16 ? 1.3 : about;
  });
  REQUIRE(told.size() == 2);
  CHECK(told[0].window == 13);
  CHECK(told[1].window == 63);
  CHECK(told[1].verdict.recovered);
  CHECK(told[1].verdict.since == 3 + kWindow * 14);
  // And the next one again.
  CHECK(told_of(all_alike(3), 80, [](int rank, int window) {
          return rank == 2 && window % 20 < 10 ? 2.0 : 1.0;
        }).size() == 8);
}

TEST_CASE("all slow is nobody, two of eight are two, one of two is the slower") {
  CHECK(told_of(all_alike(8), 50, [](int, int window) { return window > 20 ? 2.0 : 1.0; }).empty());
  auto told = told_of(all_alike(8), 50, [](int rank, int) {
    return rank == 3 ? 1.4 : rank == 6 ? 2.0 : 1.0;
  });
  REQUIRE(told.size() == 2);
  CHECK(told[0].verdict.rank == 6);
  CHECK(told[0].verdict.factor == doctest::Approx(2));
  CHECK(told[1].verdict.rank == 3);
  CHECK(told[1].verdict.factor == doctest::Approx(1.4));
  told = told_of(all_alike(2), 50, [](int rank, int) { return rank == 1 ? 1.0 : 1.6; });
  REQUIRE(told.size() == 1);
  CHECK(told[0].verdict.rank == 0);
  // One of three that has a core for itself does not make the others slow.
  CHECK(told_of(all_alike(3), 50, [](int rank, int) { return rank == 1 ? 0.6 : 1.0; }).empty());
  CHECK(told_of(all_alike(1), 50, [](int, int window) { return 1.0 + window; }).empty());
}

TEST_CASE("stages of other work are not compared") {
  // Two stages of three ranks; the second has twice the work. One rank of the first is slow, and
  // still faster than the second.
  const auto told = told_of({{0, 1, 2}, {3, 4, 5}}, 50, [](int rank, int) {
    return rank >= 3 ? 2.0 : rank == 1 ? 1.5 : 1.0;
  });
  REQUIRE(told.size() == 1);
  CHECK(told[0].verdict.rank == 1);
  CHECK(told[0].verdict.factor == doctest::Approx(1.5));
}

TEST_CASE("ranks without peers are compared with what they were, against what all have become") {
  const Peers peers = {{0}, {1}, {2}};
  const auto work = [](int rank) { return 1.0 + rank; };
  CHECK(told_of(peers, 50, [&](int rank, int) { return work(rank); }).empty());
  // A machine that all share becomes slower: nobody's fault. And a fast beginning is no measure for
  // others: the slow one that gets better names nobody.
  CHECK(told_of(peers, 50, [&](int rank, int window) {
          return work(rank) * (window > 20 ? 1.5 : 1);
        }).empty());
  CHECK(told_of(peers, 50, [&](int rank, int window) {
          return work(rank) * (rank == 1 && window < 20 ? 2 : 1);
        }).empty());
  for (const size_t ranks : {size_t{2}, size_t{3}}) {
    const Peers some(peers.begin(), peers.begin() + static_cast<ptrdiff_t>(ranks));
    const auto told = told_of(some, 50, [&](int rank, int window) {
      return work(rank) * (rank == 1 && window >= 20 ? 1.5 : 1);
    });
    REQUIRE(told.size() == 1);
    CHECK(told[0].window == 23);
    CHECK(told[0].verdict.rank == 1);
    CHECK(told[0].verdict.factor == doctest::Approx(1.5));
    CHECK(told[0].verdict.phase == Phase::compute);
  }
}

TEST_CASE("peers are the ranks of a stage, and with experts those that have the same ones") {
  const auto of = [](int tp, int cp, int ep, int dp, int pp) {
    GridSizes sizes;
    sizes[Axis::tp] = tp;
    sizes[Axis::cp] = cp;
    sizes[Axis::ep] = ep;
    sizes[Axis::dp] = dp;
    sizes[Axis::pp] = pp;
    return Grid(sizes).groups(Grid::kSameWork);
  };
  CHECK(of(2, 1, 1, 2, 1) == Peers{{0, 1, 2, 3}});
  CHECK(of(1, 2, 1, 1, 2) == Peers{{0, 1}, {2, 3}});
  CHECK(of(1, 1, 2, 2, 1) == Peers{{0, 2}, {1, 3}});
  CHECK(of(1, 1, 1, 1, 3) == Peers{{0}, {1}, {2}});
}

TEST_CASE("the words say who, where, how much and what to do") {
  const StragglerVerdict verdict = {.rank = 3,
                                    .recovered = false,
                                    .factor = 1.52,
                                    .phase = Phase::data,
                                    .busy_s = 0.0912,
                                    .peers_s = 0.06,
                                    .job_speed = 0.671,
                                    .since = 18};
  const Diagnostic words = straggler_words(verdict, "rank 3 (m7, GPU 1)", false, false, 18);
  CHECK(words.code == "rank.straggler");
  CHECK(words.what ==
        "rank 3 (m7, GPU 1) is slow: 91.2 ms of a step where its peers need 60 ms (1.52 x), most "
        "of it in reading data; the others wait, and the job runs at about 0.67 of its speed");
  CHECK(has(words.help, "data.workers"));
  StragglerVerdict end = verdict;
  end.recovered = true;
  end.factor = 1.02;
  CHECK(straggler_words(end, "rank 3", false, false, 138).what ==
        "rank 3 keeps up again since step 138, after 120 steps: 1.02 x the time of its peers");
}

TEST_CASE("a moment belongs to the innermost phase, and what other threads do is no time") {
  const auto device = make_cpu_device(1);
  StepClock clock(*device);
  const auto pass = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
  const auto of = [](const PhaseTimes& times, Phase phase) {
    return times[static_cast<size_t>(phase)];
  };
  {
    const StepClock::Scope early(&clock, Phase::compute);
    pass(1);
  }
  CHECK(clock.take() == PhaseTimes());
  clock.start();
  {
    const StepClock::Scope computing(&clock, Phase::compute);
    pass(2);
    {
      const StepClock::Scope waiting(&clock, Phase::wait);
      pass(4);
      std::thread([&] {
        const StepClock::Scope beside(&clock, Phase::data);
        pass(4);
      }).join();
    }
    const StepClock::Scope nothing(nullptr, Phase::save);
    pass(2);
  }
  const PhaseTimes times = clock.take();
  CHECK(of(times, Phase::compute) >= 0.004);
  CHECK(of(times, Phase::wait) >= 0.008);
  CHECK(of(times, Phase::data) == 0);
  CHECK(of(times, Phase::save) == 0);
  CHECK(of(times, Phase::optimizer) == 0);
  // Each moment once.
  pass(1);
  { const StepClock::Scope saving(&clock, Phase::save); }
  const PhaseTimes later = clock.take();
  CHECK(of(later, Phase::other) >= 0.001);
  CHECK(of(later, Phase::compute) == 0);
  CHECK(of(later, Phase::wait) == 0);
}

namespace {

// Reads at the pace of a disk.
class SlowSamples final : public Samples {
 public:
  SlowSamples(const Samples& samples, std::chrono::milliseconds pause)
      : samples_(samples), pause_(pause) {}
  int64_t size() const override { return samples_.size(); }
  void fill(int64_t first, int64_t count, const SampleBatch& batch) const override {
    std::this_thread::sleep_for(pause_);
    samples_.fill(first, count, batch);
  }

 private:
  const Samples& samples_;
  const std::chrono::milliseconds pause_;
};

// The news of rank 0, of a run of so many steps in which rank `slow` (-1: nobody) reads for so long
// and the others for 5 ms.
std::vector<StragglerWatch::News> news_of_run(const Layout& layout, int slow, int64_t steps,
                                              std::chrono::milliseconds pause = {}) {
  const TrainSpec spec = spec_with({.hidden = 16,
                                    .heads = 2,
                                    .global_batch = 4,
                                    .micro_batch = 1,
                                    .seq_len = 8,
                                    .steps = steps});
  const auto tokens = markov_tokens(2000, 61);
  const Sampler sampler(tokens->size(), spec.train.seq_len, SampleOrder::random, 3);
  const TokenWindows windows(*tokens, sampler);
  std::vector<StragglerWatch::News> all;
  run_layout(spec, 61, layout, [&](RankContext& rank) {
    const SlowSamples samples(windows, rank.rank == slow ? pause : std::chrono::milliseconds(5));
    rank.trainer.initialise();
    // Windows of the fewest steps: reading takes most of the time, and sleeps are sleeps.
    StragglerWatch watch(3, rank.plan.grid, rank.world, rank.trainer.clock(), "CPU", 0);
    for (int64_t step = 0; step < steps; ++step) {
      const auto begin = std::chrono::steady_clock::now();
      rank.trainer.step(step, samples, {});
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      for (const auto& news : watch.step_done(step + 1, 4, took.count())) {
        CHECK(rank.rank == 0);
        all.push_back(news);
      }
    }
  });
  return all;
}

}  // namespace

TEST_CASE("of a run's ranks the slow one is named within 20 steps, with its phase, and no other") {
  struct Case {
    Layout layout;
    int slow;
  };
  for (const Case& one : {Case{{.dp = 4}, 2}, Case{{.dp = 2}, 0}, Case{{.tp = 2, .dp = 2}, 3}}) {
    CAPTURE(one.slow);
    CHECK(news_of_run(one.layout, -1, 20).empty());
    // On a machine that lets the others wait for their cores for as long, more of it.
    std::vector<StragglerWatch::News> news;
    for (int pause = 60; pause <= 960 && news.empty(); pause *= 4) {
      news = news_of_run(one.layout, one.slow, 20, std::chrono::milliseconds(pause));
    }
    REQUIRE(news.size() == 1);
    CHECK(news[0].report.rank == one.slow);
    CHECK(news[0].report.phase == "reading data");
    CHECK(news[0].report.factor > 3);
    CHECK(news[0].report.job_speed < 0.7);
    CHECK_FALSE(news[0].report.host.empty());
    CHECK(has(news[0].words.what, "CPU) is slow: "));
  }
}

}  // namespace stragglers_test
