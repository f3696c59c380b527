// From data.* to open files, their parts and their tokenizer.
#include "runtime/run_data.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/shell_word.h"
#include "common/text.h"
#include "runtime/data/corpus_meta.h"
#include "runtime/data/load_tokenizer.h"
#include "runtime/data/megatron_order.h"
#include "runtime/data/text_input.h"
#include "runtime/data/token_files.h"
#include "runtime/data/tokenizer/json_fields.h"
#include "runtime/metrics/format.h"
#include "runtime/rank_memory.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

using Sources = std::vector<TrainSpec::Data::Source>;

std::optional<double> number_of(const std::string& word) {
  const auto value = to_number<double>(word);
  return value && *value > 0 ? value : std::nullopt;
}

// "path", "p1 p2" or "w1 p1 w2 p2". A file or corpus with spaces in its name is one path.
Sources sources_of(const std::string& text, const Sources& list) {
  if (!list.empty()) return list;
  if (text.empty()) return {};
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  std::error_code ignored;
  const bool one = fs::exists(text, ignored) || is_indexed_dataset(text);
  if (words.size() < 2 || one) return {{text, 0}};
  Sources plain, weighted;
  for (size_t i = 0; i < words.size(); ++i) {
    plain.push_back({words[i], 0});
    if (i % 2 == 0 || i == 0) continue;
    if (const auto weight = number_of(words[i - 1])) weighted.push_back({words[i], *weight});
  }
  return weighted.size() * 2 == words.size() ? weighted : plain;
}

class Loader {
 public:
  Loader(const ResolvedSpec& resolved, Diagnostics& diagnostics)
      : resolved_(resolved), spec_(resolved.spec), diagnostics_(diagnostics) {}

  RunData load() {
    const auto& data = spec_.data;
    const Sources train = sources_of(data.train, data.train_list);
    const Sources valid = sources_of(data.valid, data.valid_list);
    if (train.empty()) return {};
    const bool own_valid = !valid.empty() || !data.valid_sets.empty();
    place_ = resolved_.place_of("data.train");
    if (!choose_tokenizer(train)) return {};
    for (const auto& source : train) {
      add(source, own_valid ? std::vector<double>{1} : data.split, false, train.size() == 1);
    }
    place_ = resolved_.place_of("data.valid");
    bool weighted = false;
    const auto add_valid = [&](const TrainSpec::Data::Source& source, const std::string& set) {
      add(source, {1}, true, false, set);
      weighted |= source.weight > 0;
    };
    for (const auto& source : valid) add_valid(source, "");
    for (const auto& set : data.valid_sets) {
      for (const auto& source : set.second) add_valid(source, set.first);
    }
    if (weighted) {
      diagnostics_.add({.code = "config.no_effect",
                        .what = "weights in data.valid have no effect: all of it is evaluated on",
                        .place = place_,
                        .help = "leave them out; sets with names have a loss each",
                        .severity = Diagnostic::Severity::warning});
    }
    if (failed_ || !check_eod()) return {};
    run_.tokenizer = tokenizer_;
    run_.eod = spec_.data.eod >= 0 ? static_cast<int32_t>(spec_.data.eod)
               : eod_              ? eod_
                                   : tokenizer_->eod();
    for (const RunData::Source& source : run_.sources) {
      if (source.train) run_.train_tokens += source.train->tokens();
      if (source.valid) run_.valid_tokens += source.valid->tokens();
      if (source.train_packing) run_.train_sequences += source.train_packing->sequences();
    }
    if (!data.whole_documents() && spec_.train.seq_len > 0) {
      run_.train_sequences = (run_.train_tokens - 1) / spec_.train.seq_len;
    }
    return std::move(run_);
  }

 private:
  void fail(std::string code, std::string what, std::string help) {
    failed_ = true;
    diagnostics_.add({.code = std::move(code),
                      .what = std::move(what),
                      .place = place_,
                      .help = std::move(help)});
  }
  // What somebody threw, at the place of the setting.
  void fail(const Error& error) {
    for (Diagnostic diagnostic : error.diagnostics()) {
      if (!diagnostic.place) diagnostic.place = place_;
      failed_ = true;
      diagnostics_.add(std::move(diagnostic));
    }
  }

