// Granite 3 in config.json: Llama with multipliers, also with experts, also with a block for all
// tokens beside them. Facts from transformers' configuration and modeling files.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/interchange/foreign_tensor.h"
#include "runtime/interchange/hf_config_reader.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

// `type`: granite, granitemoe or granitemoeshared.
void read_granite(ConfigReader& config, const std::string& type, ModelShape& shape);

// Whether a shape has something that Granite alone has among those that are Llama else; and what
// keeps it from being one.
bool is_near_granite(const ModelShape& shape);
std::string granite_architecture(const ModelShape& shape);
std::vector<std::string> granite_obstacles(const ModelShape& shape);
// Its fields, in a config that has those of Llama.
void write_granite(const ModelShape& shape, nlohmann::ordered_json& config);

// A layer's experts are two tensors, of gates above ups and of downs, each [expert, out, in]; takes
// the parts out of `tensors`, which have one parameter each, in their order.
std::vector<ForeignTensor> granite_tensors(std::vector<ForeignTensor> tensors,
                                           const ModelShape& shape);

}  // namespace mtl
