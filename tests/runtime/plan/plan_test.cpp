#include "runtime/plan/plan.h"

#include <set>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "runtime/plan/memory/gpu_memory.h"

using namespace mtl;

namespace {

ResolvedSpec base_spec() {
  ResolvedSpec resolved;
  TrainSpec& spec = resolved.spec;
  spec.model.layers = 2;
  spec.model.hidden = 48;
  spec.model.heads = 6;
  spec.train.global_batch = 12;
  spec.train.seq_len = 16;
  spec.train.steps = 100;
  return resolved;
}

}  // namespace

TEST_CASE("a sound configuration gives a complete plan") {
  ResolvedSpec resolved = base_spec();
  resolved.spec.parallel.tp = 2;
  resolved.spec.train.micro_batch = 3;
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = 65}, 4, diagnostics);
  REQUIRE_FALSE(diagnostics.has_errors());
  CHECK(plan.grid.sizes()[Axis::dp] == 2);
  CHECK(plan.batch.at(0).micro_batches == 2);
  CHECK(plan.model.ffn == 192);
  CHECK(plan.model.max_seq == 16);
  CHECK(plan.model.padded_vocab == 128);
  CHECK(plan.largest().programs.size() == 1);
  CHECK(plan.tokens_of_step(0) == 192);
  const auto json = to_json(plan);
  CHECK(json.at("grid").at("tp_groups") == nlohmann::json({{0, 1}, {2, 3}}));
  CHECK(json.at("stages").at(0).at("memory_per_rank").at("total_bytes") == plan.peak_bytes());
}

TEST_CASE("what a GPU has beside the arena is said of Hopper and of all others") {
  ResolvedSpec resolved = base_spec();
  resolved.spec.model.hidden = 128;
  resolved.spec.model.heads = 2;
  resolved.spec.model.ffn = 16;
  resolved.spec.train.seq_len = 1024;
  resolved.spec.train.micro_batch = 3;
  resolved.spec.precision.dtype = "bf16";
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = 65}, 1, diagnostics);
  REQUIRE_FALSE(diagnostics.has_errors());
  const StagePlan& stage = plan.stages[0];
  const auto json = to_json(plan).at("stages").at(0).at("memory_per_rank").at("beside_it_on_gpu");
  // Sums of dQ in f32, of 3 x 1024 tokens, for which the arena has no room: 1.5 MiB and a bit.
  CHECK(json.at("hopper").at("kernels") == 2 << 20);
  CHECK(json.at("others").at("kernels") == 1 << 20);
  CHECK(json.at("others").at("products") == 32 << 20);
  CHECK(json.at("messages") == 0);
  CHECK(gpu_memory(stage.kernels, true).total() == 34 << 20);
  // Room for them is no memory of its own.
  const BufferPlan& room = *stage.memory.find(kAttentionRoom);
  CHECK(room.offset + room.bytes == stage.memory.total_bytes);
}

TEST_CASE("sequences divided over ranks") {
  ResolvedSpec resolved = base_spec();
  resolved.spec.model.heads = 4;
  resolved.spec.parallel.cp = 2;
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = 65}, 6, diagnostics);
  REQUIRE_FALSE(diagnostics.has_errors());
  CHECK(plan.grid.sizes()[Axis::dp] == 3);
  CHECK(plan.micro_batch == 4);
  CHECK(plan.batch.at(0).micro_batches == 1);
  CHECK(plan.share() == 8);
  // All six have parts of the optimizer's state.
  CHECK(plan.stages[0].layout.buckets[0].shards == 6);
  CHECK(plan.grid.group(0, Grid::kData) == std::vector<int>{0, 1, 2, 3, 4, 5});
  CHECK(plan.grid.holders(plan.grid.coord(3)).rank == 3);
  // Half of q, k and v and of attention's result, there and back: 8 tokens of f32 of four
  // sequences in two layers.
  CHECK(plan.stages[0].traffic[Link::context].all_to_all == 2 * 4 * 2 * (8 * (3 + 1) * 48 * 4) / 2);
  CHECK(to_json(plan).at("grid").at("cp_groups") == nlohmann::json({{0, 1}, {2, 3}, {4, 5}}));
}

