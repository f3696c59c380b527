// Megatron-LM's order of a corpus (megatron/core/datasets/gpt_dataset.py): documents are shuffled
// for as many epochs as the run needs, packed one behind the other, cut into samples, and the
// samples shuffled. The three indices are Megatron's, number by number.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/data/documents.h"
#include "runtime/data/samples.h"

namespace mtl {

// What is shuffled together: all of it that an order depends on beside documents and seed.
struct MegatronEpochs {
  int64_t epochs = 1;
  // The last epoch is shuffled on its own: less than 80 % of it is needed.
  bool separate_final_epoch = false;
  bool operator==(const MegatronEpochs&) const = default;
};
// Megatron's choice for so many samples; nothing: one epoch. Throws as megatron_order().
MegatronEpochs megatron_epochs(const Documents& documents, int64_t seq_len,
                               std::optional<int64_t> samples);
// Samples that so many epochs have.
int64_t megatron_samples(const Documents& documents, int64_t seq_len, int64_t epochs);

struct MegatronOrder {
  struct Start {
    int64_t position = 0;  // in `documents`
    int64_t token = 0;     // of that document
    bool operator==(const Start&) const = default;
  };
  std::vector<int32_t> documents;  // every document, once per epoch
  std::vector<Start> starts;       // of each sample, and behind the last one
  std::vector<uint32_t> shuffle;   // the sample that comes n-th
};

struct MegatronOrderOptions {
  int64_t seq_len = 0;
  MegatronEpochs together = {};
  uint64_t seed = 0;
};
// Throws Error (Exit::data): data.too_short, data.order (beyond 2^31 documents or 2^32 samples: the
// indices would not fit).
MegatronOrder megatron_order(const Documents& documents, const MegatronOrderOptions& options);
// The same, kept in `folder` in a file named by `key` and the options. A file that is not whole, or
// of something else, is made again.
MegatronOrder cached_megatron_order(const std::filesystem::path& folder, const std::string& key,
                                    const Documents& documents,
                                    const MegatronOrderOptions& options);

// The samples in that order.
std::unique_ptr<Samples> packed_samples(std::shared_ptr<const Documents> documents,
                                        MegatronOrder order, int64_t seq_len);

// Where the parts of a split begin and end among `count` documents: Megatron's rounding. Weights:
// one to three, not all 0.
std::vector<std::pair<int64_t, int64_t>> megatron_split(const std::vector<double>& weights,
                                                        int64_t count);

}  // namespace mtl