  [[noreturn]] static void refuse_ids(const std::string& path, const std::string& what,
                                      const std::string& help) {
    throw Error(Exit::data,
                {.code = "data.not_ids",
                 .what = fmt::format("'{}' names {}", path, what),
                 .help = help + "; data.format=nanogpt or llmc says that they are ids"});
  }

  std::string format_of(const std::string& path) const {
    if (spec_.data.format != "auto") return spec_.data.format;
    if (is_indexed_dataset(path)) return "megatron";
    std::error_code ignored;
    const bool several =
        fs::is_directory(path, ignored) ||
        (!fs::exists(path, ignored) && path.find_first_of("*?[") != std::string::npos);
    if (!several && fs::path(path).extension() != ".bin") return "text";
    const std::vector<fs::path> shards = shards_of(path);
    // Any bytes can be read as ids, and most of them lie in a large vocabulary.
    for (const fs::path& shard : shards) {
      if (shard.extension() != ".bin") {
        refuse_ids(path, shard.string() + ", and several files are read as token ids (*.bin)",
                   fmt::format("make a corpus of several texts: mtl data tokenize -o corpus {}",
                               shell_word(path)));
      } else if (is_indexed_dataset(shard)) {
        refuse_ids(
            path, shard.string() + ", which belongs to a corpus (*.idx beside it)",
            fmt::format("name the corpora themselves: [{}, ...]", indexed_prefix(shard).string()));
      }
    }
    return token_file_format(shards.front()) == TokenFileFormat::llmc ? "llmc" : "nanogpt";
  }

  bool choose_tokenizer(const Sources& train) {
    const std::string& type = spec_.data.tokenizer.type;
    std::string format;
    try {
      format = format_of(train.front().path);
    } catch (const Error& error) {
      fail(error);
      return false;
    }
    if (spec_.data.vocab > 0) {
      tokenizer_ = make_id_tokenizer(spec_.data.vocab);
    } else if (has_files() || (type != "auto" && type != "bytes" && type != "chars")) {
      return load_files();
    } else if (type == "bytes" || (type == "auto" && format == "text")) {
      tokenizer_ = make_byte_tokenizer();
    } else if (type == "auto" && format == "megatron" && corpus_tokenizer(train.front().path)) {
      return true;
    } else if (format != "text") {
      if (failed_) return false;
      const bool chars = type == "chars";
      fail("data.tokenizer",
           fmt::format("'{}' holds token ids and {}", train.front().path,
                       chars ? "no text, of whose characters data.tokenizer.type=chars is made"
                             : "does not say which tokenizer made them"),
           chars ? "data.tokenizer.type=auto takes the corpus's own"
                 : "give data.tokenizer.type, or how many ids there are: data.vocab=50257");
      return false;
    } else if (train.size() > 1) {
      fail("data.tokenizer",
           "data.tokenizer.type=chars takes the characters of one text, and data.train has several",
           "use data.tokenizer.type=bytes");
      return false;
    }
    return true;
  }

  // With no type they say themselves what they are.
  bool has_files() const {
    const TrainSpec::Data::Tokenizer& files = spec_.data.tokenizer;
    return files.type == "auto" && !(files.file + files.vocab + files.merges).empty();
  }

  bool load_files() {
    const TrainSpec::Data::Tokenizer& files = spec_.data.tokenizer;
    const Place place = place_;
    place_ = resolved_.place_of("data.tokenizer.type");
    try {
      tokenizer_ = load_tokenizer({.type = files.type == "auto" ? std::string() : files.type,
                                   .file = files.file,
                                   .vocab = files.vocab,
                                   .merges = files.merges,
                                   .eod = files.eod});
    } catch (const Error& error) {
      fail(error);
      return false;
    }
    place_ = place;
    return true;
  }

  // What the corpus says of itself (PREFIX.meta.json), if it does.
  bool corpus_tokenizer(const std::string& path) {
    try {
      const fs::path prefix = indexed_prefix(path);
      const std::optional<CorpusMeta> meta = read_corpus_meta(prefix);
      if (meta) tokenizer_ = load_corpus_tokenizer(prefix, *meta);
      if (meta && !tokenizer_) tokenizer_ = make_id_tokenizer(meta->vocab_size);
      if (meta && meta->eod && !tokenizer_->eod()) eod_ = meta->eod;
    } catch (const Error& error) {
      fail(error);
      return false;
    }
    return tokenizer_ != nullptr;
  }

