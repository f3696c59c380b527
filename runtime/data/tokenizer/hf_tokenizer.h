// The tokenizers that mtl makes, by kind; runtime/data/load_tokenizer.h chooses among them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "runtime/data/data.h"

namespace mtl::tokenizer {

inline constexpr const char* kFormat = "mtl.tokenizer";
inline constexpr int kVersion = 1;

// tokenizer.json of Hugging Face with a BPE model. `eod`: the token that ends a document; empty:
// "<|endoftext|>" if it is an added token. Throws Error data.tokenizer; `place` is the file.
std::unique_ptr<Tokenizer> make_hf_tokenizer(const nlohmann::json& file, const std::string& eod,
                                             const std::string& place);

// GPT-2's two files as tokenizer.json.
nlohmann::json gpt2_as_hf(const nlohmann::json& vocab, std::string_view merges);

// What to_json() wrote ("format": "mtl.tokenizer"); `place` as above.
std::unique_ptr<Tokenizer> chars_from_json(const nlohmann::json& json);
std::unique_ptr<Tokenizer> sentencepiece_from_json(const nlohmann::json& json);
// `model`: the bytes of a *.model file. Throws Error data.tokenizer, also where mtl was built
// without SentencePiece.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string model, const std::string& eod,
                                                        const std::string& place);

}  // namespace mtl::tokenizer
