#include "runtime/data/tokenize_corpus.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/files.h"
#include "runtime/data/encode_pipeline.h"
#include "runtime/data/tokenize_journal.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kShownBadLines = 3;
// Waiting for the disk takes at most about this part of the time.
constexpr double kSyncShare = 0.05;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool has_json(const std::vector<TextInput>& files) {
  return std::any_of(files.begin(), files.end(),
                     [](const TextInput& file) { return file.format == TextFormat::jsonl; });
}

class Run {
 public:
  Run(const Tokenizer& tokenizer, const TokenizeOptions& options,
      const TokenizeCallbacks& callbacks)
      : tokenizer_(tokenizer),
        options_(options),
        callbacks_(callbacks),
        prefixes_(output_prefixes(options)),
        encode_{.json_keys = options.json_keys,
                .append_eod = options.append_eod,
                .type = token_type_for(tokenizer.vocab_size())},
        inputs_(find_inputs(options.inputs, options.format)),
        journaled_(std::none_of(inputs_.files.begin(), inputs_.files.end(),
                                [](const TextInput& file) { return !file.repeatable; })) {
    if (options.chat.empty()) return;
    format_ = chat::load_format(options.chat);
    chat_.emplace(format_, tokenizer);
    encode_.chat = &*chat_;
  }

  TokenizeReport run() {
    check();
    begin();
    if (!journal_.finishing) encode_all();
    finish();
    report_.seconds = seconds_since(started_);
    return std::move(report_);
  }

 private:
  // What goes with the corpus before it, and says nothing by itself.
  bool is_loss(size_t output) const { return chat_ && output == 1; }

  void check() const {
    if (options_.append_eod && !tokenizer_.eod()) {
      throw Error(Exit::data,
                  {.code = "data.eod",
                   .what = "--append_eod: the tokenizer has no token that ends a document",
                   .help = "name it: --tokenizer_eod TOKEN"});
    }
    const bool text = std::any_of(inputs_.files.begin(), inputs_.files.end(),
                                  [](const auto& file) { return file.format == TextFormat::text; });
    if (text && chat_) {
      throw Error(Exit::usage, {.code = "usage.option",
                                .what = "--chat, and plain text among the inputs",
                                .help = "conversations are JSON Lines; --format jsonl says that "
                                        "all inputs are that, whatever their names"});
    }
    if (text && options_.json_keys.size() > 1) {
      throw Error(Exit::usage, {.code = "usage.option",
                                .what = "several --json_keys, and plain text among the inputs",
                                .help = "plain text has no keys: tokenize it by itself"});
    }
  }

  void begin() {
    make_directories(fs::absolute(options_.prefix).parent_path());
    TokenizeIdentity identity{
        .tokenizer = hash_of(tokenizer_),
        .inputs = hash_of(inputs_.files),
        .settings = fmt::format("keys {}; documents of text: {}; end of document: {}",
                                fmt::join(options_.json_keys, ","),
                                options_.lines_are_documents ? "lines" : "files",
                                options_.append_eod ? "yes" : "no")};
    if (chat_) identity.settings += "; conversations: " + chat::description(format_);
    std::optional<TokenizeJournal> journal;
    if (!options_.fresh && journaled_) journal = read_journal(options_.prefix, identity);
    if (!journal) refuse_existing();
    if (journal) journal_ = *journal;
    journal_.identity = std::move(identity);
    journal_.outputs.resize(prefixes_.size());
    report_.resumed_at = journal_.text_bytes;
    resumed_input_bytes_ = journal_.input_bytes;
    for (size_t k = 0; k < prefixes_.size(); ++k) {
      const TokenType type = encode_.type_of(k);
      // A crash while the files got their names may have left some of them finished.
      if (journal_.finishing && IndexedDatasetWriter::complete_finish(prefixes_[k])) {
        writers_.push_back(nullptr);
      } else if (journal) {
        writers_.push_back(
            std::make_unique<IndexedDatasetWriter>(prefixes_[k], type, journal_.outputs[k]));
      } else {
        writers_.push_back(std::make_unique<IndexedDatasetWriter>(prefixes_[k], type));
        // Only now, with the lock, is it sure that nobody else works on it.
        if (k == 0) remove_journal();
        if (journaled_) writers_.back()->keep_parts(true);
      }
    }
  }

