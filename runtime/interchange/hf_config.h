// config.json of Hugging Face's transformers <-> the shape of our model. Facts from transformers'
// configuration and modeling files of the families named here.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/error.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

struct HfModel {
  ModelShape shape;
  std::string architecture;  // "LlamaForCausalLM"
  // It is the text part of a model that sees pictures, and its tensors have names inside that one.
  bool with_pictures = false;
  // Layers behind those of the model, which predict tokens further ahead (DeepSeek-V3's multi-token
  // prediction, arXiv 2412.19437; GLM-4.5 has it, too) and are not read.
  int64_t layers_ahead = 0;
  bool mxfp4 = false;  // the weights of experts are (hf_mxfp4.h)
};

// Reads every field that changes the mathematics, or refuses it. Problems go to `diagnostics` as
// import.config and import.family (`file`: for messages); fields that nobody here knows are
// warnings.
HfModel model_from_hf_config(const nlohmann::json& config, const std::string& file,
                             Diagnostics& diagnostics);

// Special tokens, as config.json names them.
struct HfTokens {
  std::optional<int64_t> bos, eos;
};
// The family whose model computes the same as ours. Throws Error (Exit::data) export.family with a
// note for everything that stands in the way.
HfModel hf_model_of(const ModelShape& shape);
// `dtype`: "float32", "bfloat16", "float16".
nlohmann::ordered_json hf_config_of(const HfModel& model, const HfTokens& tokens,
                                    const std::string& dtype);

}  // namespace mtl
