#include "runtime/data/corpus_tools.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <system_error>
#include <unordered_map>

#include <fmt/format.h>

#include "common/error.h"
#include "common/same_file.h"
#include "runtime/data/indexed_files.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kBlockTokens = 1 << 16;  // tokens that are looked at at once

// Calls use(ids) with the tokens of a sequence, block by block.
template <typename Use>
void read_sequence(const IndexedDataset& dataset, int64_t sequence, std::vector<int32_t>& block,
                   const Use& use) {
  const int64_t length = dataset.length(sequence);
  for (int64_t first = 0; first < length; first += kBlockTokens) {
    block.resize(static_cast<size_t>(std::min(kBlockTokens, length - first)));
    dataset.read(sequence, first, block);
    use(first, block);
  }
}

int64_t document_tokens(const IndexedDataset& dataset, int64_t document) {
  int64_t tokens = 0;
  for (int64_t s = dataset.document_begin(document); s < dataset.document_begin(document + 1);
       ++s) {
    tokens += dataset.length(s);
  }
  return tokens;
}

// How often each id is there. Ids of a real vocabulary go into a table; what a damaged corpus or a
// strange one has above that is counted by itself.
class Counts {
 public:
  void add(const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) {
      if (id < kTable) {
        if (static_cast<size_t>(id) >= table_.size()) {
          table_.resize(std::bit_ceil(static_cast<size_t>(id) + 1));
        }
        ++table_[static_cast<size_t>(id)];
      } else {
        ++above_[id];
      }
    }
  }
  std::vector<std::pair<int32_t, int64_t>> all() const {
    std::vector<std::pair<int32_t, int64_t>> counts(above_.begin(), above_.end());
    for (size_t id = 0; id < table_.size(); ++id) {
      if (table_[id] > 0) counts.emplace_back(static_cast<int32_t>(id), table_[id]);
    }
    return counts;
  }

 private:
  static constexpr int32_t kTable = 1 << 22;
  std::vector<int64_t> table_;
  std::unordered_map<int32_t, int64_t> above_;
};

[[noreturn]] void refuse_merge(const std::string& what, const std::string& help) {
  throw Error(Exit::data, {.code = "data.merge", .what = what, .help = help});
}

}  // namespace

OpenedCorpus open_corpus(const fs::path& prefix, bool want_tokenizer) {
  OpenedCorpus corpus;
  corpus.dataset = std::make_unique<IndexedDataset>(prefix);
  corpus.meta = read_corpus_meta(prefix);
  corpus.loss = open_loss(*corpus.dataset, corpus.meta);
  if (want_tokenizer && corpus.meta) {
    corpus.tokenizer = load_corpus_tokenizer(prefix, *corpus.meta);
  }
  return corpus;
}

CorpusStats corpus_stats(const OpenedCorpus& corpus, std::optional<int32_t> eod, int64_t most,
                         const CorpusProgress& progress) {
  const IndexedDataset& dataset = *corpus.dataset;
  CorpusStats stats;
  stats.documents = dataset.documents();
  stats.sequences = dataset.sequences();
  stats.tokens = dataset.tokens();
  stats.by_length.assign(64, 0);
  // 4 bytes for each document, as the index itself has 20 for each sequence.
  std::vector<int32_t> lengths;
  for (int64_t d = 0; d < stats.documents; ++d) {
    const int64_t tokens = document_tokens(dataset, d);
    if (tokens == 0) {
      ++stats.empty_documents;
      continue;
    }
    ++stats.by_length[std::bit_width(static_cast<uint64_t>(tokens)) - 1];
    lengths.push_back(
        static_cast<int32_t>(std::min<int64_t>(tokens, std::numeric_limits<int32_t>::max())));
    stats.longest = std::max(stats.longest, tokens);
    stats.shortest = lengths.size() == 1 ? tokens : std::min(stats.shortest, tokens);
  }
  while (!stats.by_length.empty() && stats.by_length.back() == 0) stats.by_length.pop_back();
  if (!lengths.empty()) {
    const auto middle = lengths.begin() + static_cast<int64_t>(lengths.size() / 2);
    std::nth_element(lengths.begin(), middle, lengths.end());
    stats.median = *middle;
  }
  Counts counts;
  std::vector<int32_t> block;
  int64_t done = 0, learned = 0;
  for (int64_t s = 0; s < stats.sequences; ++s) {
    if (corpus.loss) {
      read_sequence(*corpus.loss, s, block, [&](int64_t, const std::vector<int32_t>& learn) {
        learned += std::ssize(learn) - std::count(learn.begin(), learn.end(), 0);
      });
    }
    read_sequence(dataset, s, block, [&](int64_t, const std::vector<int32_t>& ids) {
      counts.add(ids);
      done += static_cast<int64_t>(ids.size());
      if (progress) progress(done);
    });
  }
  auto all = counts.all();
  stats.distinct = static_cast<int64_t>(all.size());
  if (eod && stats.tokens > 0) {
    int64_t count = 0;
    for (const auto& [id, n] : all) count += id == *eod ? n : 0;
    stats.eod_share = static_cast<double>(count) / static_cast<double>(stats.tokens);
  }
  if (corpus.loss && stats.tokens > 0) {
    stats.learned_share = static_cast<double>(learned) / static_cast<double>(stats.tokens);
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  all.resize(std::min(all.size(), static_cast<size_t>(most)));
  stats.most_frequent = std::move(all);
  return stats;
}

VerifyReport verify_corpus(const IndexedDataset& dataset, const std::optional<CorpusMeta>& meta,
                           std::optional<int64_t> vocab_size, const CorpusProgress& progress) {
  if (meta) check_corpus_meta(*meta, dataset);
  if (!vocab_size && meta) vocab_size = meta->vocab_size;
  VerifyReport report;
  report.ids_checked = vocab_size.has_value();
  report.ends_checked = meta && meta->documents_end_in_eod;
  const auto refuse = [&](const std::string& what, const std::string& help) {
    throw Error(Exit::data, {.code = "data.verify",
                             .what = fmt::format("{}: {}", dataset.prefix().string(), what),
                             .help = help});
  };
  std::vector<int32_t> block;
  int64_t done = 0;
  for (int64_t d = 0; d < dataset.documents(); ++d) {
    int32_t last = -1;
    int64_t last_sequence = -1;
    for (int64_t s = dataset.document_begin(d); s < dataset.document_begin(d + 1); ++s) {
      read_sequence(dataset, s, block, [&](int64_t first, const std::vector<int32_t>& ids) {
        const int32_t largest = *std::max_element(ids.begin(), ids.end());
        report.largest_id = std::max(report.largest_id, largest);
        if (vocab_size && largest >= *vocab_size) {
          const auto at =
              std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return id >= *vocab_size; });
          refuse(fmt::format("sequence {} (document {}) has the id {} as its token {}; the "
                             "vocabulary has {}",
                             s, d, *at, first + (at - ids.begin()), *vocab_size),
                 "the corpus is damaged, or was made with another tokenizer");
        }
        last = ids.back();
        last_sequence = s;
        done += static_cast<int64_t>(ids.size());
        if (progress) progress(done);
      });
    }
    if (report.ends_checked && last_sequence >= 0 && last != *meta->eod) {
      refuse(fmt::format("sequence {} is the end of document {} and ends in the id {}, not in the "
                         "end of a document, {}",
                         last_sequence, d, last, *meta->eod),
             "the corpus is damaged: make it again");
    }
  }
  return report;
}