TEST_CASE("ranks that divide experts share everything else") {
  ResolvedSpec resolved = base_spec();
  resolved.spec.model.activation = "swiglu";
  resolved.spec.model.bias = false;
  resolved.spec.model.moe.experts = 4;
  resolved.spec.parallel.ep = 2;
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = 65}, 6, diagnostics);
  REQUIRE_FALSE(diagnostics.has_errors());
  CHECK(plan.grid.sizes()[Axis::dp] == 3);
  CHECK(plan.grid.replicas() == 6);
  CHECK(plan.micro_batch == 2);
  CHECK(plan.grid.group(0, Grid::kData) == std::vector<int>{0, 1, 2, 3, 4, 5});
  CHECK(plan.grid.group(1, Grid::kExpertData) == std::vector<int>{1, 3, 5});
  const Holders holders = plan.grid.holders(plan.grid.coord(3));
  CHECK(holders.ranks == 6);
  CHECK(holders.rank == 3);
  CHECK(holders.expert_ranks == 3);
  CHECK(holders.expert_rank == 1);
  // Each rank has every second expert, in the same places, and the two together have all.
  std::set<int> experts;
  const ParamLayout first = plan.stage_of(0).layout, second = plan.stage_of(1).layout;
  REQUIRE(first.params.size() == second.params.size());
  for (size_t i = 0; i < first.params.size(); ++i) {
    const ParamRow& a = plan.table[first.params[i].row];
    const ParamRow& b = plan.table[second.params[i].row];
    CHECK(first.buckets[first.params[i].bucket].experts == (a.expert >= 0));
    CHECK(first.buckets[first.params[i].bucket].shards == (a.expert >= 0 ? 3 : 6));
    CHECK(a.layer == b.layer);
    if (a.expert < 0) {
      CHECK(a.name == b.name);
      continue;
    }
    CHECK(a.expert % 2 == 0);
    CHECK(b.expert == a.expert + 1);
    CHECK(local_shape(a, plan.grid.sizes()) == local_shape(b, plan.grid.sizes()));
    CHECK(a.slot.substr(a.slot.rfind('.')) == b.slot.substr(b.slot.rfind('.')));
    experts.insert({a.expert, b.expert});
  }
  CHECK(experts == std::set<int>{0, 1, 2, 3});
  CHECK(plan.stages[0].traffic[Link::experts].all_to_all > 0);
  CHECK(link_ranks(Link::experts, plan.model, plan.grid.sizes()) == 2);
  CHECK(link_ranks(Link::expert_data, plan.model, plan.grid.sizes()) == 3);
}

TEST_CASE("experts have room for so many times the even share and turns that always fit") {
  ModelShape shape;
  shape.experts = 8;
  shape.experts_per_token = 2;
  CHECK(expert_rows(shape, 100, 1, 1.5) == 200);
  CHECK(expert_rows(shape, 100, 4, 1.5) == 300);
  // No more than can come: of 400 tokens two rows each, or one where a rank has one expert.
  CHECK(expert_rows(shape, 100, 4, 1e6) == 800);
  CHECK(expert_rows(shape, 100, 8, 1e6) == 800);
  // One token of each rank fits, whatever the room.
  CHECK(expert_rows(shape, 1, 8, 1) == 8);
  for (const int ep : {2, 4, 8}) {
    for (const double room : {1.0, 1.3, 4.0}) {
      const int64_t rows = expert_rows(shape, 100, ep, room);
      const int64_t tokens = tokens_of_turn(shape, rows, ep);
      CHECK(tokens >= 1);
      CHECK(tokens * most_rows_of_token(shape, ep) <= rows);
    }
  }
}

