// Mixtures of experts in FP8: they learn what they learn in bf16, and keep what they keep there.
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/engine/float8_runs.h"

namespace float8_test {

namespace {

// A mixture of experts, two for each token.
TrainSpec mixtral_spec(const char* dtype) {
  TrainSpec spec = spec_of(true, dtype);
  spec.model.moe = {.experts = 4, .topk = 2, .aux_loss = 0.01, .z_loss = 0.001};
  return spec;
}

}  // namespace

TEST_CASE("fp8: experts learn what they learn in bf16, from gradients near bf16's") {
  const Run bf16 = train(mixtral_spec("bf16"), {}, 200);
  const Run fp8 = train(mixtral_spec("fp8"), {}, 200);
  CHECK(mean_of_last(bf16.losses, 20) < 0.6 * bf16.losses.front());
  CHECK(mean_of_last(fp8.losses, 20) ==
        doctest::Approx(mean_of_last(bf16.losses, 20)).epsilon(0.01));
  // Of one layer: in later ones a token that scores two experts alike may take the other one.
  TrainSpec one = mixtral_spec("bf16");
  one.model.layers = 1;
  const Run near = train(one, {}, 0);
  one.precision.dtype = "fp8";
  const Run rounded = train(one, {}, 0);
  int experts = 0;
  for (const auto& [name, gradient] : near.gradients) {
    CAPTURE(name);
    const double error = relative_error(rounded.gradients.at(name), gradient);
    CHECK(error < 0.15);
    if (name.find(".experts.") == std::string::npos) continue;
    CHECK(error > 0.01);
    ++experts;
  }
  CHECK(experts == 12);
}

TEST_CASE("fp8: the rows of experts have one scale, of their largest magnitude") {
  for (const std::vector<std::string>& modules :
       {std::vector<std::string>{}, {"mlp_act", "norm"}, {"mlp"}}) {
    TrainSpec spec = mixtral_spec("fp8");
    if (!modules.empty()) {
      spec.recompute.mode = "selective";
      spec.recompute.modules = modules;
    }
    const Asked asked = asked_by(spec)[0];
    CHECK(asked.quantized > 0);
    CHECK(asked.wrong_row_amaxes == 0);
    // Of an expert's own rows along the tokens it may be more.
    CHECK(asked.small_amaxes == 0);
    CHECK(asked.wrong_amaxes > 0);
  }
}

TEST_CASE("fp8: experts keep every bit where only work is divided") {
  TrainSpec spec = mixtral_spec("fp8");
  spec.model.layers = 4;
  const Run single = train(spec, {}, kBitSteps);
  for (const Layout layout : {Layout{.pp = 2}, {.pp = 2, .virtual_stages = 2}}) {
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      CAPTURE(schedule);
      TrainSpec ordered = spec;
      ordered.parallel.schedule = schedule;
      if (layout.virtual_stages > 1) {
        ordered.recompute.mode = "selective";
        ordered.recompute.modules = {"mlp_act", "norm"};
      }
      const Run split = train(ordered, layout, kBitSteps);
      CHECK(split.losses == single.losses);
      CHECK(split.norms == single.norms);
      CHECK(split.master == single.master);
    }
  }
  for (const std::vector<std::string>& modules :
       {std::vector<std::string>{"core_attn", "mlp_act", "norm"}, {"mlp"}, {}}) {
    TrainSpec again = spec;
    again.recompute.mode = modules.empty() ? "full" : "selective";
    if (!modules.empty()) again.recompute.modules = modules;
    CHECK(train(again, {}, kBitSteps) == single);
  }
  TrainSpec zero = spec;
  zero.train.micro_batch = zero.train.global_batch / 2;
  const Run whole = train(zero, {.dp = 2}, kBitSteps);
  for (const int stage : {0, 3}) {
    CAPTURE(stage);
    zero.parallel.zero = stage;
    CHECK(train(zero, {.dp = 2}, kBitSteps) == whole);
  }
  // Layers of two kinds take turns with the memory of the copies.
  zero.model.moe.dense_layers = {0, 3};
  zero.parallel.zero = 0;
  const Run mixed = train(zero, {.dp = 2}, kBitSteps);
  zero.parallel.zero = 3;
  CHECK(train(zero, {.dp = 2}, kBitSteps) == mixed);
}

TEST_CASE("fp8: layouts of experts agree within a bound") {
  const TrainSpec spec = mixtral_spec("fp8");
  TrainSpec narrow = spec;
  narrow.parallel.ep_room = 1;  // in turns, each with a scale of its own
  const Run single = train(spec, {}, kBoundSteps);
  for (const auto& [layout, changed] : {std::pair{Layout{.ep = 2}, spec},
                                        {Layout{.ep = 2}, narrow},
                                        {Layout{.ep = 4}, spec},
                                        {Layout{.tp = 2}, spec},
                                        {Layout{.tp = 2, .ep = 2}, narrow}}) {
    CAPTURE(layout.ep);
    CAPTURE(layout.tp);
    const Run split = train(changed, layout, kBoundSteps);
    for (size_t step = 0; step < single.losses.size(); ++step) {
      CAPTURE(step);
      REQUIRE(split.losses[step] == doctest::Approx(single.losses[step]).epsilon(0.01));
    }
  }
}

}  // namespace float8_test
