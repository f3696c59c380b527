// The model as numbers: what is needed to know every parameter and buffer. Pure data.
#pragma once

#include <cstdint>

#include <nlohmann/json_fwd.hpp>

#include "runtime/spec/train_spec.h"

namespace mtl {

enum class NormType { layernorm };
enum class Activation { gelu_tanh };
enum class PositionType { learned };

struct ModelShape {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn = 0;
  int64_t vocab = 0;  // token ids are 0..vocab-1
  int64_t vocab_pad_to = 1;
  int64_t padded_vocab = 0;  // rows in memory: vocab rounded up to vocab_pad_to, whatever TP is
  int64_t max_seq = 0;
  NormType norm = NormType::layernorm;
  double norm_eps = 1e-5;
  Activation activation = Activation::gelu_tanh;
  PositionType position = PositionType::learned;
  bool bias = true;
  bool tie_embeddings = true;
  double dropout_hidden = 0;
  double dropout_attention = 0;
  double init_std = 0.02;
};

ModelShape model_shape(const TrainSpec& spec, int64_t vocab);

// What a checkpoint says of its model: everything that its weights depend on.
nlohmann::json to_json(const ModelShape& shape);
ModelShape model_shape_from_json(const nlohmann::json& json);

}  // namespace mtl
