// A corpus made of texts in a folder of its own, and tokenizers for it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>
#include <zlib.h>
#include <zstd.h>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "runtime/data/indexed_dataset.h"
#include "runtime/data/tokenize_corpus.h"
#include "support/errors.h"
#include "support/temp_dir.h"

namespace mtl::test {

// Bytes, with one more id that ends a document.
class BytesWithEod : public Tokenizer {
 public:
  explicit BytesWithEod(int32_t eod = 256) : eod_(eod) {}
  int64_t vocab_size() const override { return eod_ + 1; }
  std::optional<int32_t> eod() const override { return eod_; }
  std::vector<int32_t> encode(std::string_view text) const override {
    if (text.find('\x01') != std::string_view::npos) {
      throw Error(Exit::data, Diagnostic{.code = "data.token", .what = "cannot spell \\x01"});
    }
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += id < 256 ? static_cast<char>(id) : '|';
    return text;
  }
  nlohmann::json to_json() const override { return {{"type", "bytes"}, {"eod", eod_}}; }

 private:
  int32_t eod_;
};

// Bytes, and a token before and behind a text.
class BytesWithEnds : public BytesWithEod {
 public:
  std::vector<int32_t> encode(std::string_view text) const override {
    return encode_part(text, {});
  }
  std::vector<int32_t> encode_part(std::string_view text, TextPart part) const override {
    std::vector<int32_t> ids = BytesWithEod::encode(text);
    if (part.begins) ids.insert(ids.begin(), '<');
    if (part.ends) ids.push_back('>');
    return ids;
  }
};

inline std::string gzip(const std::string& text) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(text.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  const size_t size = ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3);
  REQUIRE(!ZSTD_isError(size));
  out.resize(size);
  return out;
}

// Documents as text, "a|b" for two sequences, each document on its own.
inline std::vector<std::string> documents_of(const std::filesystem::path& prefix) {
  const IndexedDataset dataset(prefix);
  const BytesWithEod tokenizer;
  std::vector<std::string> documents;
  for (int64_t d = 0; d < dataset.documents(); ++d) {
    std::string text;
    for (int64_t s = dataset.document_begin(d); s < dataset.document_begin(d + 1); ++s) {
      std::vector<int32_t> ids(dataset.length(s));
      dataset.read(s, 0, ids);
      if (!text.empty()) text += '/';
      text += tokenizer.decode(ids);
    }
    documents.push_back(text);
  }
  return documents;
}

using Lines = std::vector<std::string>;

struct CorpusCase {
  TempDir dir;
  TokenizeOptions options;
  BytesWithEod tokenizer;
  std::vector<Diagnostic> warnings;

  CorpusCase() { options.prefix = dir / "out"; }
  TokenizeReport run() {
    return tokenize_corpus(tokenizer, options,
                           {{}, [this](const Diagnostic& d) { warnings.push_back(d); }});
  }
  Lines made() {
    run();
    return documents_of(options.prefix);
  }
  Diagnostic refused(const std::string& code) {
    const Diagnostic refusal = refusal_of([&] { run(); });
    CHECK(refusal.code == code);
    return refusal;
  }
};

inline std::string json_line(const std::string& text) {
  return nlohmann::json{{"text", text}}.dump() + "\n";
}

}  // namespace mtl::test
