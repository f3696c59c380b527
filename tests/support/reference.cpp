#include "support/reference.h"

#include <fstream>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "support/hash.h"

namespace mtl::test {

namespace {

constexpr int64_t kSeq = 64, kBatch = 12, kSteps = 50;

std::ifstream open(const std::string& file) {
  std::ifstream in(MTL_SOURCE_DIR "/tests/reference/" + file, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open tests/reference/" + file);
  return in;
}

uint64_t reference_hash(const std::string& name, int64_t i) {
  return splitmix64(fnv1a64(name) + static_cast<uint64_t>(i));
}

float reference_weight(const std::string& name, int64_t i) {
  const auto k = static_cast<int64_t>(reference_hash(name, i) >> 40);
  const auto v = static_cast<float>(static_cast<double>(k - 8388608) * 0x1p-26);
  const bool gain = name.ends_with("norm.weight") ||
                    (name.find(".ln_") != std::string::npos && name.ends_with(".weight"));
  return gain ? static_cast<float>(1.0 + static_cast<double>(v)) : v;
}

LayerChoice layer_choice(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) return {};
  return {.every = found->at("every"), .layers = found->at("layers")};
}

// The LLaMA family's files use the names of train.yaml; GPT-2's has what the defaults say.
void read_model(const nlohmann::json& json, TrainSpec::Model& model) {
  json.at("layers").get_to(model.layers);
  json.at("hidden").get_to(model.hidden);
  json.at("heads").get_to(model.heads);
  json.at("ffn").get_to(model.ffn);
  json.at("max_seq").get_to(model.max_seq);
  json.at("bias").get_to(model.bias);
  json.at("tie_embeddings").get_to(model.tie_embeddings);
  if (!json.contains("position")) return;
  json.at("kv_heads").get_to(model.kv_heads);
  json.at("head_dim").get_to(model.head_dim);
  json.at("activation").get_to(model.activation);
  json.at("qk_norm").get_to(model.qk_norm);
  if (json.value("qkv_bias", false)) model.qkv_bias = "true";
  model.parallel_residual = json.value("parallel_residual", false);
  model.norm.shared = json.at("norm").value("shared", false);
  if (!json.at("norm").value("bias", true)) model.norm.bias = "false";
  model.residual_scale = json.value("residual_scale", 1.0);
  model.logit_scale = json.value("logit_scale", 1.0);
  model.head_bias = json.value("head_bias", false);
  model.embedding_scale = json.value("embedding_scale", 1.0);
  model.sliding_window = json.value("sliding_window", int64_t{0});
  model.full_attention = layer_choice(json, "full_attention");
  model.attention_scale = json.value("attention_scale", 0.0);
  model.attention_cap = json.value("attention_cap", 0.0);
  model.logit_cap = json.value("logit_cap", 0.0);
  model.attention_sinks = json.value("attention_sinks", false);
  model.glu_offset = json.value("glu_offset", 0.0);
  model.glu_clamp = json.value("glu_clamp", 0.0);
  json.at("norm").at("type").get_to(model.norm.type);
  json.at("norm").at("eps").get_to(model.norm.eps);
  model.norm.place = json.value("norm_place", "input");
  model.qk_norm_whole = json.value("qk_norm_whole", false);
  if (const auto latent = json.find("latent"); latent != json.end()) {
    latent->at("kv_rank").get_to(model.latent.kv_rank);
    latent->at("q_rank").get_to(model.latent.q_rank);
    latent->at("rope_dim").get_to(model.latent.rope_dim);
    latent->at("value_dim").get_to(model.latent.value_dim);
    latent->at("norm_eps").get_to(model.latent.norm_eps);
  }
  if (const auto moe = json.find("moe"); moe != json.end()) {
    moe->at("experts").get_to(model.moe.experts);
    moe->at("topk").get_to(model.moe.topk);
    moe->at("aux_loss").get_to(model.moe.aux_loss);
    moe->at("z_loss").get_to(model.moe.z_loss);
    model.moe.ffn = moe->value("ffn", model.moe.ffn);
    model.moe.dense_layers = moe->value("dense_layers", model.moe.dense_layers);
    model.moe.scale = moe->value("scale", model.moe.scale);
    model.moe.groups = moe->value("groups", model.moe.groups);
    model.moe.group_topk = moe->value("group_topk", model.moe.group_topk);
    model.moe.score = moe->value("score", model.moe.score);
    model.moe.normalize = moe->value("normalize", model.moe.normalize);
    model.moe.shared_ffn = moe->value("shared_ffn", model.moe.shared_ffn);
    model.moe.shared_gate = moe->value("shared_gate", model.moe.shared_gate);
    model.moe.expert_bias = moe->value("expert_bias", model.moe.expert_bias);
    model.moe.bias_rate = moe->value("bias_rate", model.moe.bias_rate);
  }
  const nlohmann::json& position = json.at("position");
  position.at("type").get_to(model.position.type);
  model.position.base = position.value("base", model.position.base);
  model.position.fraction = position.value("fraction", model.position.fraction);
  model.position.window_base = position.value("window_base", 0.0);
  model.position.skip = layer_choice(position, "skip");
  if (const auto scaling = position.find("scaling"); scaling != position.end()) {
    TrainSpec::Model::Position::Scaling& to = model.position.scaling;
    scaling->at("type").get_to(to.type);
    scaling->at("factor").get_to(to.factor);
    scaling->at("low_freq_factor").get_to(to.low_freq_factor);
    scaling->at("high_freq_factor").get_to(to.high_freq_factor);
    scaling->at("original_max_seq").get_to(to.original_max_seq);
  }
}

TrainSpec read_spec(const nlohmann::json& json) {
  TrainSpec spec;
  read_model(json.at("model"), spec.model);
  if (const auto lora = json.at("model").find("lora"); lora != json.at("model").end()) {
    lora->at("rank").get_to(spec.lora.rank);
    lora->at("alpha").get_to(spec.lora.alpha);
    lora->at("targets").get_to(spec.lora.targets);
  }
  spec.train.seq_len = kSeq;
  json.at("train").at("global_batch").get_to(spec.train.global_batch);
  json.at("train").at("steps").get_to(spec.train.steps);
  const nlohmann::json& optimizer = json.at("optimizer");
  spec.optimizer.type = optimizer.value("type", spec.optimizer.type);
  optimizer.at("betas")[0].get_to(spec.optimizer.beta1);
  optimizer.at("betas")[1].get_to(spec.optimizer.beta2);
  optimizer.at("eps").get_to(spec.optimizer.eps);
  optimizer.at("weight_decay").get_to(spec.optimizer.weight_decay);
  optimizer.at("clip").get_to(spec.optimizer.clip);
  const nlohmann::json& lr = json.at("lr");
  lr.at("max").get_to(spec.lr.max);
  lr.at("min").get_to(spec.lr.min);
  lr.at("warmup").get_to(spec.lr.warmup);
  lr.at("decay").get_to(spec.lr.decay);
  return spec;
}

}  // namespace

ReferenceRun read_reference(const std::string& name) {
  std::ifstream in = open(name + ".json");
  const nlohmann::json json = nlohmann::json::parse(in);
  ReferenceRun run;
  run.spec = read_spec(json);
  json.at("loss").get_to(run.loss);
  json.at("grad_norm").get_to(run.grad_norm);
  json.at("lr").at("values").get_to(run.lr);
  if (json.contains("loss_bf16")) {
    json.at("loss_bf16").get_to(run.loss_bf16);
    json.at("noise_bf16").at("loss").get_to(run.noise_bf16);
  }
  for (const auto& [parameter, entry] : json.at("parameters").items()) {
    ReferenceRun::Parameter& to = run.parameters[parameter];
    entry.at("shape").get_to(to.shape);
    entry.at("initial_head").get_to(to.initial_head);
    entry.at("grad_norm").get_to(to.grad_norm);
    entry.at("final_norm").get_to(to.final_norm);
  }
  if (const auto biases = json.find("expert_bias"); biases != json.end()) {
    biases->get_to(run.expert_bias);
  }
  json.at("check").at("first_window_head").get_to(run.first_tokens);
  json.at("check").at("token_sum_per_step").get_to(run.token_sums);
  return run;
}

GlobalTensors read_reference_gradients(const std::string& name) {
  // A small, trusted safetensors file of F32.
  std::ifstream in = open(name + "_grads.safetensors");
  uint64_t length = 0;
  in.read(reinterpret_cast<char*>(&length), sizeof length);
  std::string header(length, '\0');
  in.read(header.data(), static_cast<std::streamsize>(length));
  const nlohmann::json entries = nlohmann::json::parse(header);
  GlobalTensors tensors;
  for (const auto& [parameter, entry] : entries.items()) {
    if (parameter == "__metadata__") continue;
    const auto begin = entry.at("data_offsets")[0].get<uint64_t>();
    const auto end = entry.at("data_offsets")[1].get<uint64_t>();
    std::vector<float>& data = tensors[parameter];
    data.resize((end - begin) / sizeof(float));
    in.seekg(static_cast<std::streamoff>(sizeof length + length + begin));
    in.read(reinterpret_cast<char*>(data.data()), static_cast<std::streamsize>(end - begin));
  }
  if (!in) throw std::runtime_error("tests/reference/" + name + "_grads.safetensors is short");
  return tensors;
}

void set_reference_weights(Trainer& trainer) {
  trainer.initialise();
  set_masters(trainer,
              [](const ParamRow& row, int64_t i) { return reference_weight(row.name, i); });
}

int64_t ReferenceTokens::size() const {
  return kSteps * kBatch * kSeq + 1;
}

void ReferenceTokens::read(int64_t first, std::span<int32_t> out) const {
  if (first % kSeq != 0 || out.size() != kSeq + 1) {
    throw std::logic_error("the reference's tokens are whole windows");
  }
  const int64_t window = first / kSeq;
  uint64_t id = 0;
  for (size_t t = 0; t < out.size(); ++t) {
    const uint64_t r = reference_hash("tokens", window * (kSeq + 1) + static_cast<int64_t>(t));
    id = t == 0 || (r >> 32) % 4 == 0 ? r % kReferenceVocab : (7 * id + 3) % kReferenceVocab;
    out[t] = static_cast<int32_t>(id);
  }
}

}  // namespace mtl::test
