#include <algorithm>

#include <fmt/format.h>

#include "sweep/choices.h"
#include "sweep/draw_parts.h"

namespace mtl::sweep {

namespace {

const Choice kLearning[] = {
    {"lr.max", 1, {"0.001", "0.003"}},
    {"lr.warmup", 0.5, {"1", "2"}},
    {"lr.min", 0.3, {"0.0001"}},
    {"lr.decay", 0.1, {"3", "5"}},
    {"optimizer.clip", 0.3, {"0", "0.1", "0.5"}},
    {"optimizer.eps", 0.1, {"1e-6"}},
    {"optimizer.weight_decay", 0.2, {"0", "0.5"}},
    {"health.nan", 0.2, {"skip"}},
    {"health.spike_factor", 0.1, {"0", "1"}},
};

const Choice kSaving[] = {
    {"checkpoint.keep_last", 0.1, {"1", "2"}},    {"checkpoint.keep_every", 0.1, {"2"}},
    {"checkpoint.keep_best.k", 0.1, {"1", "2"}},  {"checkpoint.keep_best.metric", 0.05, {"loss"}},
    {"checkpoint.keep_best.mode", 0.05, {"max"}},
};

const Choice kMuon[] = {
    {"optimizer.muon.momentum", 0.2, {"0", "0.8"}},
    {"optimizer.muon.nesterov", 0.2, {"false"}},
    {"optimizer.muon.steps", 0.2, {"1", "2", "6"}},
    {"optimizer.muon.scale", 0.3, {"shape", "unit_rms"}},
    {"optimizer.muon.factor", 0.2, {"1"}},
};

const Choice kAdapters[] = {
    {"lora.rank", 1, {"1", "2", "3", "8"}},
    {"lora.alpha", 0.6, {"1", "16"}},
    {"lora.targets", 0.5, {"[qkv]", "[qkv, proj]", "[up, down]", "[proj, down]"}},
};

void draw_optimizer(Draw& draw, Settings& s) {
  if (draw.chance(0.4)) {
    s.set("optimizer.type", draw.pick({"adam", "sgd", "lion", "muon"}));
  }
  if (s.text("optimizer.type") == "muon") draw_choices(draw, s, kMuon);
  if (s.text("optimizer.type") == "sgd") {
    if (draw.chance(0.3)) s.set("optimizer.momentum", draw.pick({"0", "0.5"}));
  } else if (draw.chance(0.15)) {
    s.set("optimizer.betas", draw.pick({"[0.9, 0.999]", "[0, 0.9]", "[0.8, 0.8]"}));
  }
  if (draw.chance(0.2)) {
    s.set("optimizer.weight_decay_ramp", draw.pick({"linear", "cosine"}));
    s.set("optimizer.weight_decay_end", "0.3");
  }
}

void draw_schedule(Draw& draw, Settings& s) {
  if (draw.chance(0.5)) return;
  const std::string schedule = draw.pick({"linear", "constant", "inverse_sqrt", "wsd"});
  s.set("lr.schedule", schedule);
  if (schedule == "wsd" && draw.chance(0.5)) {
    s.set("lr.wsd_decay", 1 + draw.below(2));
    s.set("lr.wsd_style", draw.pick({"exponential", "linear", "cosine", "minus_sqrt"}));
  }
}

void draw_precision(Draw& draw, Settings& s) {
  const std::string dtype =
      draw.pick({"fp32", "fp32", "fp32", "fp32", "fp32", "fp32", "bf16", "bf16", "fp16", "fp8"});
  if (dtype == "fp32") return;
  s.set("precision.dtype", dtype);
  if (dtype == "fp16") {
    s.set("precision.loss_scale.window", draw.pick({1, 2, 1000}));
    // From where it overflows at first.
    if (draw.chance(0.4)) s.set("precision.loss_scale.initial", draw.pick({"1e9", "1e12"}));
    if (draw.chance(0.5)) s.set("precision.loss_scale.hysteresis", 1);
    if (draw.chance(0.2)) s.set("precision.loss_scale.min", draw.pick({"256", "1e8"}));
  }
  if (dtype == "fp8" && draw.chance(0.3)) {
    s.set(draw.pick({"precision.fp8.bf16_first_layers", "precision.fp8.bf16_last_layers"}), 1);
  }
}

}  // namespace

void draw_length(Draw& draw, Settings& s) {
  const int64_t steps = draw.pick({2, 2, 3, 3, 4, 4, 6});
  s.set("train.seq_len", draw.pick({8, 12, 16, 16, 16, 24, 32, 15}));
  const int64_t batch = draw.pick({4, 6, 8, 8, 12, 16});
  s.set("train.global_batch", batch);
  if (draw.chance(0.2)) {
    s.set("train.batch_ramp", fmt::format("{{0: {}, {}: {}}}", batch, 1 + draw.below(steps),
                                          batch * draw.pick({1, 2, 2})));
  }
  const int64_t length = draw.below(10);
  if (length == 0) {
    s.set("train.samples", steps * batch - draw.below(3));
  } else if (length == 1) {
    s.set("train.tokens", steps * batch * s.number("train.seq_len", 1));
  } else {
    s.set("train.steps", steps);
  }
  s.set("train.seed", draw.below(1000));
  s.set("checkpoint.every", 1 + draw.below(std::max<int64_t>(1, steps - 1)));
  s.set("checkpoint.keep_last", int64_t{0});
  draw_choices(draw, s, kSaving);
}

void draw_learning(Draw& draw, Settings& s) {
  draw_choices(draw, s, kLearning);
  draw_schedule(draw, s);
  draw_optimizer(draw, s);
  draw_precision(draw, s);
  if (draw.chance(0.12) && s.text("optimizer.type") != "muon") draw_choices(draw, s, kAdapters);
}

// Numbers that are none from the first step on, or after it: weights or steps that are far too
// large.
void diverge(Draw& draw, Settings& s) {
  if (s.text("precision.dtype") == "fp16" && draw.chance(0.6)) {
    s.set("init.std", draw.pick({"1", "3", "10", "30"}));
  } else if (draw.chance(0.5)) {
    s.set("lr.max", draw.pick({"1e3", "1000"}));
    s.set("optimizer.type", "sgd");
    s.set("optimizer.clip", "0");
  } else {
    s.set("init.std", draw.pick({"30", "100"}));
  }
  if (draw.chance(0.7)) s.set("health.nan", "skip");
}

}  // namespace mtl::sweep
