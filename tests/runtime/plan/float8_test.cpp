// FP8 in the plan: which linears, their memory, what is refused and what is said.
#include "runtime/plan/float8.h"

#include <algorithm>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "runtime/plan/forecast/forecast.h"
#include "runtime/plan/plan.h"
#include "runtime/spec/load.h"

using namespace mtl;

namespace {

ResolvedSpec fp8_spec() {
  ResolvedSpec resolved;
  TrainSpec& spec = resolved.spec;
  spec.model.layers = 4;
  spec.model.hidden = 64;
  spec.model.heads = 4;
  spec.train.global_batch = 8;
  spec.train.micro_batch = 2;
  spec.train.seq_len = 32;
  spec.train.steps = 10;
  spec.precision.dtype = "fp8";
  for (const std::string& key : spec_keys()) resolved.places[key] = Place{key};
  return resolved;
}

struct Planned {
  Plan plan;
  std::vector<Diagnostic> said;
};
Planned planned(const ResolvedSpec& resolved, int world = 1) {
  Diagnostics diagnostics;
  Plan plan = make_plan(resolved, {.vocab = 65}, world, diagnostics);
  return {std::move(plan), diagnostics.all()};
}

}  // namespace

TEST_CASE("fp8 computes in bf16 but for the copies of weights and scratch of its products") {
  ResolvedSpec resolved = fp8_spec();
  const Planned fp8 = planned(resolved);
  CHECK(fp8.said.empty());
  CHECK(fp8.plan.compute == DType::bf16);
  CHECK(fp8.plan.float8.on);
  resolved.spec.precision.dtype = "bf16";
  const Planned bf16 = planned(resolved);
  CHECK_FALSE(bf16.plan.float8.on);
  const MemoryPlan& with = fp8.plan.stages[0].memory;
  const MemoryPlan& without = bf16.plan.stages[0].memory;
  for (const MemoryCategory same : {MemoryCategory::gradients, MemoryCategory::optimizer}) {
    CHECK(with.bytes_of_category(same) == without.bytes_of_category(same));
  }
  // Three numbers of 4 layers' 4 linears, in the one slot; what goes into QKV, up and down (64, 64
  // and 256 elements of each of 64 tokens) in one byte instead of two, and in two while it is used.
  CHECK(with.find(kFloat8Operands)->shape == std::vector<int64_t>{4, 4, 4});
  const int64_t inputs = 64 * (64 + 64 + 256);
  CHECK(with.bytes_of_category(MemoryCategory::activations) -
            without.bytes_of_category(MemoryCategory::activations) ==
        256 - 4 * inputs + 2 * inputs);
  // Per layer 64 x 192, 64 x 64, 64 x 256 and 256 x 64, twice; four scales of 256 bytes, and one
  // buffer for the largest values.
  const int64_t elements = 64 * 192 + 64 * 64 + 2 * 64 * 256;
  CHECK(with.bytes_of_category(MemoryCategory::weights) -
            without.bytes_of_category(MemoryCategory::weights) ==
        4 * (2 * elements + 5 * 256));
  // 64 tokens: the widest input (256), and the widest output (256) twice; a number.
  CHECK(with.bytes_of_category(MemoryCategory::scratch) -
            without.bytes_of_category(MemoryCategory::scratch) ==
        64 * 256 * 3 + 256);
  const BufferPlan* qkv = with.find("layer3.attn.qkv.fp8");
  REQUIRE(qkv != nullptr);
  CHECK(qkv->dtype == DType::f8_e4m3);
  CHECK(qkv->shape == std::vector<int64_t>{192, 64});
  CHECK(with.find("layer3.attn.qkv.fp8t")->shape == std::vector<int64_t>{64, 192});
  CHECK(with.find("fp8.dy")->dtype == DType::f8_e5m2);
}

