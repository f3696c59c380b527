#include "runtime/plan/model_shape.h"

#include <nlohmann/json.hpp>

namespace mtl {

namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

ModelShape model_shape(const TrainSpec& spec, int64_t vocab) {
  const TrainSpec::Model& model = spec.model;
  ModelShape shape;
  shape.layers = model.layers;
  shape.hidden = model.hidden;
  shape.heads = model.heads;
  shape.kv_heads = model.heads;
  shape.head_dim = model.heads > 0 ? model.hidden / model.heads : 0;
  shape.ffn = model.ffn > 0 ? model.ffn : 4 * model.hidden;
  shape.vocab = vocab;
  shape.vocab_pad_to = model.vocab_pad_to;
  shape.padded_vocab = round_up(vocab, model.vocab_pad_to);
  shape.max_seq = model.max_seq > 0 ? model.max_seq : spec.train.seq_len;
  shape.norm_eps = model.norm.eps;
  shape.bias = model.bias;
  shape.tie_embeddings = model.tie_embeddings;
  shape.dropout_hidden = model.dropout.hidden;
  shape.dropout_attention = model.dropout.attention;
  shape.init_std = spec.init.std;
  return shape;
}

nlohmann::json to_json(const ModelShape& shape) {
  return {{"family", "gpt2"},
          {"layers", shape.layers},
          {"hidden", shape.hidden},
          {"heads", shape.heads},
          {"kv_heads", shape.kv_heads},
          {"head_dim", shape.head_dim},
          {"ffn", shape.ffn},
          {"vocab", shape.vocab},
          {"vocab_pad_to", shape.vocab_pad_to},
          {"max_seq", shape.max_seq},
          {"norm_eps", shape.norm_eps},
          {"bias", shape.bias},
          {"tie_embeddings", shape.tie_embeddings}};
}

ModelShape model_shape_from_json(const nlohmann::json& json) {
  ModelShape shape;
  json.at("layers").get_to(shape.layers);
  json.at("hidden").get_to(shape.hidden);
  json.at("heads").get_to(shape.heads);
  json.at("kv_heads").get_to(shape.kv_heads);
  json.at("head_dim").get_to(shape.head_dim);
  json.at("ffn").get_to(shape.ffn);
  json.at("vocab").get_to(shape.vocab);
  json.at("vocab_pad_to").get_to(shape.vocab_pad_to);
  json.at("max_seq").get_to(shape.max_seq);
  json.at("norm_eps").get_to(shape.norm_eps);
  json.at("bias").get_to(shape.bias);
  json.at("tie_embeddings").get_to(shape.tie_embeddings);
  shape.padded_vocab = round_up(shape.vocab, shape.vocab_pad_to);
  return shape;
}

}  // namespace mtl