TEST_CASE("FLOPs are those of Megatron's formula") {
  // GPT-2 124M at 1,024 tokens: 6 x (84.93M + 50257 x 768) + 6 x 12 x 768 x 1024 per token.
  ResolvedSpec resolved = base_spec();
  TrainSpec& spec = resolved.spec;
  spec.model.layers = 12;
  spec.model.hidden = 768;
  spec.model.heads = 12;
  spec.train.seq_len = 1024;
  spec.train.global_batch = 4;
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = 50257}, 1, diagnostics);
  REQUIRE_FALSE(diagnostics.has_errors());
  CHECK(plan.cost.parameters == 124439808);
  CHECK(plan.cost.flops_per_token ==
        doctest::Approx(6.0 * (12 * 12 * 768.0 * 768.0 + 50257.0 * 768.0) + 6.0 * 12 * 768 * 1024));
}

TEST_CASE("the JSON of a plan has what its text has") {
  ResolvedSpec resolved = base_spec();
  TrainSpec& spec = resolved.spec;
  spec.model.layers = 4;
  spec.model.kv_heads = 1;
  spec.model.position.type = "rope";
  spec.train.batch_ramp = {{0, 4}, {10, 8}};
  spec.train.micro_batch = 2;
  spec.parallel.tp = 2;
  spec.parallel.pp = 2;
  spec.recompute.mode = "full";
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = 65}, 4, diagnostics);
  REQUIRE_FALSE(diagnostics.has_errors());
  const nlohmann::json json = to_json(plan);
  CHECK(json.at("recompute").at("full") == "uniform");
  CHECK(json.at("optimizer") == "adamw");
  CHECK(json.at("memory").at("all_ranks") == plan.total_bytes());
  CHECK(json.at("batch").at("phases").at(1).at("bubble") == plan.schedules.at(4).facts.bubble);
  const nlohmann::json& traffic = json.at("stages").at(0).at("traffic_per_rank_and_step");
  CHECK(traffic.at("tensor").at("ranks") == 2);
  CHECK(traffic.at("norm").at("ranks") == 4);
  CHECK(traffic.at("activations").at("on_the_wire") == traffic.at("activations").at("send"));
  // Programs are words: op, micro-batch, chunk, slot.
  const nlohmann::json& schedule = json.at("schedules").at(0);
  CHECK(schedule.at("kind") == "1f1b");
  CHECK(schedule.at("stages").at(0) ==
        "load:0.0@0 forward:0.0@0 send_act:0.0@0 load:1.0@1 forward:1.0@1 send_act:1.0@1 "
        "recv_grad:0.0 backward:0.0@0 recv_grad:1.0 backward:1.0@1 reduce_grads step");
}

TEST_CASE("copies of a KV head form a group of their own") {
  ModelShape model;
  model.kv_heads = 2;
  GridSizes sizes;
  sizes[Axis::tp] = 8;
  sizes[Axis::dp] = 3;
  sizes[Axis::pp] = 5;
  CHECK(link_ranks(Link::tensor, model, sizes) == 8);
  CHECK(link_ranks(Link::kv, model, sizes) == 4);
  CHECK(link_ranks(Link::data, model, sizes) == 3);
  CHECK(link_ranks(Link::activations, model, sizes) == 2);
  CHECK(link_ranks(Link::tied, model, sizes) == 2);
  CHECK(link_ranks(Link::loss, model, sizes) == 15);
  CHECK(link_ranks(Link::norm, model, sizes) == 40);
  sizes[Axis::cp] = 2;
  CHECK(link_ranks(Link::context, model, sizes) == 2);
  CHECK(link_ranks(Link::data, model, sizes) == 6);
  CHECK(link_ranks(Link::loss, model, sizes) == 30);
  CHECK(link_ranks(Link::norm, model, sizes) == 40);
}
