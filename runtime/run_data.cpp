#include "runtime/run_data.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/data/blend.h"
#include "runtime/data/corpus_meta.h"
#include "runtime/data/load_tokenizer.h"
#include "runtime/data/megatron_order.h"
#include "runtime/data/orders.h"
#include "runtime/data/token_files.h"

namespace mtl {

namespace fs = std::filesystem;

struct RunData::Identity {
  std::mutex mutex;
  nlohmann::json settings;  // what is known without reading
  nlohmann::json whole;     // null until it has been made
};

namespace {

using Sources = std::vector<TrainSpec::Data::Source>;

std::optional<double> number_of(const std::string& word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !(value > 0)) return std::nullopt;
  return value;
}

// "path", "p1 p2" or "w1 p1 w2 p2". A file whose name has spaces is one path.
Sources sources_of(const std::string& text, const Sources& list) {
  if (!list.empty()) return list;
  if (text.empty()) return {};
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  std::error_code ignored;
  if (words.size() < 2 || fs::exists(text, ignored)) return {{text, 0}};
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
    const bool own_valid = !valid.empty();
    place_ = resolved_.place_of("data.train");
    if (!choose_tokenizer(train)) return {};
    for (const auto& source : train) {
      add(source, own_valid ? std::vector<double>{1} : data.split, false, train.size() == 1);
    }
    place_ = resolved_.place_of("data.valid");
    for (const auto& source : valid) add(source, {1}, true, false);
    if (failed_ || !check_eod()) return {};
    run_.tokenizer = tokenizer_;
    run_.eod = spec_.data.eod >= 0 ? static_cast<int32_t>(spec_.data.eod)
               : eod_              ? eod_
                                   : tokenizer_->eod();
    for (const RunData::Source& source : run_.sources) {
      if (source.train) run_.train_tokens += source.train->tokens();
      if (source.valid) run_.valid_tokens += source.valid->tokens();
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

  std::string format_of(const std::string& path) const {
    if (spec_.data.format != "auto") return spec_.data.format;
    if (is_indexed_dataset(path)) return "megatron";
    std::error_code ignored;
    const bool several =
        fs::is_directory(path, ignored) ||
        (!fs::exists(path, ignored) && path.find_first_of("*?[") != std::string::npos);
    if (!several && fs::path(path).extension() != ".bin") return "text";
    return token_file_format(shards_of(path).front()) == TokenFileFormat::llmc ? "llmc" : "nanogpt";
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
      fail("data.tokenizer",
           fmt::format("'{}' holds token ids and does not say which tokenizer made them",
                       train.front().path),
           "give data.tokenizer.type, or how many ids there are: data.vocab=50257");
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

  // `whole`: for evaluation only. `alone`: a text whose characters may be the vocabulary.
  void add(const TrainSpec::Data::Source& wanted, const std::vector<double>& split, bool whole,
           bool alone) {
    try {
      RunData::Source source;
      source.path = wanted.path;
      source.weight = wanted.weight;
      source.format = format_of(wanted.path);
      if (source.format == "text") {
        if (!add_text(source, split, alone)) return;
      } else if (source.format == "megatron") {
        add_megatron(source, split);
      } else {
        add_tokens(source, split);
      }
      if (whole) source.valid = std::exchange(source.train, nullptr);
      if (source.train && source.train->tokens() <= spec_.train.seq_len) {
        fail("data.too_short",
             fmt::format("'{}' has {} tokens to train on, and train.seq_len {} needs at least {}",
                         source.path, source.train->tokens(), spec_.train.seq_len,
                         spec_.train.seq_len + 1),
             "use a shorter train.seq_len, more data, or another data.split");
      }
      run_.sources.push_back(std::move(source));
    } catch (const Error& error) {
      fail(error);
    }
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

  void add_megatron(RunData::Source& source, const std::vector<double>& split) {
    const fs::path prefix = indexed_prefix(source.path);
    const auto dataset = std::make_shared<const IndexedDataset>(prefix);
    const auto parts = megatron_split(split, dataset->sequences());
    const auto part = [&](size_t i) -> std::shared_ptr<const Documents> {
      if (parts[i].first == parts[i].second) return nullptr;
      return indexed_documents(dataset, parts[i].first, parts[i].second, tokenizer_->vocab_size());
    };
    source.train = part(0);
    source.valid = part(1);
    source.files = {prefix.string() + ".idx", prefix.string() + ".bin"};
    if (!source.train) {
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
        data.reset_attention_at_eod || data.reset_positions_at_eod || data.mask_eod_loss;
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

// Puts the samples of a run in order.
class Orderer {
 public:
  Orderer(RunData& data, const TrainSpec& spec, int64_t samples)
      : data_(data), spec_(spec), samples_(samples) {}

  std::unique_ptr<Samples> train() {
    std::vector<const RunData::Source*> sources;
    for (const RunData::Source& source : data_.sources) {
      if (source.train) sources.push_back(&source);
    }
    std::unique_ptr<Samples> samples =
        sources.size() == 1 ? of_source(*sources.front(), 0, samples_) : blend(sources);
    if (spec_.data.sampler == "cyclic") {
      settings["samples"] = samples->size();
      samples = cyclic_samples(std::move(samples));
    }
    check_samples(0, samples_, samples->size());
    return documents(std::move(samples));
  }

  std::unique_ptr<Samples> valid() {
    std::vector<std::unique_ptr<Samples>> all;
    for (const RunData::Source& source : data_.sources) {
      if (!source.valid || source.valid->tokens() <= spec_.train.seq_len) continue;
      all.push_back(window_samples(document_row(source.valid), spec_.train.seq_len,
                                   SampleOrder::sequential, 0, false));
    }
    return documents(samples_in_turn(std::move(all)));
  }

  nlohmann::json settings = nlohmann::json::object();

 private:
  bool packs() const {
    const std::string& sampler = spec_.data.sampler;
    return sampler == "megatron" || sampler == "single" || sampler == "cyclic";
  }

  // `wanted`: samples of it that the run needs; nothing: one epoch.
  std::unique_ptr<Samples> of_source(const RunData::Source& source, uint64_t number,
                                     std::optional<int64_t> wanted) {
    const int64_t seq = spec_.train.seq_len;
    if (packs()) {
      const MegatronOrderOptions options{
          .seq_len = seq, .samples = wanted, .seed = spec_.train.seed};
      MegatronOrder order =
          spec_.data.cache.empty()
              ? megatron_order(*source.train, options)
              : cached_megatron_order(spec_.data.cache,
                                      fmt::format("{} {:016x}", source.path, hash_of(source)),
                                      *source.train, options);
      settings["orders"].push_back(
          {{"epochs", order.epochs}, {"separate_final_epoch", order.separate_final_epoch}});
      return packed_samples(source.train, std::move(order), seq);
    }
    // The first source has the run's own seed, so that one alone is what it always was.
    const uint64_t seed = spec_.train.seed + number * 0x9e3779b97f4a7c15u;
    if (spec_.data.sampler == "feistel") {
      return feistel_samples(document_row(source.train), seq, seed);
    }
    return window_samples(
        document_row(source.train), seq,
        spec_.data.sampler == "sequential" ? SampleOrder::sequential : SampleOrder::random, seed,
        true);
  }

  std::unique_ptr<Samples> blend(const std::vector<const RunData::Source*>& sources) {
    const bool weighted = sources.front()->weight > 0;
    std::vector<double> weights;
    for (const RunData::Source* source : sources) weights.push_back(source->weight);
    std::vector<int64_t> sizes(sources.size(), 0);
    if (weighted) {
      weights = normalized(weights);
      sizes = blend_sizes(weights, samples_);
    }
    std::vector<std::unique_ptr<Samples>> all;
    std::vector<int64_t> limits;
    int64_t there = 0;
    for (size_t i = 0; i < sources.size(); ++i) {
      all.push_back(
          of_source(*sources[i], i, weighted ? std::optional<int64_t>(sizes[i]) : std::nullopt));
      limits.push_back(all.back()->size());
      // Without weights, as much of each as there is of it.
      const int64_t windows = (sources[i]->train->tokens() - 1) / spec_.train.seq_len;
      if (!weighted) weights[i] = static_cast<double>(packs() ? limits[i] : windows);
      there += packs() ? limits[i] : 0;
    }
    int64_t size = 0;
    if (weighted) {
      for (const double weight : weights) {
        size += static_cast<int64_t>(std::ceil(static_cast<double>(samples_) * weight));
      }
    } else {
      size = packs() ? std::min(samples_, there) : samples_;
    }
    return blended_samples(std::move(all), BlendIndex(normalized(weights), size, limits));
  }

  static uint64_t hash_of(const RunData::Source& source) {
    return source.files.empty() ? source.row->fingerprint() : content_hash(source.files.front());
  }

  std::unique_ptr<Samples> documents(std::unique_ptr<Samples> samples) const {
    const auto& data = spec_.data;
    if (!data.reset_attention_at_eod && !data.reset_positions_at_eod && !data.mask_eod_loss) {
      return samples;
    }
    return with_documents(std::move(samples),
                          {.eod = data_.eod.value_or(-1), .mask_loss = data.mask_eod_loss});
  }

  RunData& data_;
  const TrainSpec& spec_;
  const int64_t samples_;
};

}  // namespace

RunData load_run_data(const ResolvedSpec& resolved, Diagnostics& diagnostics) {
  return Loader(resolved, diagnostics).load();
}

void order_samples(RunData& data, const ResolvedSpec& resolved, int64_t samples,
                   Diagnostics& diagnostics) {
  const TrainSpec& spec = resolved.spec;
  try {
    Orderer orderer(data, spec, samples);
    data.train = orderer.train();
    data.valid = orderer.valid();
    nlohmann::json& settings = orderer.settings;
    settings["split"] = spec.data.split;
    settings["sampler"] = spec.data.sampler == "single" ? "megatron" : spec.data.sampler;
    settings["seq_len"] = spec.train.seq_len;
    settings["reset_positions_at_eod"] = spec.data.reset_positions_at_eod;
    settings["reset_attention_at_eod"] = spec.data.reset_attention_at_eod;
    settings["mask_eod_loss"] = spec.data.mask_eod_loss;
    if (data.eod) settings["eod"] = *data.eod;
    data.identity_ = std::make_shared<RunData::Identity>();
    data.identity_->settings = std::move(settings);
  } catch (const Error& error) {
    for (Diagnostic diagnostic : error.diagnostics()) {
      if (!diagnostic.place) diagnostic.place = resolved.place_of("data.sampler");
      diagnostics.add(std::move(diagnostic));
    }
  }
}

const nlohmann::json& RunData::identity() const {
  const std::lock_guard lock(identity_->mutex);
  nlohmann::json& whole = identity_->whole;
  if (!whole.is_null()) return whole;
  whole = identity_->settings;
  whole["sources"] = nlohmann::json::array();
  int64_t files = 1;
  for (const Source& source : sources) files += static_cast<int64_t>(source.files.size());
  for (const Source& source : sources) {
    uint64_t hash = source.row ? source.row->fingerprint() : 0;
    for (const std::string& file : source.files) {
      hash = hash * 0x9e3779b97f4a7c15u + content_hash(file, kHashBudget / files);
    }
    whole["sources"].push_back({{"path", source.path},
                                {"format", source.format},
                                {"weight", source.weight},
                                {"for", source.train ? "train" : "valid"},
                                {"tokens", (source.train ? source.train->tokens() : 0) +
                                               (source.valid ? source.valid->tokens() : 0)},
                                {"hash", fmt::format("{:016x}", hash)}});
  }
  // What versions before this one compare.
  if (sources.size() == 1 && sources.front().row) {
    whole["fingerprint"] = whole["sources"][0]["hash"];
  }
  return whole;
}

std::vector<DataDifference> data_differences(const nlohmann::json& here,
                                             const nlohmann::json& checkpoint) {
  std::vector<DataDifference> differences;
  const auto differ = [&](const char* key, const std::string& name, const nlohmann::json& mine,
                          const nlohmann::json& theirs) {
    if (mine == theirs) return;
    differences.push_back({key, fmt::format("{} is {} here, {} in the checkpoint", name,
                                            mine.dump(), theirs.dump())});
  };
  // Of the first version, with one text and two orders, this is all that was kept.
  if (!checkpoint.contains("sources")) {
    differ("data.train", "the fingerprint of data.train's text",
           here.value("fingerprint", nlohmann::json()),
           checkpoint.value("fingerprint", nlohmann::json()));
    return differences;
  }
  const auto of = [](const nlohmann::json& json, const char* use) {
    nlohmann::json list = nlohmann::json::array();
    for (const nlohmann::json& source : json.at("sources")) {
      if (source.value("for", "train") == use) list.push_back(source);
    }
    return list;
  };
  const nlohmann::json mine = of(here, "train"), theirs = of(checkpoint, "train");
  differ("data.train", "the number of sources in data.train", mine.size(), theirs.size());
  for (size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i) {
    const std::string source =
        fmt::format("source {} of data.train ({})", i + 1, mine[i].value("path", ""));
    // A corpus may be moved; what counts is what it holds.
    if (mine[i].value("hash", "") != theirs[i].value("hash", "")) {
      differences.push_back(
          {"data.train",
           fmt::format("{} has other content: {} tokens here, {} in the checkpoint{}", source,
                       mine[i].value("tokens", int64_t{0}), theirs[i].value("tokens", int64_t{0}),
                       mine[i].value("path", "") == theirs[i].value("path", "")
                           ? ""
                           : ", then of " + theirs[i].value("path", ""))});
    }
    differ("data.train", "the weight of " + source, mine[i].value("weight", 0.0),
           theirs[i].value("weight", 0.0));
  }
  for (const auto& [field, key] : std::vector<std::pair<const char*, const char*>>{
           {"split", "data.split"},
           {"sampler", "data.sampler"},
           {"seq_len", "train.seq_len"},
           {"reset_positions_at_eod", "data.reset_positions_at_eod"},
           {"reset_attention_at_eod", "data.reset_attention_at_eod"},
           {"mask_eod_loss", "data.mask_eod_loss"}}) {
    differ(key, key, here.value(field, nlohmann::json()),
           checkpoint.value(field, nlohmann::json()));
  }
  if (!differences.empty()) return differences;  // what follows is their consequence
  // The length of a run decides how many epochs are shuffled together.
  differ("data.sampler", "what data.sampler shuffles together, which follows the run's length,",
         here.value("orders", nlohmann::json()), checkpoint.value("orders", nlohmann::json()));
  differ("data.sampler", "the number of samples that data.sampler permutes",
         here.value("samples", nlohmann::json()), checkpoint.value("samples", nlohmann::json()));
  return differences;
}

}  // namespace mtl
