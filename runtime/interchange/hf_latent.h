// Latent attention in config.json: DeepSeek-V2 and V3, Moonlight and Kimi K2, with the mixtures
// that come with it. Facts from transformers' configuration and modeling files, and, where these
// compute something else than DeepSeek's own code does, from the latter.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/error.h"
#include "runtime/interchange/hf_config_reader.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

// The sizes of heads. What is read behind it, rotary positions among it, goes by them.
void read_latent_heads(ConfigReader& config, ModelShape& shape);
// What is neither that nor as in Llama. `type`: deepseek_v2, deepseek_v3, kimi_k2.
void read_deepseek(ConfigReader& config, const std::string& type, ModelShape& shape);

// Of a shape with latents: whose it is, and what keeps it from being theirs.
std::string latent_architecture(const ModelShape& shape);
std::vector<std::string> latent_obstacles(const ModelShape& shape);
// Its fields, in a config that has those of Llama.
void write_latents(const ModelShape& shape, nlohmann::ordered_json& config);

// Versions of transformers that scale a DeepSeek-V2's scores as if there was no YaRN: a warning
// (export.yarn) of an export.
std::optional<Diagnostic> unscaled_scores(const ModelShape& shape);

}  // namespace mtl
