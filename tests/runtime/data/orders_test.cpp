// Orders of samples: each covers what it says, is a function of the seed and the sample's number
// alone, and tells documents apart as Megatron does.
#include "runtime/data/orders.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "runtime/data/blend.h"
#include "runtime/data/documents.h"
#include "runtime/data/inputs.h"
#include "runtime/data/prefetch.h"
#include "support/no_threads.h"

namespace mtl {
namespace {

using test::inputs_of;

class Row : public TokenSource {
 public:
  explicit Row(std::vector<int32_t> tokens) : tokens_(std::move(tokens)) {}
  int64_t size() const override { return static_cast<int64_t>(tokens_.size()); }
  void read(int64_t first, std::span<int32_t> out) const override {
    REQUIRE(first >= 0);
    REQUIRE(first + static_cast<int64_t>(out.size()) <= size());
    std::copy_n(tokens_.begin() + first, out.size(), out.begin());
  }
  uint64_t fingerprint() const override { return 0; }

 private:
  std::vector<int32_t> tokens_;
};
// Token i is i.
std::shared_ptr<const TokenSource> counting(int64_t size) {
  std::vector<int32_t> tokens(static_cast<size_t>(size));
  std::iota(tokens.begin(), tokens.end(), 0);
  return std::make_shared<Row>(std::move(tokens));
}

TEST_CASE("feistel: a permutation of any count that seed and epoch decide") {
  for (const int64_t count : {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4097}) {
    CAPTURE(count);
    std::set<std::vector<int64_t>> orders;
    for (const auto& [seed, epoch] : {std::pair{1, 0}, {1, 1}, {2, 0}}) {
      const FeistelPermutation order(count, static_cast<uint64_t>(seed), epoch);
      std::vector<int64_t> all;
      for (int64_t i = 0; i < count; ++i) all.push_back(order(i));
      orders.insert(all);
      std::sort(all.begin(), all.end());
      for (int64_t i = 0; i < count; ++i) REQUIRE(all[static_cast<size_t>(i)] == i);
    }
    if (count >= 16) CHECK(orders.size() == 3);
  }
}

TEST_CASE("feistel: neighbours go anywhere") {
  // Of 64 cells of (place / 8, value / 8), each gets a 64th: chi squared with 49 degrees of freedom
  // is below 85 in 999 of 1000 cases.
  constexpr int64_t kCount = 1 << 14;
  const FeistelPermutation order(kCount, 7, 3);
  std::vector<double> cells(64, 0);
  for (int64_t i = 0; i < kCount; ++i) {
    cells[static_cast<size_t>(i * 8 / kCount * 8 + order(i) * 8 / kCount)] += 1;
  }
  double chi = 0;
  for (const double cell : cells)
    chi += (cell - kCount / 64.0) * (cell - kCount / 64.0) / (kCount / 64.0);
  CHECK(chi < 85);
  int64_t steps = 0;
  for (int64_t i = 1; i < kCount; ++i) steps += order(i) == order(i - 1) + 1;
  CHECK(steps < 10);
}

TEST_CASE("feistel: samples are all windows once per epoch") {
  const auto samples = feistel_samples(counting(1005), 10, 3);
  for (const int64_t epoch : {0, 1, 5}) {
    const std::vector<int32_t> inputs = inputs_of(*samples, epoch * 100, 100, 10);
    std::set<int32_t> starts;
    for (size_t i = 0; i < inputs.size(); i += 10) {
      starts.insert(inputs[i]);
      CHECK(inputs[i + 9] == inputs[i] + 9);
    }
    CHECK(starts.size() == 100);
    CHECK(*starts.rbegin() == 990);
  }
}

TEST_CASE("cyclic: every round has all samples in another order") {
  const auto samples =
      cyclic_samples(window_samples(counting(301), 10, SampleOrder::sequential, 0, false));
  std::set<std::vector<int32_t>> orders;
  for (const int64_t round : {0, 1, 2, 1, 0}) {
    std::vector<int32_t> inputs = inputs_of(*samples, round * 30, 30, 10);
    orders.insert(inputs);
    std::sort(inputs.begin(), inputs.end());
    for (int32_t i = 0; i < 300; ++i) REQUIRE(inputs[static_cast<size_t>(i)] == i);
  }
  CHECK(orders.size() == 3);
  // Across the border of rounds, one at a time and together.
  std::vector<int32_t> one_by_one;
  for (int64_t i = 25; i < 35; ++i) {
    const std::vector<int32_t> one = inputs_of(*samples, i, 1, 10);
    one_by_one.insert(one_by_one.end(), one.begin(), one.end());
  }
  CHECK(inputs_of(*samples, 25, 10, 10) == one_by_one);
}

TEST_CASE("documents: positions, first keys and targets as Megatron makes them") {
  // Tokens 9 end documents; the first begins with one, and two lie side by side.
  const auto row = std::make_shared<Row>(
      std::vector<int32_t>{1, 9, 2, 3, 9, 9, 4, 5, 9, 6, 7, 8, 1, 2, 3, 9, 1});
  std::vector<int32_t> inputs(16), targets(16), first_key(16), positions(16);
  const auto samples = with_documents(window_samples(row, 8, SampleOrder::sequential, 0, false),
                                      {.eod = 9, .mask_loss = true});
  REQUIRE(samples->size() == 2);
  samples->fill(0, 2, {inputs, targets, first_key, positions});
  CHECK(first_key == std::vector<int32_t>{0, 0, 2, 2, 2, 5, 6, 6, 0, 1, 1, 1, 1, 1, 1, 1});
  CHECK(positions == std::vector<int32_t>{0, 1, 0, 1, 2, 0, 0, 1, 0, 0, 1, 2, 3, 4, 5, 6});
  CHECK(targets == std::vector<int32_t>{9, -1, 3, 9, -1, -1, 5, 9, -1, 7, 8, 1, 2, 3, 9, -1});
  // Nothing of it where nobody asks for it.
  const auto plain =
      with_documents(window_samples(row, 8, SampleOrder::sequential, 0, false), {.eod = 9});
  plain->fill(0, 2, {inputs, targets});
  CHECK(std::count(targets.begin(), targets.end(), -1) == 0);
}

TEST_CASE("a blend fills batches from its sources") {
  std::vector<std::unique_ptr<Samples>> sources;
  for (const int32_t begin : {0, 100'000}) {
    std::vector<int32_t> tokens(5001);
    std::iota(tokens.begin(), tokens.end(), begin);
    sources.push_back(
        window_samples(std::make_shared<Row>(tokens), 5, SampleOrder::sequential, 0, true));
  }
  const std::vector<double> weights = {0.75, 0.25};
  const std::vector<int64_t> limits = {kEndless, kEndless};
  const auto samples = blended_samples(std::move(sources), BlendIndex(weights, 400, limits));
  const std::vector<int32_t> inputs = inputs_of(*samples, 0, 400, 5);
  int32_t first = 0, second = 100'000;
  for (size_t i = 0; i < inputs.size(); i += 5) {
    int32_t& next = inputs[i] < 100'000 ? first : second;
    REQUIRE(inputs[i] == next);
    next += 5;
  }
  CHECK(first / 5 == 300);
  CHECK(inputs_of(*samples, 37, 11, 5) ==
        std::vector<int32_t>(inputs.begin() + 37 * 5, inputs.begin() + 48 * 5));
}

TEST_CASE("a row of documents reads across them") {
  class Lengths : public Documents {
   public:
    int64_t count() const override { return 2000; }
    int64_t tokens() const override { return 2000 / 5 * 10; }
    int64_t length(int64_t d) const override { return d % 5; }
    void read(int64_t d, int64_t first, std::span<int32_t> out) const override {
      REQUIRE(first + static_cast<int64_t>(out.size()) <= length(d));
      const int64_t before = d / 5 * 10 + (d % 5) * (d % 5 - 1) / 2;
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<int32_t>(before + first + static_cast<int64_t>(i));
      }
    }
  };
  const auto row = document_row(std::make_shared<Lengths>());
  REQUIRE(row->size() == 4000);
  for (int64_t first = 0; first < 4000; first += 7) {
    std::vector<int32_t> out(static_cast<size_t>(std::min<int64_t>(61, 4000 - first)));
    row->read(first, out);
    for (size_t i = 0; i < out.size(); ++i) REQUIRE(out[i] == first + static_cast<int64_t>(i));
  }
}

// Counts its reads, and fails for one sample.
class Watched : public Samples {
 public:
  explicit Watched(int64_t bad = -1) : bad_(bad) {}
  int64_t size() const override { return kEndless; }
  void fill(int64_t first, int64_t count, const SampleBatch& batch) const override {
    ++reads;
    if (first <= bad_ && bad_ < first + count) {
      throw Error(Exit::data, {.code = "data.unreadable", .what = fmt::format("sample {}", bad_)});
    }
    std::fill(batch.inputs.begin(), batch.inputs.end(), static_cast<int32_t>(first));
    std::fill(batch.targets.begin(), batch.targets.end(), static_cast<int32_t>(count));
    std::fill(batch.first_key.begin(), batch.first_key.end(), 1);
    std::fill(batch.positions.begin(), batch.positions.end(), 2);
  }
  mutable std::atomic<int> reads = 0;

