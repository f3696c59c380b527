#include <vector>

#include "sweep/choices.h"
#include "sweep/draw_parts.h"

namespace mtl::sweep {

namespace {

const Choice kModel[] = {
    {"model.norm.eps", 0.1, {"1e-6", "0.001"}},
    {"model.attention_scale", 0.1, {"0.1", "1"}},
    {"model.logit_cap", 0.1, {"2", "15"}},
    {"model.logit_scale", 0.1, {"0.25", "3"}},
    {"model.residual_scale", 0.15, {"0.22", "0.6"}},
    {"model.head_bias", 0.1, {"true"}},
    {"model.attention_sinks", 0.15, {"true"}},
    {"model.sliding_window", 0.25, {"1", "3", "5", "8", "13"}},
    {"model.tie_embeddings", 0.5, {"false"}},
    {"model.vocab_pad_to", 0.4, {"1", "2", "3", "64"}},
    {"model.dropout.hidden", 0.3, {"0.1"}},
    {"model.dropout.attention", 0.2, {"0.1"}},
    {"init.std", 0.4, {"0.05", "0.1"}},
};

const Choice kYarn[] = {
    {"model.position.scaling.truncate", 0.3, {"false"}},
    {"model.position.scaling.beta_slow", 0.2, {"2"}},
    {"model.position.scaling.beta_fast", 0.2, {"8"}},
    {"model.position.scaling.attention_factor", 0.3, {"1.5", "0.7"}},
};

const Choice kMixture[] = {
    {"model.moe.experts", 1, {"2", "3", "4", "4", "4", "6", "8"}},
    {"model.moe.topk", 0.2, {"1", "3"}},
    {"model.moe.aux_loss", 0.6, {"0.01", "0.05"}},
    {"model.moe.z_loss", 0.4, {"0.01"}},
    {"model.moe.shared_ffn", 0.3, {"12", "24", "48"}},
    {"model.moe.score", 0.3, {"sigmoid"}},
    {"model.moe.normalize", 0.3, {"false"}},
};

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
  const bool latents = !s.text("model.latent.kv_rank").empty();
  if (!latents && draw.chance(0.2)) s.set("model.position.fraction", "0.5");
  if (!draw.chance(0.4)) return;
  const std::string scaling = draw.pick({"linear", "llama3", "yarn"});
  s.set("model.position.scaling.type", scaling);
  s.set("model.position.scaling.factor", draw.pick({2, 4}));
  if (scaling != "linear") s.set("model.position.scaling.original_max_seq", draw.pick({8, 16, 64}));
  if (scaling == "llama3" && draw.chance(0.3)) {
    s.set("model.position.scaling.low_freq_factor", "2");
    s.set("model.position.scaling.high_freq_factor", "8");
  }
  if (scaling != "yarn") return;
  draw_choices(draw, s, kYarn);
}

void draw_latents(Draw& draw, Settings& s) {
  const int64_t rotated = draw.pick({2, 4, 8});
  s.set("model.latent.kv_rank", draw.pick({4, 8, 12, 16, 32}));
  s.set("model.latent.rope_dim", rotated);
  const int64_t head_dim = rotated + draw.pick({1, 4, 8, 16});
  s.set("model.head_dim", head_dim);
  if (draw.chance(0.5)) s.set("model.latent.q_rank", draw.pick({6, 16, 24}));
  if (draw.chance(0.5)) s.set("model.latent.value_dim", 1 + draw.below(head_dim));
}

// What differs from layer to layer.
void draw_layers(Draw& draw, Settings& s) {
  const bool rope = s.text("model.position.type") == "rope";
  const int64_t layers = s.number("model.layers", 1);
  if (!s.text("model.sliding_window").empty()) {
    if (draw.chance(0.4)) s.set("model.full_attention.every", draw.pick({2, 2, 3}));
    if (draw.chance(0.2)) s.set("model.full_attention.layers", draw.below(layers));
    if (rope && draw.chance(0.4)) s.set("model.position.window_base", draw.pick({20, 500, 10000}));
  }
  if (s.text("model.position.type") != "alibi" && draw.chance(0.1)) {
    s.set("model.attention_cap", draw.pick({"1", "20"}));
  }
  const bool latents = !s.text("model.latent.kv_rank").empty();
  if (rope && !latents && draw.chance(0.15)) {
    s.set("model.position.skip.every", draw.pick({2, 3, 4}));
  }
}

void draw_mixture(Draw& draw, Settings& s) {
  draw_choices(draw, s, kMixture);
  if (!s.text("model.moe.shared_ffn").empty() && draw.chance(0.5)) {
    s.set("model.moe.shared_gate", "true");
  }
  if (s.text("model.moe.score") == "sigmoid" && draw.chance(0.6)) {
    s.set("model.moe.expert_bias", "true");
    if (draw.chance(0.3)) s.set("model.moe.bias_rate", draw.pick({"0", "0.1"}));
  }
  if (draw.chance(0.3)) {
    s.set("model.moe.groups", draw.pick({2, 2, 3, 4}));
    s.set("model.moe.group_topk", draw.pick({1, 1, 2}));
    if (draw.chance(0.5)) s.set("model.moe.group_best", draw.pick({1, 1, 2}));
  }
}

}  // namespace