  void refuse_existing() const {
    for (const fs::path& prefix : prefixes_) {
      if (options_.fresh || !is_indexed_dataset(prefix.string() + ".idx")) continue;
      throw Error(Exit::data, {.code = "data.exists",
                               .what = fmt::format("there is a corpus {} already", prefix.string()),
                               .help = "--fresh makes it anew, or write under another name (-o)"});
    }
    for (size_t k = 0; k < prefixes_.size(); ++k) {
      if (!is_loss(k)) refuse_loss(prefixes_[k], options_.fresh);
    }
  }

  void remove_journal() const {
    std::error_code ignored;
    fs::remove(journal_path(options_.prefix), ignored);
  }

  void encode_all() {
    EncodePipeline pipeline(tokenizer_, encode_, {options_.lines_are_documents}, inputs_.files,
                            options_.workers, static_cast<size_t>(journal_.file),
                            {journal_.offset, journal_.line, journal_.inside_document});
    for (const TextInput& file : inputs_.files) input_total_ += file.bytes;
    auto synced_at = Clock::now();
    double pause_s = options_.journal_every_s;
    EncodedStep step;
    while (true) {
      const auto next = pipeline.next(step);
      if (next == EncodePipeline::Next::end) break;
      if (next == EncodePipeline::Next::step) take(step);
      show();
      if (journaled_ && seconds_since(synced_at) >= pause_s) {
        const auto before = Clock::now();
        checkpoint();
        // Somebody who wants it always (0) gets it always.
        if (pause_s > 0) {
          pause_s = std::max(options_.journal_every_s, seconds_since(before) / kSyncShare);
        }
        synced_at = Clock::now();
      }
    }
    journal_.finishing = true;
    checkpoint();
  }

  void take(EncodedStep& step) {
    if (step.ends_file) {
      journal_.file = static_cast<int64_t>(step.file) + 1;
      journal_.offset = 0;
      journal_.line = 1;
      journal_.inside_document = false;
      return;
    }
    bad_lines(step);
    const bool piece = step.unit.kind == TextUnit::Kind::piece;
    for (size_t k = 0; k < step.encoded.keys.size(); ++k) {
      piece ? write_piece(step, *writers_[k]) : write_lines(k, step.encoded.keys[k]);
    }
    journal_.file = static_cast<int64_t>(step.file);
    journal_.offset = step.unit.end_offset;
    journal_.line = step.unit.end_line;
    journal_.inside_document = piece && !step.unit.ends_document;
    journal_.input_bytes = step.input_bytes;
    journal_.text_bytes += step.text_bytes;
    journal_.blank_lines += step.encoded.blank_lines;
    journal_.forced_cuts += step.encoded.forced_cuts;
    journal_.learned_tokens += step.encoded.learned_tokens;
  }

  void bad_lines(const EncodedStep& step) {
    for (const BadLine& bad : step.encoded.bad) {
      const std::string& path = inputs_.files[step.file].path;
      Diagnostic diagnostic{
          .code = "data.line",
          .what = bad.what,
          .place = Place{path == "-" ? "standard input" : path,
                         static_cast<int>(std::min<int64_t>(bad.line, INT32_MAX))},
          .help =
              "repair the line, or pass over such lines and count them: "
              "--skip_bad"};
      if (!options_.skip_bad) {
        if (journaled_ && journal_.text_bytes == 0) {
          // Nothing is worth keeping, and a journal would stand in the way of the right command.
          for (const auto& writer : writers_) writer->keep_parts(false);
        } else if (journaled_) {
          checkpoint();
          diagnostic.notes.push_back(
              "what was done is kept: with --skip_bad the same command goes on from here");
        }
        throw Error(Exit::data, std::move(diagnostic));
      }
      diagnostic.severity = Diagnostic::Severity::warning;
      diagnostic.help = "passed over (--skip_bad)";
      if (journal_.bad_lines++ < kShownBadLines && callbacks_.warn) callbacks_.warn(diagnostic);
    }
  }

  void write_lines(size_t k, const EncodedTexts& texts) const {
    IndexedDatasetWriter& writer = *writers_[k];
    const auto size = static_cast<size_t>(bytes_of(encode_.type_of(k)));
    size_t at = 0, sequence = 0;
    for (const int64_t count : texts.sequence_counts) {
      for (int64_t i = 0; i < count; ++i, ++sequence) {
        const size_t bytes = static_cast<size_t>(texts.lengths[sequence]) * size;
        writer.add_tokens(std::span(texts.tokens).subspan(at, bytes));
        writer.end_sequence();
        at += bytes;
      }
      writer.end_document();
    }
  }

