// The layout matrix (layout_matrix.h) of models whose blocks have norms behind them, and of norms
// of all of a token's heads, which ranks divide.
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/engine/layout_matrix.h"

using namespace mtl;
using namespace mtl::test;
using namespace mtl::test::layout_matrix;

namespace layout_matrix_norms_test {

namespace {

// Norms behind dense blocks and mixtures, with what all tokens go through.
TrainSpec mixture() {
  TrainSpec spec = spec_of(Model::mixtral);
  spec.model.norm.place = "output";
  spec.model.qk_norm = spec.model.qk_norm_whole = true;
  spec.model.moe.shared_ffn = 48;
  spec.model.moe.dense_layers = {0, 5};
  return spec;
}

}  // namespace

TEST_CASE("layout matrix: norms behind blocks, pipelines and recompute have the bits of none") {
  for (const Model model : {Model::olmo, Model::sandwich}) {
    CAPTURE(model == Model::olmo);
    for (const char* dtype : {"fp32", "fp8"}) {
      CAPTURE(dtype);
      TrainSpec spec = spec_of(model);
      spec.precision.dtype = dtype;
      const Trajectory single = train(spec, {}, kBitSteps);
      if (!kSanitized) CHECK(single.losses.back() < single.losses.front());
      check_variants(spec, single,
                     {{"pp 4 virtual 2", {.pp = 4, .virtual_stages = 2}},
                      {"pp 4 zb-h1", {.pp = 4}, zb_h1},
                      {"recompute modules", {}, selective},
                      {"recompute of some layers", {}, some_layers},
                      {"recompute full", {}, full},
                      {"recompute full of 3 in pp 2", {.pp = 2}, full_of_3}},
                     true);
    }
  }
  TrainSpec in_one = spec_of(Model::olmo);
  in_one.train.micro_batch = 4;
  for (const char* sp : {"true", "false"}) {
    in_one.parallel.sp = sp;
    const Layout layout = {.tp = 2, .dp = 2};
    check_variants(in_one, train(in_one, layout, kBitSteps), in_shards(layout), true);
  }
}

TEST_CASE("layout matrix: norms behind blocks, and of heads that are divided, stay near one rank") {
  const std::vector<Row> rows = {
      {{.tp = 2},
       false,
       {{"pp 2", {.tp = 2, .pp = 2}},
        {"recompute modules", {.tp = 2}, selective},
        {"full recompute of 3", {.tp = 2}, full_of_3},
        {"distributed recompute", {.tp = 2}, distributed}}},
      {{.tp = 2},
       true,
       {{"pp 2 virtual 2", {.tp = 2, .pp = 2, .virtual_stages = 2}},
        {"pp 2 zb-h1", {.tp = 2, .pp = 2}, zb_h1},
        {"recompute modules", {.tp = 2}, selective},
        {"full recompute of 3", {.tp = 2}, full_of_3}}},
      {{.tp = 4}, false, {}},
      {{.tp = 4}, true, {}},
      {{.cp = 2}, false, {{"full recompute", {.cp = 2}, full}}},
      {{.cp = 4}, false, {}},
      {{.tp = 2, .cp = 2}, true, {}},
      {{.tp = 2, .dp = 2}, false, {{"zero 0", {.tp = 2, .dp = 2}, zero0}}},
  };
  for (const Model model : {Model::olmo, Model::sandwich}) {
    CAPTURE(model == Model::olmo);
    check_rows(spec_of(model), rows, true, [](const Row&) { return kFp32; });
  }
}

TEST_CASE("layout matrix: norms behind mixtures of experts") {
  const std::vector<Row> rows = {
      {{},
       false,
       {{"pp 2", {.pp = 2}},
        {"pp 2 zb-h1", {.pp = 2}, zb_h1},
        {"recompute modules", {}, selective},
        {"full recompute of 3", {}, full_of_3}}},
      {{.tp = 2}, true, {{"full recompute", {.tp = 2}, full}}},
      {{.tp = 4}, false, {}},
      {{.ep = 2},
       false,
       {{"recompute modules", {.ep = 2}, selective}, {"full recompute", {.ep = 2}, full}}}};
  TrainSpec spec = mixture();
  check_rows(spec, rows, true, [](const Row&) { return kFp32; });
  spec.parallel.ep_room = 1;  // tokens of a layer in turns
  check_rows(spec, {{{.ep = 4}, false, {{"full recompute", {.ep = 4}, full}}}}, true,
             [](const Row&) { return kFp32; });
}

}  // namespace layout_matrix_norms_test
