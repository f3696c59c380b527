// The layout matrix (layout_matrix.h) of mixtures with a block for all tokens, gates on it, and
// biases of experts.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/engine/layout_matrix.h"

using namespace mtl;
using namespace mtl::test;
using namespace mtl::test::layout_matrix;

namespace layout_matrix_mixtures_test {

namespace {

// Qwen2's mixture, and DeepSeek-V3's: balanced by biases, with dense layers, groups and a scale.
TrainSpec mixture_of(bool balanced) {
  TrainSpec spec = spec_of(Model::mixtral);
  TrainSpec::Model::Moe& moe = spec.model.moe;
  moe.shared_ffn = 48;
  if (balanced) {
    moe.aux_loss = 0;
    moe.score = "sigmoid";
    moe.expert_bias = true;
    moe.bias_rate = 0.01;
    moe.ffn = 48;
    moe.dense_layers = {0, 5};
    moe.scale = 2.5;
    moe.groups = 2;
    spec.model.qk_norm = true;
  } else {
    moe.normalize = false;
    moe.shared_gate = true;
    spec.model.qkv_bias = "true";
  }
  return spec;
}

// What the tokens' choices make of the biases is the same in every layout.
void check_biases(const Trajectory& split, const Trajectory& single) {
  int layers = 0, moved = 0;
  for (const auto& [name, biases] : single.weights) {
    if (!name.ends_with("e_score_correction_bias")) continue;
    CAPTURE(name);
    CHECK(split.weights.at(name) == biases);
    ++layers;
    moved += norm_of(biases) > 0;
  }
  CHECK(layers == 6);
  // Scores are nearly alike here, and biases go up and down in turns: 0 after every second step.
  if (kBitSteps % 2 == 1) CHECK(moved > 0);
}

}  // namespace

TEST_CASE("layout matrix: blocks for all tokens, gates and biases of experts do the same") {
  const auto with_modules = [](const std::vector<std::string>& modules) {
    return [modules](TrainSpec& s) {
      s.recompute.mode = "selective";
      s.recompute.modules = modules;
    };
  };
  const auto mlp = with_modules({"mlp"});
  const auto mlp_act = with_modules({"core_attn", "mlp_act", "norm"});
  const auto later_again = [&](TrainSpec& s) {
    with_modules({"mlp_act", "norm"})(s);
    zb_h1(s);
  };
  const std::vector<Row> rows = {
      {{},
       false,
       {{"pp 4 virtual 2", {.pp = 4, .virtual_stages = 2}},
        {"pp 2 gpipe", {.pp = 2}, gpipe},
        {"pp 2 zb-h1", {.pp = 2}, zb_h1},
        {"pp 2 zb-h1 recompute", {.pp = 2}, later_again},
        {"mlp recompute", {}, mlp},
        {"mlp activation recompute", {}, mlp_act},
        {"recompute of some layers", {}, some_layers},
        {"recompute of one layer in pp 2", {.pp = 2}, one_layer},
        {"full recompute in pp 2", {.pp = 2}, full},
        {"recompute of three layers", {}, full_of_3}}},
      {{.dp = 2},
       false,
       {{"zero 0", {.dp = 2}, zero0}, {"pp 2 small buckets", {.dp = 2, .pp = 2}, small_buckets}}},
      {{.dp = 4, .zero_ranks = 2}, false, {}},
      {{.tp = 2}, false, {{"pp 2", {.tp = 2, .pp = 2}}, {"mlp recompute", {.tp = 2}, mlp}}},
      {{.tp = 4},
       true,
       {{"full recompute", {.tp = 4}, full},
        {"pp 2 zb-h1", {.tp = 4, .pp = 2}, zb_h1},
        {"selective recompute", {.tp = 4}, selective}}},
      {{.cp = 2}, false, {{"mlp recompute", {.cp = 2}, mlp}}},
      {{.ep = 2},
       false,
       {{"zero 0", {.ep = 2}, zero0},
        {"pp 2", {.pp = 2, .ep = 2}},
        {"pp 2 zb-h1", {.pp = 2, .ep = 2}, zb_h1},
        {"mlp activation recompute", {.ep = 2}, mlp_act},
        {"recompute of some layers", {.ep = 2}, some_layers},
        {"full recompute", {.ep = 2}, full}}},
      {{.tp = 2, .dp = 2, .ep = 2}, true, {}},
  };
  for (const bool balanced : {false, true}) {
    CAPTURE(balanced);
    TrainSpec spec = mixture_of(balanced);
    // A gate, and weights as they are, are the block's own: what divides it does for them.
    const std::vector<Row> of_block =
        kSanitized ? std::vector{rows[6]} : std::vector{rows[0], rows[4], rows[6]};
    check_rows(spec, balanced ? rows : of_block, true, [](const Row&) { return kFp32; });
    // Tokens of a layer in turns.
    spec.parallel.ep_room = 1;
    check_rows(spec,
               {{{.ep = 4},
                 false,
                 {{"mlp recompute", {.ep = 4}, mlp}, {"pp 2 zb-h1", {.pp = 2, .ep = 4}, zb_h1}}}},
               true, [](const Row&) { return kFp32; });
    // Gradients and weights in shards, of one micro-batch.
    TrainSpec one = spec;
    one.train.micro_batch = 2;
    if (balanced || !kSanitized) {
      check_variants(one, train(one, {.dp = 4}, kBitSteps), in_shards({.dp = 4}), false);
      // Shards of experts that ranks divide, and of ones that a rank has alone.
      for (const Layout& layout : {Layout{.dp = 2, .ep = 2}, Layout{.ep = 4}}) {
        CAPTURE(layout.ep);
        check_variants(one, train(one, layout, kBitSteps), in_shards(layout), true);
      }
    }
    if (balanced && !kSanitized) {
      const Trajectory single = train(spec, {}, kBitSteps);
      for (const Layout& layout : {Layout{.dp = 2, .pp = 2}, Layout{.tp = 2, .cp = 2},
                                   Layout{.dp = 2, .ep = 2}, Layout{.tp = 2, .ep = 4}}) {
        check_biases(train(spec, layout, kBitSteps), single);
      }
      TrainSpec whole = spec;
      whole.train.micro_batch = 4;
      check_biases(train(whole, {.dp = 2}, kBitSteps), single);
      whole.recompute.mode = "full";
      whole.recompute.layers = 2;
      check_biases(train(whole, {.pp = 2}, kBitSteps), single);
    }
    for (const std::string dtype : {"bf16", "fp8"}) {
      CAPTURE(dtype);
      if (kSanitized && balanced != (dtype == "fp8")) continue;  // either mixture one of them
      TrainSpec half = mixture_of(balanced);
      half.precision.dtype = dtype;
      const std::vector<Variant> variants = {
          {"pp 2", {.pp = 2}},
          {"mlp recompute", {}, mlp},
          {"mlp activation recompute", {}, mlp_act},
          {"recompute of some layers", {}, some_layers},
          {"recompute of one layer in pp 2", {.pp = 2}, one_layer},
          {"full recompute in pp 2", {.pp = 2}, full}};
      check_variants(half, train(half, {}, kBitSteps), variants, true);
      check_variants(half, train(half, {.tp = 2}, kBitSteps),
                     {{"pp 2", {.tp = 2, .pp = 2}}, {"mlp recompute", {.tp = 2}, mlp}}, true);
    }
  }
}

}  // namespace layout_matrix_mixtures_test
