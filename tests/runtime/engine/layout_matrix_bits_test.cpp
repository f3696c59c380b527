// The layout matrix (layout_matrix.h): what has the bits of one rank, and what has those of whole
// gradients and weights.
#include <vector>

#include <doctest/doctest.h>

#include "runtime/engine/layout_matrix.h"

using namespace mtl;
using namespace mtl::test;
using namespace mtl::test::layout_matrix;

namespace layout_matrix_bits_test {

TEST_CASE("layout matrix: pipelines and schedules and recompute and ZeRO-1 have the bits of none") {
  const std::vector<Variant> variants = {
      {"pp 2", {.pp = 2}},
      {"pp 4", {.pp = 4}, same, true},
      {"pp 8", {.pp = 8}},
      {"pp 2 virtual 2", {.pp = 2, .virtual_stages = 2}, same, true},
      {"pp 4 virtual 2", {.pp = 4, .virtual_stages = 2}, same, true},
      {"pp 2 virtual 4", {.pp = 2, .virtual_stages = 4}},
      {"pp 2 gpipe", {.pp = 2}, gpipe},
      {"pp 2 zb-h1", {.pp = 2}, zb_h1, true},
      {"pp 4 zb-h1", {.pp = 4}, zb_h1},
      {"pp 2 virtual 2 zb-h1", {.pp = 2, .virtual_stages = 2}, zb_h1},
      {"pp 4 virtual 2 zb-h1", {.pp = 4, .virtual_stages = 2}, zb_h1},
      {"pp 2 zb-h1 recompute of what costs no product",
       {.pp = 2},
       [](TrainSpec& s) {
         zb_h1(s);
         s.recompute.mode = "selective";
         s.recompute.modules = {"mlp_act", "norm"};
       },
       true},
      {"pp 2 zb-h1 recompute of some layers",
       {.pp = 2},
       [](TrainSpec& s) {
         zb_h1(s);
         some_layers(s);
       }},
      {"pp 2 uneven",
       {.pp = 2},
       [](TrainSpec& s) {
         s.parallel.stage_layout = {3, 5};
       }},
      {"pp 3 balanced", {.pp = 3}, [](TrainSpec& s) { s.parallel.stage_balance = "balanced"; }},
      {"recompute core_attn", {}, [](TrainSpec& s) { s.recompute.mode = "selective"; }},
      {"recompute modules",
       {},
       [](TrainSpec& s) {
         s.recompute.mode = "selective";
         s.recompute.modules = {"core_attn", "mlp_act", "norm"};
       }},
      {"recompute mlp",
       {},
       [](TrainSpec& s) {
         s.recompute.mode = "selective";
         s.recompute.modules = {"mlp"};
       }},
      {"recompute of some layers", {}, some_layers, true},
      {"recompute of one layer", {}, one_layer},
      {"recompute of some layers in pp 2", {.pp = 2}, some_layers},
      {"recompute of one layer of each chunk", {.pp = 2, .virtual_stages = 2}, one_layer},
      {"recompute of all layers by their number",
       {.pp = 4},
       [](TrainSpec& s) {
         some_layers(s);
         s.recompute.module_layers["mlp"] = 2;
       }},
      {"recompute full", {}, full, true},
      {"recompute uniform 3", {}, full_of_3},
      {"recompute block 2 in pp 2",
       {.pp = 2},
       [](TrainSpec& s) {
         s.recompute.mode = "full";
         s.recompute.method = "block";
         s.recompute.layers = 2;
       }},
      {"recompute full in pp 2 virtual 2", {.pp = 2, .virtual_stages = 2}, full},
  };
  for (const Model model : kModels) {
    CAPTURE(static_cast<int>(model));
    const TrainSpec spec = spec_of(model);
    const Trajectory single = train(spec, {}, kBitSteps);
    if (!kSanitized) CHECK(single.losses.back() < single.losses.front());
    check_variants(spec, single, variants, runs_all(model));
  }
}

TEST_CASE("layout matrix: gradients and weights in shards have the bits of whole ones") {
  for (const Model model : kModels) {
    CAPTURE(static_cast<int>(model));
    TrainSpec spec = spec_of(model);
    const auto check = [&](Layout layout) {
      const Trajectory base = train(spec, layout, kBitSteps);
      check_variants(spec, base, in_shards(layout), runs_all(model));
    };
    // A micro-batch per step; and positions that no token has, whose memory is the head's too.
    if (model == Model::gpt2_untied) spec.model.max_seq = 64;
    spec.train.micro_batch = 2;
    check({.dp = 4});
    if (!runs_all(model)) continue;
    check({.dp = 4, .zero_ranks = 2});
    spec.train.micro_batch = 4;
    check({.tp = 2, .dp = 2});
    spec.parallel.sp = "false";
    check({.tp = 2, .dp = 2});
  }
}

// What is smaller travels at once and not beside the computation.
TEST_CASE("layout matrix: windows of layers that are worth a thread") {
  for (const Model model : kMainModels) {
    CAPTURE(static_cast<int>(model));
    TrainSpec spec = spec_of(model);
    spec.model.layers = 5;
    spec.model.hidden = 128;
    spec.model.ffn = 256;
    spec.train.micro_batch = 4;
    const Trajectory base = train(spec, {.dp = 2}, kBitSteps);
    check_variants(spec, base, in_shards({.dp = 2}), false);
  }
}

TEST_CASE("layout matrix: shards to which several micro-batches add are near whole gradients") {
  for (const Model model : {Model::gpt2_tied, Model::llama_untied, Model::mixtral}) {
    CAPTURE(static_cast<int>(model));
    const TrainSpec whole = spec_of(model);
    TrainSpec spec = whole;
    zero2(spec);
    const Trajectory single = train(whole, {}, kSteps);
    const Trajectory base = train(spec, {.dp = 2}, kSteps);
    check_near(base, single, kFp32);
    // All ways to keep shards agree in every bit.
    check_variants(whole, base, in_shards({.dp = 2}), model == Model::llama_untied);
    // A copy adds up its own micro-batches before it meets the other.
    const Layout copies = {.dp = 4, .zero_ranks = 2};
    const Trajectory of_copies = train(spec, copies, kSteps);
    check_near(of_copies, single, kFp32);
    check_variants(whole, of_copies, in_shards(copies), false);
  }
}

}  // namespace layout_matrix_bits_test
