// mtl data stats: what is in a corpus.
#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/data/counter_line.h"
#include "cli/data/data.h"
#include "cli/data/tokenizer_options.h"
#include "runtime/data/corpus_tools.h"
#include "runtime/metrics/format.h"

namespace mtl {

namespace {

constexpr int kBar = 40;

// One token as it can stand in a table.
std::string shown(const Tokenizer* tokenizer, int32_t id) {
  if (tokenizer == nullptr || id >= tokenizer->vocab_size()) return "";
  return nlohmann::json(tokenizer->decode({&id, 1}))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

nlohmann::ordered_json stats_json(const CorpusStats& stats, const Tokenizer* tokenizer) {
  nlohmann::ordered_json object = {
      {"documents", stats.documents}, {"empty_documents", stats.empty_documents},
      {"sequences", stats.sequences}, {"tokens", stats.tokens},
      {"shortest", stats.shortest},   {"median", stats.median},
      {"longest", stats.longest},     {"distinct_tokens", stats.distinct}};
  object["eod_share"] = nullptr;
  if (stats.eod_share) object["eod_share"] = *stats.eod_share;
  object["learned_share"] = nullptr;
  if (stats.learned_share) object["learned_share"] = *stats.learned_share;
  auto& lengths = object["documents_by_length"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < stats.by_length.size(); ++i) {
    lengths.push_back({{"from", int64_t{1} << i}, {"documents", stats.by_length[i]}});
  }
  auto& tokens = object["most_frequent"] = nlohmann::ordered_json::array();
  for (const auto& [id, count] : stats.most_frequent) {
    tokens.push_back({{"id", id}, {"count", count}});
    if (tokenizer != nullptr && id < tokenizer->vocab_size()) {
      tokens.back()["text"] = tokenizer->decode({&id, 1});
    }
  }
  return object;
}

void print_stats(const CorpusStats& stats, const Tokenizer* tokenizer) {
  fmt::print("documents  {}, {} of them empty\n", grouped(stats.documents),
             grouped(stats.empty_documents));
  fmt::print("sequences  {}\n", grouped(stats.sequences));
  fmt::print("tokens     {}, {} different ones\n", grouped(stats.tokens), grouped(stats.distinct));
  if (stats.eod_share) fmt::print("eod        {:.3f}% of the tokens\n", 100 * *stats.eod_share);
  if (stats.learned_share) {
    fmt::print("learned    {:.3f}% of the tokens\n", 100 * *stats.learned_share);
  }
  fmt::print("lengths    {} to {} tokens, half of them below {}\n", grouped(stats.shortest),
             grouped(stats.longest), grouped(stats.median));
  int64_t most = 1;
  for (const int64_t count : stats.by_length) most = std::max(most, count);
  for (size_t i = 0; i < stats.by_length.size(); ++i) {
    const auto width = static_cast<size_t>((stats.by_length[i] * kBar + most - 1) / most);
    fmt::print("  from {:>10}  {:>12}  {}\n", grouped(int64_t{1} << i), grouped(stats.by_length[i]),
               std::string(width, '#'));
  }
  fmt::print("most frequent\n");
  for (const auto& [id, count] : stats.most_frequent) {
    fmt::print("  {:>7}  {:>14}  {:6.3f}%  {}\n", id, grouped(count),
               100.0 * static_cast<double>(count) / static_cast<double>(stats.tokens),
               shown(tokenizer, id));
  }
}

}  // namespace

int command_data_stats(const Arguments& args) {
  std::string prefix;
  int64_t most = 10;
  bool json = false;
  TokenizerFlags flags;
  CommandLine line({"data stats [options] PREFIX"},
                   "Reads a corpus and prints how long its documents are and which tokens are "
                   "frequent.");
  line.example("mtl data stats c4", "for people");
  line.example("mtl data stats c4 --json --most 100", "for programs");
  line.positional("PREFIX", prefix, "PREFIX.bin and PREFIX.idx");
  line.option("most", "N", most, 0, "how many of the frequent tokens", "10");
  line.flag("json", json, "as JSON");
  declare_tokenizer_flags(line, flags);
  if (!line.parse(args)) return 0;
  OpenedCorpus corpus = open_corpus(prefix, !any_given(flags));
  if (any_given(flags)) corpus.tokenizer = load_tokenizer(flags);
  std::optional<int32_t> eod = corpus.meta ? corpus.meta->eod : std::nullopt;
  if (corpus.tokenizer && !eod) eod = corpus.tokenizer->eod();
  CorpusStats stats;
  {
    CounterLine counter;
    stats = corpus_stats(corpus, eod, most, [&](int64_t tokens) {
      counter.show([&] {
        return fmt::format("stats: {} of {} tokens", compact_count(static_cast<double>(tokens)),
                           compact_count(static_cast<double>(corpus.dataset->tokens())));
      });
    });
  }
  if (json) {
    fmt::print("{}\n", stats_json(stats, corpus.tokenizer.get())
                           .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    print_stats(stats, corpus.tokenizer.get());
  }
  return 0;
}

}  // namespace mtl
