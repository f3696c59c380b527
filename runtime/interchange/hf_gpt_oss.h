// gpt-oss in config.json. Facts from transformers' configuration and modeling files.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/interchange/foreign_tensor.h"
#include "runtime/interchange/hf_config_reader.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

void read_gpt_oss(ConfigReader& config, ModelShape& shape);

// Whether a shape has something that gpt-oss alone has; and what keeps it from being one.
bool is_near_gpt_oss(const ModelShape& shape);
std::vector<std::string> gpt_oss_obstacles(const ModelShape& shape);
// Its fields, in a config that has those of Llama.
void write_gpt_oss(const ModelShape& shape, nlohmann::ordered_json& config);

// A layer's experts are four tensors: of gates and ups, the columns in turns, and of downs, each
// [expert, in, out], and their biases. Takes the parts out of `tensors`, which have one parameter
// each, in their order. `mxfp4`: weights are [expert, out, in] (hf_mxfp4.h).
std::vector<ForeignTensor> join_experts(std::vector<ForeignTensor> tensors, const ModelShape& shape,
                                        bool mxfp4);

}  // namespace mtl
