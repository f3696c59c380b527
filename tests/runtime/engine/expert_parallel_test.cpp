#include "runtime/model/expert_parallel.h"

#include <doctest/doctest.h>

using namespace mtl;

TEST_CASE("rows sorted by expert are a block for each rank in every round") {
  // Of two ranks with four experts: what their tokens have chosen. Rank 1 has experts 1 and 3.
  const std::vector<int32_t> counts = {5, 2, 0, 1, 3, 4, 1, 0};
  const RowCounts first(counts, 2, 0), second(counts, 2, 1);
  CHECK(first.own() == 8);
  CHECK(second.own() == 8);
  CHECK(first.arriving() == 5 + 0 + 3 + 1);
  CHECK(second.arriving() == 2 + 1 + 4 + 0);
  CHECK(first.most_arriving() == 9);
  CHECK(second.most_arriving() == 9);
  CHECK(first.of_expert(0) == 8);
  CHECK(first.of_expert(1) == 1);
  CHECK(second.of_expert(0) == 6);
  CHECK(second.of_expert(1) == 1);
  CHECK(first.sent(10) == std::vector<int64_t>{50, 20, 0, 10});
  CHECK(second.received(10) == std::vector<int64_t>{20, 40, 10, 0});
}

TEST_CASE("one rank has all experts") {
  const RowCounts alone({3, 0, 4}, 1, 0);
  CHECK(alone.own() == 7);
  CHECK(alone.arriving() == 7);
  CHECK(alone.of_expert(2) == 4);
}
