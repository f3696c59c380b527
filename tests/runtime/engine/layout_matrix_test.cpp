// The layout matrix: every way to divide a run trains the same model (design idea B).
//
// What is arithmetically the same has the same bits for the whole run: pipeline and virtual stages,
// the order of the schedule, recompute, ZeRO-1, overlap. What only changes the order of sums (TP,
// SP, DP) stays within 1e-6 at the first step, 1e-5 (Frobenius) of every first gradient, and 1e-4
// over 20 steps.
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "support/layouts.h"

using namespace mtl;
using namespace mtl::test;

namespace {

constexpr int32_t kVocab = 61;
constexpr int64_t kSteps = 20;

enum class Model { gpt2_tied, gpt2_untied, llama_tied, llama_untied };

// Eight layers, four heads, two KV heads (so that tp 4 copies them), micro-batches of one.
TrainSpec spec_of(Model model) {
  TrainSpec spec;
  spec.model.layers = 8;
  spec.model.hidden = 32;
  spec.model.heads = 4;
  spec.model.dropout = {0.1, 0.1};
  spec.model.tie_embeddings = model == Model::gpt2_tied || model == Model::llama_tied;
  if (model == Model::llama_tied || model == Model::llama_untied) {
    spec.model.kv_heads = 2;
    spec.model.ffn = 80;
    spec.model.activation = "swiglu";
    spec.model.norm.type = "rmsnorm";
    spec.model.position.type = "rope";
    spec.model.bias = false;
    spec.model.qk_norm = true;
  }
  spec.train.global_batch = 16;
  spec.train.micro_batch = 1;
  spec.train.seq_len = 16;
  spec.train.steps = kSteps;
  spec.train.seed = 11;
  spec.lr.max = 1e-3;
  spec.lr.warmup = 5;
  return spec;
}

struct Trajectory {
  GlobalTensors initial, first_gradients, last;
  std::vector<double> losses, norms;
  double valid = 0;
};

Trajectory train(const TrainSpec& spec, Layout layout) {
  const auto source = markov_tokens(20'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, spec.train.seed);
  Trajectory result;
  run_layout(spec, kVocab, layout, [&](RankContext& rank) {
    rank.trainer.initialise();
    collect(rank.trainer, Which::master, result.initial);
    rank.trainer.gradients(0, *source, sampler);
    collect(rank.trainer, Which::grad, result.first_gradients);
    for (int64_t step = 0; step < kSteps; ++step) {
      const StepResult done = rank.trainer.step(step, *source, sampler, {});
      if (rank.rank != 0) continue;
      result.losses.push_back(done.loss);
      result.norms.push_back(done.grad_norm);
    }
    collect(rank.trainer, Which::master, result.last);
    const double valid = rank.trainer.evaluate(*source, 7);
    if (rank.rank == 0) result.valid = valid;
  });
  return result;
}

void check_bits(const Trajectory& a, const Trajectory& b) {
  CHECK(a.initial == b.initial);
  CHECK(a.first_gradients == b.first_gradients);
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
  CHECK(a.last == b.last);
  CHECK(a.valid == b.valid);
}

void check_near(const Trajectory& split, const Trajectory& single) {
  CHECK(split.initial == single.initial);
  CHECK(split.losses[0] == doctest::Approx(single.losses[0]).epsilon(1e-6));
  for (const auto& [name, gradient] : single.first_gradients) {
    CAPTURE(name);
    CHECK(relative_error(split.first_gradients.at(name), gradient) < 1e-5);
  }
  for (size_t step = 0; step < single.losses.size(); ++step) {
    CAPTURE(step);
    CHECK(split.losses[step] == doctest::Approx(single.losses[step]).epsilon(1e-4));
  }
  CHECK(split.valid == doctest::Approx(single.valid).epsilon(1e-4));
}

// One way to run it: what differs from `spec_of` beside the layout.
struct Variant {
  const char* name;
  Layout layout;
  std::function<void(TrainSpec& spec)> change = [](TrainSpec&) {};
};

}  // namespace

TEST_CASE("layout matrix: pipelines and schedules and recompute and ZeRO-1 have the bits of none") {
  const Variant variants[] = {
      {"pp 2", {.pp = 2}},
      {"pp 4", {.pp = 4}},
      {"pp 8", {.pp = 8}},
      {"pp 2 virtual 2", {.pp = 2, .virtual_stages = 2}},
      {"pp 4 virtual 2", {.pp = 4, .virtual_stages = 2}},
      {"pp 2 virtual 4", {.pp = 2, .virtual_stages = 4}},
      {"pp 2 gpipe", {.pp = 2}, [](TrainSpec& s) { s.parallel.schedule = "gpipe"; }},
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
      {"recompute full", {}, [](TrainSpec& s) { s.recompute.mode = "full"; }},
      {"recompute uniform 3",
       {},
       [](TrainSpec& s) {
         s.recompute.mode = "full";
         s.recompute.layers = 3;
       }},
      {"recompute block 2 in pp 2",
       {.pp = 2},
       [](TrainSpec& s) {
         s.recompute.mode = "full";
         s.recompute.method = "block";
         s.recompute.layers = 2;
       }},
      {"recompute full in pp 2 virtual 2",
       {.pp = 2, .virtual_stages = 2},
       [](TrainSpec& s) { s.recompute.mode = "full"; }},
  };
  for (const Model model :
       {Model::gpt2_tied, Model::gpt2_untied, Model::llama_tied, Model::llama_untied}) {
    CAPTURE(static_cast<int>(model));
    const Trajectory single = train(spec_of(model), {});
    CHECK(single.losses.back() < single.losses.front());
    for (const Variant& variant : variants) {
      CAPTURE(variant.name);
      TrainSpec spec = spec_of(model);
      variant.change(spec);
      check_bits(train(spec, variant.layout), single);
    }
  }
}

TEST_CASE("layout matrix: TP and SP and DP stay near one rank and keep their bits in combination") {
  // A way to divide sums, and what must not change its bits.
  struct Row {
    Layout base;
    bool sequence_parallel;
    std::vector<Variant> variants;
  };
  const auto zero0 = [](TrainSpec& s) { s.parallel.zero = 0; };
  const auto full = [](TrainSpec& s) { s.recompute.mode = "full"; };
  const auto selective = [](TrainSpec& s) {
    s.recompute.mode = "selective";
    s.recompute.modules = {"core_attn", "norm", "mlp"};
  };
  const auto distributed = [](TrainSpec& s) {
    s.recompute.mode = "full";
    s.recompute.layers = 2;
    s.recompute.distribute = true;
  };
  const auto no_overlap = [](TrainSpec& s) {
    s.parallel.overlap = {.grad_reduce = false, .param_gather = "false", .p2p = false, .tp = false};
  };
  const auto small_buckets = [](TrainSpec& s) { s.parallel.bucket_mb = 0.02; };
  const auto gpipe = [](TrainSpec& s) { s.parallel.schedule = "gpipe"; };
  const Row rows[] = {
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
       {{"pp 2", {.tp = 4, .pp = 2}}, {"distributed recompute", {.tp = 4}, distributed}}},
      {{.tp = 4},
       true,
       {{"pp 2 virtual 2", {.tp = 4, .pp = 2, .virtual_stages = 2}},
        {"selective recompute", {.tp = 4}, selective}}},
      {{.dp = 2},
       false,
       {{"zero 0", {.dp = 2}, zero0},
        {"small buckets", {.dp = 2}, small_buckets},
        {"no overlap", {.dp = 2}, no_overlap},
        {"pp 2", {.dp = 2, .pp = 2}},
        {"pp 4 virtual 2", {.dp = 2, .pp = 4, .virtual_stages = 2}},
        {"full recompute", {.dp = 2}, full}}},
      {{.dp = 4},
       false,
       {{"zero 0", {.dp = 4}, zero0},
        {"pp 2 gpipe", {.dp = 4, .pp = 2}, gpipe},
        {"small buckets", {.dp = 4}, small_buckets}}},
      {{.tp = 2, .dp = 2},
       true,
       {{"zero 0", {.tp = 2, .dp = 2}, zero0},
        {"pp 2", {.tp = 2, .dp = 2, .pp = 2}},
        {"pp 2 virtual 2 small buckets",
         {.tp = 2, .dp = 2, .pp = 2, .virtual_stages = 2},
         small_buckets},
        {"full recompute", {.tp = 2, .dp = 2}, full}}},
      {{.tp = 2, .dp = 4}, false, {{"zero 0", {.tp = 2, .dp = 4}, zero0}}},
      {{.tp = 4, .dp = 2}, true, {{"zero 0", {.tp = 4, .dp = 2}, zero0}}},
  };
  for (const Model model :
       {Model::gpt2_tied, Model::gpt2_untied, Model::llama_tied, Model::llama_untied}) {
    CAPTURE(static_cast<int>(model));
    const Trajectory single = train(spec_of(model), {});
    for (const Row& row : rows) {
      CAPTURE(row.base.tp);
      CAPTURE(row.base.dp);
      CAPTURE(row.sequence_parallel);
      TrainSpec spec = spec_of(model);
      spec.parallel.sp = row.sequence_parallel ? "true" : "false";
      const Trajectory base = train(spec, row.base);
      check_near(base, single);
      for (const Variant& variant : row.variants) {
        CAPTURE(variant.name);
        TrainSpec changed = spec;
        variant.change(changed);
        check_bits(train(changed, variant.layout), base);
      }
    }
  }
}