TEST_CASE(
    "fp8 keeps what goes into a linear along the tokens, where nothing else keeps or makes it") {
  ResolvedSpec resolved = fp8_spec();
  TrainSpec& spec = resolved.spec;
  const auto kept = [&](int world = 1) {
    const Planned run = planned(resolved, world);
    for (const Diagnostic& said : run.said) REQUIRE(said.severity == Diagnostic::Severity::warning);
    const Plan& plan = run.plan;
    const MemoryPlan& memory = plan.stages[0].memory;
    std::vector<std::string> list;
    for (const char* slot : kLinearSlots) {
      const BufferPlan* buffer = memory.find(layer_buffer(1, slot) + kFloat8Kept);
      if (buffer == nullptr) continue;
      CHECK(buffer->dtype == DType::f8_e4m3);
      CHECK(buffer->shape[1] == 64);
      list.emplace_back(slot);
    }
    // What is kept in FP8 lies in bf16 where every layer has it.
    const std::pair<const char*, const char*> inputs[] = {
        {"attn.normed", "attn.qkv"}, {"mlp.normed", "mlp.up"}, {"mlp.activated", "mlp.down"}};
    for (const auto& [input, slot] : inputs) {
      CAPTURE(input);
      if (std::count(list.begin(), list.end(), slot) == 0) continue;
      CHECK(memory.find(layer_buffer(0, input))->offset ==
            memory.find(layer_buffer(1, input))->offset);
    }
    return list;
  };
  using List = std::vector<std::string>;
  CHECK(kept() == List{"attn.qkv", "mlp.up", "mlp.down"});
  spec.recompute.mode = "selective";
  spec.recompute.modules = {"norm"};
  CHECK(kept() == List{"mlp.down"});
  spec.recompute.modules = {"mlp_act"};
  CHECK(kept() == List{"attn.qkv", "mlp.up"});
  spec.recompute.modules = {"mlp"};
  CHECK(kept() == List{"attn.qkv"});
  spec.recompute = {};
  spec.recompute.mode = "full";
  CHECK(kept().empty());
  spec.recompute = {};
  spec.model.ffn = 100;
  CHECK(kept() == List{"attn.qkv"});
  spec.model.ffn = 256;
  spec.precision.fp8.bf16_first_layers = 2;
  CHECK(kept().empty());
  spec.precision.fp8.bf16_first_layers = 0;
  spec.parallel.tp = 2;
  spec.parallel.sp = "false";
  CHECK(kept(2) == List{"attn.qkv", "mlp.up", "mlp.down"});
  spec.parallel.sp = "true";  // rows of all ranks are gathered
  CHECK(kept(2) == List{"mlp.down"});
}

TEST_CASE("fp8 takes the linears of latents") {
  ResolvedSpec resolved = fp8_spec();
  TrainSpec& spec = resolved.spec;
  spec.model.position.type = "rope";
  spec.model.norm.type = "rmsnorm";
  spec.model.bias = false;
  spec.model.head_dim = 32;
  spec.model.latent = {.kv_rank = 48, .q_rank = 80, .rope_dim = 16};
  using List = std::vector<std::string>;
  // With copies of weights, and with copies of what they multiply.
  const auto taken = [&](const char* copy) {
    const Planned run = planned(resolved);
    List list;
    for (const char* slot : kLinearSlots) {
      if (run.plan.stages[0].memory.find(layer_buffer(1, slot) + copy) != nullptr) {
        list.emplace_back(slot);
      }
    }
    return list;
  };
  CHECK(taken(kFloat8Forward) == List{"attn.proj", "mlp.up", "mlp.down", "attn.q_down", "attn.q",
                                      "attn.kv_down", "attn.kv"});
  CHECK(taken(kFloat8Kept) == List{"mlp.up", "mlp.down", "attn.q", "attn.kv"});
  spec.recompute.mode = "selective";
  spec.recompute.modules = {"latent_up"};
  CHECK(taken(kFloat8Kept) == List{"mlp.up", "mlp.down"});
  spec.recompute.modules = {"norm"};
  CHECK(taken(kFloat8Kept) == List{"mlp.down"});
  spec.recompute = {};
  spec.model.latent = {.kv_rank = 40, .rope_dim = 16};  // 40 is no multiple of 16, and nor is 56
  CHECK(taken(kFloat8Forward) == List{"attn.proj", "mlp.up", "mlp.down", "attn.q"});
}

TEST_CASE("fp8 leaves the first and the last layers in bf16") {
  ResolvedSpec resolved = fp8_spec();
  resolved.spec.precision.fp8 = {.bf16_first_layers = 2, .bf16_last_layers = 1};
  resolved.spec.parallel.pp = 2;
  const Planned run = planned(resolved, 2);
  CHECK(run.said.empty());
  // Layers count over the whole model: stage 0 has 0 and 1.
  CHECK(run.plan.stages[0].memory.find("layer1.mlp.up.fp8") == nullptr);
  CHECK(run.plan.stages[1].memory.find("layer2.mlp.up.fp8") != nullptr);
  CHECK(run.plan.stages[1].memory.find("layer3.mlp.up.fp8") == nullptr);
  CHECK(to_json(run.plan).at("fp8_layers") == 1);
}

TEST_CASE("fp8 linears are those whose sizes on a rank are multiples of 16") {
  ModelShape shape = planned(fp8_spec()).plan.model;
  const auto slots = [&](int64_t seq, int tp) {
    std::vector<std::string> list;
    for (const LocalLinear& linear : float8_linears(shape, seq, tp, 1))
      list.emplace_back(linear.slot);
    return list;
  };
  using List = std::vector<std::string>;
  CHECK(slots(32, 1) == List{"attn.qkv", "attn.proj", "mlp.up", "mlp.down"});
  CHECK(slots(40, 1).empty());
  CHECK(slots(32, 4).size() == 4);
  shape.ffn = 96;  // 24 on each of four ranks
  CHECK(slots(32, 4) == List{"attn.qkv", "attn.proj"});

  ResolvedSpec resolved = fp8_spec();
  resolved.spec.model.ffn = 100;
  const Planned run = planned(resolved);
  REQUIRE(run.said.size() == 1);
  CHECK(run.said[0].severity == Diagnostic::Severity::warning);
  CHECK(run.said[0].code == "precision.fp8_shape");
  CHECK(run.said[0].place->file == "precision.dtype");
  CHECK(run.said[0].what ==
        "in bf16 on every layer: mlp.up (64 x 100), mlp.down (100 x 64); fp8 takes multiples of 16 "
        "on each rank, of train.seq_len (32) too");
  CHECK(run.plan.stages[0].memory.find("layer0.attn.qkv.fp8") != nullptr);
  CHECK(run.plan.stages[0].memory.find("layer0.mlp.up.fp8") == nullptr);
}

