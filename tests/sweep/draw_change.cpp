#include <algorithm>

#include "sweep/choices.h"
#include "sweep/draw_parts.h"

namespace mtl::sweep {

namespace {

// Of runs that begin from weights.
const Choice kNew[] = {
    {"train.seed", 0.6, {"5", "6", "77"}},
    {"train.steps", 1, {"1", "2", "3"}},
    {"lr.max", 0.3, {"0.0005", "0.002"}},
    {"optimizer.type", 0.2, {"adam", "sgd", "muon"}},
    {"precision.dtype", 0.2, {"fp32", "bf16", "fp16", "fp8"}},
    {"model.dropout.hidden", 0.2, {"0", "0.2"}},
    {"model.vocab_pad_to", 0.2, {"1", "5", "128"}},
    {"data.sampler", 0.3, {"random", "sequential", "megatron", "feistel"}},
};

// Of runs that go on.
const Choice kChanged[] = {
    {"lr.max", 0.3, {"0.0005", "0.002"}},
    {"lr.schedule", 0.1, {"constant", "linear"}},
    {"optimizer.clip", 0.2, {"0", "0.2"}},
    {"optimizer.weight_decay", 0.1, {"0.3"}},
    {"health.nan", 0.2, {"skip", "stop"}},
    {"model.dropout.hidden", 0.1, {"0", "0.2"}},
    {"train.eval.iters", 0.2, {"1", "2"}},
    {"train.logits_rows", 0.2, {"3", "20"}},
    {"precision.dtype", 0.1, {"fp32", "bf16", "fp16", "fp8"}},
};

// Of those whose data are others from there on.
const Choice kOtherData[] = {
    {"data.on_change", 0.95, {"accept"}},
    {"data.sampler", 0.5, {"random", "sequential", "megatron", "feistel", "cyclic"}},
    {"train.seq_len", 0.5, {"6", "8", "16"}},
    {"data.split", 0.2, {"[3, 1]"}},
};

// As many sequences per step as divide or multiply well.
void draw_batch(Draw& draw, const Case& drawn, Settings& s) {
  if (drawn.batch_of_layout) {
    s.set("parallel.dp", draw.pick({1, 2, 3}));
    return;
  }
  const int64_t batch = drawn.common.number("train.global_batch", 4);
  s.set("train.global_batch", draw.pick({batch / 2, 2 * batch, 3 * batch}));
  if (!drawn.common.text("train.batch_ramp").empty()) s.set("train.batch_ramp", "auto");
}

template <class Attempt>
Settings draw_possible(Draw& draw, const Case& drawn, const std::string& folder,
                       const Attempt& attempt) {
  Settings s;
  for (int i = 0; i < 50; ++i) {
    s = attempt();
    Planned ignored;
    if (draw.chance(0.05)) return s;  // also what is refused
    if (can_run(drawn.common, drawn.first.with(s), folder, ignored)) return s;
  }
  return s;
}

}  // namespace

Settings draw_change(Draw& draw, const Case& drawn, const std::string& folder) {
  return draw_possible(draw, drawn, folder, [&] {
    Settings s;
    draw_choices(draw, s, kChanged);
    if (draw.chance(0.5)) draw_batch(draw, drawn, s);
    if (draw.chance(0.4)) draw_choices(draw, s, kOtherData);
    const int64_t steps = drawn.common.number("train.steps", 0);
    if (steps > 0 && draw.chance(0.3)) s.set("train.steps", steps + 1 + draw.below(2));
    return s;
  });
}

Settings draw_new_run(Draw& draw, const Case& drawn, const std::string& folder) {
  return draw_possible(draw, drawn, folder, [&] {
    Settings s;
    draw_choices(draw, s, kNew);
    if (drawn.common.number("train.steps", 0) == 0) s.erase("train.steps");
    if (draw.chance(0.4)) draw_batch(draw, drawn, s);
    // Fewer positions than the model has had.
    const int64_t positions = drawn.common.number("train.seq_len", 16);
    if (draw.chance(0.2)) s.set("train.seq_len", std::max<int64_t>(4, positions / 2));
    return s;
  });
}

}  // namespace mtl::sweep
