// The layout matrix (layout_matrix.h) of gpt-oss's blocks: sinks of attention, windows in every
// second layer, bounded gates, and biases of all linears, the experts' and the router's too.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/engine/layout_matrix.h"

using namespace mtl;
using namespace mtl::test;
using namespace mtl::test::layout_matrix;

namespace layout_matrix_sinks_test {

namespace {

void mlp_again(TrainSpec& s) {
  s.recompute.mode = "selective";
  s.recompute.modules = {"mlp", "norm", "core_attn"};
}

// Of what only this model has. Half precision rounds, and what is missing is 1 away.
void check_own_gradients(const Trajectory& half, const Trajectory& fp32) {
  int checked = 0;
  for (const auto& [name, gradient] : fp32.first_gradients) {
    const bool own = name.ends_with("sinks") ||
                     (name.find(".mlp.") != std::string::npos && name.ends_with(".bias"));
    if (!own) continue;
    CAPTURE(name);
    REQUIRE(norm_of(gradient) > 0);
    CHECK(relative_error(half.first_gradients.at(name), gradient) < 0.5);
    ++checked;
  }
  CHECK(checked == 8 * (1 + 1 + 4 * 3));
}

}  // namespace

TEST_CASE("layout matrix: sinks and biases of experts stay near one rank") {
  const std::vector<Row> rows = {
      {{},
       false,
       {{"pp 4 virtual 2", {.pp = 4, .virtual_stages = 2}},
        {"pp 2 zb-h1", {.pp = 2}, zb_h1},
        {"mlp recompute", {}, mlp_again},
        {"recompute of some layers", {}, some_layers},
        {"full recompute in pp 2", {.pp = 2}, full}}},
      {{.dp = 2}, false, {{"zero 0", {.dp = 2}, zero0}}},
      {{.tp = 2}, false, {{"mlp recompute", {.tp = 2}, mlp_again}}},
      {{.tp = 4}, true, {{"pp 2 zb-h1", {.tp = 4, .pp = 2}, zb_h1}}},
      {{.cp = 2}, false, {{"full recompute", {.cp = 2}, full}}},
      {{.tp = 2, .cp = 2}, true, {}},
      {{.ep = 2}, false, {{"pp 2 zb-h1", {.pp = 2, .ep = 2}, zb_h1}}},
      {{.tp = 2, .dp = 2, .ep = 2},
       true,
       {{"mlp recompute", {.tp = 2, .dp = 2, .ep = 2}, mlp_again}}},
  };
  const TrainSpec spec = spec_of(Model::sinks);
  const auto bounds = [](const Row&) { return kFp32; };
  check_rows(spec, rows, true, bounds);
  // Tokens of a layer in turns.
  TrainSpec turns = spec;
  turns.parallel.ep_room = 1;
  check_rows(turns, {{{.ep = 4}, false, {{"mlp recompute", {.ep = 4}, mlp_again}}}}, true, bounds);
}

TEST_CASE("layout matrix: sinks and biases of experts in shards, and in half precision") {
  TrainSpec one = spec_of(Model::sinks);
  one.train.micro_batch = 2;
  for (const Layout& layout : {Layout{.dp = 4}, Layout{.dp = 2, .ep = 2}}) {
    CAPTURE(layout.ep);
    check_variants(one, train(one, layout, kBitSteps), in_shards(layout), layout.ep > 1);
  }
  const Trajectory fp32 = train(spec_of(Model::sinks), {}, kBitSteps);
  for (const std::string dtype : {"bf16", "fp8"}) {
    CAPTURE(dtype);
    TrainSpec half = spec_of(Model::sinks);
    half.precision.dtype = dtype;
    const Trajectory single = train(half, {}, kBitSteps);
    if (!kSanitized) CHECK(single.losses.back() < single.losses.front());
    check_own_gradients(single, fp32);
    check_variants(half, single,
                   {{"pp 2", {.pp = 2}},
                    {"mlp recompute", {}, mlp_again},
                    {"full recompute in pp 2", {.pp = 2}, full}},
                   true);
  }
}

}  // namespace layout_matrix_sinks_test
