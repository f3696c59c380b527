// The layout matrix (layout_matrix.h) of a model whose layers differ in what their queries see and
// in how they rotate.
#include <doctest/doctest.h>

#include "runtime/engine/layout_matrix.h"

using namespace mtl;
using namespace mtl::test;
using namespace mtl::test::layout_matrix;

TEST_CASE("layout matrix: layers with and without windows and rotations, bit by bit") {
  for (const char* dtype : {"fp32", "bf16"}) {
    CAPTURE(dtype);
    TrainSpec spec = spec_of(Model::layers);
    spec.precision.dtype = dtype;
    const Trajectory single = train(spec, {}, kBitSteps);
    if (!kSanitized) CHECK(single.losses.back() < single.losses.front());
    check_variants(spec, single,
                   {{"pp 2", {.pp = 2}},
                    {"pp 4 virtual 2", {.pp = 4, .virtual_stages = 2}},
                    {"recompute modules", {}, selective},
                    {"recompute full of 3 in pp 2", {.pp = 2}, full_of_3}},
                   true);
  }
}

TEST_CASE("layout matrix: layers with and without windows and rotations stay near one rank") {
  const std::vector<Row> rows = {
      {{.tp = 2}, true, {{"pp 2", {.tp = 2, .pp = 2}}}},
      {{.cp = 2}, false, {{"full recompute", {.cp = 2}, full}}},
      {{.tp = 2, .cp = 2}, true, {{"pp 2 zb-h1", {.tp = 2, .pp = 2, .cp = 2}, zb_h1}}},
  };
  check_rows(spec_of(Model::layers), rows, true, [](const Row&) { return kFp32; });
}