CorpusMeta merge_corpora(const std::vector<fs::path>& from, const fs::path& to, bool fresh) {
  std::vector<OpenedCorpus> corpora;
  bool all_described = true;
  std::optional<size_t> described;  // the first that has a meta.json
  for (const fs::path& prefix : from) {
    corpora.push_back(open_corpus(prefix, false));
    const OpenedCorpus& corpus = corpora.back();
    all_described = all_described && corpus.meta.has_value();
    if (corpus.meta) {
      check_corpus_meta(*corpus.meta, *corpus.dataset);
      if (!described) described = corpora.size() - 1;
      const CorpusMeta& first = *corpora[*described].meta;
      const std::string names =
          fmt::format("{} and {}", from[*described].string(), prefix.string());
      if (corpus.meta->tokenizer_hash != first.tokenizer_hash) {
        refuse_merge(names + " were made with different tokenizers",
                     "an id would mean two things: tokenize the text of one of them again");
      }
      if (corpus.meta->documents_end_in_eod != first.documents_end_in_eod) {
        refuse_merge("of " + names + ", only one has documents that end in a token for that",
                     "tokenize the text of the other again, with --append_eod");
      }
    }
    if ((corpus.loss == nullptr) != (corpora.front().loss == nullptr)) {
      refuse_merge(fmt::format("of {} and {}, only one says which tokens are to be learned",
                               from.front().string(), prefix.string()),
                   "name both in data.train, each with its weight");
    }
    if (same_regular_file(bin_path(corpus.dataset->prefix()), bin_path(to))) {
      refuse_merge(fmt::format("{} is to be read and written", prefix.string()),
                   "write under another name (-o)");
    }
  }
  if (!fresh && is_indexed_dataset(to.string() + ".idx")) {
    throw Error(Exit::data, {.code = "data.exists",
                             .what = fmt::format("there is a corpus {} already", to.string()),
                             .help = "--fresh replaces it, or write under another name (-o)"});
  }
  refuse_loss(to, fresh);
  // What has no tokenizer of its own may have any: nothing is said about the whole then.
  CorpusMeta meta;
  std::unique_ptr<Tokenizer> tokenizer;
  if (all_described) {
    meta = *corpora.front().meta;
    meta.inputs.clear();
    tokenizer = load_corpus_tokenizer(from.front(), meta);
  }
  IndexedDatasetWriter writer(to, corpora.front().dataset->type());
  std::optional<IndexedDatasetWriter> loss;
  if (corpora.front().loss) loss.emplace(loss_prefix(to), TokenType::u8);
  for (const OpenedCorpus& corpus : corpora) {
    writer.append(*corpus.dataset);
    if (loss) loss->append(*corpus.loss);
    if (!all_described) continue;
    meta.inputs.insert(meta.inputs.end(), corpus.meta->inputs.begin(), corpus.meta->inputs.end());
    if (corpus.meta->json_key != meta.json_key) meta.json_key.clear();
  }
  const auto position = writer.position();
  meta.type = corpora.front().dataset->type();
  meta.sequences = position.sequences;
  meta.documents = position.documents;
  meta.tokens = position.tokens;
  std::error_code ignored;
  fs::remove(meta_path(to.string() + ".idx"), ignored);
  if (tokenizer) {
    meta.tokenizer_file = tokenizer_path(to.string() + ".idx").filename().string();
    write_corpus_tokenizer(to.string() + ".idx", *tokenizer);
  }
  if (loss) {
    loss->finish();
  } else {
    remove_loss(to);
  }
  writer.finish();
  if (all_described) write_corpus_meta(to.string() + ".idx", meta);
  return meta;
}

}  // namespace mtl
