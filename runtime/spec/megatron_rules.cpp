// What follows from several flags of a command of Megatron-LM, or from a flag and a number.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/spec/megatron_pattern.h"
#include "runtime/spec/megatron_reader.h"
#include "runtime/spec/scalars.h"

namespace mtl::spec {

void MegatronReader::model() {
  const auto groups = value("num-query-groups");
  if (has("group-query-attention") && (groups || !has("num-query-groups"))) {
    set("model.kv_heads", groups.value_or("1"), "num-query-groups");
  }
  const auto hidden = whole("hidden-size");
  if (has("swiglu") && !has("ffn-hidden-size") && hidden) {
    set("model.ffn", std::to_string(*hidden * 8 / 3 / 64 * 64), "swiglu");
  }
  if (has("qk-layernorm") && text("normalization") != "RMSNorm") {
    refuse("qk-layernorm",
           "norms of queries, keys and latents are RMS norms (--normalization RMSNorm)");
  }
  const bool quick = has("quick-geglu"), gated = has("swiglu") || quick;
  if (has("swiglu") && quick) refuse("quick-geglu", "--swiglu is another activation");
  if (quick && !has("ffn-hidden-size") && hidden) {
    set("model.ffn", std::to_string(*hidden * 4), "quick-geglu");
  }
  if (!gated) {
    drop("model.glu_offset");
    drop("model.glu_clamp");
  }
  const std::string softmax = text("softmax-type");
  if (softmax == "learnable") {
    set("model.attention_sinks", "true", "softmax-type");
  } else if (!softmax.empty() && softmax != "vanilla") {
    refuse(fmt::format("softmax-type {}", softmax),
           "the score of no key is a learned one of each head (learnable), or there is none "
           "(vanilla)");
  }
  if (has("disable-bias-linear") && text("normalization") != "RMSNorm") {
    set("model.norm.bias", "true", "disable-bias-linear");
  }
  const bool fused = !has("disable-bias-linear") && !has("no-bias-gelu-fusion");
  if (!gated && !has("openai-gelu") && !fused) {
    // Its fused kernel is the tanh form, and F.gelu the exact one.
    set("model.activation", "gelu_exact",
        has("disable-bias-linear") ? "disable-bias-linear" : "no-bias-gelu-fusion");
  }
  // "127,0", "(127, 0)" or two words.
  std::string window = text("window-size");
  if (window.empty()) return;
  std::replace(window.begin(), window.end(), ' ', ',');
  std::erase_if(window, [](char c) { return c == '(' || c == ')'; });
  char* end = nullptr;
  const long left = std::strtol(window.c_str(), &end, 10);
  const std::string right = end;
  if (end == window.c_str() || left < 0 || (right != ",0" && right != ",,0")) {
    wrong("window-size", "the positions to the left, and 0 to the right");
  } else {
    set("model.sliding_window", std::to_string(left + 1), "window-size");
    layer_pattern("window-attn-skip-freq", "model.full_attention.every",
                  "model.full_attention.layers", 0);
  }
}

// A flag that says of layers whether they are of a kind: N for a pattern of N layers, or a list of
// 0 and 1, of which `named` are those that `list_key` names.
void MegatronReader::layer_pattern(const std::string& flag, const std::string& every_key,
                                   const std::string& list_key, int64_t named) {
  const std::string given = text(flag);
  if (given.empty()) return;
  if (given.find('[') == std::string::npos) {
    const auto every = whole(flag);
    if (every && *every >= 1) set(every_key, std::to_string(*every), flag);
    if (every && *every < 1) wrong(flag, "a number from 1 on, or a list");
    return;
  }
  const std::string model_layers = setting("model.layers");
  const size_t layers = std::strtoul(model_layers.c_str(), nullptr, 10);
  const auto flags = python_list(given, 100'000);
  if (!flags || std::any_of(flags->begin(), flags->end(), [](int64_t i) { return i > 1; })) {
    return wrong(flag, "0 and 1 for the layers, such as [0]*3+[1]*58");
  }
  if (layers > 0 && flags->size() != layers) {
    return wrong(flag, fmt::format("{} numbers, one for each layer", layers));
  }
  std::vector<size_t> chosen;
  for (size_t i = 0; i < flags->size(); ++i) {
    if ((*flags)[i] == named) chosen.push_back(i);
  }
  if (!chosen.empty()) set(list_key, fmt::format("[{}]", fmt::join(chosen, ", ")), flag);
}

void MegatronReader::experts() {
  if (!has("num-experts")) {
    drop("model.moe.");
    return;
  }
  layer_pattern("moe-layer-freq", "model.moe.every", "model.moe.dense_layers", 0);
  if (setting("model.moe.every") == "1") drop("model.moe.every");
  if (const auto ffn = value("moe-ffn-hidden-size")) {
    const bool dense =
        !setting("model.moe.every").empty() || !setting("model.moe.dense_layers").empty();
    set(dense ? "model.moe.ffn" : "model.ffn", *ffn, "moe-ffn-hidden-size");
  }
  if (!has("moe-router-group-topk")) drop("model.moe.groups");
  if (!has("moe-router-num-groups")) drop("model.moe.group_topk");
  // Of sigmoids Megatron divides by the sum always, but where there is only one.
  if (setting("model.moe.score") == "sigmoid") {
    drop("model.moe.normalize");
    if (setting("model.moe.topk") == "1") {
      set("model.moe.normalize", "false", "moe-router-topk");
    }
  }
  const std::string balance = text("moe-router-load-balancing-type");
  if (balance == "none") {
    drop("model.moe.aux_loss");
  } else if (!balance.empty() && balance != "aux_loss" && balance != "seq_aux_loss") {
    refuse(fmt::format("moe-router-load-balancing-type {}", balance),
           "aux_loss, seq_aux_loss, none can be");
  }
}

void MegatronReader::positions() {
  if (setting("model.position.type") != "rope") {
    drop("model.position.base");
    drop("model.position.fraction");
    drop("model.position.scaling.");
    return;
  }
  layer_pattern("no-rope-freq", "model.position.skip.every", "model.position.skip.layers", 1);
  if (text("position-embedding-type") == "yarn") return yarn();
  const char* const kLinear = "rotary-seq-len-interpolation-factor";
  const auto linear = value(kLinear), llama = value("rope-scaling-factor");
  if (linear && has("use-rope-scaling")) refuse(kLinear, "--use-rope-scaling is another scaling");
  if (linear) {
    set("model.position.scaling.type", "linear", kLinear);
    set("model.position.scaling.factor", *linear, kLinear);
  } else if (llama && has("use-rope-scaling")) {
    set("model.position.scaling.factor", *llama, "rope-scaling-factor");
  }
}

void MegatronReader::yarn() {
  const char* const kFactor = "rotary-scaling-factor";
  const double factor = number(kFactor).value_or(1);
  if (has("multi-latent-attention") || factor <= 1) return;
  if (has("use-rope-scaling")) refuse("use-rope-scaling", "yarn is another scaling");
  set("model.position.scaling.type", "yarn", "position-embedding-type");
  set("model.position.scaling.factor", number_text(factor), kFactor);
  const char* const kOriginal = "yarn-original-max-position-embeddings";
  set("model.position.scaling.original_max_seq", value(kOriginal).value_or("4096"), kOriginal);
  for (const auto& [flag, key] :
       {std::pair("yarn-beta-fast", "model.position.scaling.beta_fast"),
        std::pair("yarn-beta-slow", "model.position.scaling.beta_slow")}) {
    if (const auto given = value(flag)) set(key, *given, flag);
  }
  const char* const kNotRounded = "no-yarn-correction-range-round-to-int";
  if (has(kNotRounded)) set("model.position.scaling.truncate", "false", kNotRounded);
  const double mscale = number("mscale").value_or(1), all = number("mscale-all-dim").value_or(0);
  if (mscale == 1 && all == 0) return;  // as mtl has it
  set("model.position.scaling.attention_factor",
      number_text((0.1 * mscale * std::log(factor) + 1) / (0.1 * all * std::log(factor) + 1)),
      "mscale");
}

void MegatronReader::latents() {
  const char* const kLatents = "multi-latent-attention";
  if (!has(kLatents)) return;
  if (setting("model.position.type") != "rope" || text("position-embedding-type") == "yarn") {
    return refuse(kLatents, "it goes with --position-embedding-type rope");
  }
  if (!has("qk-layernorm")) return refuse(kLatents, "latents have norms here (--qk-layernorm)");
  // Every head has keys of its own, whatever the flags of other attention say.
  for (const char* other : {"model.qk_norm", "model.kv_heads", "model.position.fraction"}) {
    drop(other);
  }
  const auto take = [&](const char* key, const char* flag, const char* without) {
    set(key, value(flag).value_or(without), has(flag) ? flag : kLatents);
  };
  take("model.latent.kv_rank", "kv-lora-rank", "32");
  if (has("q-lora-rank")) take("model.latent.q_rank", "q-lora-rank", "");
  take("model.latent.rope_dim", "qk-pos-emb-head-dim", "64");
  take("model.latent.value_dim", "v-head-dim", "128");
  const int64_t rotated = whole("qk-pos-emb-head-dim").value_or(64);
  const int64_t head_dim = whole("qk-head-dim").value_or(128) + rotated;
  set("model.head_dim", std::to_string(head_dim), has("qk-head-dim") ? "qk-head-dim" : kLatents);
  // Its norms have one epsilon.
  const std::string eps = setting("model.norm.eps");
  set("model.latent.norm_eps", eps.empty() ? "1e-05" : eps, kLatents);
  const char* const kFactor = "rotary-scaling-factor";
  const double factor = number(kFactor).value_or(1);
  if (factor <= 1) return;
  const double all = 0.1 * number("mscale-all-dim").value_or(0) * std::log(factor) + 1;
  if (all != 1) {
    set("model.attention_scale", number_text(all * all / std::sqrt(static_cast<double>(head_dim))),
        "mscale-all-dim");
  }
  if (text("rope-type") == "rope") return;
  set("model.position.scaling.type", "yarn", kFactor);
  set("model.position.scaling.factor", number_text(factor), kFactor);
  set("model.position.scaling.original_max_seq", "4096", kFactor);
  set("model.position.scaling.attention_factor",
      number_text((0.1 * number("mscale").value_or(1) * std::log(factor) + 1) / all), "mscale");
}

void MegatronReader::layout() {
  const char* const kChunk = "num-layers-per-virtual-pipeline-stage";
  if (const auto chunk = whole(kChunk)) {
    const int64_t chunks = whole("pipeline-model-parallel-size").value_or(1) * *chunk;
    const int64_t layers = whole("num-layers").value_or(0);
    if (chunks == 0 || layers % chunks != 0) {
      wrong(kChunk, "a number that divides the layers of a stage");
    } else if (layers > 0) {
      set("parallel.virtual_stages", std::to_string(layers / chunks), kChunk);
    }
  }
  if (has("use-megatron-fsdp") || has("use-custom-fsdp")) {
    static const std::map<std::string, std::string> kStages = {{"", "3"},
                                                               {"no_shard", "0"},
                                                               {"optim", "1"},
                                                               {"optim_grads", "2"},
                                                               {"optim_grads_params", "3"}};
    const auto stage = kStages.find(text("data-parallel-sharding-strategy"));
    if (stage == kStages.end()) {
      wrong("data-parallel-sharding-strategy", "no_shard, optim, optim_grads, optim_grads_params");
    } else {
      set("parallel.zero", stage->second, "use-megatron-fsdp");
    }
  }
  if (const auto elements = whole("ddp-bucket-size")) {
    set("parallel.bucket_mb", number_text(static_cast<double>(*elements) * 4 / 1e6),
        "ddp-bucket-size");
  }
}

void MegatronReader::recomputes() {
  static const std::map<std::string, std::string> kModules = {{"core_attn", "core_attn"},
                                                              {"layernorm", "norm"},
                                                              {"mla_up_proj", "latent_up"},
                                                              {"mlp", "mlp"}};
  const std::string mode = setting("recompute.mode");
  // Of methods and groups there is a choice in the full mode only, of modules in the other.
  if (mode != "full") {
    drop("recompute.method");
    drop("recompute.layers");
    drop("recompute.distribute");
  }
  const auto given = given_.find("recompute-modules");
  if (mode != "selective" || given == given_.end()) return;
  std::vector<std::string> modules;
  for (const std::string& module : given->second) {
    const auto ours = kModules.find(module);
    if (ours == kModules.end()) {
      open(fmt::format(
          "--recompute-modules {} is left out: core_attn, layernorm, mla_up_proj, mlp can "
          "be",
          module));
    } else {
      modules.push_back(ours->second);
    }
  }
  if (modules.empty()) return;
  set("recompute.modules", fmt::format("[{}]", fmt::join(modules, ", ")), "recompute-modules");
}

void MegatronReader::batch() {
  if (!has("global-batch-size") && has("micro-batch-size")) {
    set("train.accumulate", "1", "micro-batch-size");
  }
  if (whole("eval-iters") == 0 && !has("full-validation")) {
    set("train.eval.iters", "1", "eval-iters");
    drop("train.eval.every");
  }
  if (const auto minutes = whole("exit-duration-in-mins")) {
    set("health.max_time", fmt::format("{}m", *minutes), "exit-duration-in-mins");
  }
  if (value("rampup-batch-size")) ramp();
}

void MegatronReader::ramp() {
  const std::string flag = "rampup-batch-size";
  const std::vector<std::string>& words = given_[flag];
  const int64_t last = whole("global-batch-size").value_or(0);
  int64_t numbers[3] = {0, 0, 0};
  bool good = words.size() == 3;
  for (size_t i = 0; i < 3 && good; ++i) {
    good = !read_integer(flag, words[i], false, numbers[i]) && numbers[i] > 0;
  }
  const int64_t start = numbers[0], increment = numbers[1], samples = numbers[2];
  if (!good || start >= last || (last - start) % increment != 0) {
    wrong(flag, "the first batch, what it grows by up to --global-batch-size, and its samples");
    return;
  }
  // Each batch is taken while its share of the samples lasts.
  const int64_t rises = (last - start) / increment;
  const double share = static_cast<double>(samples) / static_cast<double>(rises);
  std::vector<std::string> entries;
  int64_t step = 0;
  double taken = 0;
  for (int64_t rise = 0; rise <= rises; ++rise) {
    const int64_t size = start + rise * increment;
    const double left = share * static_cast<double>(rise + 1) - taken;
    const double steps = std::max(0.0, std::ceil(left / static_cast<double>(size)));
    if (steps > 0 || rise == rises) entries.push_back(fmt::format("{}: {}", step, size));
    step += static_cast<int64_t>(steps);
    taken += steps * static_cast<double>(size);
  }
  set("train.batch_ramp", fmt::format("{{{}}}", fmt::join(entries, ", ")), flag);
  open(fmt::format("--{} became train.batch_ramp; megatron-core 0.20 reads it and goes on without",
                   flag));
}

void MegatronReader::muon() {
  if (setting("optimizer.type") != "muon") {
    drop("optimizer.muon.");
    return;
  }
  set("optimizer.muon.momentum", value("muon-momentum").value_or("0.9"), "muon-momentum");
  const bool nesterov = has("muon-nesterov") || has("muon-use-nesterov");
  set("optimizer.muon.nesterov", nesterov ? "true" : "false", "muon-nesterov");
  set("optimizer.muon.factor", value("muon-extra-scale-factor").value_or("1.0"),
      "muon-extra-scale-factor");
  const std::string mode = text("muon-tp-mode");
  const bool divided = whole("tensor-model-parallel-size").value_or(1) > 1;
  if (!mode.empty() && mode != "duplicated" && mode != "distributed" && mode != "blockwise") {
    refuse(fmt::format("muon-tp-mode {}", mode), "it can be duplicated, distributed, blockwise");
  } else if (mode == "blockwise" && divided) {
    refuse("muon-tp-mode blockwise",
           "a matrix is orthogonalized whole (duplicated), so that a layout changes nothing");
  } else if (!has("muon-tp-mode") && divided) {
    open(
        "without --muon-tp-mode Megatron orthogonalizes the parts of tensor parallelism each by "
        "itself (blockwise); here matrices are orthogonalized whole, as with duplicated");
  }
  if (has("swiglu") || has("quick-geglu")) {
    open("Megatron's Muon takes gate and up projection of an MLP as one matrix; here each is one");
  }
}

void MegatronReader::schedules() {
  const bool lion = setting("optimizer.type") == "lion";
  if (setting("optimizer.type") != "sgd") {
    const std::string of = lion ? "lion" : "adam";
    set("optimizer.betas",
        fmt::format("[{}, {}]", value(of + "-beta1").value_or(lion ? "0.95" : "0.9"),
                    value(of + "-beta2").value_or(lion ? "0.98" : "0.999")),
        of + "-beta2");
  }
  muon();
  if (has("end-weight-decay") && text("weight-decay-incr-style").empty()) {
    drop("optimizer.weight_decay_end");  // it moves with a style alone
  }
  static const std::vector<std::pair<const char*, const char*>> kSamples = {
      {"lr-decay-samples", "lr.decay"},
      {"lr-warmup-samples", "lr.warmup"},
      {"lr-wsd-decay-samples", "lr.wsd_decay"}};
  for (const auto& [flag, key] : kSamples) {
    if (const auto steps = steps_of(flag)) set(key, std::to_string(*steps), flag);
  }
  if (const auto share = number("lr-warmup-fraction")) {
    std::optional<int64_t> way = whole("lr-decay-iters");
    if (!way) way = steps_of("lr-decay-samples");
    if (!way) way = whole("train-iters");
    if (!way) way = steps_of("train-samples");
    if (way) {
      const double steps = *share * static_cast<double>(*way);
      set("lr.warmup", std::to_string(std::llround(steps)), "lr-warmup-fraction");
    }
  }
  const std::string schedule = setting("lr.schedule");
  if (schedule != "wsd") {
    drop("lr.wsd_style");
    drop("lr.wsd_decay");
  } else if (!has("lr-wsd-decay-style")) {
    set("lr.wsd_style", "exponential");
  }
  if (schedule == "constant") {
    drop("lr.decay");
    drop("lr.min");
  }
}

void MegatronReader::precision() {
  if (has("fp16") && has("bf16")) refuse("fp16", "--bf16 is another type");
  const std::string dtype = setting("precision.dtype");
  if (dtype != "fp16") {
    drop("precision.loss_scale.");
  } else if (!has("initial-loss-scale")) {
    set("precision.loss_scale.initial", "4294967296");
  }
  if (dtype != "fp8" || !has("first-last-layers-bf16")) return;
  for (const auto& [flag, key] :
       {std::pair("num-layers-at-start-in-bf16", "precision.fp8.bf16_first_layers"),
        std::pair("num-layers-at-end-in-bf16", "precision.fp8.bf16_last_layers")}) {
    set(key, value(flag).value_or("1"), flag);
  }
}

void MegatronReader::data() {
  for (const auto& [flag, key] :
       {std::pair("data-path", "data.train"), std::pair("train-data-path", "data.train"),
        std::pair("valid-data-path", "data.valid")}) {
    if (value(flag)) set(key, yaml_scalar(text(flag)), flag);
  }
  std::string split = text("split");
  if (has("valid-data-path")) {
    drop("data.split");
  } else if (!split.empty()) {
    std::replace(split.begin(), split.end(), ' ', ',');
    std::vector<std::string> parts(1);
    for (const char c : split) {
      if (c != ',') parts.back() += c;
      if (c == ',' && !parts.back().empty()) parts.emplace_back();
    }
    set("data.split", fmt::format("[{}]", fmt::join(parts, ", ")), "split");
  }
  const std::string type = text("tokenizer-type");
  if (const auto size = whole("vocab-size"); size && type == "NullTokenizer") {
    set("data.vocab", std::to_string(*size + 1), "vocab-size");
    if (!has("null-tokenizer-eod-id")) set("data.eod", std::to_string(*size), "vocab-size");
  }
  if (type.empty() && value("vocab-file") && value("merge-file")) {
    set("data.tokenizer.type", "gpt2-bpe", "merge-file");
  }
  const std::string ours = setting("data.tokenizer.type");
  if (ours != "gpt2-bpe") {
    drop("data.tokenizer.vocab");
    drop("data.tokenizer.merges");
  }
  if (ours != "hf" && ours != "sentencepiece") drop("data.tokenizer.file");
}

void MegatronReader::checkpoints() {
  const auto load = value("load");
  if (load && load != value("save") && !has("pretrained-checkpoint")) {
    set("init.from", yaml_scalar(*load), "load");
    if (!has("finetune")) {
      open("--load became init.from: its weights, with a fresh optimizer, from step 1");
    }
  }
  if (!has("save-interval")) return;
  const auto keep = value("save-retain-interval");
  set("checkpoint.keep_last", keep ? "1" : "0", "save-retain-interval");
  if (keep) set("checkpoint.keep_every", *keep, "save-retain-interval");
}

}  // namespace mtl::spec
