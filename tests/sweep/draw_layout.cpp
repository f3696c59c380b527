#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sweep/choices.h"
#include "sweep/draw_parts.h"
#include "sweep/texts.h"

namespace mtl::sweep {

namespace {

constexpr int kFewRanks = 4;  // most of the time: they find as much and take less

// How the stages are cut and in which order they work.
void draw_pipeline(Draw& draw, const Settings& common, Settings& s) {
  const int64_t pp = s.number("parallel.pp", 1), layers = common.number("model.layers", 1);
  if (pp == 1) return;
  const int64_t chunks = draw.chance(0.4) ? draw.pick({2, 2, 3}) : 1;
  if (chunks > 1) s.set("parallel.virtual_stages", chunks);
  const bool gpipe = draw.chance(0.25);
  if (gpipe) s.set("parallel.schedule", "gpipe");
  if (!gpipe && draw.chance(0.4)) s.set("parallel.schedule", "zb-h1");
  if (chunks > 1 && !gpipe && draw.chance(0.3)) s.set("parallel.virtual_group", pp + draw.below(3));
  const int64_t cut = draw.below(3);
  if (cut == 0) s.set("parallel.stage_layout", "balanced");
  if (cut == 1) {
    std::vector<int64_t> stages(static_cast<size_t>(pp * chunks));
    for (int64_t i = 0; i < layers; ++i) ++stages[static_cast<size_t>(draw.below(pp * chunks))];
    s.set("parallel.stage_layout", fmt::format("[{}]", fmt::join(stages, ", ")));
  }
  if (draw.chance(0.3)) s.set("parallel.overlap.p2p", "false");
}

void draw_recompute(Draw& draw, const Settings& common, Settings& s) {
  const int64_t mode = draw.below(4);
  if (mode == 0) return;
  if (mode == 1) {
    s.set("recompute.mode", "selective");
    std::vector<std::string> modules;
    // No more layers than every chunk has.
    const int64_t chunks =
        s.number("parallel.pp", 1) * std::max<int64_t>(1, s.number("parallel.virtual_stages", 1));
    const int64_t most = std::max<int64_t>(1, common.number("model.layers", 1) / chunks);
    for (const char* module : {"core_attn", "mlp_act", "norm", "mlp"}) {
      if (!draw.chance(0.5)) continue;
      modules.emplace_back(module);
      if (draw.chance(0.4)) modules.back() += fmt::format(": {}", 1 + draw.below(most));
    }
    if (!modules.empty()) s.set("recompute.modules", fmt::format("[{}]", fmt::join(modules, ", ")));
    return;
  }
  s.set("recompute.mode", "full");
  if (draw.chance(0.4)) s.set("recompute.method", draw.pick({"uniform", "block"}));
  if (draw.chance(0.5)) {
    s.set("recompute.layers", 1 + draw.below(common.number("model.layers", 1)));
  }
  if (s.number("parallel.tp", 1) > 1 && draw.chance(0.4)) s.set("recompute.distribute", "true");
}

const Choice kWork[] = {
    {"parallel.bucket_mb", 0.3, {"0.002", "0.01", "0.05", "1"}},
    {"parallel.overlap.grad_reduce", 0.2, {"false"}},
    {"parallel.overlap.param_gather", 0.2, {"false"}},
    {"parallel.overlap.tp", 0.2, {"true", "false"}},
    {"optimizer.offload", 0.15, {"cpu"}},
    {"checkpoint.async", 0.3, {"false"}},
    {"data.workers", 0.3, {"0", "2", "3"}},
    {"launch.spawn", 0.15, {"processes"}},
};

// What only divides the work, and changes no bit.
void draw_work(Draw& draw, const Settings& common, Settings& s) {
  draw_pipeline(draw, common, s);
  draw_recompute(draw, common, s);
  draw_choices(draw, s, kWork);
}

// What changes the order of sums.
Settings draw_sums(Draw& draw, const Settings& common) {
  Settings s;
  const auto degree = [&](const char* key, double often, std::initializer_list<int> of) {
    if (draw.chance(often)) s.set(key, draw.pick(of));
  };
  degree("parallel.tp", 0.45, {2, 2, 2, 3, 4});
  degree("parallel.cp", 0.25, {2, 2, 3, 4});
  if (common.number("model.moe.experts", 0) > 0) {
    degree("parallel.ep", 0.5, {2, 2, 3, 4});
    if (s.number("parallel.ep", 1) > 1 && draw.chance(0.7)) {
      s.set("parallel.ep_room", draw.pick({"1", "1.2", "2", "1000000"}));
    }
  }
  degree("parallel.dp", 0.5, {2, 2, 3, 4});
  s.set("parallel.zero", draw.pick({0, 1, 1, 2, 3}));
  if (s.number("parallel.zero", 1) > 0) {
    degree("parallel.zero_ranks", 0.2, {2, 4});
    if (draw.chance(0.15)) s.set("precision.grad_reduce", "bf16");
  }
  if (s.number("parallel.tp", 1) > 1 && draw.chance(0.5)) {
    s.set("parallel.sp", draw.pick({"true", "false"}));
  }
  if (draw.chance(0.7)) s.set("train.micro_batch", draw.pick({1, 1, 2, 3, 4}));
  if (draw.chance(0.3)) s.set("train.logits_rows", draw.pick({1, 5, 16, 33}));
  return s;
}

}  // namespace

bool can_run(const Settings& common, const Settings& layout, const std::string& folder,
             Planned& planned) {
  return layout.world() <= kMostRanks &&
         plan_of(common.with(layout), folder + "/train.yaml", vocab_of(common), planned);
}

Settings draw_layout(Draw& draw, const Case& drawn, const std::string& folder, bool anything) {
  Settings layout;
  const int most = draw.chance(0.2) ? kMostRanks : kFewRanks;
  for (int attempt = 0; attempt < 200; ++attempt) {
    layout = draw_sums(draw, drawn.common);
    if (draw.chance(0.4)) layout.set("parallel.pp", draw.pick({2, 2, 3, 4}));
    draw_work(draw, drawn.common, layout);
    if (drawn.batch_of_layout) {
      layout.set("train.micro_batch", draw.pick({1, 2}));
      layout.set("train.accumulate", draw.pick({"1", "2", "3", "{0: 1, 1: 4}", "{0: 2, 2: 1}"}));
      if (draw.chance(0.5)) layout.set("train.accumulate_by", "step");
    }
    if (layout.world() > most) continue;
    Planned ignored;
    if (anything || can_run(drawn.common, layout, folder, ignored)) return layout;
  }
  return layout;
}

Settings draw_sibling(Draw& draw, const Case& drawn, const std::string& folder) {
  Planned planned;
  if (!can_run(drawn.common, drawn.first.with(drawn.changed), folder, planned)) return drawn.first;
  Settings sums;
  for (const char* key :
       {"parallel.tp", "parallel.cp", "parallel.ep", "parallel.dp", "parallel.ep_room",
        "parallel.zero_ranks", "parallel.sp", "precision.grad_reduce", "train.micro_batch",
        "train.logits_rows", "train.accumulate", "train.accumulate_by"}) {
    if (const std::string value = drawn.first.text(key); !value.empty()) sums.set(key, value);
  }
  const int64_t zero = drawn.first.number("parallel.zero", 1);
  const bool one_micro_batch = planned.plan.schedules.rbegin()->first == 1;
  const bool copies = planned.plan.grid.sizes().copies > 1;
  const int most = draw.chance(0.2) ? kMostRanks : std::max(kFewRanks, drawn.first.world());
  for (int attempt = 0; attempt < 100; ++attempt) {
    Settings sibling = sums;
    int64_t other = zero;
    const bool rounds = drawn.first.text("precision.grad_reduce") == "bf16";
    if (one_micro_batch && !copies && !rounds) {
      other = draw.below(4);
    } else if (zero >= 2) {
      other = 2 + draw.below(2);
    } else if (!copies && !rounds) {
      other = draw.below(2);
    }
    sibling.set("parallel.zero", other);
    if (draw.chance(0.5)) sibling.set("parallel.pp", draw.pick({2, 2, 3, 4}));
    draw_work(draw, drawn.common, sibling);
    Planned ignored;
    const Settings changed = sibling.with(drawn.changed);
    if (changed.world() <= most && can_run(drawn.common, changed, folder, ignored)) return sibling;
  }
  return drawn.first;
}

}  // namespace mtl::sweep
