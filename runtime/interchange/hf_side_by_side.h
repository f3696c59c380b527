// Families whose blocks stand side by side behind one norm: Command R (cohere, and cohere2 with
// windows), Phi-1 and 2 (phi), and StableLM where a config says so. Facts from transformers'
// configuration and modeling files.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/interchange/hf_config_reader.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

// `type`: cohere or cohere2.
void read_cohere(ConfigReader& config, const std::string& type, ModelShape& shape);
void read_phi(ConfigReader& config, ModelShape& shape);

// Whether a shape has something that these alone have; which of them is closest, and what keeps it
// from being that one.
bool is_side_by_side(const ModelShape& shape);
std::string side_by_side_architecture(const ModelShape& shape);
std::vector<std::string> side_by_side_obstacles(const ModelShape& shape);
// Their fields, in a config that has those of Llama.
void write_cohere(const ModelShape& shape, nlohmann::ordered_json& config);
void write_phi(const ModelShape& shape, nlohmann::ordered_json& config);

}  // namespace mtl
