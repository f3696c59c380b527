// Rules of the model and of the learning rate: values that must go together on however many ranks.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "runtime/plan/float8.h"
#include "runtime/plan/rules/nearest.h"
#include "runtime/plan/rules/rule_book.h"

namespace mtl {

namespace {

// A factor for each pair of elements that are turned.
void check_factors(const ModelShape& model, RuleBook& book) {
  const RopeScaling& scaling = model.rope_scaling;
  const int64_t pairs = model.rotary_dim() / 2;
  for (const auto& [key, factors] :
       {std::pair("model.position.scaling.short_factor", &scaling.short_factor),
        std::pair("model.position.scaling.long_factor", &scaling.long_factor)}) {
    book.rule("model.rope", factors->empty() ? "model.position.scaling.type" : key,
              static_cast<int64_t>(factors->size()) == pairs,
              factors->empty() ? fmt::format("longrope divides by {}, which is not given", key)
                               : fmt::format("{} has {} factors, and {} pairs of a head are turned",
                                             key, factors->size(), pairs),
              fmt::format("give {}, as the model's config.json has them", pairs));
  }
}

void check_rope_scaling(const TrainSpec::Model::Position& given, const ModelShape& model,
                        RuleBook& book) {
  const RopeScaling& scaling = model.rope_scaling;
  if (scaling.type == RopeScalingType::none) return;
  if (!book.rule("model.rope", "model.position.scaling.type", given.type == "rope",
                 fmt::format("model.position.scaling changes rotary frequencies, and "
                             "model.position.type {} has none",
                             given.type),
                 "set model.position.type=rope, or model.position.scaling.type=none")) {
    return;
  }
  const bool llama3 = scaling.type == RopeScalingType::llama3;
  const bool yarn = scaling.type == RopeScalingType::yarn;
  const bool longrope = scaling.type == RopeScalingType::longrope;
  if (longrope) check_factors(model, book);
  book.rule("model.rope", "model.position.scaling.type",
            llama3 || longrope || given.scaling.factor > 0,
            fmt::format("{} divides frequencies by model.position.scaling.factor, which is not "
                        "given",
                        given.scaling.type),
            "give it: 4 for four times the context that the model was trained with");
  book.rule("model.rope", "model.position.scaling.type",
            !(yarn || longrope) || given.scaling.original_max_seq > 0,
            fmt::format("{} model.position.scaling.original_max_seq, which is not given",
                        yarn ? "yarn counts turns over" : "longrope calls a text long beyond"),
            "give it: the context that the model was trained with");
  book.rule("model.rope", "model.position.scaling.original_max_seq",
            !longrope || given.scaling.original_max_seq != 1,
            "longrope's amplitude has the logarithm of model.position.scaling.original_max_seq "
            "below it, and that of 1 is 0",
            "give the context that the model was trained with");
  book.rule("model.rope", "model.position.scaling.low_freq_factor",
            !llama3 || scaling.low_freq_factor < scaling.high_freq_factor,
            fmt::format("model.position.scaling.low_freq_factor {} is not below high_freq_factor "
                        "{}",
                        scaling.low_freq_factor, scaling.high_freq_factor),
            "Llama 3.1 has 1 and 4");
  book.rule("model.rope", "model.position.scaling.beta_slow",
            !yarn || scaling.beta_slow < scaling.beta_fast,
            fmt::format("model.position.scaling.beta_slow {} is not below beta_fast {}",
                        scaling.beta_slow, scaling.beta_fast),
            "YaRN has 1 and 32");
  book.rule("model.rope", "model.position.base", !yarn || given.base > 1,
            fmt::format("with model.position.base {} no frequency is slower than another, and "
                        "yarn divides the slow ones",
                        given.base),
            "use a base above 1, such as 10000");
}

// Pairs of elements are turned: of the whole head, or of what model.position.fraction says of it.
void check_rotary_dim(const TrainSpec::Model& given, const ModelShape& model, RuleBook& book) {
  const int64_t dim = model.rotary_dim(), head = model.head_dim;
  if (given.position.fraction == 1) {
    book.rule(
        "model.rope", given.head_dim > 0 ? "model.head_dim" : "model.heads", dim % 2 == 0,
        fmt::format("rotary positions turn pairs of elements, and each head has {} of them", head),
        given.head_dim > 0 ? fmt::format("use an even model.head_dim, such as {}", head + 1)
                           : "use other model.heads, so that model.hidden / model.heads is "
                             "even, or give model.head_dim");
    return;
  }
  const int64_t even = std::max<int64_t>(dim / 2 * 2, 2);
  const double exact = static_cast<double>(even) / static_cast<double>(head);
  book.rule("model.rope", "model.position.fraction", dim % 2 == 0 && dim > 0,
            fmt::format("rotary positions turn pairs of elements, and model.position.fraction {} "
                        "of the {} of a head is {}",
                        given.position.fraction, head, dim),
            head < 2
                ? "give the heads more elements"
                : fmt::format("use fraction={}, which is {}", std::ceil(exact * 1e4) / 1e4, even));
}

// Which experts a token may take.
void check_groups(const ModelShape& model, RuleBook& book) {
  const int64_t groups = model.moe_scores.groups, taken = model.moe_scores.group_topk;
  if (groups == 1) return;
  const int64_t topk = model.experts_per_token;
  if (!book.rule("model.moe", "model.moe.groups", model.experts % groups == 0,
                 fmt::format("{} experts cannot be divided into model.moe.groups {}", model.experts,
                             groups),
                 fmt::format("use groups {}", nearest_divisors(model.experts, groups))) ||
      !book.rule("model.moe", "model.moe.group_topk", taken <= groups && taken <= topk,
                 fmt::format("a token with model.moe.topk {} cannot take experts of "
                             "model.moe.group_topk {} of {} groups",
                             topk, taken, groups),
                 fmt::format("use group_topk <= {}", std::min(groups, topk)))) {
    return;
  }
  const int64_t size = model.experts / groups, best = model.moe_scores.best_of_group(topk);
  book.rule("model.moe", "model.moe.group_best", best <= size || model.moe_scores.group_best == 0,
            fmt::format("a group's score cannot be of model.moe.group_best {} experts, it has {}",
                        best, size),
            fmt::format("use group_best <= {}", size));
  book.rule("model.moe", "model.moe.group_topk", topk <= taken * size,
            fmt::format("model.moe.group_topk {} groups of {} have fewer experts than "
                        "model.moe.topk {}",
                        taken, size, topk),
            fmt::format("use group_topk >= {}, or fewer groups", (topk + size - 1) / size));
}

// Whether the model has all layers that `key` lists.
bool has_listed(const char* key, const char* code, const std::vector<int64_t>& layers,
                const ModelShape& model, RuleBook& book) {
  const auto behind = std::find_if(layers.begin(), layers.end(),
                                   [&](int64_t layer) { return layer >= model.layers; });
  if (behind == layers.end()) return true;
  return book.rule(
      code, key, false,
      fmt::format("{} names layer {}, and the model has {}, from 0 on", key, *behind, model.layers),
      "leave it out, or raise model.layers");
}

// What a choice of layers is not to take from all of them.
struct ChosenLayers {
  const char *every, *list;  // its settings
  const char *all, *instead;
};

void check_choice(const LayerChoice& given, const std::vector<int64_t>& chosen,
                  const ModelShape& model, const ChosenLayers& words, RuleBook& book) {
  if (!has_listed(words.list, "model.layer_choice", given.layers, model, book)) return;
  book.rule("model.layer_choice", given.layers.empty() ? words.every : words.list,
            std::ssize(chosen) < model.layers, words.all, words.instead);
}

void check_layer_choices(const TrainSpec::Model& given, const ModelShape& model, RuleBook& book) {
  if (model.sliding_window > 0) {
    check_choice(given.full_attention, model.full_layers, model,
                 {"model.full_attention.every", "model.full_attention.layers",
                  "model.full_attention leaves no layer with the window of model.sliding_window",
                  "choose fewer layers, or set model.sliding_window=0"},
                 book);
  }
  if (model.position == PositionType::rope) {
    check_choice(given.position.skip, model.unrotated_layers, model,
                 {"model.position.skip.every", "model.position.skip.layers",
                  "model.position.skip leaves no layer that rotates queries and keys",
                  "choose fewer layers, or set model.position.type=none"},
                 book);
  }
}

void check_experts(const RuleInput& input, RuleBook& book) {
  const TrainSpec::Model& given = input.spec.model;
  const ModelShape& model = input.model;
  book.rule("model.moe", "model.moe.topk", model.experts_per_token <= model.experts,
            fmt::format("model.moe.topk {} is more than model.moe.experts {}",
                        model.experts_per_token, model.experts),
            fmt::format("use topk <= {}", model.experts));
  book.rule("model.moe", "model.moe.topk",
            model.experts_per_token > 1 || !model.moe_scores.normalize,
            "model.moe.topk 1 with model.moe.normalize: the one expert of a token always weighs "
            "1, and the router cannot learn",
            "use topk 2 or more, or model.moe.normalize=false");
  book.rule("model.moe", "model.moe.expert_bias", !model.expert_bias || model.moe_scores.sigmoid,
            "model.moe.expert_bias is added to sigmoids, and model.moe.score is softmax",
            "set model.moe.score=sigmoid, or balance with model.moe.aux_loss");
  book.rule(
      "model.moe", "model.moe.experts", model.gated(),
      fmt::format("experts are blocks with a gate, and model.activation is {}", given.activation),
      "set model.activation=swiglu, geglu or quick_geglu");
  book.rule("model.moe", "model.moe.shared_ffn", model.shared_ffn == 0 || !model.bias,
            "the block that all tokens go through has no biases, and model.bias is true",
            "set model.bias=false (model.qkv_bias may stay true) or model.moe.shared_ffn=0");
  book.rule("model.moe", "model.parallel_residual", !model.parallel_residual,
            "model.parallel_residual reads a layer's input twice, and mixtures of experts stand "
            "behind attention",
            "set model.parallel_residual=false or model.moe.experts=0");
  check_groups(model, book);
  if (has_listed("model.moe.dense_layers", "model.moe", given.moe.dense_layers, model, book)) {
    book.rule("model.moe", "model.moe.dense_layers", model.mixtures() > 0,
              "no layer is a mixture, and model.moe.experts asks for experts",
              "leave a layer out of model.moe.dense_layers, or set model.moe.experts=0");
  }
}

// What latent attention does not go with.
void check_latents(const TrainSpec::Model& given, const ModelShape& model, RuleBook& book) {
  const auto alone = [&](const char* key, bool holds, const std::string& has, const char* instead) {
    book.rule("model.latent", key, holds,
              fmt::format("model.latent makes queries, keys and values of latents, and {}", has),
              fmt::format("{}, or set model.latent.kv_rank=0", instead));
  };
  alone("model.position.type", model.position == PositionType::rope,
        fmt::format("rotates a part of them, and model.position.type is {}", given.position.type),
        "set model.position.type=rope");
  alone("model.position.fraction", model.rope_fraction == 1,
        "model.latent.rope_dim says what is rotated", "set model.position.fraction=1");
  alone("model.position.skip.layers", model.unrotated_layers.empty(),
        "model.position.skip names layers that rotate nothing", "leave model.position.skip out");
  alone("model.kv_heads", model.kv_heads == model.heads,
        fmt::format("every head has its own, and model.kv_heads is {}", model.kv_heads),
        "leave model.kv_heads out");
  alone("model.qk_norm", !model.qk_norm, "the latents have norms, and model.qk_norm is true",
        "set model.qk_norm=false");
  alone("model.qkv_bias", !model.qkv_bias, "no projection of theirs has a bias",
        model.bias ? "set model.bias=false" : "set model.qkv_bias=false");
  const int64_t rotated = model.latent.rope_dim;
  book.rule("model.latent", "model.latent.rope_dim", rotated < model.head_dim && rotated % 2 == 0,
            fmt::format("model.latent.rope_dim {} is not an even part of model.head_dim {}",
                        rotated, model.head_dim),
            "DeepSeek-V3 has head_dim 192 and rope_dim 64");
  book.rule("model.latent", "model.latent.value_dim", model.latent.value_dim <= model.head_dim,
            fmt::format("model.latent.value_dim {} is above model.head_dim {}",
                        model.latent.value_dim, model.head_dim),
            "DeepSeek-V3 has head_dim 192 and value_dim 128");
}

void check_lora(const RuleInput& input, RuleBook& book) {
  const ModelShape& model = input.model;
  if (!model.lora) return;
  bool any = false;
  const LayerShapes shapes(model);
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    for (const LocalLinear& linear : layer_linears(shapes.of(layer), 1, 1)) {
      any = any || model.lora.adapts(linear.slot);
    }
  }
  book.rule("model.lora", "lora.targets", any,
            "lora.targets names no linear that this model has: experts have no adapters",
            "add qkv or proj");
  book.rule("model.lora", "optimizer.type", input.spec.optimizer.type != "muon",
            "muon orthogonalizes matrices of layers, and here only adapters are trained",
            "use optimizer.type=adamw");
}

}  // namespace