  // `whole`: for evaluation only. `alone`: a text whose characters may be the vocabulary. `set`: of
  // data.valid, if it names sets.
  void add(const TrainSpec::Data::Source& wanted, const std::vector<double>& split, bool whole,
           bool alone, const std::string& set = {}) {
    try {
      RunData::Source source;
      source.path = wanted.path;
      source.weight = wanted.weight;
      source.set = set;
      source.format = format_of(wanted.path);
      tell_reading(source.path, source.format);
      if (source.format == "text") {
        if (!check_text(source.path) || !fits(source.path)) return;
        if (!add_text(source, split, alone)) return;
      } else if (source.format == "megatron") {
        add_megatron(source, split);
      } else {
        add_tokens(source, split);
      }
      if (source.train && source.format != "text") look_into(*source.train);
      if (whole) source.valid = std::exchange(source.train, nullptr);
      const bool whole_documents = spec_.data.whole_documents();
      if (whole_documents) pack_documents(source, resolved_, diagnostics_);
      if (!whole_documents && source.train && source.train->tokens() <= spec_.train.seq_len) {
        fail("data.too_short",
             fmt::format("'{}' has {} tokens to train on, and train.seq_len {} needs at least {}",
                         source.path, source.train->tokens(), spec_.train.seq_len,
                         spec_.train.seq_len + 1),
             "use a shorter train.seq_len, more data, or another data.split");
      }
      if (whole && !whole_documents &&
          (!source.valid || source.valid->tokens() <= spec_.train.seq_len)) {
        fail("data.too_short",
             fmt::format("'{}' of data.valid{} has no sequence of train.seq_len {} to evaluate on",
                         source.path, set.empty() ? set : '.' + set, spec_.train.seq_len),
             "use more data, or leave it out");
      }
      run_.sources.push_back(std::move(source));
    } catch (const Error& error) {
      fail(error);
    }
  }

  // Two readings of one name, of which a run takes one.
  void tell_reading(const std::string& path, const std::string& format) {
    if (spec_.data.format != "auto") return;
    const auto tell = [&](std::string what, std::string help) {
      diagnostics_.add({.code = "data.reading",
                        .what = std::move(what),
                        .place = place_,
                        .help = std::move(help),
                        .severity = Diagnostic::Severity::warning});
    };
    std::error_code ignored;
    if (format == "megatron" && indexed_prefix(path) == path &&
        fs::is_regular_file(path, ignored)) {
      tell(fmt::format("'{0}' is the corpus {0}.bin and {0}.idx here, and not the file {0}", path),
           "data.format=text takes the file, data.format=megatron says that the corpus is meant");
    }
    const bool ids = format == "nanogpt" || format == "llmc";
    if (!ids || spec_.data.vocab > 0) return;
    const std::string first = shards_of(path).front().string();
    if (!begins_like_text(first)) return;
    tell(fmt::format("{} is read as token ids, as files *.bin are, and looks like a text", first),
         fmt::format("data.format=text takes it as one, data.format={} says that it is ids",
                     format));
  }

