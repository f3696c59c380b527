// The layout matrix (layout_matrix.h) of latent attention, whose down-projections and norms every
// tensor-parallel rank has whole.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/engine/layout_matrix.h"

using namespace mtl;
using namespace mtl::test;
using namespace mtl::test::layout_matrix;

namespace layout_matrix_latent_test {

namespace {

// With latents of queries too, or without.
TrainSpec dense(int64_t q_rank) {
  TrainSpec spec = spec_of(Model::llama_untied);
  spec.model.kv_heads = 0;
  spec.model.qk_norm = false;
  spec.model.position.fraction = 1;
  spec.model.head_dim = 12;
  spec.model.latent = {.kv_rank = 16, .q_rank = q_rank, .rope_dim = 4};
  return spec;
}

// All of whose linears FP8 takes, by two ranks too.
TrainSpec in_float8(int64_t q_rank) {
  TrainSpec spec = dense(q_rank);
  spec.model.head_dim = 24;
  spec.model.latent.rope_dim = 16;
  spec.model.latent.value_dim = 8;
  spec.model.ffn = 96;
  spec.precision.dtype = "fp8";
  return spec;
}

// DeepSeek-V3's parts.
TrainSpec mixture() {
  TrainSpec spec = dense(24);
  spec.model.latent.value_dim = 4;
  spec.model.moe = {.experts = 4,
                    .ffn = 48,
                    .dense_layers = {0, 5},
                    .topk = 2,
                    .aux_loss = 0.05,
                    .score = "sigmoid",
                    .scale = 2.5,
                    .groups = 2,
                    .group_topk = 2,
                    .shared_ffn = 48,
                    .expert_bias = true};
  return spec;
}

void latents_again(TrainSpec& s) {
  s.recompute.mode = "selective";
  s.recompute.modules = {"latent_up"};
}
void heads_again(TrainSpec& s) {
  s.recompute.mode = "selective";
  s.recompute.modules = {"latent_up", "core_attn", "norm"};
  s.recompute.module_layers = {{"core_attn", 1}, {"norm", 1}, {"latent_up", 2}};
}
void latents_later(TrainSpec& s) {
  zb_h1(s);
  latents_again(s);
}

}  // namespace

TEST_CASE("layout matrix: latents, pipelines and recompute have the bits of none") {
  for (const int64_t q_rank : {0, 24}) {
    CAPTURE(q_rank);
    for (const char* dtype : {"fp32", "bf16", "fp8"}) {
      CAPTURE(dtype);
      TrainSpec spec = dense(q_rank);
      spec.precision.dtype = dtype;
      if (dtype == std::string("fp8")) spec = in_float8(q_rank > 0 ? 32 : 0);
      const Trajectory single = train(spec, {}, kBitSteps);
      if (!kSanitized) CHECK(single.losses.back() < single.losses.front());
      check_variants(spec, single,
                     {{"pp 4 virtual 2", {.pp = 4, .virtual_stages = 2}},
                      {"pp 4 zb-h1", {.pp = 4}, zb_h1},
                      {"recompute modules", {}, selective},
                      {"recompute of some layers", {}, some_layers},
                      {"latents again", {}, latents_again},
                      {"heads again in pp 2", {.pp = 2}, heads_again},
                      {"latents again, zb-h1", {.pp = 2}, latents_later},
                      {"zb-h1 and norms made again",
                       {.pp = 2},
                       [](TrainSpec& s) {
                         zb_h1(s);
                         s.recompute.mode = "selective";
                         s.recompute.modules = {"norm"};
                       }},
                      {"recompute full", {}, full},
                      {"recompute full of 3 in pp 2", {.pp = 2}, full_of_3}},
                     true);
    }
  }
  TrainSpec in_one = dense(24);
  in_one.train.micro_batch = 4;
  for (const char* sp : {"true", "false"}) {
    in_one.parallel.sp = sp;
    const Layout layout = {.tp = 2, .dp = 2};
    check_variants(in_one, train(in_one, layout, kBitSteps), in_shards(layout), true);
  }
}

TEST_CASE("layout matrix: latents that are divided behind their norms stay near one rank") {
  const std::vector<Row> rows = {
      {{.tp = 2},
       false,
       {{"pp 2", {.tp = 2, .pp = 2}},
        {"latents again", {.tp = 2}, latents_again},
        {"full recompute of 3", {.tp = 2}, full_of_3},
        {"distributed recompute", {.tp = 2}, distributed}}},
      {{.tp = 2},
       true,
       {{"pp 2 virtual 2", {.tp = 2, .pp = 2, .virtual_stages = 2}},
        {"pp 2 zb-h1", {.tp = 2, .pp = 2}, zb_h1},
        {"recompute modules", {.tp = 2}, selective},
        {"heads again", {.tp = 2}, heads_again},
        {"full recompute of 3", {.tp = 2}, full_of_3}}},
      {{.tp = 4}, false, {}},
      {{.tp = 4}, true, {}},
      {{.cp = 2},
       false,
       {{"full recompute", {.cp = 2}, full}, {"latents again", {.cp = 2}, latents_again}}},
      {{.cp = 4}, false, {}},
      {{.tp = 2, .cp = 2}, true, {}},
      {{.tp = 2, .dp = 2}, false, {{"zero 0", {.tp = 2, .dp = 2}, zero0}}},
  };
  for (const int64_t q_rank : {0, 24}) {
    CAPTURE(q_rank);
    check_rows(dense(q_rank), rows, true, [](const Row&) { return kFp32; });
  }
}

TEST_CASE("layout matrix: latents beside mixtures of experts") {
  const std::vector<Row> rows = {
      {{},
       false,
       {{"pp 2", {.pp = 2}},
        {"pp 2 zb-h1", {.pp = 2}, zb_h1},
        {"recompute modules", {}, selective},
        {"full recompute of 3", {}, full_of_3}}},
      {{.tp = 2}, true, {{"full recompute", {.tp = 2}, full}}},
      {{.cp = 2}, false, {}},
      {{.ep = 2},
       false,
       {{"recompute modules", {.ep = 2}, selective}, {"full recompute", {.ep = 2}, full}}}};
  check_rows(mixture(), rows, true, [](const Row&) { return kFp32; });
}

TEST_CASE("layout matrix: latents and divided experts in shards have the bits of whole ones") {
  TrainSpec spec = mixture();
  for (const Layout& layout :
       {Layout{.dp = 2, .ep = 2}, Layout{.tp = 2, .ep = 2}, Layout{.cp = 2, .ep = 2}}) {
    spec.train.micro_batch = layout.dp == 2 ? 2 : 4;
    CAPTURE(layout.tp);
    CAPTURE(layout.cp);
    check_variants(spec, train(spec, layout, kBitSteps), in_shards(layout), true);
  }
  // Of experts that a rank has alone nothing travels, and nothing is rounded.
  spec.precision.grad_reduce = "bf16";
  const Layout alone = {.ep = 4};
  spec.train.micro_batch = 2;
  check_variants(spec, train(spec, alone, kBitSteps), {{"zero 2", alone, zero2}}, true);
}

TEST_CASE("layout matrix: latents whose layers have a window") {
  TrainSpec spec = dense(0);
  spec.model.sliding_window = 5;
  check_rows(spec, {{{.tp = 2}, false, {}}, {{.cp = 2}, false, {}}, {{.tp = 2, .cp = 2}, true, {}}},
             true, [](const Row&) { return kFp32; });
}

}  // namespace layout_matrix_latent_test
