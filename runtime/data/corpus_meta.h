// PREFIX.meta.json, which mtl writes beside PREFIX.bin and PREFIX.idx, and PREFIX.tokenizer.json:
// with them a corpus says itself which tokenizer made it. Corpora of Megatron's have neither.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/data.h"
#include "runtime/data/indexed_dataset.h"

namespace mtl {

struct CorpusMeta {
  struct Input {
    std::string path;   // as it was given; "-" is standard input
    int64_t bytes = 0;  // of the file as it is on disk
  };

  uint64_t tokenizer_hash = 0;  // hash_of()
  int64_t vocab_size = 0;
  std::optional<int32_t> eod;
  std::string tokenizer_file;  // beside the meta.json; empty: not stored
  bool documents_end_in_eod = false;
  TokenType type = TokenType::u16;
  int64_t sequences = 0, documents = 0, tokens = 0;
  std::string json_key;   // empty: plain text, or conversations
  bool has_loss = false;  // loss_prefix() says which tokens are to be learned
  std::vector<Input> inputs;
};

// XXH3 of to_json().dump().
uint64_t hash_of(const Tokenizer& tokenizer);

std::filesystem::path meta_path(const std::filesystem::path& prefix);
std::filesystem::path tokenizer_path(const std::filesystem::path& prefix);

// PREFIX.loss: of a corpus of which not all is to be learned, as many sequences of as many u8, 0
// where the token does not count in the loss.
std::filesystem::path loss_prefix(const std::filesystem::path& prefix);
// Opens it; nullptr where there is none. Throws what IndexedDataset throws, and Error (Exit::data)
// data.loss where it is not that of the corpus, or is missing though the meta.json promises it.
std::unique_ptr<IndexedDataset> open_loss(const IndexedDataset& corpus,
                                          const std::optional<CorpusMeta>& meta);
// Where a corpus is to be written: what there is under that name already. Throws Error (Exit::data)
// data.exists, unless `fresh`, and then too where it is a corpus of its own.
void refuse_loss(const std::filesystem::path& prefix, bool fresh);
void remove_loss(const std::filesystem::path& prefix);

// Throws Error (Exit::data) data.meta, which names the file and the member.
CorpusMeta parse_corpus_meta(std::string_view json, const std::filesystem::path& file);
// Nothing if PREFIX.meta.json is not there. Throws data.meta, data.unreadable.
std::optional<CorpusMeta> read_corpus_meta(const std::filesystem::path& prefix);
void write_corpus_meta(const std::filesystem::path& prefix, const CorpusMeta& meta);
std::string corpus_meta_json(const CorpusMeta& meta);

// Whether the counts and the type are those of the corpus. Throws data.meta.
void check_corpus_meta(const CorpusMeta& meta, const IndexedDataset& dataset);

void write_corpus_tokenizer(const std::filesystem::path& prefix, const Tokenizer& tokenizer);
// The tokenizer that the corpus was made with. nullptr if the meta names none. Throws Error
// (Exit::data) data.missing, data.tokenizer: the file is damaged or another one (its hash says so).
std::unique_ptr<Tokenizer> load_corpus_tokenizer(const std::filesystem::path& prefix,
                                                 const CorpusMeta& meta);

}  // namespace mtl
