// The mixtures of experts of a config.json: what hf_config.h reads of them. Each takes the width of
// dense layers for that of all until here, shape.ffn, and refuses what is no mixture.
#pragma once

#include "runtime/interchange/hf_config_reader.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

void read_mixtral_experts(ConfigReader& config, ModelShape& shape);
// What Qwen's two kinds of mixtures have in common; what holds where the file does not say it.
void read_qwen_experts(ConfigReader& config, ModelShape& shape, int64_t experts, int64_t chosen,
                       int64_t ffn);
void read_olmoe_experts(ConfigReader& config, ModelShape& shape);
// dots.llm1: DeepSeek-V3's mixture beside Qwen3's attention.
void read_dots_experts(ConfigReader& config, ModelShape& shape);

}  // namespace mtl
