// Weights in MXFP4, as gpt-oss is published: a tensor of NAME is NAME_blocks, of two numbers a
// byte, and NAME_scales, of a byte for each 32 numbers (foreign_weights.h).
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/interchange/foreign_model.h"
#include "runtime/interchange/hf_config_reader.h"

namespace mtl {

// Whether a config.json says so of its experts. Other quantised weights are left to be refused.
bool read_mxfp4(ConfigReader& config);

// The tensor of `shape` that is called one of `names` (the first is for messages), whose last axis
// has groups of 32. Nothing, and notes of what is wrong, if it is not there like that; `used` gets
// the names of what is.
std::optional<StridedTensor> join_mxfp4(const ForeignTensors& there,
                                        const std::vector<std::string>& names, const Dims& shape,
                                        std::set<std::string>& used,
                                        std::vector<std::string>& notes);

}  // namespace mtl
