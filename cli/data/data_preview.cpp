// mtl data preview: the documents of a corpus as people read them, with their token ids.
#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command_line.h"
#include "cli/data/data.h"
#include "cli/data/tokenizer_options.h"
#include "common/error.h"
#include "runtime/data/corpus_tools.h"
#include "runtime/metrics/format.h"

namespace mtl {

namespace {

// Each stretch of tokens that are to be learned.
void print_learned(const OpenedCorpus& corpus, int64_t sequence, const std::vector<int32_t>& ids) {
  std::vector<int32_t> learn(ids.size());
  corpus.loss->read(sequence, 0, learn);
  fmt::print("  learned: {} of these\n",
             ids.size() - static_cast<size_t>(std::count(learn.begin(), learn.end(), 0)));
  for (size_t begin = 0; begin < ids.size();) {
    if (learn[begin] == 0) {
      ++begin;
      continue;
    }
    const auto end = static_cast<size_t>(
        std::find(learn.begin() + static_cast<std::ptrdiff_t>(begin), learn.end(), 0) -
        learn.begin());
    const std::span<const int32_t> stretch = std::span(ids).subspan(begin, end - begin);
    if (corpus.tokenizer) {
      fmt::print("  > {}\n", corpus.tokenizer->decode(stretch));
    } else {
      fmt::print("  > ids {}\n", fmt::join(stretch, " "));
    }
    begin = end;
  }
}

}  // namespace

int command_data_preview(const Arguments& args) {
  std::string prefix;
  int64_t documents = 3, first = 0, tokens = 200;
  TokenizerFlags flags;
  CommandLine line({"data preview [options] PREFIX"},
                   "Prints documents of a corpus: their text, if a tokenizer is known, the ids of "
                   "their tokens, and of conversations what is learned.");
  line.example("mtl data preview c4", "the first three documents");
  line.example("mtl data preview c4 --first 1000 --documents 1 --tokens 50",
               "the beginning of a later one");
  line.positional("PREFIX", prefix, "PREFIX.bin and PREFIX.idx");
  line.option("documents", "N", documents, 1, "how many", "3");
  line.option("first", "N", first, 0, "the first of them, from 0", "0");
  line.option("tokens", "N", tokens, 1, "of each sequence only the first N", "200");
  declare_tokenizer_flags(line, flags);
  line.footnote(
      "Without a tokenizer it is the one that mtl data tokenize has written beside the "
      "corpus.");
  if (!line.parse(args)) return 0;
  OpenedCorpus corpus = open_corpus(prefix, !any_given(flags));
  if (any_given(flags)) corpus.tokenizer = load_tokenizer(flags);
  const IndexedDataset& dataset = *corpus.dataset;
  if (first >= dataset.documents()) {
    throw Error(Exit::usage, {.code = "usage.value",
                              .what = fmt::format("--first {}: {} has {} documents", first, prefix,
                                                  dataset.documents()),
                              .help = "count from 0"});
  }
  const int64_t end =
      std::min(dataset.documents(), first + std::min(documents, dataset.documents()));
  for (int64_t d = first; d < end && std::ferror(stdout) == 0; ++d) {
    const int64_t begin = dataset.document_begin(d), behind = dataset.document_begin(d + 1);
    fmt::print("document {}: {} sequence{}\n", d, behind - begin, behind - begin == 1 ? "" : "s");
    for (int64_t s = begin; s < behind; ++s) {
      const int32_t length = dataset.length(s);
      std::vector<int32_t> ids(static_cast<size_t>(std::min<int64_t>(length, tokens)));
      dataset.read(s, 0, ids);
      const char* more = static_cast<size_t>(length) > ids.size() ? " ..." : "";
      fmt::print("  sequence {}: {} tokens\n", s, grouped(length));
      fmt::print("  ids {}{}\n", fmt::join(ids, " "), more);
      if (corpus.tokenizer) fmt::print("{}{}\n", corpus.tokenizer->decode(ids), more);
      if (corpus.loss) print_learned(corpus, s, ids);
    }
  }
  return 0;
}

}  // namespace mtl
