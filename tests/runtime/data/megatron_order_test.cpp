// Megatron-LM's sample order, number by number: what its own dataset code gave
// (tests/reference/megatron_order_reference.py).
#include "runtime/data/megatron_order.h"

#include <fstream>
#include <numeric>
#include <set>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "runtime/data/blend.h"
#include "runtime/data/numpy_random.h"

namespace mtl {
namespace {

const nlohmann::json& megatron_reference() {
  static const nlohmann::json made = [] {
    std::ifstream in(std::string(MTL_SOURCE_DIR) + "/tests/reference/megatron_order.json");
    return nlohmann::json::parse(in);
  }();
  return made;
}

// Documents [begin, end) of those of the script; token i of document d is d * 1000 + i.
class MadeDocuments : public Documents {
 public:
  MadeDocuments(int64_t count, int64_t most, int64_t begin, int64_t end) : begin_(begin) {
    uint64_t state = 12345;
    for (int64_t i = 0; i < count; ++i) {
      state = (state * 1103515245 + 12345) % (uint64_t{1} << 31);
      if (i < begin || i >= end) continue;
      lengths_.push_back(static_cast<int64_t>(state / 65536) % most);
      tokens_ += lengths_.back();
    }
  }
  int64_t count() const override { return static_cast<int64_t>(lengths_.size()); }
  int64_t tokens() const override { return tokens_; }
  int64_t length(int64_t d) const override { return lengths_[static_cast<size_t>(d)]; }
  void read(int64_t d, int64_t first, std::span<int32_t> out) const override {
    REQUIRE(first + static_cast<int64_t>(out.size()) <= length(d));
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<int32_t>((begin_ + d) * 1000 + first + static_cast<int64_t>(i));
    }
  }

