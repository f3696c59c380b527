// The layout matrix (layout_matrix.h) of a mixture of experts.
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/engine/layout_matrix.h"

using namespace mtl;
using namespace mtl::test;
using namespace mtl::test::layout_matrix;

namespace layout_matrix_experts_test {

TEST_CASE("layout matrix: a mixture of experts does the same") {
  const auto mlp = [](TrainSpec& s) {
    s.recompute.mode = "selective";
    s.recompute.modules = {"mlp"};
  };
  const auto mlp_act = [](TrainSpec& s) {
    s.recompute.mode = "selective";
    s.recompute.modules = {"core_attn", "mlp_act", "norm"};
  };
  const std::vector<Row> rows = {
      {{},
       false,
       {{"pp 2", {.pp = 2}},
        {"pp 2 virtual 2", {.pp = 2, .virtual_stages = 2}},
        {"pp 4 gpipe", {.pp = 4}, gpipe},
        {"mlp recompute", {}, mlp},
        {"mlp activation recompute", {}, mlp_act},
        {"full recompute in pp 2", {.pp = 2}, full}}},
      {{.dp = 2},
       false,
       {{"zero 0", {.dp = 2}, zero0}, {"pp 2 small buckets", {.dp = 2, .pp = 2}, small_buckets}}},
      {{.tp = 2}, false, {{"pp 2", {.tp = 2, .pp = 2}}, {"mlp recompute", {.tp = 2}, mlp}}},
      {{.tp = 2},
       true,
       {{"pp 2 virtual 2", {.tp = 2, .pp = 2, .virtual_stages = 2}},
        {"full recompute", {.tp = 2}, full},
        {"mlp recompute", {.tp = 2}, mlp}}},
      {{.tp = 4}, false, {{"pp 2", {.tp = 4, .pp = 2}, same, true}}, true},
      {{.tp = 4}, true, {{"selective recompute", {.tp = 4}, selective}}},
      {{.tp = 2, .dp = 2},
       true,
       {{"zero 0", {.tp = 2, .dp = 2}, zero0}, {"pp 2", {.tp = 2, .dp = 2, .pp = 2}}}},
      {{.cp = 2},
       false,
       {{"pp 2", {.pp = 2, .cp = 2}}, {"mlp recompute", {.cp = 2}, mlp, true}},
       true},
      {{.ep = 2},
       false,
       {{"zero 0", {.ep = 2}, zero0},
        {"small buckets", {.ep = 2}, small_buckets, true},
        {"pp 2 virtual 2", {.pp = 2, .virtual_stages = 2, .ep = 2}, same, true},
        {"mlp recompute", {.ep = 2}, mlp},
        {"mlp activation recompute", {.ep = 2}, mlp_act, true},
        {"full recompute in pp 2", {.pp = 2, .ep = 2}, full, true}},
       true},
      {{.ep = 4}, false, {{"pp 2", {.pp = 2, .ep = 4}}}},
      {{.dp = 2, .ep = 2}, false, {{"zero 0", {.dp = 2, .ep = 2}, zero0}}},
      // Of experts a copy has one rank, or two.
      {{.dp = 2, .ep = 2, .zero_ranks = 2},
       false,
       {{"small buckets", {.dp = 2, .ep = 2, .zero_ranks = 2}, small_buckets}},
       true},
      {{.dp = 4, .ep = 2, .zero_ranks = 4}, false, {}},
      {{.tp = 2, .ep = 2},
       true,
       {{"full recompute", {.tp = 2, .ep = 2}, full},
        {"mlp recompute", {.tp = 2, .ep = 2}, mlp, true}},
       true},
      {{.cp = 2, .ep = 2}, false, {{"zero 0", {.cp = 2, .ep = 2}, zero0}}},
  };
  TrainSpec spec = spec_of(Model::mixtral);
  // Memory for whatever the tokens choose.
  spec.parallel.ep_room = 1e6;
  check_rows(spec, rows, !kSanitized, [](const Row&) { return kFp32; });
  // Several sequences at a time, each with a balance of its own.
  TrainSpec several = spec;
  several.train.micro_batch = 4;
  check_rows(several, {{{.cp = 2}, false, {{"pp 2", {.pp = 2, .cp = 2}}}, true}}, true,
             [](const Row&) { return kFp32; });
  // For the even share alone: most micro-batches go through the experts in turns.
  TrainSpec narrow = spec;
  narrow.parallel.ep_room = 1;
  check_rows(narrow,
             {{{.ep = 2},
               false,
               {{"zero 0", {.ep = 2}, zero0},
                {"pp 2", {.pp = 2, .ep = 2}},
                {"mlp recompute", {.ep = 2}, mlp},
                {"mlp activation recompute", {.ep = 2}, mlp_act},
                {"full recompute", {.ep = 2}, full}}},
              {{.tp = 2, .ep = 4}, true, {{"full recompute", {.tp = 2, .ep = 4}, full}}}},
             true, [](const Row&) { return kFp32; });

  // In half precision tensor ranks may take another expert where two score nearly alike; what keeps
  // its bits keeps its way.
  for (const std::string dtype : {"bf16", "fp16"}) {
    if (kSanitized && dtype == "fp16") continue;
    CAPTURE(dtype);
    TrainSpec half = spec;
    half.precision.dtype = dtype;
    check_variants(half, train(half, {}, kBitSteps),
                   {{"pp 2", {.pp = 2}},
                    {"mlp recompute", {}, mlp},
                    {"full recompute in pp 2", {.pp = 2}, full}},
                   true);
    check_variants(half, train(half, {.tp = 2}, kBitSteps),
                   {{"pp 2", {.tp = 2, .pp = 2}}, {"mlp recompute", {.tp = 2}, mlp}}, true);
    check_variants(half, train(half, {.ep = 2}, kBitSteps),
                   {{"pp 2", {.pp = 2, .ep = 2}},
                    {"zero 0", {.ep = 2}, zero0},
                    {"mlp recompute", {.ep = 2}, mlp}},
                   true);
  }

  if (kSanitized) return;  // the rest is numbers of such runs
  for (const double turns : train(spec, {.ep = 2}, kBitSteps).turns) CHECK(turns == 1);
  const std::vector<double> some = train(narrow, {.ep = 2}, kBitSteps).turns;
  for (const double turns : some) {
    CHECK(turns > 1.5);
    CHECK(turns < 4);  // not as many as would be sure to fit
  }
  // Counted once, however often layers are forwarded again.
  TrainSpec again = narrow;
  again.recompute.mode = "full";
  again.recompute.layers = 2;
  CHECK(train(again, {.ep = 2}, kBitSteps).turns == some);
  for (const double turns : train(narrow, {.dp = 2}, kBitSteps).turns) CHECK(turns == 0);

  // What is minimised does not depend on how the batch is cut either.
  const Trajectory single = train(spec, {}, kBitSteps);
  TrainSpec whole = spec;
  whole.train.micro_batch = 4;
  for (const auto& [layout, changed] : {std::pair{Layout{.dp = 2}, spec},
                                        {Layout{.tp = 2, .pp = 2}, spec},
                                        {Layout{.dp = 2, .cp = 2}, spec},
                                        {Layout{.dp = 2, .ep = 2}, spec},
                                        {Layout{.cp = 2, .ep = 2}, narrow},
                                        {Layout{}, whole},
                                        {Layout{.dp = 2}, whole}}) {
    CAPTURE(layout.tp);
    CAPTURE(layout.dp);
    const Trajectory other = train(changed, layout, kBitSteps);
    check_near(other, single, kFp32);
    for (size_t step = 0; step < single.aux.size(); ++step) {
      CAPTURE(step);
      CHECK(single.aux[step] > 8 * 0.99);  // of eight layers
      CHECK(single.z[step] > 8);
      CHECK(other.aux[step] == doctest::Approx(single.aux[step]).epsilon(1e-4));
      CHECK(other.z[step] == doctest::Approx(single.z[step]).epsilon(1e-4));
    }
  }
}

}  // namespace layout_matrix_experts_test
