// Looking into corpora and putting them together: what `mtl data preview | stats | verify | merge`
// do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/data/corpus_meta.h"
#include "runtime/data/indexed_dataset.h"

namespace mtl {

// A corpus with what is known about it.
struct OpenedCorpus {
  std::unique_ptr<IndexedDataset> dataset;
  std::optional<CorpusMeta> meta;
  std::unique_ptr<IndexedDataset> loss;  // nullptr: all of it is to be learned
  std::unique_ptr<Tokenizer> tokenizer;  // nullptr if the corpus does not come with one
};
// Throws what IndexedDataset, read_corpus_meta() and load_corpus_tokenizer() throw; a tokenizer
// that is named and not there is an error only if it is wanted.
OpenedCorpus open_corpus(const std::filesystem::path& prefix, bool want_tokenizer);

struct CorpusStats {
  int64_t documents = 0, empty_documents = 0, sequences = 0, tokens = 0;
  int64_t shortest = 0, longest = 0, median = 0;  // tokens of a document
  // Documents with [2^i, 2^(i+1)) tokens; empty ones are not among them.
  std::vector<int64_t> by_length;
  int64_t distinct = 0;
  std::vector<std::pair<int32_t, int64_t>> most_frequent;  // id, how often
  std::optional<double> eod_share;                         // of the tokens, if the eod is known
  std::optional<double> learned_share;                     // where not all are learned
};
// Called now and then with the tokens done so far.
using CorpusProgress = std::function<void(int64_t tokens)>;
CorpusStats corpus_stats(const OpenedCorpus& corpus, std::optional<int32_t> eod, int64_t most,
                         const CorpusProgress& progress);

// Reads every token. Throws Error (Exit::data): data.meta (counts), data.verify: the first sequence
// with an id that is not in the vocabulary (of the meta, else `vocab_size`), or the first document
// that does not end in the token that the meta promises.
struct VerifyReport {
  bool ids_checked = false;   // there was a vocabulary to check against
  bool ends_checked = false;  // documents end in the eod
  int32_t largest_id = -1;
};
VerifyReport verify_corpus(const IndexedDataset& dataset, const std::optional<CorpusMeta>& meta,
                           std::optional<int64_t> vocab_size, const CorpusProgress& progress);

// All sequences of all corpora, in this order, byte for byte as Megatron's merge_datasets.py does
// it; with a meta.json and a tokenizer if each of them has those. Throws Error (Exit::data):
// data.merge (types or tokenizers differ), data.exists.
CorpusMeta merge_corpora(const std::vector<std::filesystem::path>& from,
                         const std::filesystem::path& to, bool fresh);

}  // namespace mtl
