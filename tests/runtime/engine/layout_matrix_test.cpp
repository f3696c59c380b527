// The layout matrix (layout_matrix.h): what only changes the order of sums stays near one rank, and
// what is arithmetically the same has the same bits in combination with it.
#include "runtime/engine/layout_matrix.h"

#include <vector>

#include <doctest/doctest.h>

using namespace mtl;
using namespace mtl::test;
using namespace mtl::test::layout_matrix;

namespace layout_matrix_test {

TEST_CASE("layout matrix: TP and SP and DP stay near one rank and keep their bits in combination") {
  const auto distributed = [](TrainSpec& s) {
    s.recompute.mode = "full";
    s.recompute.layers = 2;
    s.recompute.distribute = true;
  };
  const auto no_overlap = [](TrainSpec& s) {
    s.parallel.overlap = {
        .grad_reduce = false, .param_gather = "false", .p2p = false, .tp = "false"};
  };
  const std::vector<Row> rows = {
      {{.tp = 2},
       false,
       {{"pp 2", {.tp = 2, .pp = 2}},
        {"pp 4", {.tp = 2, .pp = 4}},
        {"distributed recompute", {.tp = 2}, distributed},
        {"no overlap", {.tp = 2}, no_overlap}}},
      {{.tp = 2},
       true,
       {{"pp 2 virtual 2", {.tp = 2, .pp = 2, .virtual_stages = 2}},
        {"pp 4 virtual 2", {.tp = 2, .pp = 4, .virtual_stages = 2}},
        {"full recompute", {.tp = 2}, full},
        {"selective recompute", {.tp = 2}, selective}}},
      {{.tp = 4},
       false,
       {{"pp 2", {.tp = 4, .pp = 2}, same, true},
        {"distributed recompute", {.tp = 4}, distributed}},
       true},
      {{.tp = 4},
       true,
       {{"pp 2 virtual 2", {.tp = 4, .pp = 2, .virtual_stages = 2}},
        {"selective recompute", {.tp = 4}, selective}}},
      {{.dp = 2},
       false,
       {{"zero 0", {.dp = 2}, zero0, true},
        {"small buckets", {.dp = 2}, small_buckets},
        {"no overlap", {.dp = 2}, no_overlap},
        {"pp 2", {.dp = 2, .pp = 2}},
        {"pp 4 virtual 2", {.dp = 2, .pp = 4, .virtual_stages = 2}},
        {"full recompute", {.dp = 2}, full}},
       true},
      {{.dp = 4},
       false,
       {{"zero 0", {.dp = 4}, zero0},
        {"pp 2 gpipe", {.dp = 4, .pp = 2}, gpipe},
        {"small buckets", {.dp = 4}, small_buckets}}},
      {{.dp = 4, .zero_ranks = 2},
       false,
       {{"small buckets", {.dp = 4, .zero_ranks = 2}, small_buckets},
        {"no overlap", {.dp = 4, .zero_ranks = 2}, no_overlap},
        {"pp 2", {.dp = 4, .pp = 2, .zero_ranks = 2}, same, true}},
       true},
      {{.tp = 2, .dp = 2},
       true,
       {{"zero 0", {.tp = 2, .dp = 2}, zero0},
        {"pp 2", {.tp = 2, .dp = 2, .pp = 2}, same, true},
        {"pp 2 zb-h1 small buckets",
         {.tp = 2, .dp = 2, .pp = 2},
         [](TrainSpec& s) {
           zb_h1(s);
           small_buckets(s);
         }},
        {"pp 2 virtual 2 small buckets",
         {.tp = 2, .dp = 2, .pp = 2, .virtual_stages = 2},
         small_buckets},
        {"full recompute", {.tp = 2, .dp = 2}, full}},
       true},
      {{.tp = 2, .dp = 4}, false, {{"zero 0", {.tp = 2, .dp = 4}, zero0}}},
      {{.tp = 2, .dp = 4, .zero_ranks = 4}, true, {}},
      {{.tp = 4, .dp = 2}, true, {{"zero 0", {.tp = 4, .dp = 2}, zero0}}},
  };
  for (const Model model : kModels) {
    CAPTURE(static_cast<int>(model));
    check_rows(spec_of(model), rows, runs_all(model), [](const Row&) { return kFp32; });
  }
}

TEST_CASE("layout matrix: several sequences at a time, divided over ranks (CP)") {
  const std::vector<Row> rows = {
      {{.cp = 2}, false, {{"pp 2", {.pp = 2, .cp = 2}}, {"full recompute", {.cp = 2}, full}}, true},
      {{.tp = 2, .cp = 2}, true, {{"selective recompute", {.tp = 2, .cp = 2}, selective}}},
      {{.dp = 2, .cp = 4}, false, {}},
  };
  for (const Model model : kModels) {
    CAPTURE(static_cast<int>(model));
    TrainSpec spec = spec_of(model);
    spec.train.micro_batch = 4;
    check_rows(spec, rows, runs_all(model), [](const Row&) { return kFp32; });
  }
}

TEST_CASE("layout matrix: sequences divided over ranks (CP) stay near whole ones") {
  // Of four KV heads; of two, cp 4 and tp 2 x cp 2 copy them.
  const std::vector<Row> rows = {
      {{.cp = 2},
       false,
       {{"pp 2", {.pp = 2, .cp = 2}, same, true},
        {"pp 2 virtual 2", {.pp = 2, .virtual_stages = 2, .cp = 2}},
        {"pp 4 zb-h1", {.pp = 4, .cp = 2}, zb_h1, true},
        {"zero 0", {.cp = 2}, zero0},
        {"small buckets", {.cp = 2}, small_buckets},
        {"full recompute", {.cp = 2}, full, true},
        {"selective recompute", {.cp = 2}, selective, true}},
       true},
      {{.dp = 2, .cp = 2},
       false,
       {{"zero 0", {.dp = 2, .cp = 2}, zero0}, {"pp 2", {.dp = 2, .pp = 2, .cp = 2}}},
       true},
      {{.dp = 2, .cp = 2, .zero_ranks = 2}, false, {}},
      {{.cp = 4}, false, {{"pp 2", {.pp = 2, .cp = 4}}}, true},
      {{.tp = 2, .cp = 2}, false, {{"pp 2", {.tp = 2, .pp = 2, .cp = 2}}}},
      {{.tp = 2, .cp = 2},
       true,
       {{"full recompute", {.tp = 2, .cp = 2}, full},
        {"pp 2 selective recompute", {.tp = 2, .pp = 2, .cp = 2}, selective}}},
      {{.tp = 2, .dp = 2, .cp = 2}, true, {}},
  };
  for (const Model model : kModels) {
    CAPTURE(static_cast<int>(model));
    check_rows(spec_of(model), rows, runs_all(model), [](const Row&) { return kFp32; });
  }
  // Gradients and weights in shards over dp and cp: with one micro-batch per step the same bits.
  TrainSpec one = spec_of(Model::gpt2_tied);
  one.train.global_batch = 2;
  check_variants(one, train(one, {.dp = 2, .cp = 2}, kBitSteps),
                 {{"zero 2", {.dp = 2, .cp = 2}, zero2},
                  {"zero 3", {.dp = 2, .cp = 2}, zero3},
                  {"zero 3 full recompute",
                   {.dp = 2, .cp = 2},
                   [](TrainSpec& s) {
                     zero3(s);
                     full(s);
                   }}},
                 true);
}

TEST_CASE("layout matrix: logits in parts change only the order of sums") {
  for (const Model model : kMainModels) {
    CAPTURE(static_cast<int>(model));
    TrainSpec spec = spec_of(model);
    spec.model.head_bias = model == Model::llama_untied;
    const Trajectory whole = train(spec, {}, kSteps);
    // 16 tokens of a micro-batch, in parts of 6, 6 and 4.
    spec.train.logits_rows = 6;
    const Trajectory parts = train(spec, {}, kSteps);
    check_near(parts, whole, kFp32);
    if (!kSanitized) CHECK(parts.first_gradients != whole.first_gradients);
    check_variants(spec, parts,
                   {{"pp 2", {.pp = 2}},
                    {"pp 2 gpipe", {.pp = 2}, gpipe},
                    {"pp 2 virtual 2", {.pp = 2, .virtual_stages = 2}},
                    {"recompute full", {}, full}},
                   true);
    for (const bool sequence_parallel : {false, true}) {
      CAPTURE(sequence_parallel);
      TrainSpec divided = spec;
      divided.parallel.sp = sequence_parallel ? "true" : "false";
      check_near(train(divided, {.tp = 2}, kSteps), whole, kFp32);
    }
  }
}

}  // namespace layout_matrix_test