TEST_CASE("fp8 refuses a model that is all in bf16") {
  ResolvedSpec resolved = fp8_spec();
  TrainSpec& spec = resolved.spec;
  spec.precision.fp8 = {.bf16_first_layers = 3, .bf16_last_layers = 1};
  Planned run = planned(resolved);
  REQUIRE(run.said.size() == 1);
  CHECK(run.said[0].code == "precision.fp8_layers");
  CHECK(run.said[0].place->file == "precision.fp8.bf16_last_layers");
  CHECK(run.said[0].what == "precision.fp8 keeps 4 layers in bf16, and the model has 4");
}

TEST_CASE("fp8 copies of experts are those of the rank, and their rows have room filled up") {
  ResolvedSpec resolved = fp8_spec();
  TrainSpec& spec = resolved.spec;
  spec.model.moe = {.experts = 4, .topk = 2};
  spec.model.activation = "swiglu";
  spec.model.bias = false;
  spec.model.ffn = 96;
  spec.parallel.ep = 2;
  spec.parallel.ep_room = 1;
  Planned run = planned(resolved, 2);
  CHECK(run.said.empty());
  const MemoryPlan& memory = run.plan.stages[0].memory;
  using Dims = std::vector<int64_t>;
  CHECK(memory.find("layer3.mlp.expert1.up.fp8")->shape == Dims{192, 64});
  CHECK(memory.find("layer3.mlp.expert1.down.fp8t")->shape == Dims{96, 64});
  CHECK(memory.find("layer3.mlp.expert2.up.fp8") == nullptr);
  CHECK(memory.find("layer3.fp8.amax")->shape == Dims{6});
  // 64 tokens have 128 rows.
  CHECK(memory.find("fp8.expert_rows")->shape == Dims{128 * 192});
  CHECK(memory.find("fp8.expert_x")->shape == Dims{96, 128});
  CHECK(float8_filled_up(1) == 16);
  CHECK(float8_filled_up(128) == 128);
  // What is given to experts is kept in bf16, what is given to QKV in FP8.
  CHECK(memory.find("layer3.attn.qkv.fp8_x") != nullptr);
  CHECK(memory.find("layer0.mlp.activated")->offset != memory.find("layer1.mlp.activated")->offset);

  // An expert's two stay together, whatever sequences are.
  spec.model.ffn = 100;
  run = planned(resolved, 2);
  REQUIRE(run.said.size() == 1);
  CHECK(run.said[0].what ==
        "in bf16 on every layer: experts' up (64 x 200), experts' down (100 x 64); fp8 takes "
        "multiples of 16 on each rank");
  CHECK(run.plan.stages[0].memory.find("fp8.expert_rows") == nullptr);
  spec.model.ffn = 96;
  spec.train.seq_len = 40;
  run = planned(resolved, 2);
  REQUIRE(run.said.size() == 1);
  CHECK(run.plan.stages[0].memory.find("layer0.attn.qkv.fp8") == nullptr);
  CHECK(run.plan.stages[0].memory.find("layer0.mlp.expert0.up.fp8") != nullptr);
}

TEST_CASE("settings of fp8 have no effect elsewhere") {
  ResolvedSpec resolved = fp8_spec();
  resolved.spec.precision.fp8 = {.bf16_first_layers = 1, .bf16_last_layers = 1};
  CHECK(planned(resolved).said.empty());
  resolved.spec.precision.dtype = "bf16";
  const Planned run = planned(resolved);
  REQUIRE(run.said.size() == 2);
  CHECK(run.said[0].code == "config.no_effect");
  CHECK(run.said[0].what ==
        "precision.fp8.bf16_first_layers has no effect: precision.dtype is not fp8");
  CHECK(run.said[1].place->file == "precision.fp8.bf16_last_layers");
}

TEST_CASE("the forecast of a run in fp8 is that of its layout") {
  ResolvedSpec resolved = fp8_spec();
  resolved.spec.model.hidden = 4096;
  resolved.spec.model.heads = 32;
  resolved.spec.train.seq_len = 4096;
  const Planned fp8 = planned(resolved);
  CHECK(layout_of(fp8.plan).float8.on);
  const auto not_run_on = [&](const char* gpus) {
    return not_run_here(fp8.plan.model, layout_of(fp8.plan), *find_cluster(gpus));
  };
  CHECK(not_run_on("h100-80g").empty());
  CHECK(not_run_on("a100-80g") == std::vector<std::string>{"FP8 on a GPU that multiplies none"});
  resolved.spec.precision.dtype = "bf16";
  CHECK_FALSE(layout_of(planned(resolved).plan).float8.on);
}
