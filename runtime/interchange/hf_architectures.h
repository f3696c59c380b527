// The families of Hugging Face's that are read, by what config.json calls them.
#pragma once

#include <optional>
#include <string>

namespace mtl {

// The class of transformers for a 'model_type'; nothing if it is not read.
std::optional<std::string> hf_architecture(const std::string& type);
// "deepseek_v2, ... and starcoder2"
std::string hf_types();
// What models of a type have that no setting here says, where they are close to ones that are here.
std::optional<std::string> other_than_here(const std::string& type);

}  // namespace mtl
