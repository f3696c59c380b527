// The tokenizer that comes and goes with a model's folder.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/error.h"
#include "runtime/data/data.h"
#include "runtime/interchange/hf_config.h"
#include "runtime/interchange/new_folder.h"

namespace mtl {

// The chat template that a folder gets, and the token that ends an answer by it.
struct HfChat {
  std::string text;
  std::optional<int32_t> end;
};
// Empty for an empty name. Throws data.chat, also where the tokenizer lacks the format's tokens.
HfChat hf_chat(const std::string& format, const nlohmann::json& tokenizer);

// Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json, if the format can hold
// the tokenizer; else there is a warning export.tokenizer. Returns its special tokens.
HfTokens write_hf_tokenizer(const nlohmann::json& tokenizer, const ModelShape& shape,
                            const HfChat& chat, const NewFolder& folder,
                            std::vector<Diagnostic>& warnings);

// The ids at which transformers ends a text of the folder's model: generation_config.json's, else
// config.json's; none where neither says it.
std::vector<int64_t> hf_ends(const std::filesystem::path& folder);

// From a file or folder that `given` names ("bytes" is one too), else from the model's folder; null
// if there is none. Throws data.tokenizer.
std::unique_ptr<Tokenizer> find_tokenizer(const std::filesystem::path& folder,
                                          const std::string& given);

}  // namespace mtl
