// Tokenizers from files of others.
#pragma once

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
  std::string file = {};  // hf: tokenizer.json, or a folder with one; sentencepiece: *.model
  std::string vocab = {}, merges = {};  // gpt2-bpe: vocab.json, merges.txt
  std::string eod = {};                 // the token that ends a document; empty: as the files say
};
// Throws Error (Exit::data): data.tokenizer (names the file, the place in it, and what to do),
// data.missing, data.unreadable.
std::unique_ptr<Tokenizer> load_tokenizer(const TokenizerOptions& options);

// The same tokenizer as Hugging Face's tokenizer.json, with the same ids. Throws Error (Exit::data)
// data.tokenizer for one that the format cannot hold (SentencePiece).
nlohmann::json to_hf_tokenizer(const Tokenizer& tokenizer);

}  // namespace mtl
