// The mixtures of experts of a config.json: what hf_config.h reads of them. Each takes the width of
// dense layers for that of all until here, shape.ffn, and refuses what is no mixture.
#pragma once

#include <optional>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "runtime/interchange/hf_config_reader.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

// Of a tensor of ours that is one expert's, "....experts.12.gate_proj.weight": where ".experts."
// begins, 12, and what stands behind it; none of another.
struct ExpertName {
  size_t at = 0;
  int64_t number = 0;
  std::string_view rest;  // of the name that was given
};
std::optional<ExpertName> expert_of(std::string_view name);

// Mixtral's, gpt-oss's and Granite's; what holds where the file does not say it.
void read_mixtral_experts(ConfigReader& config, ModelShape& shape, int64_t experts, int64_t chosen);
// What Qwen's two kinds of mixtures have in common; what holds where the file does not say it.
void read_qwen_experts(ConfigReader& config, ModelShape& shape, int64_t experts, int64_t chosen,
                       int64_t ffn);
void read_olmoe_experts(ConfigReader& config, ModelShape& shape);
// DeepSeek's mixtures: V3's, with sigmoids, which dots.llm1, Kimi K2 and GLM-4.5 have too, or V2's.
// What holds where the file does not say it; what has nothing has to be said.
struct DeepseekExperts {
  std::optional<int64_t> experts = {}, chosen = {};
  int64_t ffn;
  std::optional<int64_t> shared = {};
  int64_t dense = 0;
  ModelShape::MoeScores scores;
};
void read_deepseek_experts(ConfigReader& config, ModelShape& shape,
                           const DeepseekExperts& defaults);
// The same fields, of a shape that has them.
void write_deepseek_experts(const ModelShape& shape, nlohmann::ordered_json& config);

}  // namespace mtl
