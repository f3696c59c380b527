#include "sweep/draw.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sweep/texts.h"

namespace mtl::sweep {

namespace {

constexpr int kMostRanks = 8;
constexpr int kFewRanks = 4;  // most of the time: they find as much and take less

int64_t divisor_of(Draw& draw, int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t i = 1; i <= n; ++i) {
    if (n % i == 0) divisors.push_back(i);
  }
  return divisors[static_cast<size_t>(draw.below(static_cast<int64_t>(divisors.size())))];
}

void draw_positions(Draw& draw, Settings& s, const std::string& type) {
  s.set("model.position.type", type);
  if (draw.chance(0.2)) s.set("model.max_seq", s.number("train.seq_len", 16) + draw.below(40));
  if (type != "rope") return;
  if (draw.chance(0.4)) s.set("model.position.base", draw.pick({500, 10000, 1000000}));
  if (draw.chance(0.2)) s.set("model.position.fraction", "0.5");
  if (!draw.chance(0.4)) return;
  const std::string scaling = draw.pick({"linear", "llama3", "yarn"});
  s.set("model.position.scaling.type", scaling);
  s.set("model.position.scaling.factor", draw.pick({2, 4}));
  if (scaling != "linear") s.set("model.position.scaling.original_max_seq", draw.pick({8, 16, 64}));
  if (scaling == "yarn" && draw.chance(0.3)) s.set("model.position.scaling.truncate", "false");
}

void draw_model(Draw& draw, Settings& s) {
  const std::string family = draw.pick({"gpt2", "llama", "qwen", "mixtral", "mixtral", "any"});
  const bool any = family == "any", gpt2 = family == "gpt2";
  const bool experts = family == "mixtral" || (any && draw.chance(0.2));
  const int64_t heads = draw.pick({1, 2, 3, 4, 4, 4, 6, 8, 8});
  s.set("model.layers", draw.pick({1, 2, 2, 3, 3, 4, 4, 6}));
  s.set("model.heads", heads);
  s.set("model.hidden", heads * draw.pick({4, 8, 8, 16}));
  if (draw.chance(0.2)) {
    s.set("model.head_dim", draw.pick({4, 6, 10, 16}));
    s.set("model.hidden", draw.pick({20, 24, 32, 44}));
  }
  if (!gpt2 && draw.chance(0.7)) s.set("model.kv_heads", divisor_of(draw, heads));
  if (draw.chance(0.6)) s.set("model.ffn", draw.pick({12, 24, 48, 48, 60, 96}));
  const bool swiglu = experts || (any ? draw.chance(0.5) : !gpt2);
  if (swiglu) s.set("model.activation", "swiglu");
  if (any ? draw.chance(0.5) : !gpt2) s.set("model.norm.type", "rmsnorm");
  draw_positions(draw, s,
                 any    ? draw.pick({"learned", "rope", "alibi", "none"})
                 : gpt2 ? "learned"
                        : "rope");
  if (experts || (any ? draw.chance(0.5) : !gpt2)) s.set("model.bias", "false");
  if (family == "qwen" || (any && draw.chance(0.3))) s.set("model.qkv_bias", "true");
  if (draw.chance(gpt2 ? 0.05 : 0.35)) s.set("model.qk_norm", "true");
  if (draw.chance(0.25)) s.set("model.sliding_window", draw.pick({1, 3, 5, 8, 13}));
  if (draw.chance(0.5)) s.set("model.tie_embeddings", "false");
  if (draw.chance(0.4)) s.set("model.vocab_pad_to", draw.pick({1, 2, 3, 64}));
  if (draw.chance(0.3)) s.set("model.dropout.hidden", "0.1");
  if (draw.chance(0.2)) s.set("model.dropout.attention", "0.1");
  if (draw.chance(0.4)) s.set("init.std", draw.pick({"0.05", "0.1"}));
  if (!experts) return;
  const int64_t count = draw.pick({2, 3, 4, 4, 4, 6, 8});
  s.set("model.moe.experts", count);
  if (count > 2 && draw.chance(0.3)) s.set("model.moe.topk", 3);
  if (draw.chance(0.6)) s.set("model.moe.aux_loss", draw.pick({"0.01", "0.05"}));
  if (draw.chance(0.4)) s.set("model.moe.z_loss", "0.01");
  if (draw.chance(0.3)) {
    s.set("model.moe.shared_ffn", draw.pick({12, 24, 48}));
    if (draw.chance(0.5)) s.set("model.moe.shared_gate", "true");
  }
  if (draw.chance(0.3)) {
    s.set("model.moe.score", "sigmoid");
    if (draw.chance(0.6)) s.set("model.moe.expert_bias", "true");
  }
  if (draw.chance(0.3)) {
    s.set("model.moe.normalize", "false");
    if (draw.chance(0.3)) s.set("model.moe.topk", 1);
  }
}

void draw_length(Draw& draw, Settings& s) {
  const int64_t steps = draw.pick({2, 2, 3, 3, 4, 4, 6});
  s.set("train.seq_len", draw.pick({8, 12, 16, 16, 16, 24, 32, 15}));
  const int64_t batch = draw.pick({4, 6, 8, 8, 12, 16});
  if (draw.chance(0.2)) {
    s.set("train.batch_ramp", fmt::format("{{0: {}, {}: {}}}", batch, 1 + draw.below(steps),
                                          batch * draw.pick({1, 2, 2})));
    s.set("train.global_batch", batch);
  } else {
    s.set("train.global_batch", batch);
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
  if (draw.chance(0.1)) s.set("checkpoint.keep_best.k", 1);
}

void draw_learning(Draw& draw, Settings& s) {
  s.set("lr.max", draw.pick({"0.001", "0.003"}));
  if (draw.chance(0.5)) s.set("lr.warmup", 1 + draw.below(2));
  if (draw.chance(0.5)) {
    const std::string schedule = draw.pick({"linear", "constant", "inverse_sqrt", "wsd"});
    s.set("lr.schedule", schedule);
    if (schedule == "wsd" && draw.chance(0.5)) {
      s.set("lr.wsd_decay", 1 + draw.below(2));
      s.set("lr.wsd_style", draw.pick({"exponential", "linear", "cosine", "minus_sqrt"}));
    }
  }
  if (draw.chance(0.3)) s.set("lr.min", "0.0001");
  if (draw.chance(0.3)) s.set("optimizer.type", draw.pick({"adam", "sgd"}));
  if (draw.chance(0.3)) s.set("optimizer.clip", draw.pick({"0", "0.1", "0.5"}));
  if (draw.chance(0.2)) s.set("optimizer.weight_decay", draw.pick({"0", "0.5"}));
  if (draw.chance(0.2)) {
    s.set("optimizer.weight_decay_ramp", draw.pick({"linear", "cosine"}));
    s.set("optimizer.weight_decay_end", "0.3");
  }
  const std::string dtype =
      draw.pick({"fp32", "fp32", "fp32", "fp32", "fp32", "fp32", "bf16", "bf16", "fp16", "fp8"});
  if (dtype == "fp32") return;
  s.set("precision.dtype", dtype);
  if (dtype == "fp16") {
    s.set("precision.loss_scale.window", draw.pick({1, 2, 1000}));
    // From where it overflows at first.
    if (draw.chance(0.4)) s.set("precision.loss_scale.initial", draw.pick({"1e9", "1e12"}));
    if (draw.chance(0.5)) s.set("precision.loss_scale.hysteresis", 1);
  }
  if (dtype == "fp8" && draw.chance(0.3)) {
    s.set(draw.pick({"precision.fp8.bf16_first_layers", "precision.fp8.bf16_last_layers"}), 1);
  }
}

// Token ids, as far as the settings say them.
int64_t vocab_of(const Settings& s) {
  const int64_t given = s.number("data.vocab", 0);
  return given > 0 ? given : s.text("data.tokenizer.type") == "chars" ? kCharacters : 256;
}

void draw_text(Draw& draw, Settings& s, const std::string& folder) {
  const auto path = [&](const char* name) { return folder + "/" + name; };
  const int64_t kind = draw.below(3);  // a text, documents, ids
  if (kind == 0) {
    const bool chars = draw.chance(0.6);
    s.set("data.tokenizer.type", chars ? "chars" : "bytes");
    s.set("data.train", path("a.txt"));
    if (!chars && draw.chance(0.5)) {
      s.set("data.train", draw.chance(0.5)
                              ? fmt::format("[{}, {}]", path("a.txt"), path("b.txt"))
                              : fmt::format("[{{path: {}, weight: 0.3}}, {{path: {}, weight: 2}}]",
                                            path("a.txt"), path("b.txt")));
    }
    const int64_t valid = draw.below(3);
    if (valid == 1) s.set("data.valid", path("valid.txt"));
    if (valid == 2) {
      s.set("data.valid", fmt::format("{{one: {}, two: [{}, {}]}}", path("valid.txt"),
                                      path("b.txt"), path("valid.txt")));
    }
  } else {
    s.set("data.vocab", draw.pick<int64_t>({kIds, kIds, 64, 67, 131}));
    s.set("data.train", path(kind == 1 ? "one" : "ids.bin"));
    if (kind == 1 && draw.chance(0.3)) {
      s.set("data.train", fmt::format("[{{path: {}, weight: 1}}, {{path: {}, weight: 3}}]",
                                      path("one"), path("two")));
    }
    if (draw.chance(0.6)) {
      s.set("data.eod", int64_t{kIds - 1});
      for (const char* key :
           {"data.mask_eod_loss", "data.reset_positions_at_eod", "data.reset_attention_at_eod"}) {
        if (draw.chance(0.6)) s.set(key, "true");
      }
    }
    if (draw.chance(0.4)) {
      s.set("data.valid", draw.chance(0.5)
                              ? path("two")
                              : fmt::format("{{x: {}, y: {}}}", path("two"), path("ids.bin")));
    }
  }
  if (s.text("data.valid").empty() && draw.chance(0.3)) {
    s.set("data.split", draw.pick({"[1, 1]", "[80, 10, 10]", "[1]"}));
  }
  if (draw.chance(0.6)) {
    s.set("data.sampler", draw.pick({"sequential", "megatron", "cyclic", "feistel"}));
  }
  if (draw.chance(0.5)) s.set("train.eval.every", 1 + draw.below(3));
  s.set("train.eval.iters", draw.pick({1, 1, 2, 3, 0}));
  if (draw.chance(0.3)) {
    const int64_t ids = s.number("data.vocab", 0);
    s.set("train.eval.generate.prompts",
          ids > 0 ? draw.pick({"[\"1 2 3\"]", "[\"7\", \"1 2 3 4 5\"]"})
                  : draw.pick({"[\"ab c\"]", "[\"x\", \"the f\", \"q \"]"}));
    s.set("train.eval.generate.tokens", 1 + draw.below(4));
    if (draw.chance(0.5)) s.set("train.eval.generate.temperature", "0");
  }
  if (draw.chance(0.2)) s.set("health.nan", "skip");
}

// How the stages are cut and in which order they work.
void draw_pipeline(Draw& draw, const Settings& common, Settings& s) {
  const int64_t pp = s.number("parallel.pp", 1), layers = common.number("model.layers", 1);
  if (pp == 1) return;
  const int64_t chunks = draw.chance(0.4) ? draw.pick({2, 2, 3}) : 1;
  if (chunks > 1) s.set("parallel.virtual_stages", chunks);
  const bool gpipe = draw.chance(0.25);
  if (gpipe) s.set("parallel.schedule", "gpipe");
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
    for (const char* module : {"core_attn", "mlp_act", "norm", "mlp"}) {
      if (draw.chance(0.5)) modules.emplace_back(module);
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

// What only divides the work, and changes no bit.
void draw_work(Draw& draw, const Settings& common, Settings& s) {
  draw_pipeline(draw, common, s);
  draw_recompute(draw, common, s);
  if (draw.chance(0.3)) s.set("parallel.bucket_mb", draw.pick({"0.002", "0.01", "0.05", "1"}));
  if (draw.chance(0.2)) s.set("parallel.overlap.grad_reduce", "false");
  if (draw.chance(0.2)) s.set("parallel.overlap.param_gather", "false");
  if (draw.chance(0.2)) s.set("parallel.overlap.tp", draw.pick({"true", "false"}));
  if (draw.chance(0.15)) s.set("optimizer.offload", "cpu");
  if (draw.chance(0.3)) s.set("checkpoint.async", "false");
  if (draw.chance(0.3)) s.set("data.workers", draw.pick({0, 2, 3}));
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

bool can_run(const Case& drawn, const Settings& layout, const std::string& folder,
             Planned& planned) {
  return layout.world() <= kMostRanks && plan_of(drawn.common.with(layout), folder + "/train.yaml",
                                                 vocab_of(drawn.common), planned);
}

// A layout that can be run; else, where none is found or `anything` is to be tried, the last drawn.
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
      layout.set("train.accumulate_by", "step");
    }
    if (layout.world() > most) continue;
    Planned ignored;
    if (anything || can_run(drawn, layout, folder, ignored)) return layout;
  }
  return layout;
}

// The same sums in the same order, by other work.
Settings draw_sibling(Draw& draw, const Case& drawn, const std::string& folder) {
  Planned planned;
  if (!can_run(drawn, drawn.first, folder, planned)) return drawn.first;
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
    if (sibling.world() <= most && can_run(drawn, sibling, folder, ignored)) return sibling;
  }
  return drawn.first;
}

}  // namespace

