// Makes a byte-level BPE tokenizer for a text: `mtl data train-tokenizer`.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace mtl {

struct TokenizerTraining {
  int64_t vocab = 32'000;        // tokens, special ones included
  int64_t min_count = 2;         // a pair that occurs less often is not merged
  std::string pattern = "gpt2";  // how text is cut into words: tokenizer_patterns()
  std::vector<std::string> special = {"<|endoftext|>"};  // the first ids
  std::string key = "text";                              // of JSON Lines
  int threads = 0;                                       // 0 = all
};

// "gpt2", "llama3" ...
std::vector<std::string> tokenizer_patterns();

// How often each word occurs; the words are bytes.
using WordCounts = std::map<std::string, uint64_t, std::less<>>;
// Of texts (whole files) and JSON Lines, named as for find_inputs(), in parallel and in bounded
// memory beside the words. `progress` gets the bytes of text so far, from one thread at a time.
// Throws Error (Exit::data) data.missing, data.unreadable, data.compressed, data.not_text,
// data.json, data.empty.
WordCounts count_words(const std::vector<std::string>& names, const TokenizerTraining& training,
                       const std::function<void(int64_t bytes)>& progress = {});

// Hugging Face's tokenizer.json with the tokens that its BpeTrainer learns from the same words: the
// most frequent pair is merged first; of equally frequent ones the one with the smaller ids. The
// vocabulary is smaller than asked for when nothing is left to merge.
nlohmann::json train_tokenizer(const WordCounts& words, const TokenizerTraining& training);

}  // namespace mtl