void draw_model(Draw& draw, Settings& s) {
  const std::string family =
      draw.pick({"gpt2", "neox", "llama", "qwen", "mixtral", "mixtral", "deepseek", "any"});
  const bool any = family == "any", neox = family == "neox", gpt2 = family == "gpt2" || neox;
  const bool latents = family == "deepseek";
  const bool experts =
      family == "mixtral" || (any && draw.chance(0.2)) || (latents && draw.chance(0.5));
  const int64_t heads = draw.pick({1, 2, 3, 4, 4, 4, 6, 8, 8});
  s.set("model.layers", draw.pick({1, 2, 2, 3, 3, 4, 4, 6}));
  s.set("model.heads", heads);
  s.set("model.hidden", heads * draw.pick({4, 8, 8, 16}));
  if (draw.chance(0.2)) {
    s.set("model.head_dim", draw.pick({4, 6, 10, 16}));
    s.set("model.hidden", draw.pick({20, 24, 32, 44}));
  }
  if (latents) {
    draw_latents(draw, s);
  } else if (!gpt2 && draw.chance(0.7)) {
    s.set("model.kv_heads", divisor_of(draw, heads));
  }
  if (draw.chance(0.6)) s.set("model.ffn", draw.pick({12, 24, 48, 48, 60, 96}));
  const bool swiglu = experts || (any ? draw.chance(0.5) : !gpt2);
  if (swiglu) {
    s.set("model.activation", draw.pick({"swiglu", "swiglu", "geglu", "quick_geglu"}));
    if (draw.chance(0.2)) s.set("model.glu_offset", "1");
    if (draw.chance(0.2)) s.set("model.glu_clamp", draw.pick({"0.3", "7"}));
  } else if (draw.chance(neox ? 0.7 : 0.2)) {
    s.set("model.activation", "gelu_exact");
  }
  if (neox ? draw.chance(0.8) : !experts && draw.chance(0.1)) {
    s.set("model.parallel_residual", "true");
    if (draw.chance(0.5)) s.set("model.norm.shared", "true");
  }
  if (any ? draw.chance(0.5) : !gpt2) {
    s.set("model.norm.type", "rmsnorm");
  } else if (draw.chance(0.2)) {
    s.set("model.norm.bias", draw.pick({"true", "false"}));
  }
  draw_positions(draw, s,
                 any    ? draw.pick({"learned", "rope", "alibi", "none"})
                 : neox ? "rope"
                 : gpt2 ? "learned"
                        : "rope");
  if (experts ? draw.chance(0.7) : any ? draw.chance(0.5) : !gpt2) s.set("model.bias", "false");
  if (family == "qwen" || (any && draw.chance(0.3))) s.set("model.qkv_bias", "true");
  if (draw.chance(latents ? 0 : gpt2 ? 0.05 : 0.35)) {
    s.set("model.qk_norm", "true");
    if (draw.chance(0.4)) s.set("model.qk_norm_whole", "true");
  }
  if (s.text("model.parallel_residual").empty() && draw.chance(gpt2 ? 0.1 : 0.3)) {
    s.set("model.norm.place", draw.pick({"output", "output", "both"}));
  }
  if (draw.chance(0.15)) s.set("model.embedding_scale", draw.pick({"0.5", "5.66"}));
  draw_choices(draw, s, kModel);
  draw_layers(draw, s);
  if (experts) draw_mixture(draw, s);
}

}  // namespace mtl::sweep