 private:
  int64_t begin_;
  int64_t tokens_ = 0;
  std::vector<int64_t> lengths_;
};

struct OrderCase {
  std::shared_ptr<MadeDocuments> documents;
  MegatronOrderOptions options;
};
OrderCase case_of(const nlohmann::json& want) {
  OrderCase made;
  made.documents = std::make_shared<MadeDocuments>(
      want.at("count").get<int64_t>(), want.at("most").get<int64_t>(),
      want.at("begin").get<int64_t>(), want.at("end").get<int64_t>());
  made.options.seq_len = want.at("seq_len").get<int64_t>();
  made.options.seed = want.at("seed").get<uint64_t>();
  std::optional<int64_t> samples;
  if (!want.at("samples").is_null()) samples = want.at("samples").get<int64_t>();
  made.options.together = megatron_epochs(*made.documents, made.options.seq_len, samples);
  return made;
}

void check_equal(const MegatronOrder& order, const nlohmann::json& want) {
  const auto begin = want.at("begin").get<int32_t>();
  std::vector<int32_t> documents = order.documents;
  for (int32_t& document : documents) document += begin;
  CHECK(documents == want.at("documents").get<std::vector<int32_t>>());
  std::vector<int64_t> starts;
  for (const MegatronOrder::Start& start : order.starts) {
    starts.push_back(start.position);
    starts.push_back(start.token);
  }
  CHECK(starts == want.at("starts").get<std::vector<int64_t>>());
  CHECK(order.shuffle == want.at("shuffle").get<std::vector<uint32_t>>());
}

TEST_CASE("megatron order: documents, starts and shuffle are those of GPTDataset") {
  int separate = 0;
  for (const nlohmann::json& want : megatron_reference().at("orders")) {
    CAPTURE(want.at("count").get<int64_t>());
    CAPTURE(want.at("begin").get<int64_t>());
    const OrderCase made = case_of(want);
    const MegatronOrder order = megatron_order(*made.documents, made.options);
    check_equal(order, want);
    separate += made.options.together.separate_final_epoch;
  }
  CHECK(separate >= 1);
  CHECK(separate < static_cast<int>(megatron_reference().at("orders").size()));
}

TEST_CASE("megatron order: samples are seq_len + 1 tokens from their start on") {
  for (const nlohmann::json& want : megatron_reference().at("orders")) {
    const OrderCase made = case_of(want);
    const int64_t seq = made.options.seq_len;
    MegatronOrder order = megatron_order(*made.documents, made.options);
    // All epochs one behind the other.
    std::vector<int32_t> row;
    std::vector<size_t> begins;
    for (const int32_t document : order.documents) {
      begins.push_back(row.size());
      std::vector<int32_t> tokens(static_cast<size_t>(made.documents->length(document)));
      if (!tokens.empty()) made.documents->read(document, 0, tokens);
      row.insert(row.end(), tokens.begin(), tokens.end());
    }
    const std::vector<MegatronOrder::Start> starts = order.starts;
    const std::vector<uint32_t> shuffle = order.shuffle;
    const auto samples = packed_samples(made.documents, std::move(order), seq);
    REQUIRE(samples->size() == static_cast<int64_t>(shuffle.size()));
    std::vector<int32_t> inputs(static_cast<size_t>(3 * seq)), targets(inputs.size());
    int64_t wrong = 0;
    for (int64_t first = 0; first + 3 <= samples->size(); first += 2) {
      samples->fill(first, 3, {inputs, targets});
      for (int64_t i = 0; i < 3 * seq; ++i) {
        const MegatronOrder::Start start = starts[shuffle[static_cast<size_t>(first + i / seq)]];
        const size_t at = begins[static_cast<size_t>(start.position)] +
                          static_cast<size_t>(start.token + i % seq);
        wrong += inputs[static_cast<size_t>(i)] != row[at];
        wrong += targets[static_cast<size_t>(i)] != row[at + 1];
      }
    }
    CHECK(wrong == 0);
    CHECK_THROWS_WITH_AS(samples->fill(samples->size() - 1, 2, {inputs, targets}),
                         doctest::Contains("data.exhausted"), Error);
  }
}

TEST_CASE("megatron order: splits are rounded as Megatron rounds them") {
  for (const nlohmann::json& want : megatron_reference().at("splits")) {
    CAPTURE(want.dump());
    const auto parts = megatron_split(want.at("weights").get<std::vector<double>>(),
                                      want.at("count").get<int64_t>());
    REQUIRE(parts.size() == 3);
    for (size_t i = 0; i < 3; ++i) {
      const auto bounds = want.at("bounds")[i].get<std::vector<int64_t>>();
      CHECK(parts[i].second - parts[i].first == bounds[1] - bounds[0]);
      if (bounds[1] > bounds[0]) CHECK(parts[i].first == bounds[0]);
    }
  }
}

TEST_CASE("blend: the greedy indices and sizes are Megatron's") {
  for (const nlohmann::json& want : megatron_reference().at("blends")) {
    CAPTURE(want.at("weights").dump());
    const std::vector<double> once = normalized(want.at("weights").get<std::vector<double>>());
    CHECK(blend_sizes(once, want.at("size").get<int64_t>()) ==
          want.at("sizes").get<std::vector<int64_t>>());
    const std::vector<int64_t> limits(once.size(), kEndless);
    const BlendIndex index(normalized(once), want.at("total").get<int64_t>(), limits);
    std::vector<int> sources;
    std::vector<int64_t> samples;
    for (int64_t k = 0; k < index.size(); ++k) {
      sources.push_back(index.at(k).source);
      samples.push_back(index.at(k).sample);
    }
    CHECK(sources == want.at("sources").get<std::vector<int>>());
    CHECK(samples == want.at("samples").get<std::vector<int64_t>>());
  }
}

TEST_CASE("blend: a source gives no more than it has and the others go on") {
  const std::vector<double> weights = {0.5, 0.5};
  const std::vector<int64_t> limits = {3, 100};
  const BlendIndex index(weights, 50, limits);
  REQUIRE(index.size() == 50);
  std::set<std::pair<int, int64_t>> seen;
  for (int64_t k = 0; k < 50; ++k) {
    const BlendIndex::Place place = index.at(k);
    CHECK(place.sample < limits[static_cast<size_t>(place.source)]);
    seen.insert({place.source, place.sample});
  }
  CHECK(seen.size() == 50);
  CHECK(BlendIndex(weights, 1000, limits).size() == 103);
}

TEST_CASE("numpy: RandomState shuffles of many sizes") {
  for (const nlohmann::json& want : megatron_reference().at("shuffles")) {
    Mt19937 random(want[1].get<uint64_t>());
    std::vector<int64_t> values(want[0].get<size_t>());
    std::iota(values.begin(), values.end(), 0);
    numpy_shuffle(random, values.data(), static_cast<int64_t>(values.size()));
    uint64_t digest = 0;
    for (const int64_t value : values) digest = digest * 31 + static_cast<uint64_t>(value);
    CAPTURE(want.dump());
    CHECK(std::to_string(digest) == want[2].get<std::string>());
  }
  Mt19937 wide((uint64_t{1} << 32) + 5);
  std::vector<int64_t> values(1000);
  std::iota(values.begin(), values.end(), 0);
  numpy_shuffle(wide, values.data(), 1000);
  CHECK(values == megatron_reference().at("wide_seed").get<std::vector<int64_t>>());
}

TEST_CASE("numpy: an interval beyond 32 bits takes two words") {
  Mt19937 random(7), words(7);
  for (int i = 0; i < 100; ++i) {
    const uint64_t max = (uint64_t{1} << 40) - 1;  // a whole mask: nothing is drawn again
    CHECK(numpy_interval(random, max) == (words.next64() & max));
  }
}

TEST_CASE("torch: randperm of the CPU generator") {
  REQUIRE(!megatron_reference().at("randperm").empty());
  for (const nlohmann::json& want : megatron_reference().at("randperm")) {
    const auto order = want.at("order").get<std::vector<uint32_t>>();
    CHECK(torch_randperm(static_cast<uint32_t>(order.size()), want.at("seed").get<uint64_t>()) ==
          order);
  }
}

}  // namespace
}  // namespace mtl
