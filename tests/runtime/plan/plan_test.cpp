#include "runtime/plan/plan.h"

#include <functional>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

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

TEST_CASE("every rule is a clear error with the nearest values that work") {
  struct Case {
    const char* name;
    std::function<void(TrainSpec&)> change;
    int world;
    const char* code;
    const char* what;
    const char* help;
  };
  const Case cases[] = {
      {"heads do not divide hidden", [](TrainSpec& s) { s.model.heads = 7; }, 1, "model.head_dim",
       "model.hidden 48 cannot be divided into model.heads 7",
       "use heads 6 or 8, or give model.head_dim"},
      {"tp does not divide heads", [](TrainSpec& s) { s.parallel.tp = 4; }, 4, "mesh.heads",
       "model.heads 6 cannot be split over parallel.tp 4", "use tp 3 or 6"},
      {"tp does not divide ffn",
       [](TrainSpec& s) {
         s.parallel.tp = 3;
         s.model.ffn = 100;
       },
       3, "mesh.ffn", "model.ffn 100 cannot be split over parallel.tp 3", "use tp 2 or 4"},
      {"the world is not a multiple of tp", [](TrainSpec& s) { s.parallel.tp = 2; }, 3,
       "mesh.product", "tp 2 x pp 1 = 2 does not divide 3 processes",
       "start a multiple of 2 processes (--num_processes 4)"},
      {"dp contradicts the world",
       [](TrainSpec& s) {
         s.parallel.tp = 2;
         s.parallel.dp = 4;
       },
       4, "mesh.product", "tp 2 x pp 1 x dp 4 = 8, but 4 processes are requested",
       "start 8 processes (--num_processes 8), or leave parallel.dp out"},
      {"the batch is not a multiple of dp", [](TrainSpec&) {}, 5, "batch.dp",
       "train.global_batch 12 cannot be divided over dp 5", "use a multiple of 5: 10 or 15"},
      {"the micro-batch does not divide", [](TrainSpec& s) { s.train.micro_batch = 5; }, 1,
       "batch.micro",
       "train.micro_batch 5 does not divide the 12 sequences of each replica (global_batch 12 / dp "
       "1)",
       "use 4 or 6"},
      {"sequences longer than positions", [](TrainSpec& s) { s.model.max_seq = 8; }, 1,
       "model.max_seq", "model.max_seq 8 is shorter than train.seq_len 16",
       "use max_seq >= 16, or leave it out"},
      {"lr.min above lr.max", [](TrainSpec& s) { s.lr.min = 1; }, 1, "lr.range",
       "lr.min 1 is above lr.max 0.0003", "lower lr.min or raise lr.max"},
      {"warm-up longer than the run", [](TrainSpec& s) { s.lr.warmup = 100; }, 1, "lr.warmup",
       "lr.warmup 100 leaves no step to decay: lr.decay is 100", "use lr.warmup < 100"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    ResolvedSpec resolved = base_spec();
    c.change(resolved.spec);
    Diagnostics diagnostics;
    make_plan(resolved, {.vocab = 65}, c.world, diagnostics);
    REQUIRE(diagnostics.all().size() == 1);
    CHECK(diagnostics.all()[0].code == c.code);
    CHECK(diagnostics.all()[0].what == c.what);
    CHECK(diagnostics.all()[0].help == c.help);
  }
}

TEST_CASE("several broken rules are reported together") {
  ResolvedSpec resolved = base_spec();
  resolved.spec.model.max_seq = 8;
  resolved.spec.parallel.tp = 4;
  resolved.spec.lr.min = 1;
  Diagnostics diagnostics;
  make_plan(resolved, {.vocab = 65}, 4, diagnostics);
  CHECK(diagnostics.all().size() == 3);
}