  void write_piece(const EncodedStep& step, IndexedDatasetWriter& writer) const {
    writer.add_tokens(step.encoded.keys.front().tokens);
    if (!step.unit.ends_document) return;
    if (writer.position().open_tokens > 0) {
      if (options_.append_eod) {
        const int32_t eod = *tokenizer_.eod();
        std::byte bytes[8];
        store_tokens(encode_.type, {&eod, 1}, bytes);
        writer.add_tokens(std::span(bytes).first(static_cast<size_t>(bytes_of(encode_.type))));
      }
      writer.end_sequence();
    }
    writer.end_document();
  }

  void checkpoint() {
    for (size_t k = 0; k < writers_.size(); ++k) journal_.outputs[k] = writers_[k]->sync();
    if (journaled_) write_journal(options_.prefix, journal_);
  }

  void show() const {
    if (!callbacks_.progress) return;
    TokenizeProgress progress;
    progress.input_bytes = journal_.input_bytes;
    progress.input_total = journaled_ ? input_total_ : 0;
    progress.resumed_at = resumed_input_bytes_;
    for (size_t k = 0; k < writers_.size(); ++k) {
      if (is_loss(k)) continue;
      progress.documents += writers_[k]->position().documents;
      progress.tokens += writers_[k]->position().tokens;
    }
    progress.seconds = seconds_since(started_);
    callbacks_.progress(progress);
  }

  void finish() {
    CorpusMeta meta;
    meta.tokenizer_hash = hash_of(tokenizer_);
    meta.vocab_size = tokenizer_.vocab_size();
    meta.eod = tokenizer_.eod();
    meta.documents_end_in_eod = options_.append_eod;
    meta.type = encode_.type;
    meta.has_loss = chat_.has_value();
    for (const TextInput& file : inputs_.files) meta.inputs.push_back({file.path, file.bytes});
    // What is to be learned of a corpus is there before the corpus is.
    for (size_t k = prefixes_.size(); k-- > 0;) {
      const fs::path& prefix = prefixes_[k];
      const auto& position = journal_.outputs[k];
      meta.json_key = has_json(inputs_.files) && !chat_ ? options_.json_keys[k] : "";
      meta.sequences = position.sequences;
      meta.documents = position.documents;
      meta.tokens = position.tokens;
      meta.tokenizer_file = tokenizer_path(prefix.string() + ".idx").filename().string();
      if (writers_[k] != nullptr) {
        // A corpus that is replaced must not be described by the old file, nor the other way round.
        std::error_code ignored;
        fs::remove(meta_path(prefix.string() + ".idx"), ignored);
        if (!is_loss(k)) write_corpus_tokenizer(prefix.string() + ".idx", tokenizer_);
        writers_[k]->finish();
      }
      if (is_loss(k)) continue;
      if (!chat_) remove_loss(prefix);
      write_corpus_meta(prefix.string() + ".idx", meta);
      report_.outputs.insert(report_.outputs.begin(), {prefix, meta});
    }
    remove_journal();
    report_.text_bytes = journal_.text_bytes;
    report_.input_bytes = journal_.input_bytes;
    report_.bad_lines = journal_.bad_lines;
    report_.blank_lines = journal_.blank_lines;
    report_.forced_cuts = journal_.forced_cuts;
    report_.learned_tokens = journal_.learned_tokens;
    report_.passed_over = inputs_.passed_over;
  }

  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  const TokenizeCallbacks& callbacks_;
  const std::vector<fs::path> prefixes_;
  EncodeOptions encode_;
  chat::Format format_;
  std::optional<chat::Encoder> chat_;
  const TextInputs inputs_;
  const bool journaled_;  // a pipe cannot be read a second time
  const Clock::time_point started_ = Clock::now();
  std::vector<std::unique_ptr<IndexedDatasetWriter>> writers_;
  TokenizeJournal journal_;
  int64_t input_total_ = 0, resumed_input_bytes_ = 0;
  TokenizeReport report_;
};

}  // namespace

std::vector<fs::path> output_prefixes(const TokenizeOptions& options) {
  if (!options.chat.empty()) return {options.prefix, loss_prefix(options.prefix)};
  if (options.json_keys.size() == 1) return {options.prefix};
  std::vector<fs::path> prefixes;
  for (const std::string& key : options.json_keys) {
    prefixes.emplace_back(fmt::format("{}_{}_document", options.prefix.string(), key));
  }
  return prefixes;
}

TokenizeReport tokenize_corpus(const Tokenizer& tokenizer, const TokenizeOptions& options,
                               const TokenizeCallbacks& callbacks) {
  return Run(tokenizer, options, callbacks).run();
}

}  // namespace mtl
