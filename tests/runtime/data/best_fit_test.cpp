// Whole documents in sequences: each once, none cut but the ones that are too long, and as few
// sequences as can be expected.
#include "runtime/data/best_fit.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include <doctest/doctest.h>

#include "support/errors.h"

namespace mtl {
namespace {

// Token k of document d is 1000 * d + k; of some documents the odd ones are not learned.
class Numbered : public Documents {
 public:
  explicit Numbered(std::vector<int64_t> lengths) : lengths_(std::move(lengths)) {}
  int64_t count() const override { return std::ssize(lengths_); }
  int64_t tokens() const override {
    return std::accumulate(lengths_.begin(), lengths_.end(), int64_t{0});
  }
  int64_t length(int64_t document) const override {
    return lengths_[static_cast<size_t>(document)];
  }
  void read(int64_t document, int64_t first, std::span<int32_t> out) const override {
    for (size_t i = 0; i < out.size(); ++i) {
      const auto k = static_cast<int32_t>(first) + static_cast<int32_t>(i);
      const auto id = static_cast<int32_t>(1000 * document) + k;
      out[i] = document % 3 == 0 && k % 2 == 1 ? not_learned(id) : id;
    }
  }

 private:
  std::vector<int64_t> lengths_;
};

std::shared_ptr<const BestFitOrder> shared(BestFitOrder order) {
  return std::make_shared<const BestFitOrder>(std::move(order));
}

struct Filled {
  std::vector<int32_t> inputs, targets, first_key, positions;
};

Filled sample_of(const Samples& samples, int64_t index, int64_t seq) {
  const auto n = static_cast<size_t>(seq);
  Filled sample{std::vector<int32_t>(n, -7), std::vector<int32_t>(n, -7),
                std::vector<int32_t>(n, -7), std::vector<int32_t>(n, -7)};
  samples.fill(index, 1, {sample.inputs, sample.targets, sample.first_key, sample.positions});
  return sample;
}

TEST_CASE("best fit: documents whole, each seen by itself, and what does not count is said") {
  // 5 inputs: 3 + 2, 4 + 1, and the document of one token is in none.
  const auto documents = std::make_shared<Numbered>(std::vector<int64_t>{4, 3, 5, 2, 1, 0});
  const BestFitOrder order = best_fit_order(*documents, 5);
  CHECK(order.documents == std::vector<int32_t>{2, 3, 0, 1});
  CHECK(order.begins == std::vector<int64_t>{0, 2, 4});
  CHECK(order.cut_documents == 0);
  const auto samples = best_fit_samples(documents, shared(order), 5, 99, std::nullopt);
  CHECK(samples->size() == 2);
  const Filled first = sample_of(*samples, 0, 5);
  CHECK(first.inputs == std::vector<int32_t>{2000, 2001, 2002, 2003, 3000});
  CHECK(first.targets == std::vector<int32_t>{2001, 2002, 2003, 2004, -1});
  CHECK(first.first_key == std::vector<int32_t>{0, 0, 0, 0, 4});
  CHECK(first.positions == std::vector<int32_t>{0, 1, 2, 3, 0});
  const Filled second = sample_of(*samples, 1, 5);
  CHECK(second.inputs == std::vector<int32_t>{0, 1, 2, 1000, 1001});
  CHECK(second.targets == std::vector<int32_t>{-1, 2, -1, 1001, 1002});
  CHECK(second.first_key == std::vector<int32_t>{0, 0, 0, 3, 3});
  // Without wishes for documents, and several at once.
  std::vector<int32_t> inputs(10), targets(10);
  samples->fill(0, 2, {inputs, targets});
  CHECK(std::equal(first.inputs.begin(), first.inputs.end(), inputs.begin()));
  CHECK(std::equal(second.targets.begin(), second.targets.end(), targets.begin() + 5));
  CHECK(test::error_of(
            [&] {
              samples->fill(1, 2, {inputs, targets});
            },
            "data.exhausted", Exit::data)
            .find("samples 1..2") != std::string::npos);
}

TEST_CASE("best fit: the rest of a sequence is padding that nothing is learned from") {
  const auto documents = std::make_shared<Numbered>(std::vector<int64_t>{0, 4});
  const auto samples =
      best_fit_samples(documents, shared(best_fit_order(*documents, 6)), 6, 99, std::nullopt);
  const Filled only = sample_of(*samples, 0, 6);
  CHECK(only.inputs == std::vector<int32_t>{1000, 1001, 1002, 99, 99, 99});
  CHECK(only.targets == std::vector<int32_t>{1001, 1002, 1003, -1, -1, -1});
  CHECK(only.first_key == std::vector<int32_t>{0, 0, 0, 3, 4, 5});
  CHECK(only.positions == std::vector<int32_t>{0, 1, 2, 0, 0, 0});
}

TEST_CASE("best fit: longer documents end with the sequence") {
  const auto documents = std::make_shared<Numbered>(std::vector<int64_t>{0, 9, 5, 6});
  const BestFitOrder order = best_fit_order(*documents, 4);
  CHECK(order.cut_documents == 2);
  CHECK(order.cut_tokens == 5);
  const auto samples = best_fit_samples(documents, shared(order), 4, 99, std::nullopt);
  REQUIRE(samples->size() == 3);
  CHECK(sample_of(*samples, 0, 4).targets == std::vector<int32_t>{1001, 1002, 1003, 1004});
}

TEST_CASE("best fit: each document once per epoch, in an order of the seed's, densely packed") {
  std::mt19937 random(7);
  std::vector<int64_t> lengths;
  for (int i = 0; i < 900; ++i) lengths.push_back(static_cast<int64_t>(random() % 70));
  const auto documents = std::make_shared<Numbered>(lengths);
  constexpr int64_t kSeq = 64;
  const BestFitOrder order = best_fit_order(*documents, kSeq);
  int64_t inputs = 0;
  for (const int64_t length : lengths) inputs += std::clamp<int64_t>(length - 1, 0, kSeq);
  // At most 11/9 of the fewest boxes by theory; of lengths like these 3 % more than fit at all.
  CHECK(100 * order.sequences() <= 103 * (inputs / kSeq));
  const auto samples = best_fit_samples(documents, shared(order), kSeq, 0, 5);
  CHECK(samples->size() == kEndless);
  std::vector<std::vector<int32_t>> firsts(2);
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::multiset<int32_t> seen;
    for (int64_t i = 0; i < order.sequences(); ++i) {
      const Filled sample = sample_of(*samples, epoch * order.sequences() + i, kSeq);
      firsts[static_cast<size_t>(epoch)].push_back(sample.inputs[0]);
      for (size_t k = 0; k < sample.inputs.size(); ++k) {
        if (sample.positions[k] == 0 && sample.inputs[k] != 0) seen.insert(sample.inputs[k] / 1000);
      }
    }
    std::multiset<int32_t> expected;
    for (size_t d = 1; d < lengths.size(); ++d) {
      if (lengths[d] >= 2) expected.insert(static_cast<int32_t>(d));
    }
    CHECK(seen == expected);
  }
  CHECK(firsts[0] != firsts[1]);
  const auto again =
      best_fit_samples(documents, shared(best_fit_order(*documents, kSeq)), kSeq, 0, 5);
  CHECK(sample_of(*again, 17, kSeq).inputs == sample_of(*samples, 17, kSeq).inputs);
}

TEST_CASE("best fit: nothing to foresee is an error") {
  const auto documents = std::make_shared<Numbered>(std::vector<int64_t>{1, 0, 1});
  CHECK(test::error_of([&] { best_fit_order(*documents, 4); }, "data.too_short", Exit::data)
            .find("no document has two tokens") != std::string::npos);
}

}  // namespace
}  // namespace mtl