void check_model(const RuleInput& input, RuleBook& book) {
  const TrainSpec::Model& given = input.spec.model;
  const ModelShape& model = input.model;
  const auto number = [](int64_t n) { return static_cast<double>(n); };
  const double ffn = number(model.mlp_parts() + 1) *
                     number(std::max(model.ffn, model.dense_layer_ffn)) *
                     number(std::max<int64_t>(1, model.experts));
  const double parameters =
      number(model.hidden) *
      (number(model.layers) * (number(model.query_width()) + number(model.key_width()) + ffn) +
       number(model.vocab));
  // So that bytes and what travels are numbers.
  book.rule("model.size", "model.hidden", parameters <= 1e15,
            fmt::format("some {:.0e} parameters are more than a model can have", parameters),
            "use smaller sizes: at most 1e15");
  const bool head_dim = book.rule(
      "model.head_dim", "model.heads", given.head_dim > 0 || model.hidden % model.heads == 0,
      fmt::format("model.hidden {} cannot be divided into model.heads {}", model.hidden,
                  model.heads),
      fmt::format("use heads {}, or give model.head_dim",
                  nearest_divisors(model.hidden, model.heads)));
  book.rule(
      "model.kv_heads", "model.kv_heads", model.heads % model.kv_heads == 0,
      fmt::format("model.kv_heads {} does not divide model.heads {}", model.kv_heads, model.heads),
      fmt::format("use kv_heads {}", nearest_divisors(model.heads, model.kv_heads)));

  if (model.has_latents()) {
    check_latents(given, model, book);
  } else if (head_dim && model.position == PositionType::rope) {
    check_rotary_dim(given, model, book);
  }
  check_rope_scaling(given.position, model, book);
  check_layer_choices(given, model, book);
  book.rule("model.attention_cap", "model.attention_cap",
            model.attention_cap == 0 || model.position != PositionType::alibi,
            "model.attention_cap would cap scores without what ALiBi adds to them",
            "set model.attention_cap=0, or another model.position.type");
  book.rule("model.norm", "model.norm.place", !model.parallel_residual || !model.norms_outputs(),
            fmt::format("model.norm.place {} has a norm behind each block, and with "
                        "model.parallel_residual both are one sum",
                        given.norm.place),
            "set model.parallel_residual=false or model.norm.place=input");
  book.rule("model.norm", "model.norm.shared", !given.norm.shared || model.parallel_residual,
            "model.norm.shared is of blocks that read the same, and the feed-forward block reads "
            "what attention has added",
            "set model.parallel_residual=true or model.norm.shared=false");
  book.rule("model.norm", "model.norm.bias",
            given.norm.bias != "true" || model.norm == NormType::layernorm,
            "model.norm.bias is of layer norms, and model.norm.type is rmsnorm",
            "set model.norm.type=layernorm, or leave model.norm.bias out");
  if (model.experts > 0) check_experts(input, book);
  const TrainSpec::Precision& precision = input.spec.precision;
  if (precision.dtype == "fp8") {
    const int64_t kept = precision.fp8.bf16_first_layers + precision.fp8.bf16_last_layers;
    book.rule("precision.fp8_layers", "precision.fp8.bf16_last_layers", kept < model.layers,
              fmt::format("precision.fp8 keeps {} layers in bf16, and the model has {}", kept,
                          model.layers),
              "keep fewer in bf16, or use precision.dtype=bf16");
  }
  book.rule("model.max_seq", "model.max_seq", model.max_seq >= input.spec.train.seq_len,
            fmt::format("model.max_seq {} is shorter than train.seq_len {}", model.max_seq,
                        input.spec.train.seq_len),
            fmt::format("use max_seq >= {}, or leave it out", input.spec.train.seq_len));
  check_lora(input, book);
}

