// PREFIX.journal.json: what an interrupted `mtl data tokenize` had safely written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/indexed_dataset.h"
#include "runtime/data/text_input.h"

namespace mtl {

// What makes two commands the same, as hashes or words.
struct TokenizeIdentity {
  uint64_t tokenizer = 0;
  uint64_t inputs = 0;   // names, sizes and times
  std::string settings;  // keys, documents, end of document
};
uint64_t hash_of(const std::vector<TextInput>& inputs);

struct TokenizeJournal {
  TokenizeIdentity identity;
  int64_t file = 0, offset = 0, line = 1;  // where to go on; as of UnitCutter::Start
  bool inside_document = false;
  int64_t input_bytes = 0, text_bytes = 0;
  int64_t bad_lines = 0, blank_lines = 0, forced_cuts = 0, learned_tokens = 0;
  std::vector<IndexedDatasetWriter::Position> outputs;
  bool finishing = false;  // all text is in; the files are getting their names
};

std::filesystem::path journal_path(const std::filesystem::path& prefix);
// Nothing if there is none. Throws Error (Exit::data) data.resume for one that is damaged or of
// another command.
std::optional<TokenizeJournal> read_journal(const std::filesystem::path& prefix,
                                            const TokenizeIdentity& identity);
void write_journal(const std::filesystem::path& prefix, const TokenizeJournal& journal);

}  // namespace mtl
