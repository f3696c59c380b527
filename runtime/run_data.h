// The data of a run: from data.* in train.yaml to the samples that its ranks read.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/error.h"
#include "runtime/data/best_fit.h"
#include "runtime/data/documents.h"
#include "runtime/data/samples.h"
#include "runtime/spec/train_spec.h"

namespace mtl {

struct RunData {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<int32_t> eod;  // the token that ends a document
  int64_t train_tokens = 0, valid_tokens = 0;
  int64_t train_sequences = 0;  // of one epoch
  // From order_samples() on. `valid` has nothing (size 0) if there is nothing to evaluate on.
  std::shared_ptr<const Samples> train, valid;
  // The same samples as `valid` by the sets that data.valid names, if it names any.
  struct ValidSet {
    std::string name;
    std::shared_ptr<const Samples> samples;
  };
  std::vector<ValidSet> valid_sets;

  // One file or row of shards, and the parts of it that are trained and evaluated on (empty: none).
  struct Source {
    std::string path, format;
    double weight = 0;
    std::string set = {};  // of data.valid, by its name
    std::shared_ptr<const Documents> train, valid;
    // Where documents are taken whole: how they fill sequences.
    std::shared_ptr<const BestFitOrder> train_packing = {}, valid_packing = {};
    std::vector<std::string> files = {};          // whose content tells it from another
    std::shared_ptr<const TokenSource> row = {};  // instead: all of what is told by its tokens
  };
  std::vector<Source> sources;

  // What decides which tokens sample k is, for a resumed run to be compared with: sources with
  // their content's hash, split, sampler, sequence length, documents. Computed once; reads files.
  const nlohmann::json& identity() const;
  // `settings`: the part of it that is known without reading.
  void identify(nlohmann::json settings);
  struct Identity;
  std::shared_ptr<Identity> identity_;
};

// Opens and splits what data.* names and finds its tokenizer. Adds data.* to `diagnostics` and
// returns what is not usable then.
RunData load_run_data(const ResolvedSpec& resolved, Diagnostics& diagnostics);
// Fills sequences with the documents of a source (data.sampler=best_fit); what is cut is a warning
// data.cut. Throws as best_fit_order(), and Error (Exit::data) data.documents where it has none.
void pack_documents(RunData::Source& source, const ResolvedSpec& resolved,
                    Diagnostics& diagnostics);
// Puts the samples in order for a run of `samples` sequences; adds what is wrong to `diagnostics`.
// `before`: the identity of the data of the checkpoint that the run goes on from, or nothing. An
// order that follows from a run's length stays what it was then, also if the length is another now;
// where it has not enough, more epochs are put in order behind it. So the samples that a run has
// seen are always the first ones.
void order_samples(RunData& data, const ResolvedSpec& resolved, int64_t samples,
                   Diagnostics& diagnostics, const nlohmann::json& before);

// How the data that a run would go on with differs from that of its checkpoint: one sentence for
// each difference, with the key that makes it.
struct DataDifference {
  std::string key, what;
};
std::vector<DataDifference> data_differences(const nlohmann::json& here,
                                             const nlohmann::json& checkpoint);

}  // namespace mtl
