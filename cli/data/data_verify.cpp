// mtl data verify: whether a corpus can be trusted.
#include <cstdio>

#include <fmt/format.h>

#include "cli/command_line.h"
#include "cli/data/counter_line.h"
#include "cli/data/data.h"
#include "runtime/data/corpus_tools.h"
#include "runtime/metrics/format.h"

namespace mtl {

int command_data_verify(const Arguments& args) {
  std::vector<std::string> prefixes;
  std::optional<int64_t> vocab_size;
  CommandLine line(
      {"data verify [options] PREFIX ..."},
      "Reads corpora whole: the structure of both files, each id against the "
      "vocabulary, the ends of documents and the counts of PREFIX.meta.json. The first "
      "thing that is wrong ends it with exit code 6.");
  line.example("mtl data verify c4 owt", "two corpora of mtl data tokenize");
  line.example("mtl data verify --vocab_size 50257 theirs", "one of Megatron's");
  line.rest("PREFIX", prefixes, "PREFIX.bin and PREFIX.idx");
  line.option("vocab_size", "N", vocab_size, 1, "every id must be below it",
              "as PREFIX.meta.json says");
  if (!line.parse(args)) return 0;
  if (prefixes.empty()) {
    throw Error(
        Exit::usage,
        {.code = "usage.missing", .what = "no corpus is given", .help = "mtl data verify PREFIX"});
  }
  for (const std::string& prefix : prefixes) {
    const OpenedCorpus corpus = open_corpus(prefix, true);
    VerifyReport report;
    {
      CounterLine counter;
      report = verify_corpus(*corpus.dataset, corpus.meta, vocab_size, [&](int64_t tokens) {
        counter.show([&] {
          return fmt::format("verify: {} of {} tokens", compact_count(static_cast<double>(tokens)),
                             compact_count(static_cast<double>(corpus.dataset->tokens())));
        });
      });
    }
    fmt::print("{}: good; {} documents, {} sequences, {} tokens, largest id {}{}{}{}\n", prefix,
               grouped(corpus.dataset->documents()), grouped(corpus.dataset->sequences()),
               grouped(corpus.dataset->tokens()), report.largest_id,
               report.ids_checked ? "" : "; no vocabulary to check against (--vocab_size)",
               report.ends_checked ? "; every document has its end" : "",
               corpus.loss ? "; what is to be learned is known" : "");
  }
  return 0;
}

}  // namespace mtl
