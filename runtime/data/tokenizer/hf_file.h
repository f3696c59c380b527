// Parts of Hugging Face's tokenizer.json, as mtl writes them.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace mtl::tokenizer {

// A file with a BPE model that has no merges yet; there is nothing else in it than what is given.
nlohmann::json hf_bpe_file(nlohmann::json vocab, nlohmann::json pre_tokenizer,
                           nlohmann::json decoder);
// Bytes as characters of their own, and back. `use_regex`: cuts words as GPT-2 does, too.
nlohmann::json hf_byte_level(bool use_regex);
// Cuts where the pattern says, then the same.
nlohmann::json hf_split_to_bytes(const std::string& pattern);
// A token that no merge makes. What is not special is looked for in the normalized text.
nlohmann::json hf_added_token(const std::string& content, const nlohmann::json& id, bool special);

}  // namespace mtl::tokenizer
