// The plan's bytes per link are those of the run: what each rank's communicators count in a step is
// what the plan says of its stage, to the byte.
#include <array>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "support/layouts.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;

namespace traffic_test {

namespace {

constexpr int32_t kVocab = 61;

enum class Model {
  gpt2_tied,
  gpt2_untied,
  llama_tied,
  llama_untied,
  mixtral,
  neox,
  command,
  olmo,
  olmoe,
  latent
};
// Every block, head and mixture in some type; what a layout sends knows of a type the bytes of an
// element, and of FP8 the linears that have copies.
struct OfType {
  std::string dtype;
  std::vector<Model> models;
};
const OfType kRuns[] = {
    {"fp32", {Model::gpt2_tied, Model::llama_untied, Model::mixtral, Model::olmo, Model::latent}},
    {"bf16", {Model::gpt2_untied, Model::llama_tied, Model::mixtral, Model::olmoe, Model::command}},
    {"fp8", {Model::gpt2_tied, Model::llama_untied, Model::mixtral, Model::neox, Model::command}}};

// Four layers, four heads, in the LLaMAs two KV heads (so that tp 4 copies them); 8 sequences a
// step in micro-batches of one: two for each of four replicas.
TrainSpec spec_of(Model model) {
  TrainSpec spec =
      spec_with({.layers = 4, .global_batch = 8, .micro_batch = 1, .seq_len = 8, .steps = 10});
  spec.model.tie_embeddings = model == Model::gpt2_tied || model == Model::llama_tied;
  const bool mixture = model == Model::mixtral || model == Model::olmoe;
  const bool olmo = model == Model::olmo || model == Model::olmoe;
  if (mixture) {
    spec.model.moe = {.experts = 3,
                      .topk = 2,
                      .aux_loss = 0.01,
                      .score = "sigmoid",
                      .shared_ffn = 64,
                      .shared_gate = true,
                      .expert_bias = true};
    spec.model.qkv_bias = "true";
  }
  if (model == Model::llama_tied || model == Model::llama_untied || mixture || olmo) {
    spec.model.kv_heads = 2;
    spec.model.ffn = 80;
    use_llama_blocks(spec);
    spec.model.qk_norm = model == Model::llama_tied || olmo;
  }
  if (olmo) {
    spec.model.qk_norm_whole = true;
    spec.model.norm.place = "output";
  }
  if (model == Model::latent) {
    use_llama_blocks(spec);
    spec.model.head_dim = 12;
    spec.model.latent = {.kv_rank = 16, .q_rank = 24, .rope_dim = 4, .value_dim = 4};
  }
  if (model == Model::neox) {
    spec.model.activation = "gelu_exact";
    spec.model.position.type = "rope";
    spec.model.parallel_residual = true;
  }
  if (model == Model::command) {
    use_llama_blocks(spec);
    spec.model.parallel_residual = spec.model.norm.shared = true;
    spec.model.head_bias = true;
  }
  spec.parallel.sp = "false";
  return spec;
}

using Counts = std::array<Traffic, kLinks>;

// Payload that went over each link in all runs: a link that no layout uses proves nothing.
using Used = std::array<int64_t, kLinks>;

struct RankRecord {
  StageTraffic planned;
  Counts first, second;  // of each of two steps
  Traffic world;         // of the group of all ranks, in both
};

std::vector<RankRecord> record(const TrainSpec& spec, Layout layout) {
  const auto source = markov_tokens(5'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 3);
  std::vector<RankRecord> records(static_cast<size_t>(layout.world()));
  run_layout(spec, kVocab, layout, [&](RankContext& rank) {
    RankRecord& own = records[static_cast<size_t>(rank.rank)];
    own.planned = rank.plan.stage_of(rank.rank).traffic;
    rank.trainer.initialise();
    Counts before = traffic_of(rank.trainer);
    for (Counts* of_step : {&own.first, &own.second}) {
      rank.trainer.step(of_step == &own.first ? 0 : 1, *source, sampler, {});
      const Counts after = traffic_of(rank.trainer);
      for (size_t i = 0; i < after.size(); ++i) (*of_step)[i] = after[i] - before[i];
      before = after;
    }
    own.world = rank.trainer.groups().world().traffic();
  });
  return records;
}

void check_layout(const TrainSpec& spec, Layout layout, Used& used) {
  const std::vector<RankRecord> records = record(spec, layout);
  for (size_t rank = 0; rank < records.size(); ++rank) {
    CAPTURE(rank);
    const RankRecord& own = records[rank];
    for (size_t i = 0; i < kLinks; ++i) {
      const auto link = static_cast<Link>(i);
      const std::string name = link_name(link);
      CAPTURE(name);
      const LinkBytes& planned = own.planned[link];
      CHECK(own.first[i].all_reduce == planned.all_reduce);
      CHECK(own.first[i].reduce_scatter == planned.reduce_scatter);
      CHECK(own.first[i].all_gather == planned.all_gather);
      CHECK(own.first[i].send == planned.send);
      CHECK(own.first[i].all_to_all == planned.all_to_all);
      CHECK(own.first[i].broadcast == 0);
      CHECK(own.second[i] == own.first[i]);
      used[i] += planned.all_reduce + planned.reduce_scatter + planned.all_gather + planned.send +
                 planned.all_to_all;
    }
    CHECK(own.world == Traffic{});
  }
}

struct Variant {
  std::string name;
  Layout layout;
  std::function<void(TrainSpec& spec)> change = [](TrainSpec&) {};
};

void sequence_parallel(TrainSpec& spec) {
  spec.parallel.sp = "true";
}
void zero_0(TrainSpec& spec) {
  spec.parallel.zero = 0;
}
void zero_2(TrainSpec& spec) {
  spec.parallel.zero = 2;
}
void muon(TrainSpec& spec) {
  spec.optimizer.type = "muon";
}
void adapters(TrainSpec& spec) {
  spec.lora.rank = 4;
}
void zero_3(TrainSpec& spec) {
  spec.parallel.zero = 3;
}
void bf16_gradients(TrainSpec& spec) {
  spec.precision.grad_reduce = "bf16";
}
void small_buckets(TrainSpec& spec) {
  spec.parallel.bucket_mb = 0.02;
}
void no_overlap(TrainSpec& spec) {
  spec.parallel.overlap = {
      .grad_reduce = false, .param_gather = "false", .p2p = false, .tp = "false"};
}
void selective(TrainSpec& spec) {
  spec.recompute.mode = "selective";
  spec.recompute.modules = {"core_attn", "mlp_act", "norm", "mlp"};
}
void some_layers(TrainSpec& spec) {
  selective(spec);
  spec.recompute.module_layers = {{"core_attn", 2}, {"norm", 1}, {"mlp", 1}};
}
void full_of_3(TrainSpec& spec) {
  spec.recompute.mode = "full";
  spec.recompute.layers = 3;
}
void block_of_1(TrainSpec& spec) {
  spec.recompute.mode = "full";
  spec.recompute.method = "block";
  spec.recompute.layers = 1;
}
void distributed(TrainSpec& spec) {
  spec.recompute.mode = "full";
  spec.recompute.distribute = true;
}

std::function<void(TrainSpec&)> both(void (*a)(TrainSpec&), void (*b)(TrainSpec&)) {
  return [a, b](TrainSpec& spec) {
    a(spec);
    b(spec);
  };
}

void zb_h1(TrainSpec& s) {
  s.parallel.schedule = "zb-h1";
}
void later_of_some_layers(TrainSpec& s) {
  zb_h1(s);
  sequence_parallel(s);
  some_layers(s);
}

const Variant kVariants[] = {
    {"one rank", {}},
    {"tp 2", {.tp = 2}},
    {"tp 4 copies KV heads", {.tp = 4}},
    {"tp 4 sp", {.tp = 4}, sequence_parallel},
    {"tp 2 selective", {.tp = 2}, selective},
    {"tp 2 sp selective", {.tp = 2}, both(sequence_parallel, selective)},
    {"tp 2 sp some layers", {.tp = 2}, both(sequence_parallel, some_layers)},
    {"tp 2 full", {.tp = 2}, full_of_3},
    {"tp 2 sp full", {.tp = 2}, both(sequence_parallel, full_of_3)},
    {"tp 2 sp block", {.tp = 2}, both(sequence_parallel, block_of_1)},
    {"tp 4 distributed", {.tp = 4}, distributed},
    {"tp 2 pp 2 distributed", {.tp = 2, .pp = 2}, distributed},
    {"dp 2", {.dp = 2}},
    {"dp 4 small buckets", {.dp = 4}, small_buckets},
    {"dp 2 zero 0", {.dp = 2}, zero_0},
    {"dp 2 zero 0 small buckets", {.dp = 2}, both(zero_0, small_buckets)},
    {"dp 2 no overlap", {.dp = 2}, no_overlap},
    {"pp 2", {.pp = 2}},
    {"pp 4 full", {.pp = 4}, block_of_1},
    {"pp 2 gpipe", {.pp = 2}, [](TrainSpec& s) { s.parallel.schedule = "gpipe"; }},
    {"pp 2 zb-h1", {.pp = 2}, zb_h1},
    {"tp 2 pp 2 zb-h1", {.tp = 2, .pp = 2}, zb_h1},
    {"tp 2 pp 2 zb-h1 sp", {.tp = 2, .pp = 2}, both(sequence_parallel, zb_h1)},
    {"tp 2 pp 2 virtual 2 zb-h1 sp",
     {.tp = 2, .pp = 2, .virtual_stages = 2},
     both(sequence_parallel, zb_h1)},
    {"tp 2 pp 2 zb-h1 sp some layers", {.tp = 2, .pp = 2}, later_of_some_layers},
    {"dp 2 pp 2 zb-h1 small buckets", {.dp = 2, .pp = 2}, both(zb_h1, small_buckets)},
    {"pp 2 uneven",
     {.pp = 2},
     [](TrainSpec& s) {
       s.parallel.stage_layout = {1, 3};
     }},
    {"pp 2 virtual 2", {.pp = 2, .virtual_stages = 2}},
    {"tp 2 pp 2 virtual 2 sp", {.tp = 2, .pp = 2, .virtual_stages = 2}, sequence_parallel},
    {"dp 2 pp 2 virtual 2 small buckets", {.dp = 2, .pp = 2, .virtual_stages = 2}, small_buckets},
    {"tp 2 dp 2 pp 2 sp small buckets",
     {.tp = 2, .dp = 2, .pp = 2},
     both(sequence_parallel, small_buckets)},
    {"tp 4 dp 2 zero 0", {.tp = 4, .dp = 2}, zero_0},
    {"dp 2 zero 2", {.dp = 2}, zero_2},
    {"tp 2 dp 2 zero 2 sp", {.tp = 2, .dp = 2}, both(zero_2, sequence_parallel)},
    {"dp 4 zero 3", {.dp = 4}, zero_3},
    {"dp 2 zero 3 two layers in a bucket",
     {.dp = 2},
     [](TrainSpec& s) {
       s.parallel.zero = 3;
       s.parallel.bucket_mb = 0.08;
     }},
    {"dp 2 zero 3 no overlap", {.dp = 2}, both(zero_3, no_overlap)},
    {"tp 2 dp 2 zero 3 sp full", {.tp = 2, .dp = 2}, both(zero_3, full_of_3)},
    {"tp 4 dp 2 zero 3 selective", {.tp = 4, .dp = 2}, both(zero_3, selective)},
    {"dp 2 bf16 gradients", {.dp = 2}, bf16_gradients},
    {"tp 2 dp 2 pp 2 bf16 gradients small buckets",
     {.tp = 2, .dp = 2, .pp = 2},
     both(bf16_gradients, small_buckets)},
    {"dp 4 zero 2 bf16 gradients", {.dp = 4}, both(zero_2, bf16_gradients)},
    {"dp 2 cp 2 zero 3 bf16 gradients", {.dp = 2, .cp = 2}, both(zero_3, bf16_gradients)},
    {"dp 4 in copies small buckets", {.dp = 4, .zero_ranks = 2}, small_buckets},
    {"tp 2 dp 4 pp 2 in copies", {.tp = 2, .dp = 4, .pp = 2, .zero_ranks = 4}},
    {"dp 4 zero 2 in copies bf16 gradients",
     {.dp = 4, .zero_ranks = 2},
     both(zero_2, bf16_gradients)},
    {"dp 4 zero 3 in copies no overlap", {.dp = 4, .zero_ranks = 2}, both(zero_3, no_overlap)},
    {"cp 2", {.cp = 2}},
    {"cp 2 latents again",
     {.cp = 2},
     [](TrainSpec& s) {
       s.recompute.mode = "selective";
       s.recompute.modules = {"latent_up"};
     }},
    {"cp 2 zero 0 selective", {.cp = 2}, both(zero_0, selective)},
    {"cp 4 copies KV heads", {.cp = 4}},
    {"dp 2 cp 2 full", {.dp = 2, .cp = 2}, full_of_3},
    {"cp 2 zero 3 block", {.cp = 2}, both(zero_3, block_of_1)},
    {"pp 2 virtual 2 cp 2", {.pp = 2, .virtual_stages = 2, .cp = 2}},
    {"ep 3", {.ep = 3}},
    {"dp 2 ep 3 small buckets", {.dp = 2, .ep = 3}, small_buckets},
    {"dp 2 ep 3 bf16 gradients", {.dp = 2, .ep = 3}, bf16_gradients},
    {"dp 2 ep 3 zero 0 full", {.dp = 2, .ep = 3}, both(zero_0, full_of_3)},
    {"dp 2 ep 3 zero 2", {.dp = 2, .ep = 3}, zero_2},
    {"dp 2 ep 3 zero 3 selective", {.dp = 2, .ep = 3}, both(zero_3, selective)},
    {"dp 2 ep 3 zero 3 bf16 gradients", {.dp = 2, .ep = 3}, both(zero_3, bf16_gradients)},
    {"ep 3 zero 3 bf16 gradients", {.ep = 3}, both(zero_3, bf16_gradients)},
    {"dp 2 ep 3 in copies", {.dp = 2, .ep = 3, .zero_ranks = 3}},
    {"dp 4 ep 3 in copies bf16 gradients", {.dp = 4, .ep = 3, .zero_ranks = 6}, bf16_gradients},
    {"cp 2 ep 3 selective", {.cp = 2, .ep = 3}, selective},
    {"cp 2 ep 3 some layers", {.cp = 2, .ep = 3}, some_layers},
    {"pp 2 cp 2 some layers", {.pp = 2, .cp = 2}, some_layers},
    {"tp 2 pp 2 ep 3 sp", {.tp = 2, .pp = 2, .ep = 3}, sequence_parallel},
    {"tp 2 dp 2 pp 2 muon small buckets", {.tp = 2, .dp = 2, .pp = 2}, both(muon, small_buckets)},
    {"tp 4 dp 2 zero 0 muon", {.tp = 4, .dp = 2}, both(muon, zero_0)},
    {"dp 4 zero 3 muon in copies", {.dp = 4, .zero_ranks = 2}, both(muon, zero_3)},
    {"dp 2 ep 3 muon small buckets", {.dp = 2, .ep = 3}, both(muon, small_buckets)},
    {"tp 2 dp 2 pp 2 adapters sp", {.tp = 2, .dp = 2, .pp = 2}, both(adapters, sequence_parallel)},
    {"tp 4 adapters full", {.tp = 4}, both(adapters, full_of_3)},
    {"tp 2 dp 2 zero 3 adapters", {.tp = 2, .dp = 2}, both(adapters, zero_3)},
    {"dp 2 ep 3 zero 3 adapters", {.dp = 2, .ep = 3}, both(adapters, zero_3)},
    {"dp 2 ep 3 adapters small buckets", {.dp = 2, .ep = 3}, both(adapters, small_buckets)},
    {"tp 2 cp 2 ep 3 muon zero 2", {.tp = 2, .cp = 2, .ep = 3}, both(muon, zero_2)},
};

}  // namespace

TEST_CASE("the bytes of every link in a step are the planned ones to the byte") {
  Used used = {};
  for (const OfType& runs : kRuns) {
    for (const Model model : runs.models) {
      for (const Variant& variant : kVariants) {
        CAPTURE(static_cast<int>(model));
        CAPTURE(runs.dtype);
        CAPTURE(variant.name);
        if (variant.layout.ep > 1 && model != Model::mixtral && model != Model::olmoe) continue;
        TrainSpec spec = spec_of(model);
        if (variant.layout.ep > 1) {
          // Planned are the rows that leave where each expert gets as many: here all get all.
          spec.model.moe.topk = spec.model.moe.experts;
          spec.train.global_batch = 12;
        }
        spec.precision.dtype = runs.dtype;
        variant.change(spec);
        check_layout(spec, variant.layout, used);
      }
    }
  }
  for (size_t i = 0; i < kLinks; ++i) {
    const std::string name = link_name(static_cast<Link>(i));
    CAPTURE(name);
    CHECK(used[i] > 0);
  }
}

}  // namespace traffic_test