 private:
  int64_t bad_;
};

TEST_CASE("prefetch: gives what the samples give and reads announced ranges once") {
  for (const int workers : {0, 1, 3}) {
    CAPTURE(workers);
    const Watched source;
    Prefetch prefetch(source, 4, workers, true);
    const auto ranges = [](int64_t step) {
      return std::vector<SampleRange>{{step * 10, 2}, {step * 10 + 5, 2}};
    };
    prefetch.announce(ranges(0));
    for (int64_t step = 0; step < 50; ++step) {
      prefetch.announce(ranges(step + 1));
      for (const SampleRange& range : ranges(step)) {
        for (int twice = 0; twice < 2; ++twice) {
          std::vector<int32_t> inputs(8), targets(8), first_key(8), positions(8);
          prefetch.fill(range.first, range.count, {inputs, targets, first_key, positions});
          CHECK(inputs == std::vector<int32_t>(8, static_cast<int32_t>(range.first)));
          CHECK(targets == std::vector<int32_t>(8, 2));
          CHECK(first_key == std::vector<int32_t>(8, 1));
          CHECK(positions == std::vector<int32_t>(8, 2));
        }
      }
    }
    if (workers == 0) {
      CHECK(source.reads == 200);
    } else {
      CHECK(source.reads <= 102);
    }
    std::vector<int32_t> inputs(4), targets(4);
    prefetch.fill(12345, 1, {inputs, targets});  // never announced
    CHECK(inputs[0] == 12345);
  }
}

TEST_CASE("prefetch: an error comes out where its range is asked for and nowhere else") {
  const Watched source(21);
  Prefetch prefetch(source, 1, 1, false);
  std::vector<int32_t> inputs(1), targets(1);
  prefetch.announce({{0, 1}});
  prefetch.announce({{21, 1}, {22, 1}});
  prefetch.fill(0, 1, {inputs, targets});
  prefetch.fill(22, 1, {inputs, targets});
  CHECK(inputs[0] == 22);
  CHECK_THROWS_WITH_AS(prefetch.fill(21, 1, {inputs, targets}), doctest::Contains("sample 21"),
                       Error);
  CHECK_THROWS_AS(prefetch.fill(21, 1, {inputs, targets}), Error);
}

TEST_CASE("prefetch: where no thread can be started everything is read when it is asked for") {
  const test::NoThreads poor;
  const Watched source;
  Prefetch prefetch(source, 1, 2, false);
  prefetch.announce({{7, 1}});
  std::vector<int32_t> inputs(1), targets(1);
  prefetch.fill(7, 1, {inputs, targets});
  CHECK(inputs[0] == 7);
}

TEST_CASE("prefetch: stops while much is announced") {
  for (int round = 0; round < 20; ++round) {
    const Watched source;
    Prefetch prefetch(source, 1000, 2, false);
    std::vector<SampleRange> many;
    for (int64_t i = 0; i < 100; ++i) many.push_back({i, 1});
    prefetch.announce(many);
  }
}

}  // namespace
}  // namespace mtl