void check_loss_scale(const RuleInput& input, RuleBook& book) {
  const TrainSpec::Precision& precision = input.spec.precision;
  const TrainSpec::Precision::LossScale& scale = precision.loss_scale;
  book.rule("precision.loss_scale", "precision.loss_scale.initial",
            precision.dtype != "fp16" || scale.initial >= scale.min,
            fmt::format("precision.loss_scale.initial {} is below precision.loss_scale.min {}",
                        scale.initial, scale.min),
            "raise the one or lower the other: at its smallest an overflow ends the run");
}

void check_lr(const RuleInput& input, const Layout& layout, RuleBook& book) {
  const TrainSpec::Lr& lr = input.spec.lr;
  book.rule("lr.range", "lr.min", lr.min <= lr.max,
            fmt::format("lr.min {} is above lr.max {}", lr.min, lr.max),
            "lower lr.min or raise lr.max");
  if (layout.steps == 0) return;  // of a length that is not known
  const int64_t decay = lr.decay > 0 ? lr.decay : layout.steps;
  const bool falls = lr.schedule != "constant" && lr.schedule != "inverse_sqrt";
  const bool warm = book.rule(
      "lr.warmup", "lr.warmup", lr.warmup < decay || !falls,
      fmt::format("lr.warmup {} leaves no step to decay: {}", lr.warmup,
                  lr.decay > 0
                      ? fmt::format("lr.decay is {}", decay)
                      : fmt::format("the run has {} step{}", decay, decay == 1 ? "" : "s")),
      decay > 1 ? fmt::format("use lr.warmup < {}", decay) : "use lr.warmup=0");
  if (!warm || lr.schedule != "wsd") return;
  book.rule("lr.wsd_decay", "lr.wsd_decay", lr.wsd_decay <= decay - lr.warmup,
            fmt::format("lr.wsd_decay {} does not fit between lr.warmup {} and {} {}", lr.wsd_decay,
                        lr.warmup, lr.decay > 0 ? "lr.decay" : "the end of the run at step", decay),
            fmt::format("use at most {}", decay - lr.warmup));
}

}  // namespace mtl
