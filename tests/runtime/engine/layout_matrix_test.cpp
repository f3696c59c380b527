// The layout matrix: every way to divide a run trains the same model (design idea B).
//
// What is arithmetically the same has the same bits: pipeline and virtual stages, the order of the
// schedule, recompute, ZeRO-1, overlap, in every precision; ZeRO-2 and 3 too, where a step has one
// micro-batch. What only changes the order of sums (TP, SP, CP, DP; ZeRO-2 and 3 with several
// micro-batches, which are added up after the replicas and not before; several copies of what ZeRO
// divides, each of which is summed before they are added) stays, in fp32, within 1e-6
// at the first step, 1e-5 (Frobenius) of every first gradient, and 1e-4 over 20 steps; in half
// precision within the bounds derived below.
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "support/layouts.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;

namespace {

constexpr int32_t kVocab = 61;
#ifdef __SANITIZE_ADDRESS__
constexpr bool kSanitized = true;  // memory errors show in the first steps; all would take too long
#else
constexpr bool kSanitized = false;
#endif
constexpr int64_t kSteps = kSanitized ? 4 : 20;  // of what is compared within bounds
// Of what is compared bit by bit: nothing is left to drift.
constexpr int64_t kBitSteps = kSanitized ? 2 : 10;

enum class Model { gpt2_tied, gpt2_untied, llama_tied, llama_untied, mixtral };
constexpr Model kModels[] = {Model::gpt2_tied, Model::llama_untied, Model::gpt2_untied,
                             Model::llama_tied};
// Models that run every row; the others run those where their heads matter.
bool runs_all(Model model) {
  return model == Model::gpt2_tied || model == Model::llama_untied;
}

// Eight layers, four heads, two KV heads (so that tp 4 copies them), micro-batches of one.
TrainSpec spec_of(Model model) {
  TrainSpec spec = spec_with({.layers = 8, .micro_batch = 1});
  spec.model.dropout.hidden = 0.1;
  // Costs most of the time of so small a model.
  spec.model.dropout.attention = runs_all(model) ? 0.0 : 0.1;
  spec.model.tie_embeddings = model == Model::gpt2_tied || model == Model::llama_tied;
  if (model == Model::llama_tied || model == Model::llama_untied || model == Model::mixtral) {
    spec.model.kv_heads = 2;
    spec.model.ffn = 80;
    use_llama_blocks(spec);
    spec.model.position.scaling = {.type = "yarn", .factor = 4, .original_max_seq = 16};
    spec.model.qk_norm = true;
  }
  if (model == Model::mixtral) {
    spec.model.moe = {.experts = 4, .topk = 2, .aux_loss = 0.05, .z_loss = 0.01};
    spec.model.qk_norm = false;
  }
  spec.train.seed = 11;
  spec.lr.max = 1e-3;
  spec.lr.warmup = 5;
  return spec;
}

struct Trajectory {
  GlobalTensors initial, first_gradients;
  std::vector<double> losses, norms, scales, aux, z, turns;
  // After kBitSteps.
  GlobalTensors weights;
  double valid = 0;
};

Trajectory train(const TrainSpec& spec, Layout layout, int64_t steps) {
  const auto source = markov_tokens(20'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, spec.train.seed);
  Trajectory result;
  run_layout(spec, kVocab, layout, [&](RankContext& rank) {
    rank.trainer.initialise();
    collect(rank.trainer, Which::master, result.initial);
    rank.trainer.gradients(0, *source, sampler);
    collect(rank.trainer, Which::grad, result.first_gradients);
    for (int64_t step = 0; step < steps; ++step) {
      const StepResult done = rank.trainer.step(step, *source, sampler, {});
      if (rank.rank == 0) {
        result.losses.push_back(done.loss);
        result.norms.push_back(done.grad_norm);
        result.scales.push_back(done.loss_scale);
        result.aux.push_back(done.moe_aux_loss);
        result.z.push_back(done.moe_z_loss);
        result.turns.push_back(done.moe_turns);
      }
      if (step + 1 != kBitSteps) continue;
      collect(rank.trainer, Which::master, result.weights);
      const double valid = rank.trainer.evaluate(*source, 7);
      if (rank.rank == 0) result.valid = valid;
    }
  });
  return result;
}

// `a` ran for kBitSteps, `b` perhaps for longer.
void check_bits(const Trajectory& a, const Trajectory& b) {
  const auto begin_of = [&](const std::vector<double>& all) {
    return std::vector<double>(all.begin(), all.begin() + kBitSteps);
  };
  CHECK(a.initial == b.initial);
  CHECK(a.first_gradients == b.first_gradients);
  CHECK(a.losses == begin_of(b.losses));
  CHECK(a.norms == begin_of(b.norms));
  CHECK(a.scales == begin_of(b.scales));
  CHECK(a.weights == b.weights);
  CHECK(a.valid == b.valid);
}

struct Bounds {
  double first_loss, first_gradient, loss;  // relative
};
constexpr Bounds kFp32 = {1e-6, 1e-5, 1e-4};

// How far TP may move a run whose activations are rounded to `unit_roundoff` (2^-8 in bf16, 2^-11
// in fp16).
//
// One rank rounds the output of a matmul once. With TP each rank rounds its part of the sum, and
// the all-reduce, which adds in f32, rounds the sum: three roundings that one of the two runs has
// and the other has not. That happens twice per layer forward, twice backward, and once behind the
// head. N. J. Higham, Accuracy and Stability of Numerical Algorithms (2nd ed., sections 3.1, 4.2):
// errors of a chain of n roundings are within about n u; rounding errors being as good as
// independent, within about sqrt(n) u (section 2.8; Higham and Mary, SIAM J. Sci. Comput. 41,
// 2019).
//  - A gradient lies behind n = 3 (4 L + 1) roundings: sqrt(n) u, of its norm.
//  - The first loss lies behind n = 6 L. It is a mean over T tokens, whose errors average: the
//    logits move by sqrt(n / T) u of their size, which is init_std sqrt(hidden) after the last norm
//    and a normal initialisation, and the loss, ln(vocabulary), moves by as much.
//  - For the later losses, of TP and of DP, nothing is derived: the same with logits of size one
//    stands for what the updates add.
// These are estimates and no proofs: roundings that follow on different numbers also differ and are
// not counted, against which stands that most are far smaller than u. Over the layouts below the
// largest that was seen is half of the first, a fifth of the second, an eighth of the third.
// DP adds gradients in f32, so that its first step is as in fp32; only then weights may round to
// other neighbours. CP's products have fewer rows, for which oneDNN may sum k in other blocks (on a
// CPU with AMX it does): two orders of an f32 sum of k differ by about sqrt(k) 2^-24 of it, so that
// one in u / (sqrt(k) 2^-24) of them rounds to the other neighbour, u away. That is a root mean
// square of sqrt(sqrt(k) 2^-24 / u) u, behind 4 L + 1 products.
Bounds half_bounds(const TrainSpec& spec, double unit_roundoff, const Layout& layout) {
  const auto layers = static_cast<double>(spec.model.layers);
  const auto tokens = static_cast<double>(spec.train.global_batch * spec.train.seq_len);
  const double loss = std::sqrt(6 * layers / tokens) * unit_roundoff / std::log(kVocab);
  if (layout.tp == 1 && layout.cp > 1) {
    const double k = 4.0 * static_cast<double>(spec.model.hidden);  // the longest
    const double flips = std::sqrt(k) * 0x1p-24 / unit_roundoff;
    return {kFp32.first_loss, std::sqrt(flips * (4 * layers + 1)) * unit_roundoff, loss};
  }
  if (layout.tp == 1) return {kFp32.first_loss, kFp32.first_gradient, loss};
  const double logits = spec.init.std * std::sqrt(static_cast<double>(spec.model.hidden));
  return {logits * loss, std::sqrt(3 * (4 * layers + 1)) * unit_roundoff, loss};
}

void check_near(const Trajectory& split, const Trajectory& single, const Bounds& bounds) {
  CHECK(split.initial == single.initial);
  CHECK(split.scales == single.scales);
  CHECK(split.losses[0] == doctest::Approx(single.losses[0]).epsilon(bounds.first_loss));
  for (const auto& [name, gradient] : single.first_gradients) {
    CAPTURE(name);
    CHECK(relative_error(split.first_gradients.at(name), gradient) < bounds.first_gradient);
  }
  for (size_t step = 0; step < single.losses.size(); ++step) {
    CAPTURE(step);
    CHECK(split.losses[step] == doctest::Approx(single.losses[step]).epsilon(bounds.loss));
  }
  CHECK(split.valid == doctest::Approx(single.valid).epsilon(bounds.loss));
}

void same(TrainSpec&) {}
void zero0(TrainSpec& s) {
  s.parallel.zero = 0;
}
void zero2(TrainSpec& s) {
  s.parallel.zero = 2;
}
void zero3(TrainSpec& s) {
  s.parallel.zero = 3;
}
void gpipe(TrainSpec& s) {
  s.parallel.schedule = "gpipe";
}
void full(TrainSpec& s) {
  s.recompute.mode = "full";
}
void selective(TrainSpec& s) {
  s.recompute.mode = "selective";
  s.recompute.modules = {"core_attn", "norm", "mlp"};
}
void small_buckets(TrainSpec& s) {
  s.parallel.bucket_mb = 0.02;
}

// One way to run it: what differs from `spec_of` beside the layout.
struct Variant {
  std::string name;
  Layout layout;
  std::function<void(TrainSpec& spec)> change = same;
  bool any_head = false;  // run by models that do not run all
};

// A way to divide sums, and what must not change its bits.
struct Row {
  Layout base;
  bool sequence_parallel;
  std::vector<Variant> variants;
  bool any_head = false;
};

void check_variants(const TrainSpec& spec, const Trajectory& base,
                    const std::vector<Variant>& variants, bool all) {
  for (const Variant& variant : variants) {
    if (!all && !variant.any_head) continue;
    CAPTURE(variant.name);
    TrainSpec changed = spec;
    variant.change(changed);
    check_bits(train(changed, variant.layout, kBitSteps), base);
  }
}
void check_rows(const TrainSpec& spec, const std::vector<Row>& rows, bool all,
                const std::function<Bounds(const Row&)>& bounds) {
  const Trajectory single = train(spec, {}, kSteps);
  if (!kSanitized) CHECK(single.losses.back() < single.losses.front());
  for (const Row& row : rows) {
    if (!all && !row.any_head) continue;
    CAPTURE(row.base.tp);
    CAPTURE(row.base.dp);
    CAPTURE(row.base.cp);
    CAPTURE(row.base.ep);
    CAPTURE(row.base.zero_ranks);
    CAPTURE(row.sequence_parallel);
    TrainSpec divided = spec;
    divided.parallel.sp = row.sequence_parallel ? "true" : "false";
    const Trajectory base = row.base.world() == 1 ? single : train(divided, row.base, kSteps);
    check_near(base, single, bounds(row));
    check_variants(divided, base, row.variants, all);
  }
}

}  // namespace

TEST_CASE("layout matrix: pipelines and schedules and recompute and ZeRO-1 have the bits of none") {
  const std::vector<Variant> variants = {
      {"pp 2", {.pp = 2}},
      {"pp 4", {.pp = 4}, same, true},
      {"pp 8", {.pp = 8}},
      {"pp 2 virtual 2", {.pp = 2, .virtual_stages = 2}, same, true},
      {"pp 4 virtual 2", {.pp = 4, .virtual_stages = 2}, same, true},
      {"pp 2 virtual 4", {.pp = 2, .virtual_stages = 4}},
      {"pp 2 gpipe", {.pp = 2}, gpipe},
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
      {"recompute full", {}, full, true},
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

namespace {

// Ways to keep gradients, or gradients and weights, in shards.
std::vector<Variant> in_shards(Layout layout) {
  const auto with = [](void (*zero)(TrainSpec&), auto change) {
    return [zero, change](TrainSpec& s) {
      zero(s);
      change(s);
    };
  };
  const auto full_of_3 = [](TrainSpec& s) {
    s.recompute.mode = "full";
    s.recompute.layers = 3;
  };
  const auto no_overlap = [](TrainSpec& s) {
    s.parallel.overlap = {
        .grad_reduce = false, .param_gather = "false", .p2p = false, .tp = "false"};
  };
  // Of two layers or three.
  const auto larger_buckets = [](TrainSpec& s) { s.parallel.bucket_mb = 0.08; };
  return {{"zero 2", layout, zero2, true},
          {"zero 3", layout, zero3, true},
          {"zero 2 full recompute", layout, with(zero2, full)},
          {"zero 3 full recompute", layout, with(zero3, full), true},
          {"zero 3 full recompute of 3", layout, with(zero3, full_of_3)},
          {"zero 3 selective recompute", layout, with(zero3, selective)},
          {"zero 2 no overlap", layout, with(zero2, no_overlap)},
          {"zero 3 no overlap", layout, with(zero3, no_overlap)},
          {"zero 2 larger buckets", layout, with(zero2, larger_buckets)},
          {"zero 3 larger buckets", layout, with(zero3, larger_buckets), true}};
}

}  // namespace

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
  for (const Model model : {Model::gpt2_tied, Model::llama_untied}) {
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

TEST_CASE("layout matrix: sequences divided over ranks (CP) stay near whole ones") {
  // Of four KV heads; of two, cp 4 and tp 2 x cp 2 copy them.
  const std::vector<Row> rows = {
      {{.cp = 2},
       false,
       {{"pp 2", {.pp = 2, .cp = 2}, same, true},
        {"pp 2 virtual 2", {.pp = 2, .virtual_stages = 2, .cp = 2}},
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
  for (const Model model : {Model::gpt2_tied, Model::llama_untied}) {
    CAPTURE(static_cast<int>(model));
    TrainSpec spec = spec_of(model);
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
      {{.tp = 4}, false, {{"pp 2", {.tp = 4, .pp = 2}}}},
      {{.tp = 4}, true, {{"selective recompute", {.tp = 4}, selective}}},
      {{.tp = 2, .dp = 2},
       true,
       {{"zero 0", {.tp = 2, .dp = 2}, zero0}, {"pp 2", {.tp = 2, .dp = 2, .pp = 2}}}},
      {{.cp = 2}, false, {{"pp 2", {.pp = 2, .cp = 2}}, {"mlp recompute", {.cp = 2}, mlp}}},
      {{.ep = 2},
       false,
       {{"zero 0", {.ep = 2}, zero0},
        {"small buckets", {.ep = 2}, small_buckets},
        {"pp 2 virtual 2", {.pp = 2, .virtual_stages = 2, .ep = 2}},
        {"mlp recompute", {.ep = 2}, mlp},
        {"mlp activation recompute", {.ep = 2}, mlp_act},
        {"full recompute in pp 2", {.pp = 2, .ep = 2}, full}}},
      {{.ep = 4}, false, {{"pp 2", {.pp = 2, .ep = 4}}}},
      {{.dp = 2, .ep = 2}, false, {{"zero 0", {.dp = 2, .ep = 2}, zero0}}},
      // Of experts a copy has one rank, or two.
      {{.dp = 2, .ep = 2, .zero_ranks = 2},
       false,
       {{"small buckets", {.dp = 2, .ep = 2, .zero_ranks = 2}, small_buckets}}},
      {{.dp = 4, .ep = 2, .zero_ranks = 4}, false, {}},
      {{.tp = 2, .ep = 2},
       true,
       {{"full recompute", {.tp = 2, .ep = 2}, full}, {"mlp recompute", {.tp = 2, .ep = 2}, mlp}}},
      {{.cp = 2, .ep = 2}, false, {{"zero 0", {.cp = 2, .ep = 2}, zero0}}},
  };
  TrainSpec spec = spec_of(Model::mixtral);
  // Memory for whatever the tokens choose.
  spec.parallel.ep_room = 1e6;
  check_rows(spec, rows, true, [](const Row&) { return kFp32; });
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

TEST_CASE("layout matrix: bf16 layouts keep their bits or stay within the rounding of bf16") {
  const std::vector<Row> rows = {
      {{},
       false,
       {{"pp 4", {.pp = 4}},
        {"pp 4 virtual 2", {.pp = 4, .virtual_stages = 2}},
        {"pp 2 gpipe", {.pp = 2}, gpipe},
        {"selective recompute", {}, selective},
        {"full recompute in pp 2", {.pp = 2}, full}}},
      {{.tp = 2}, false, {{"pp 2", {.tp = 2, .pp = 2}}}},
      {{.tp = 2},
       true,
       {{"pp 2 virtual 2", {.tp = 2, .pp = 2, .virtual_stages = 2}},
        {"full recompute", {.tp = 2}, full}}},
      {{.tp = 4}, false, {}},
      {{.dp = 2},
       false,
       {{"zero 0", {.dp = 2}, zero0}, {"pp 2 small buckets", {.dp = 2, .pp = 2}, small_buckets}}},
      {{.tp = 2, .dp = 2}, true, {{"zero 0", {.tp = 2, .dp = 2}, zero0}}},
      {{.cp = 2}, false, {{"pp 2 virtual 2", {.pp = 2, .virtual_stages = 2, .cp = 2}}}},
  };
  for (const Model model : {Model::gpt2_tied, Model::llama_untied}) {
    CAPTURE(static_cast<int>(model));
    TrainSpec spec = spec_of(model);
    spec.precision.dtype = "bf16";
    check_rows(spec, rows, true,
               [&](const Row& row) { return half_bounds(spec, 0x1p-8, row.base); });
  }
}

TEST_CASE("layout matrix: fp16 with a growing loss scale does the same") {
  const std::vector<Row> rows = {
      {{},
       false,
       {{"pp 2 virtual 2", {.pp = 2, .virtual_stages = 2}}, {"full recompute", {}, full}}},
      {{.dp = 2}, false, {{"zero 0", {.dp = 2}, zero0}}},
      {{.tp = 2}, true, {}},
  };
  for (const Model model : {Model::gpt2_tied, Model::llama_untied}) {
    CAPTURE(static_cast<int>(model));
    TrainSpec spec = spec_of(model);
    spec.precision.dtype = "fp16";
    spec.precision.loss_scale.window = 4;
    check_rows(spec, rows, true,
               [&](const Row& row) { return half_bounds(spec, 0x1p-11, row.base); });
  }
}
