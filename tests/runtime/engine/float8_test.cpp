// Training in FP8 on the CPU engine, which rounds as a GPU does: it learns what bf16 learns, its
// gradients are near bf16's, and layouts keep what they keep in bf16. (Experts:
// float8_experts_test.cpp.)
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/engine/float8_runs.h"

namespace float8_test {

namespace {

bool is_linear(const std::string& name) {
  for (const char* one : {"c_attn.weight", "attn.c_proj.weight", "c_fc.weight", "mlp.c_proj.weight",
                          "q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight",
                          "gate_proj.weight", "up_proj.weight", "down_proj.weight"}) {
    if (name.ends_with(one)) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("fp8 learns in 200 steps what bf16 learns") {
  for (const bool llama : {false, true}) {
    CAPTURE(llama);
    const Run bf16 = train(spec_of(llama, "bf16"), {}, 200);
    const Run fp8 = train(spec_of(llama, "fp8"), {}, 200);
    CHECK(mean_of_last(bf16.losses, 20) < 0.6 * bf16.losses.front());  // it learns
    CHECK(mean_of_last(fp8.losses, 20) ==
          doctest::Approx(mean_of_last(bf16.losses, 20)).epsilon(0.01));
    CHECK(fp8.valid == doctest::Approx(bf16.valid).epsilon(0.01));
    for (size_t step = 0; step < fp8.losses.size(); ++step) {
      CAPTURE(step);
      REQUIRE(fp8.losses[step] == doctest::Approx(bf16.losses[step]).epsilon(0.03));
    }
    CHECK(fp8.losses != bf16.losses);
  }
}

TEST_CASE("fp8: the gradients of a step are near those of bf16 and not the same") {
  // One rounding of E4M3 is 2^-4 of a value at most and of E5M2 2^-3, about a third of that on
  // average (root mean square); those of a sum's terms are independent. A gradient has been through
  // both, several layers of it.
  for (const bool llama : {false, true}) {
    const Run bf16 = train(spec_of(llama, "bf16"), {}, 0);
    const Run fp8 = train(spec_of(llama, "fp8"), {}, 0);
    for (const auto& [name, gradient] : bf16.gradients) {
      CAPTURE(name);
      const double error = relative_error(fp8.gradients.at(name), gradient);
      CHECK(error < 0.15);
      if (is_linear(name)) CHECK(error > 0.01);
    }
  }
}

TEST_CASE("fp8: pipelines and ZeRO and recompute keep every bit") {
  for (const bool llama : {false, true}) {
    TrainSpec spec = spec_of(llama, "fp8");
    spec.model.layers = 4;
    const Run single = train(spec, {}, kBitSteps);
    for (const Layout layout : {Layout{.pp = 2}, {.pp = 2, .virtual_stages = 2}, {.pp = 4}}) {
      CAPTURE(layout.pp);
      CAPTURE(layout.virtual_stages);
      TrainSpec ordered = spec;
      ordered.parallel.schedule = layout.pp == 4 ? "zb-h1" : "1f1b";
      const Run split = train(ordered, layout, kBitSteps);
      CHECK(split.losses == single.losses);
      CHECK(split.norms == single.norms);
      CHECK(split.master == single.master);
      // Partial losses of an evaluation are added up by stage and not by micro-batch alone.
      CHECK(split.valid == doctest::Approx(single.valid).epsilon(1e-12));
    }
    for (const char* what : {"selective", "mlp", "some", "full"}) {
      CAPTURE(what);
      TrainSpec again = spec;
      again.recompute.mode = what == std::string("full") ? "full" : "selective";
      if (what == std::string("selective")) {
        again.recompute.modules = {"core_attn", "mlp_act", "norm"};
      }
      if (what == std::string("mlp")) again.recompute.modules = {"mlp"};
      if (what == std::string("some")) {
        again.recompute.modules = {"norm", "mlp_act", "mlp"};
        again.recompute.module_layers = {{"norm", 3}, {"mlp_act", 2}, {"mlp", 1}};
      }
      CHECK(train(again, {}, kBitSteps) == single);
    }
    TrainSpec zero = spec;
    zero.parallel.zero = 0;
    const Run plain = train(zero, {.dp = 2}, kBitSteps);
    zero.parallel.zero = 1;
    CHECK(train(zero, {.dp = 2}, kBitSteps) == plain);
    zero.parallel.overlap = {
        .grad_reduce = false, .param_gather = "false", .p2p = false, .tp = "false"};
    CHECK(train(zero, {.dp = 2}, kBitSteps) == plain);
    // A micro-batch per step; layers take turns with the memory of the copies.
    zero = spec;
    zero.train.micro_batch = zero.train.global_batch / 2;
    const Run whole = train(zero, {.dp = 2}, kBitSteps);
    for (const int stage : {2, 3}) {
      CAPTURE(stage);
      zero.parallel.zero = stage;
      CHECK(train(zero, {.dp = 2}, kBitSteps) == whole);
    }
    zero.recompute.mode = "full";
    zero.recompute.layers = 3;
    CHECK(train(zero, {.dp = 2}, kBitSteps) == whole);
  }
}

TEST_CASE("fp8: layouts agree within a bound") {
  // The scale of a weight is that of all ranks' parts; that of an activation is of the rank's own
  // tensor, whose rounding differs a little from that of the whole one.
  for (const bool llama : {false, true}) {
    const TrainSpec spec = spec_of(llama, "fp8");
    const Run single = train(spec, {}, kBoundSteps);
    for (const Layout layout : {Layout{.tp = 2}, {.dp = 2}, {.tp = 2, .dp = 2}, {.cp = 2}}) {
      CAPTURE(layout.cp);
      CAPTURE(layout.tp);
      CAPTURE(layout.dp);
      const Run split = train(spec, layout, kBoundSteps);
      for (size_t step = 0; step < single.losses.size(); ++step) {
        CAPTURE(step);
        REQUIRE(split.losses[step] == doctest::Approx(single.losses[step]).epsilon(0.01));
      }
    }
  }
}

TEST_CASE("fp8: the scale of a weight does not depend on tp") {
  // Inverse scales by linear, as the arena has them behind an evaluation.
  const auto scales_of = [](bool llama, Layout layout) {
    const auto source = markov_tokens(1'000, kVocab);
    std::vector<std::map<std::string, float>> ranks(static_cast<size_t>(layout.world()));
    run_layout(spec_of(llama, "fp8"), kVocab, layout, [&](RankContext& rank) {
      rank.trainer.initialise();
      rank.trainer.evaluate(*source, 8);
      const MemoryPlan& memory = rank.plan.stage_of(rank.rank).memory;
      const ParameterState first = rank.trainer.state().front();
      const char* const arena = static_cast<char*>(first.grad.data) -
                                first.part.offset * bytes_of(DType::f32) -
                                memory.find("grads")->offset;
      for (const BufferPlan& buffer : memory.buffers) {
        if (!buffer.name.ends_with(kFloat8Inverse)) continue;
        ranks[static_cast<size_t>(rank.rank)][buffer.name] =
            *reinterpret_cast<const float*>(arena + buffer.offset);
      }
    });
    return ranks;
  };
  for (const bool llama : {false, true}) {
    const auto single = scales_of(llama, {});
    CHECK(single[0].size() == 12);
    for (const auto& [name, inverse] : single[0]) CHECK(inverse > 0);
    const auto split = scales_of(llama, {.tp = 2});
    CHECK(split[0] == single[0]);
    CHECK(split[1] == single[0]);
  }
}

TEST_CASE("fp8: copies of weights follow the weights") {
  const TrainSpec spec = spec_of(false, "fp8");
  const auto source = markov_tokens(20'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 1);
  GlobalTensors masters;
  double trained = 0;
  run_layout(spec, kVocab, {}, [&](RankContext& rank) {
    rank.trainer.initialise();
    const double before = rank.trainer.evaluate(*source, 16);
    for (int64_t step = 0; step < 20; ++step) rank.trainer.step(step, *source, sampler, {});
    collect(rank.trainer, Which::master, masters);
    trained = rank.trainer.evaluate(*source, 16);
    CHECK(trained < before - 0.1);
    // A part of a micro-batch has as many tokens as it has.
    CHECK(std::isfinite(rank.trainer.evaluate(*source, 15)));
  });
  // Copies that were made of no other weights.
  run_layout(spec, kVocab, {}, [&](RankContext& rank) {
    set_masters(rank.trainer, [&](const ParamRow& row, int64_t i) {
      return masters.at(row.name)[static_cast<size_t>(i)];
    });
    CHECK(rank.trainer.evaluate(*source, 16) == trained);
  });
}

TEST_CASE("fp8: layers that stay in bf16 have no copies and compute as bf16") {
  TrainSpec spec = spec_of(false, "fp8");
  spec.precision.fp8 = {.bf16_first_layers = 1, .bf16_last_layers = 1};
  const auto planned = [&](const char* name) {
    bool there = false;
    run_layout(spec, kVocab, {}, [&](RankContext& rank) {
      there = rank.plan.stages[0].memory.find(name) != nullptr;
    });
    return there;
  };
  CHECK_FALSE(planned("layer0.attn.qkv.fp8"));
  CHECK(planned("layer1.attn.qkv.fp8"));
  CHECK(planned("layer1.mlp.down.fp8t"));
  CHECK_FALSE(planned("layer2.mlp.up.fp8"));
  // The gradient of the last layer's second linear sees the layers before it in FP8, and itself in
  // none: nearer to bf16's than with all in FP8.
  const Run bf16 = train(spec_of(false, "bf16"), {}, 0);
  const Run all = train(spec_of(false, "fp8"), {}, 0);
  const Run some = train(spec, {}, 0);
  const std::string name = "transformer.h.2.mlp.c_proj.weight";
  CHECK(relative_error(some.gradients.at(name), bf16.gradients.at(name)) <
        0.5 * relative_error(all.gradients.at(name), bf16.gradients.at(name)));
}

TEST_CASE("fp8: a weight that is no number is found") {
  const TrainSpec spec = spec_of(false, "fp8");
  const auto source = markov_tokens(1'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 1);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    run_layout(spec, kVocab, {}, [&](RankContext& rank) {
      rank.trainer.initialise();
      for (ParameterState& state : rank.trainer.state()) {
        if (state.row->name == "transformer.h.1.mlp.c_fc.weight") {
          set_master(rank.trainer, state, 5, bad);
        }
      }
      rank.trainer.weights_changed();
      try {
        rank.trainer.step(0, *source, sampler, {});
        FAIL("accepted");
      } catch (const Error& error) {
        CHECK(error.diagnostics().front().code == "loss.nan");
        CHECK(error.diagnostics().front().notes.front().find("transformer.h.1.mlp.c_fc.weight") !=
              std::string::npos);
      }
    });
  }
}

TEST_CASE("fp8: a pass over a tensor for its largest magnitude only where no op leaves it") {
  // Of a layer's linears: what attention gives forward (x of the projection) and backward (dy of
  // QKV), and with GELU, which the products do, both sides of it too.
  for (const bool llama : {false, true}) {
    CAPTURE(llama);
    TrainSpec spec = spec_of(llama, "fp8");
    spec.model.layers = 4;
    const int64_t micro_batches = spec.train.global_batch / spec.train.micro_batch;
    const int64_t weights = 4 * spec.model.layers, fewest = llama ? 2 : 4;
    const auto expected = [&](int64_t of_layer) {
      return weights + micro_batches * spec.model.layers * of_layer;
    };
    const Asked plain = asked_by(spec)[0];
    CHECK(plain.amaxes == expected(fewest));
    // Of x the copy along the tokens is kept, but for that of the projection.
    CHECK(plain.quantized == expected(4 + 1 + 4));
    // The gradient that a later stage sends has one pass.
    const std::vector<Asked> stages = asked_by(spec, {.pp = 2});
    CHECK(stages[0].amaxes == expected(fewest) / 2 + micro_batches);
    CHECK(stages[1].amaxes == expected(fewest) / 2);
    // Dropout makes dy of the projection and of `down` another tensor.
    spec.model.dropout.hidden = 0.1;
    CHECK(asked_by(spec)[0].amaxes == expected(fewest + 2));
    spec.model.dropout.hidden = 0;
    // What a norm makes is gathered from all ranks.
    spec.parallel.sp = "true";
    for (const Asked& rank : asked_by(spec, {.tp = 2})) CHECK(rank.amaxes == expected(fewest + 4));
    spec.parallel.sp = "false";
    for (const Asked& rank : asked_by(spec, {.tp = 2})) CHECK(rank.amaxes == expected(fewest));
  }
}

TEST_CASE("fp8: what is rounded has the scale of its own largest magnitude") {
  const auto check = [](const TrainSpec& spec, Layout layout) {
    for (const Asked& rank : asked_by(spec, layout)) {
      CHECK(rank.quantized > 0);
      CHECK(rank.wrong_amaxes == 0);
    }
  };
  for (const bool llama : {false, true}) {
    CAPTURE(llama);
    TrainSpec spec = spec_of(llama, "fp8");
    spec.model.layers = 4;
    for (const double dropout : {0.0, 0.1}) {
      CAPTURE(dropout);
      spec.model.dropout.hidden = dropout;
      for (const Layout layout :
           {Layout{}, {.pp = 2}, {.pp = 2, .virtual_stages = 2}, {.pp = 4}, {.dp = 2}}) {
        CAPTURE(layout.pp);
        CAPTURE(layout.virtual_stages);
        check(spec, layout);
        for (const std::vector<std::string>& modules :
             {std::vector<std::string>{"core_attn", "mlp_act", "norm"}, {"mlp"}, {}}) {
          TrainSpec again = spec;
          again.recompute.mode = modules.empty() ? "full" : "selective";
          if (!modules.empty()) again.recompute.modules = modules;
          check(again, layout);
          // And layers that keep it.
          for (const std::string& module : modules) again.recompute.module_layers[module] = 1;
          if (!modules.empty()) check(again, layout);
        }
      }
    }
  }
  // With TP a weight's is that of all ranks' parts; an activation's is the rank's own.
  for (const char* sequence : {"true", "false"}) {
    CAPTURE(sequence);
    TrainSpec divided = spec_of(true, "fp8");
    divided.parallel.sp = sequence;
    for (const Asked& rank : asked_by(divided, {.tp = 2})) {
      CHECK(rank.wrong_amaxes <= 4 * divided.model.layers);
    }
  }
  // Of the linears that are in FP8, some.
  TrainSpec some = spec_of(true, "fp8");
  some.precision.fp8 = {.bf16_first_layers = 1, .bf16_last_layers = 1};
  check(some, {});
  some.precision.fp8 = {};
  some.model.ffn = 72;  // not a multiple of 16
  check(some, {});
}

TEST_CASE("fp8: a device without it is refused with what to do") {
  const MakeDevice without = [](int) { return std::make_unique<GuardedDevice>(false); };
  CHECK_NOTHROW(run_layout(
      spec_of(false, "bf16"), kVocab, {}, [](RankContext&) {}, 0, {}, without));
  try {
    run_layout(
        spec_of(false, "fp8"), kVocab, {}, [](RankContext&) {}, 0, {}, without);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.exit() == Exit::environment);
    CHECK(error.diagnostics().front().code == "gpu.float8");
    CHECK(error.diagnostics().front().help.find("precision.dtype=bf16") != std::string::npos);
  }
}

}  // namespace float8_test
