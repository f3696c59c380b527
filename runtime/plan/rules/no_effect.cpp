#include "runtime/plan/rules/no_effect.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace mtl {

void warn_of_no_effect(const ResolvedSpec& resolved, Diagnostics& diagnostics) {
  const TrainSpec& spec = resolved.spec;
  const TrainSpec built_in;
  const auto warn = [&](const char* key, const char* named, const char* because) {
    diagnostics.add({.code = "config.no_effect",
                     .what = fmt::format("{} has no effect: {}", named, because),
                     .place = resolved.place_of(key),
                     .help = "leave it out",
                     .severity = Diagnostic::Severity::warning});
  };
  // `matters`: the setting is read. A value equal to the built-in one was not asked for, as far as
  // a resolved.yaml can tell.
  const auto check = [&](const char* key, bool matters, const auto& value, const auto& standard,
                         const char* because) {
    if (!matters && value != standard) warn(key, key, because);
  };
  const TrainSpec::Model::Position& position = spec.model.position;
  const bool rope = position.type == "rope";
  check("model.position.base", rope, position.base, built_in.model.position.base,
        "model.position.type is not rope");
  check("model.position.fraction", rope, position.fraction, built_in.model.position.fraction,
        "model.position.type is not rope");
  check("model.qk_norm_whole", spec.model.qk_norm, spec.model.qk_norm_whole,
        built_in.model.qk_norm_whole, "model.qk_norm is false");
  const TrainSpec::Model::Position::Scaling& scaling = position.scaling;
  const TrainSpec::Model::Position::Scaling& plain = built_in.model.position.scaling;
  const bool llama3 = scaling.type == "llama3", yarn = scaling.type == "yarn";
  const bool longrope = scaling.type == "longrope";
  check("model.position.scaling.factor", scaling.type != "none", scaling.factor, plain.factor,
        "model.position.scaling.type is none");
  check("model.position.scaling.original_max_seq", llama3 || yarn || longrope,
        scaling.original_max_seq, plain.original_max_seq,
        "model.position.scaling.type is none of llama3, yarn and longrope");
  const char* const not_llama3 = "model.position.scaling.type is not llama3";
  check("model.position.scaling.low_freq_factor", llama3, scaling.low_freq_factor,
        plain.low_freq_factor, not_llama3);
  check("model.position.scaling.high_freq_factor", llama3, scaling.high_freq_factor,
        plain.high_freq_factor, not_llama3);
  const char* const not_yarn = "model.position.scaling.type is not yarn";
  check("model.position.scaling.beta_slow", yarn, scaling.beta_slow, plain.beta_slow, not_yarn);
  check("model.position.scaling.beta_fast", yarn, scaling.beta_fast, plain.beta_fast, not_yarn);
  check("model.position.scaling.truncate", yarn, scaling.truncate, plain.truncate, not_yarn);
  check("model.position.scaling.attention_factor", yarn || longrope, scaling.attention_factor,
        plain.attention_factor, "model.position.scaling.type is neither yarn nor longrope");
  const char* const not_longrope = "model.position.scaling.type is not longrope";
  check("model.position.scaling.short_factor", longrope, scaling.short_factor, plain.short_factor,
        not_longrope);
  check("model.position.scaling.long_factor", longrope, scaling.long_factor, plain.long_factor,
        not_longrope);
  const TrainSpec::Model& no_model = built_in.model;
  const bool window = spec.model.sliding_window > 0;
  const char* const no_window = "model.sliding_window is 0";
  check("model.full_attention.every", window, spec.model.full_attention.every, int64_t{0},
        no_window);
  check("model.full_attention.layers", window, spec.model.full_attention.layers,
        no_model.full_attention.layers, no_window);
  const char* const not_rope = "model.position.type is not rope";
  check("model.position.window_base", rope && window, position.window_base, 0.0,
        rope ? no_window : not_rope);
  check("model.position.skip.every", rope, position.skip.every, int64_t{0}, not_rope);
  check("model.position.skip.layers", rope, position.skip.layers, no_model.position.skip.layers,
        not_rope);
  const std::string& activation = spec.model.activation;
  const bool gated = activation != "gelu" && activation != "gelu_exact";
  const std::string no_gate = "model.activation is " + activation;
  check("model.glu_offset", gated, spec.model.glu_offset, no_model.glu_offset, no_gate.c_str());
  check("model.glu_clamp", gated, spec.model.glu_clamp, no_model.glu_clamp, no_gate.c_str());
  const TrainSpec::Model::Latent& latent = spec.model.latent;
  const TrainSpec::Model::Latent& no_latent = no_model.latent;
  const bool latents = latent.kv_rank > 0;
  const char* const no_latents = "model.latent.kv_rank is 0";
  check("model.latent.q_rank", latents, latent.q_rank, no_latent.q_rank, no_latents);
  check("model.latent.rope_dim", latents, latent.rope_dim, no_latent.rope_dim, no_latents);
  check("model.latent.value_dim", latents, latent.value_dim, no_latent.value_dim, no_latents);
  check("model.latent.norm_eps", latents, latent.norm_eps, no_latent.norm_eps, no_latents);
  const TrainSpec::Model::Moe& moe = spec.model.moe;
  const TrainSpec::Model::Moe& no_moe = built_in.model.moe;
  const char* const no_experts = "model.moe.experts is 0";
  check("model.moe.topk", moe.experts > 0, moe.topk, no_moe.topk, no_experts);
  check("model.moe.ffn", moe.experts > 0, moe.ffn, no_moe.ffn, no_experts);
  check("model.moe.every", moe.experts > 0, moe.every, no_moe.every, no_experts);
  check("model.moe.dense_layers", moe.experts > 0, moe.dense_layers, no_moe.dense_layers,
        no_experts);
  check("model.ffn", moe.experts == 0 || moe.ffn == 0 || moe.every > 1 || !moe.dense_layers.empty(),
        spec.model.ffn, built_in.model.ffn, "every layer is a mixture, and model.moe.ffn is given");
  check("model.moe.aux_loss", moe.experts > 0, moe.aux_loss, no_moe.aux_loss, no_experts);
  check("model.moe.z_loss", moe.experts > 0, moe.z_loss, no_moe.z_loss, no_experts);
  check("model.moe.score", moe.experts > 0, moe.score, no_moe.score, no_experts);
  check("model.moe.normalize", moe.experts > 0, moe.normalize, no_moe.normalize, no_experts);
  check("model.moe.scale", moe.experts > 0, moe.scale, no_moe.scale, no_experts);
  check("model.moe.groups", moe.experts > 0, moe.groups, no_moe.groups, no_experts);
  check("model.moe.group_topk", moe.experts > 0 && moe.groups > 1, moe.group_topk,
        no_moe.group_topk, moe.experts > 0 ? "model.moe.groups is 1" : no_experts);
  check("model.moe.group_best", moe.experts > 0 && moe.groups > 1, moe.group_best,
        no_moe.group_best, moe.experts > 0 ? "model.moe.groups is 1" : no_experts);
  check("model.moe.shared_ffn", moe.experts > 0, moe.shared_ffn, no_moe.shared_ffn, no_experts);
  check("model.moe.shared_gate", moe.experts > 0 && moe.shared_ffn > 0, moe.shared_gate,
        no_moe.shared_gate, moe.experts > 0 ? "model.moe.shared_ffn is 0" : no_experts);
  check("model.moe.expert_bias", moe.experts > 0, moe.expert_bias, no_moe.expert_bias, no_experts);
  check("model.moe.bias_rate", moe.experts > 0 && moe.expert_bias, moe.bias_rate, no_moe.bias_rate,
        moe.experts > 0 ? "model.moe.expert_bias is false" : no_experts);
  const bool adapters = spec.lora.rank > 0;
  check("lora.alpha", adapters, spec.lora.alpha, 0.0, "lora.rank is 0");
  if (adapters) {
    check("model.moe.bias_rate", false, moe.bias_rate, no_moe.bias_rate,
          "beside adapters (lora.rank) experts stay as they are");
  }
  check("lora.targets", adapters, spec.lora.targets, built_in.lora.targets, "lora.rank is 0");
  check("parallel.ep_room", spec.parallel.ep > 1, spec.parallel.ep_room, built_in.parallel.ep_room,
        "parallel.ep is 1");
  check("parallel.schedule", spec.parallel.pp > 1, spec.parallel.schedule,
        built_in.parallel.schedule, "parallel.pp is 1");
  check("parallel.stage_layout", spec.parallel.pp > 1, spec.parallel.stage_balance,
        built_in.parallel.stage_balance, "parallel.pp is 1");
  // Made again is what blocks read, and here they read it as it comes.
  const auto again = [&](const char* module) {
    const std::vector<std::string>& modules = spec.recompute.modules;
    return spec.recompute.mode == "selective" &&
           std::find(modules.begin(), modules.end(), module) != modules.end();
  };
  if (again("norm") && spec.model.norm.place == "output") {
    warn("recompute.modules", "recompute.modules: norm", "model.norm.place is output");
  }
  if (again("latent_up") && !latents) {
    warn("recompute.modules", "recompute.modules: latent_up", no_latents);
  }
  check("train.accumulate_by", !spec.train.accumulate.empty(), spec.train.accumulate_by,
        built_in.train.accumulate_by, "train.accumulate is not given");
  check("train.deterministic", false, spec.train.deterministic, built_in.train.deterministic,
        "the CPU engine is always deterministic");
  const TrainSpec::Train::Eval::Generate& generate = spec.train.eval.generate;
  const TrainSpec::Train::Eval::Generate& no_generate = built_in.train.eval.generate;
  const bool prompts = !generate.prompts.empty();
  const char* const no_prompts = "train.eval.generate.prompts is empty";
  check("train.eval.generate.tokens", prompts, generate.tokens, no_generate.tokens, no_prompts);
  check("train.eval.generate.temperature", prompts, generate.temperature, no_generate.temperature,
        no_prompts);
  const bool sgd = spec.optimizer.type == "sgd";
  check("optimizer.momentum", sgd, spec.optimizer.momentum, built_in.optimizer.momentum,
        "optimizer.type is not sgd");
  check("optimizer.betas", !sgd, std::pair(spec.optimizer.beta1, spec.optimizer.beta2),
        std::pair(built_in.optimizer.beta1, built_in.optimizer.beta2), "optimizer.type is sgd");
  const bool lion = spec.optimizer.type == "lion", muon = spec.optimizer.type == "muon";
  check("optimizer.eps", !sgd && !lion, spec.optimizer.eps, built_in.optimizer.eps,
        lion ? "optimizer.type is lion" : "optimizer.type is sgd");
  const TrainSpec::Optimizer::Muon &of_muon = spec.optimizer.muon, no_muon;
  const char* const not_muon = "optimizer.type is not muon";
  check("optimizer.muon.momentum", muon, of_muon.momentum, no_muon.momentum, not_muon);
  check("optimizer.muon.nesterov", muon, of_muon.nesterov, no_muon.nesterov, not_muon);
  check("optimizer.muon.steps", muon, of_muon.steps, no_muon.steps, not_muon);
  check("optimizer.muon.coefficients", muon, of_muon.coefficients, no_muon.coefficients, not_muon);
  check("optimizer.muon.scale", muon, of_muon.scale, no_muon.scale, not_muon);
  check("optimizer.muon.factor", muon, of_muon.factor, no_muon.factor, not_muon);
  check("optimizer.weight_decay_end", spec.optimizer.weight_decay_ramp != "constant",
        spec.optimizer.weight_decay_end, built_in.optimizer.weight_decay_end,
        "optimizer.weight_decay_ramp is constant");
  const TrainSpec::Lr& lr = spec.lr;
  check("lr.wsd_decay", lr.schedule == "wsd", lr.wsd_decay, built_in.lr.wsd_decay,
        "lr.schedule is not wsd");
  check("lr.wsd_style", lr.schedule == "wsd", lr.wsd_style, built_in.lr.wsd_style,
        "lr.schedule is not wsd");
  const bool constant = lr.schedule == "constant";
  check("lr.min", !constant, lr.min, built_in.lr.min, "lr.schedule is constant");
  check("lr.decay", !constant && lr.schedule != "inverse_sqrt", lr.decay, built_in.lr.decay,
        "the schedule has no end");
  const bool own_valid =
      !spec.data.valid.empty() || !spec.data.valid_list.empty() || !spec.data.valid_sets.empty();
  check("data.split", !own_valid, spec.data.split, built_in.data.split,
        "data.valid is given, and all of data.train is trained on");
  const std::string& sampler = spec.data.sampler;
  check("data.cache", sampler == "megatron" || sampler == "single" || sampler == "cyclic",
        spec.data.cache, built_in.data.cache, "data.sampler has no index to keep");
  const char* const apart = "data.sampler=best_fit shows each document by itself, and whole";
  for (const auto& [key, value] :
       {std::pair("data.reset_positions_at_eod", spec.data.reset_positions_at_eod),
        std::pair("data.reset_attention_at_eod", spec.data.reset_attention_at_eod),
        std::pair("data.mask_eod_loss", spec.data.mask_eod_loss)}) {
    check(key, !spec.data.whole_documents(), value, false, apart);
  }
  const TrainSpec::Data::Tokenizer& tokenizer = spec.data.tokenizer;
  const bool texts = spec.data.vocab == 0;
  const char* const no_texts = "data.vocab is given, and ids without texts are trained on";
  check("data.tokenizer.type", texts, tokenizer.type, built_in.data.tokenizer.type, no_texts);
  const bool any = tokenizer.type == "auto";
  const bool gpt2 = texts && (any || tokenizer.type == "gpt2-bpe");
  const bool file = texts && (any || tokenizer.type == "hf" || tokenizer.type == "sentencepiece");
  const char* other = texts ? "data.tokenizer.type is another one" : no_texts;
  check("data.tokenizer.file", file, tokenizer.file, std::string(), other);
  check("data.tokenizer.vocab", gpt2, tokenizer.vocab, std::string(), other);
  check("data.tokenizer.merges", gpt2, tokenizer.merges, std::string(), other);
  check("data.tokenizer.eod", gpt2 || file, tokenizer.eod, std::string(), other);
  const TrainSpec::Checkpoint::KeepBest& best = spec.checkpoint.keep_best;
  const TrainSpec::Checkpoint::KeepBest& no_best = built_in.checkpoint.keep_best;
  check("checkpoint.keep_best.metric", best.k > 0, best.metric, no_best.metric,
        "checkpoint.keep_best.k is 0");
  check("checkpoint.keep_best.mode", best.k > 0, best.mode, no_best.mode,
        "checkpoint.keep_best.k is 0");
  const TrainSpec::Precision::LossScale& scale = spec.precision.loss_scale;
  const bool fp16 = spec.precision.dtype == "fp16";
  check("precision.loss_scale.initial", fp16, scale.initial, built_in.precision.loss_scale.initial,
        "precision.dtype is not fp16");
  check("precision.loss_scale.window", fp16, scale.window, built_in.precision.loss_scale.window,
        "precision.dtype is not fp16");
  const bool fp8 = spec.precision.dtype == "fp8";
  const char* const no_fp8 = "precision.dtype is not fp8";
  check("precision.fp8.bf16_first_layers", fp8, spec.precision.fp8.bf16_first_layers,
        built_in.precision.fp8.bf16_first_layers, no_fp8);
  check("precision.fp8.bf16_last_layers", fp8, spec.precision.fp8.bf16_last_layers,
        built_in.precision.fp8.bf16_last_layers, no_fp8);
}

}  // namespace mtl
