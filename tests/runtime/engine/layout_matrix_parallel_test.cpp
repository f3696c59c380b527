// The layout matrix (layout_matrix.h) of layers whose blocks stand side by side, each behind its
// norm or both behind one.
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/engine/layout_matrix.h"

using namespace mtl;
using namespace mtl::test;
using namespace mtl::test::layout_matrix;

namespace layout_matrix_parallel_test {

namespace {

void selected(TrainSpec& s, std::vector<std::string> modules) {
  s.recompute.mode = "selective";
  s.recompute.modules = std::move(modules);
}
void all_modules(TrainSpec& s) {
  selected(s, {"core_attn", "mlp_act", "norm"});
}
void mlp(TrainSpec& s) {
  selected(s, {"mlp"});
}

}  // namespace

namespace {

void check_pipelines_and_recompute(const TrainSpec& spec) {
  const Trajectory single = train(spec, {}, kBitSteps);
  if (!kSanitized) CHECK(single.losses.back() < single.losses.front());
  check_variants(spec, single,
                 {{"pp 4 virtual 2", {.pp = 4, .virtual_stages = 2}},
                  {"pp 4 zb-h1", {.pp = 4}, zb_h1},
                  {"recompute modules", {}, all_modules},
                  {"recompute mlp", {}, mlp},
                  {"recompute of some layers", {}, some_layers},
                  {"recompute of one layer in pp 2", {.pp = 2}, one_layer},
                  {"recompute full", {}, full},
                  {"recompute full of 3 in pp 2", {.pp = 2}, full_of_3}},
                 true);
  // A micro-batch per step.
  TrainSpec in_one = spec;
  in_one.train.micro_batch = 4;
  for (const Layout layout : {Layout{.dp = 2}, Layout{.tp = 2, .dp = 2}}) {
    for (const char* sp : {"true", "false"}) {
      if (layout.tp == 1 && sp == std::string("true")) continue;
      in_one.parallel.sp = sp;
      check_variants(in_one, train(in_one, layout, kBitSteps), in_shards(layout), true);
    }
  }
}

void check_divided(const TrainSpec& spec) {
  const std::vector<Row> rows = {
      {{.tp = 2},
       false,
       {{"pp 2", {.tp = 2, .pp = 2}},
        {"pp 2 zb-h1", {.tp = 2, .pp = 2}, zb_h1},
        {"recompute modules", {.tp = 2}, all_modules},
        {"recompute mlp", {.tp = 2}, mlp},
        {"full recompute of 3", {.tp = 2}, full_of_3},
        {"distributed recompute", {.tp = 2}, distributed}}},
      {{.tp = 2},
       true,
       {{"pp 2 virtual 2", {.tp = 2, .pp = 2, .virtual_stages = 2}},
        {"pp 2 zb-h1", {.tp = 2, .pp = 2}, zb_h1},
        {"recompute modules", {.tp = 2}, all_modules},
        {"recompute mlp", {.tp = 2}, mlp},
        {"full recompute of 3", {.tp = 2}, full_of_3}}},
      {{.tp = 4}, false, {}},
      {{.cp = 2},
       false,
       {{"full recompute", {.cp = 2}, full}, {"selective recompute", {.cp = 2}, selective}}},
      {{.tp = 2, .cp = 2}, true, {}},
      {{.tp = 2, .dp = 2}, false, {{"zero 0", {.tp = 2, .dp = 2}, zero0}}},
  };
  check_rows(spec, rows, true, [](const Row&) { return kFp32; });
}

}  // namespace

TEST_CASE("layout matrix: blocks side by side, pipelines and recompute have the bits of none") {
  check_pipelines_and_recompute(spec_of(Model::neox));
}

TEST_CASE("layout matrix: blocks side by side, divided, stay near one rank") {
  check_divided(spec_of(Model::neox));
}

TEST_CASE("layout matrix: blocks behind one norm, pipelines and recompute have the bits of none") {
  check_pipelines_and_recompute(spec_of(Model::command));
  // In FP8 both blocks have copies of what the norm has made; or attention alone, where the width
  // of the other is none of FP8's.
  for (const auto& [dtype, ffn] :
       {std::pair("bf16", 80), std::pair("fp8", 80), std::pair("fp8", 84)}) {
    TrainSpec half = spec_of(Model::command);
    half.precision.dtype = dtype;
    half.model.ffn = ffn;
    half.model.dropout.hidden = 0;
    const Trajectory single = train(half, {}, kBitSteps);
    check_variants(half, single,
                   {{"pp 2 zb-h1", {.pp = 2}, zb_h1},
                    {"recompute modules", {}, all_modules},
                    {"recompute mlp", {}, mlp},
                    {"recompute full", {}, full}},
                   true);
  }
}

TEST_CASE("layout matrix: blocks behind one norm, divided, stay near one rank") {
  check_divided(spec_of(Model::command));
}

}  // namespace layout_matrix_parallel_test