  // Reading throws at ids beyond the vocabulary: a wrong one mostly shows in a few places, and not
  // only after hours.
  static void look_into(const Documents& documents) {
    constexpr int64_t kPlaces = 16, kTokens = 4096;
    if (documents.count() == 0) return;
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < kPlaces; ++i) {
      const int64_t document = documents.count() * i / kPlaces;
      const int64_t length = documents.length(document);
      ids.resize(static_cast<size_t>(std::min(length, kTokens)));
      documents.read(document, (length - std::ssize(ids)) * i / (kPlaces - 1), ids);
    }
  }

  // Any bytes can be trained on, and of what is no text nobody wants that.
  bool check_text(const std::string& path) {
    if (spec_.data.format == "text") return true;
    const std::string why = no_plain_text(path);
    if (why.empty()) return true;
    fail("data.not_text", fmt::format("'{}' {}, and would be trained on as it stands", path, why),
         fmt::format("give a UTF-8 text, or make a corpus of JSON Lines and packed texts: mtl data "
                     "tokenize -o corpus {}; data.format=text takes the bytes as they are",
                     shell_word(path)));
    return false;
  }

  // The kernel would end a rank without a word.
  bool fits(const std::string& path) {
    std::error_code error;
    const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
    const int64_t memory = machine_memory_bytes();
    if (error || bytes <= memory / 3) return true;
    fail("data.too_large",
         fmt::format("'{}' has {}, and each rank holds a text and its tokens in memory, of which "
                     "this machine has {}",
                     path, human_bytes(static_cast<double>(bytes)),
                     human_bytes(static_cast<double>(memory))),
         fmt::format("make a corpus of it, which is read piece by piece: mtl data tokenize "
                     "--tokenizer ... -o corpus {}",
                     shell_word(path)));
    return false;
  }

  bool add_text(RunData::Source& source, const std::vector<double>& split, bool alone) {
    Diagnostics problems;
    // Bytes and characters are cut into blocks; where else a text may be cut, nobody knows.
    const bool own = alone && (!tokenizer_ || tokenizer_->to_json().value("type", "") == "bytes");
    Corpus corpus = load_text_corpus({.path = source.path,
                                      .tokenizer = tokenizer_ ? "bytes" : "chars",
                                      .given = own ? nullptr : tokenizer_.get(),
                                      .split = split,
                                      .seq_len = spec_.train.seq_len},
                                     place_, problems);
    for (const Diagnostic& problem : problems.all()) diagnostics_.add(problem);
    if (problems.has_errors()) {
      failed_ = true;
      return false;
    }
    if (corpus.tokenizer) tokenizer_ = std::move(corpus.tokenizer);
    source.row = std::shared_ptr<const TokenSource>(std::move(corpus.train));
    source.train = one_document(source.row);
    if (corpus.valid->size() > 0) {
      source.valid = one_document(std::shared_ptr<const TokenSource>(std::move(corpus.valid)));
    }
    return true;
  }

  // A corpus that says what made it has to mean the same by its ids as the run. Whose files differ
  // (vocab.json and merges.txt, or a tokenizer.json) may still be one tokenizer: the texts decide.
  void check_tokenizer(const IndexedDataset& dataset) {
    const fs::path& prefix = dataset.prefix();
    const std::optional<CorpusMeta> meta = read_corpus_meta(prefix);
    if (!meta || meta->tokenizer_hash == hash_of(*tokenizer_)) return;
    const int64_t vocab = tokenizer_->vocab_size();
    if (spec_.data.vocab > 0) {
      if (vocab >= meta->vocab_size) return;
      return fail("data.token_range",
                  fmt::format("'{}' was made with a vocabulary of {}, and data.vocab is {}",
                              prefix.string(), meta->vocab_size, vocab),
                  fmt::format("give data.vocab={}, or leave it out", meta->vocab_size));
    }
    std::error_code ignored;
    if (!fs::exists(tokenizer_path(prefix), ignored)) return;
    const auto own = load_corpus_tokenizer(prefix, *meta);
    if (!own) return;
    const std::vector<int32_t> ids = first_ids(dataset, *meta);
    const std::string text = text_of(*own, ids);
    const bool inside = std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return id < vocab; });
    const std::string here = inside ? text_of(*tokenizer_, ids) : "";
    if (here == text) return;
    fail("data.tokenizer",
         fmt::format("'{}' was made with another tokenizer: it begins with {}, {}", prefix.string(),
                     tokenizer::shown(text),
                     inside ? fmt::format("which is {} by the run's", tokenizer::shown(here))
                            : fmt::format("and the run's has {} tokens only", vocab)),
         "leave data.tokenizer out, then the corpus brings its own; or make the corpus again with "
         "the run's: mtl data tokenize --help");
  }

  static std::vector<int32_t> first_ids(const IndexedDataset& dataset, const CorpusMeta& meta) {
    constexpr int64_t kEnough = 24;
    std::vector<int32_t> all;
    for (int64_t s = 0; s < dataset.sequences() && std::ssize(all) < kEnough; ++s) {
      std::vector<int32_t> ids(
          static_cast<size_t>(std::min<int64_t>(dataset.length(s), kEnough - std::ssize(all))));
      dataset.read(s, 0, ids);
      std::copy_if(ids.begin(), ids.end(), std::back_inserter(all),
                   [&](int32_t id) { return id != meta.eod && id < meta.vocab_size; });
    }
    return all;
  }

  // Some tokenizers put a space before a text, and not all of their files say so.
  static std::string text_of(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
    const std::string text = tokenizer.decode(ids);
    return text.substr(std::min(text.find_first_not_of(' '), text.size()));
  }

  void add_megatron(RunData::Source& source, const std::vector<double>& split) {
    const fs::path prefix = indexed_prefix(source.path);
    const auto dataset = std::make_shared<const IndexedDataset>(prefix);
    check_tokenizer(*dataset);
    const std::shared_ptr<const IndexedDataset> loss =
        open_loss(*dataset, read_corpus_meta(prefix));
    const auto parts = megatron_split(split, dataset->sequences());
    const auto part = [&](size_t i) -> std::shared_ptr<const Documents> {
      if (parts[i].first == parts[i].second) return nullptr;
      return indexed_documents(dataset, loss, parts[i].first, parts[i].second,
                               tokenizer_->vocab_size());
    };
    source.train = part(0);
    source.valid = part(1);
    source.files = {prefix.string() + ".idx", prefix.string() + ".bin"};
    if (loss) source.files.push_back(loss_prefix(prefix).string() + ".bin");
    if (dataset->tokens() == 0) {
      fail("data.empty", fmt::format("'{}' has no tokens", source.path),
           "look at what it was made of: mtl data stats " + shell_word(prefix.string()));
    } else if (!source.train) {
      fail("data.too_short",
           fmt::format("data.split leaves none of the {} documents of '{}' to train on",
                       dataset->sequences(), source.path),
           "use another data.split");
    }
  }

  void add_tokens(RunData::Source& source, const std::vector<double>& split) {
    const std::vector<fs::path> shards = shards_of(source.path);
    const auto row = open_token_files(
        shards, source.format == "llmc" ? TokenFileFormat::llmc : TokenFileFormat::nanogpt,
        tokenizer_->vocab_size());
    for (const fs::path& shard : shards) source.files.push_back(shard.string());
    const auto parts = megatron_split(split, row->size());
    const auto part = [&](size_t i) -> std::shared_ptr<const Documents> {
      const auto [begin, end] = parts[i];
      if (begin == end) return nullptr;
      return one_document(token_range(row, begin, end - begin));
    };
    source.train = part(0);
    source.valid = part(1);
  }

  bool check_eod() {
    const auto& data = spec_.data;
    const bool needed =
        !data.whole_documents() &&
        (data.reset_attention_at_eod || data.reset_positions_at_eod || data.mask_eod_loss);
    const int64_t vocab = tokenizer_->vocab_size();
    if (data.eod >= vocab) {
      place_ = resolved_.place_of("data.eod");
      fail("data.token",
           fmt::format("data.eod {} is outside the vocabulary of {}", data.eod, vocab),
           "give an id of the vocabulary");
      return false;
    }
    if (!needed || data.eod >= 0 || tokenizer_->eod() || eod_) return true;
    place_ = resolved_.place_of(data.reset_attention_at_eod   ? "data.reset_attention_at_eod"
                                : data.reset_positions_at_eod ? "data.reset_positions_at_eod"
                                                              : "data.mask_eod_loss");
    fail("data.tokenizer", "the tokenizer has no token that ends a document",
         "give its id: data.eod=50256");
    return false;
  }

  const ResolvedSpec& resolved_;
  const TrainSpec& spec_;
  Diagnostics& diagnostics_;
  RunData run_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<int32_t> eod_;  // that the corpus names
  Place place_;
  bool failed_ = false;
};

}  // namespace

RunData load_run_data(const ResolvedSpec& resolved, Diagnostics& diagnostics) {
  return Loader(resolved, diagnostics).load();
}

}  // namespace mtl
