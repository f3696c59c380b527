// Tokenizers from files of others.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "runtime/data/data.h"

namespace mtl {

// What data.tokenizer says.
struct TokenizerOptions {
  // bytes | gpt2-bpe | hf | sentencepiece | mtl: a tokenizer.json that mtl wrote.
  // (chars is made from the text: make_char_tokenizer.) Empty: by the file's content.
  std::string type = {};
  // hf: tokenizer.json, or a folder with one or with vocab.json and merges.txt; sentencepiece:
  // *.model
  std::string file = {};
  std::string vocab = {}, merges = {};  // gpt2-bpe: vocab.json, merges.txt
  std::string eod = {};                 // the token that ends a document; empty: as the files say
};
// Throws Error (Exit::data): data.tokenizer (names the file, the place in it, and what to do),
// data.missing, data.unreadable.
std::unique_ptr<Tokenizer> load_tokenizer(const TokenizerOptions& options);

// vocab.json and merges.txt in a folder of Hugging Face's without tokenizer.json. They do not say
// how text is cut into words: GPT-2's way and Qwen2's are there, and which one it is
// tokenizer_config.json says, else config.json; if neither does, it is GPT-2's. Added tokens are
// those of tokenizer_config.json, or in older folders of added_tokens.json and
// special_tokens_map.json. `eod`: as above. Throws as above, also for any other.
std::unique_ptr<Tokenizer> load_bpe_folder(const std::filesystem::path& folder,
                                           const std::string& eod = "");

// The same tokenizer as Hugging Face's tokenizer.json, with the same ids. Throws Error (Exit::data)
// data.tokenizer for one that the format cannot hold (SentencePiece).
nlohmann::json to_hf_tokenizer(const Tokenizer& tokenizer);

}  // namespace mtl
