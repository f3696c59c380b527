// Granite 3 and 4 in config.json: Llama with multipliers, also with experts, also with a block for
// all tokens beside them. Granite 4's type (granitemoehybrid) has that block always, which is the
// feed-forward block where there are no experts; layers of Mamba are refused. Facts from
// transformers' configuration and modeling files.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/interchange/foreign_tensor.h"
#include "runtime/interchange/hf_config_reader.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

// `type`: granite, granitemoe, granitemoeshared or granitemoehybrid.
void read_granite(ConfigReader& config, const std::string& type, ModelShape& shape);

// Whether a shape has something that Granite alone has among those that are Llama else; and what
// keeps it from being one.
bool is_near_granite(const ModelShape& shape);
std::string granite_architecture(const ModelShape& shape);
std::vector<std::string> granite_obstacles(const ModelShape& shape);
// Its fields, in a config that has those of Llama.
void write_granite(const ModelShape& shape, nlohmann::ordered_json& config);

// Of all but granite: a layer's experts are two tensors, of gates above ups and of downs, each
// [expert, out, in], and the block for all tokens two without the first axis; takes the parts out
// of `tensors`, which have one parameter each, in their order.
std::vector<ForeignTensor> granite_tensors(std::vector<ForeignTensor> tensors,
                                           const ModelShape& shape);

}  // namespace mtl
