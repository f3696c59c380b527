#include "runtime/plan/schedule/pipeline.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <rapidcheck.h>

#include <doctest/doctest.h>

using namespace mtl;

namespace {

// What the most expensive virtual stage costs, in layers, if `counts` are its layers.
double largest(const std::vector<int64_t>& counts, double head) {
  double cost = static_cast<double>(counts.back()) + head;
  for (const int64_t count : counts) cost = std::max(cost, static_cast<double>(count));
  return cost;
}

// The least that any way to give `left` layers to the stages from `stage` on can cost, with at
// least one layer for each.
double least_largest(std::vector<int64_t>& counts, size_t stage, int64_t left, double head) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  if (stage + 1 == counts.size()) {
    counts[stage] = left;
    return left > 0 ? largest(counts, head) : kNone;
  }
  double least = kNone;
  for (int64_t here = 1; here <= left; ++here) {
    counts[stage] = here;
    least = std::min(least, least_largest(counts, stage + 1, left - here, head));
  }
  return least;
}

}  // namespace

TEST_CASE("balanced stages: the most expensive is as cheap as it can be with the head counted") {
  for (const double head : {0.0, 0.4, 1.0, 5.4, 20.0}) {
    for (int stages = 1; stages <= 5; ++stages) {
      for (int64_t layers = stages; layers <= 13; ++layers) {
        CAPTURE(head);
        CAPTURE(stages);
        CAPTURE(layers);
        const std::vector<int64_t> counts = balanced_layers(layers, stages, head);
        CHECK(static_cast<int>(counts.size()) == stages);
        CHECK(std::accumulate(counts.begin(), counts.end(), int64_t{0}) == layers);
        CHECK(*std::min_element(counts.begin(), counts.end()) > 0);
        std::vector<int64_t> any(counts.size());
        CHECK(largest(counts, head) == least_largest(any, 0, layers, head));
        // What is left over lies behind: early stages keep more micro-batches.
        CHECK(std::is_sorted(counts.begin(), counts.end() - 1));
      }
    }
  }
  CHECK(balanced_layers(12, 2, 5.4) == std::vector<int64_t>{9, 3});
  CHECK(balanced_layers(80, 8, 1) == std::vector<int64_t>{10, 10, 10, 10, 10, 10, 10, 10});
  // Too few layers for all: none is negative.
  CHECK(balanced_layers(1, 4, 1) == std::vector<int64_t>{0, 0, 1, 0});
  // Layers that differ: dense ones at the beginning, or every second.
  CHECK(balanced_layers({1, 1, 1, 3, 3, 3, 3}, 3, 0) == std::vector<int64_t>{3, 2, 2});
  CHECK(balanced_layers({1, 1, 1, 3, 3, 3, 3}, 3, 3) == std::vector<int64_t>{4, 2, 1});
  CHECK(balanced_layers({3, 1, 3, 1, 3, 1}, 3, 0) == std::vector<int64_t>{2, 2, 2});
  CHECK(balanced_layers({1, 9}, 2, 100) == std::vector<int64_t>{1, 1});
  const std::vector<int64_t> fewer = balanced_layers({2, 3}, 4, 1);
  CHECK(std::accumulate(fewer.begin(), fewer.end(), int64_t{0}) == 2);
}

TEST_CASE("the chunks of all stages are the model in order") {
  const bool holds = rc::check([] {
    const int stages = *rc::gen::inRange(1, 6), chunks = *rc::gen::inRange(1, 5);
    const auto virtual_stages = static_cast<size_t>(stages * chunks);
    const auto layers =
        *rc::gen::container<std::vector<int64_t>>(virtual_stages, rc::gen::inRange<int64_t>(0, 5));
    const auto layout = pipeline_layout(layers, stages, chunks);
    int64_t next = 0;
    for (size_t v = 0; v < virtual_stages; ++v) {
      const auto stage = v % static_cast<size_t>(stages), chunk = v / static_cast<size_t>(stages);
      const ChunkRange& range = layout[stage][chunk];
      RC_ASSERT(range.first_layer == next);
      RC_ASSERT(range.layers == layers[v]);
      RC_ASSERT(range.embedding == (v == 0));
      RC_ASSERT(range.head == (v + 1 == virtual_stages));
      next = range.end_layer();
    }
  });
  CHECK(holds);
}