Case draw_case(uint64_t seed, const std::string& folder) {
  Draw draw(seed);
  Case drawn;
  drawn.seed = seed;
  const bool anything = draw.chance(0.1);  // also what cannot be
  for (int attempt = 0; attempt < 100; ++attempt) {
    Settings s;
    draw_length(draw, s);
    draw_model(draw, s);
    draw_learning(draw, s);
    draw_text(draw, s, folder);
    drawn.common = s;
    Planned ignored;
    if (anything || can_run(drawn, {}, folder, ignored)) break;
  }
  drawn.batch_of_layout = draw.chance(0.08) && drawn.common.text("train.batch_ramp").empty();
  if (drawn.batch_of_layout) drawn.common.erase("train.global_batch");
  drawn.first = draw_layout(draw, drawn, folder, anything);
  const int64_t claim = draw.below(20);
  drawn.claim = claim == 0                            ? Claim::same_again
                : claim < 10                          ? Claim::same_bits
                : claim < 15 || drawn.batch_of_layout ? Claim::resumed_bits
                                                      : Claim::resumed_near;
  drawn.other = drawn.claim == Claim::same_again     ? drawn.first
                : drawn.claim == Claim::resumed_near ? draw_layout(draw, drawn, folder, anything)
                                                     : draw_sibling(draw, drawn, folder);
  return drawn;
}

}  // namespace mtl::sweep
