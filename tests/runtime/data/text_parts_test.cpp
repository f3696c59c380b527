// Long texts are tokenized in parts, and tokens come one by one: both are as of the whole.
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "runtime/data/load_tokenizer.h"
#include "runtime/data/text_units.h"
#include "runtime/data/token_text.h"
#include "runtime/data/tokenizer/normalizer.h"
#include "runtime/data/tokenizer/unicode.h"
#include "runtime/data/tokenizer_reference.h"
#include "support/temp_dir.h"

namespace mtl {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::reference;
using test::TempDir;
using test::texts;

TEST_CASE("Metaspace first: what follows text that a normalizer took away does not begin a text") {
  const json strip = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  const json remove = {{"type", "Replace"}, {"pattern", {{"Regex", "^#+"}}}, {"content", ""}};
  const json accents = {{"type", "StripAccents"}};
  const json small_letters = {{"type", "Lowercase"}};
  json file = reference().at("tokenizers").at("metaspace").at("file");
  const auto begins = [&](const json& normalizer, const std::string& text) {
    file["normalizer"] = normalizer;
    const auto tokenizer = tokenizer_from_json(file);
    const auto ids = tokenizer->encode(text);
    REQUIRE(!ids.empty());
    const json& vocab = file.at("model").at("vocab");
    for (const auto& [token, id] : vocab.items()) {
      if (id == ids.front()) return token.starts_with("\u2581");
    }
    return false;
  };
  for (const json& all : {strip, remove, accents, small_letters}) CHECK(begins(all, "the"));
  CHECK(!begins(strip, " the"));
  CHECK(!begins(remove, "##the"));
  CHECK(!begins(accents, "\u0301the"));
  CHECK(begins(small_letters, "The"));
  CHECK(!begins({{"type", "Sequence"}, {"normalizers", {strip, small_letters}}}, "\tThe"));
}

// The ids of a text that is encoded in parts of about so many bytes.
std::vector<int32_t> ids_in_parts(const Tokenizer& tokenizer, std::string_view text, size_t bytes) {
  std::vector<int32_t> ids;
  const auto add = [&](std::string_view piece, TextPart part) {
    const auto more = tokenizer.encode_part(piece, part);
    ids.insert(ids.end(), more.begin(), more.end());
  };
  TextPart part;
  for (size_t most = bytes; text.size() > most + 1;) {
    bool forced = false;
    const size_t cut = cut_point(text, most, forced);
    if (forced) {  // a longer part has a place where words end
      most *= 2;
      continue;
    }
    part.ends = false;
    add(text.substr(0, cut), part);
    text.remove_prefix(cut);
    part = {.begins = false};
    most = bytes;
  }
  part.ends = true;
  add(text, part);
  return ids;
}

std::string mixed_text() {
  std::string text;
  for (const std::string& one : texts()) {
    std::string buffer;
    text += tokenizer::whole_utf8(one, buffer);
    // (At a cut, a token does not take the white space on the other side.)
    text += "and, then\nmore,[MASK], words <|endoftext|> of it\nso\n\n ends";
  }
  return text;
}

TEST_CASE("a text in parts has the ids of the whole, whatever is put before a text") {
  json files;
  for (const auto& [name, sample] : reference().at("tokenizers").items()) {
    files[name] = sample.at("file");
  }
  // The forms that converted SentencePiece models have.
  const json prepend = {{"type", "Prepend"}, {"prepend", "\u2581"}};
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  files["llama2"] = files["metaspace"];
  files["llama2"]["pre_tokenizer"] = nullptr;
  files["llama2"]["normalizer"] = {{"type", "Sequence"}, {"normalizers", {prepend, replace}}};
  for (const char* scheme : {"always", "never"}) {
    for (const bool split : {false, true}) {
      json& file = files[fmt::format("{} {}", scheme, split)] = files["metaspace"];
      file["pre_tokenizer"]["prepend_scheme"] = scheme;
      file["pre_tokenizer"]["split"] = split;
    }
  }
  // Words are cut before something is put before each of them.
  for (const json& cut : std::vector<json>{{{"type", "WhitespaceSplit"}},
                                           {{"type", "Whitespace"}},
                                           {{"type", "Split"},
                                            {"pattern", {{"Regex", "\\s"}}},
                                            {"behavior", "MergedWithPrevious"},
                                            {"invert", false}},
                                           {{"type", "Split"},
                                            {"pattern", {{"String", "e"}}},
                                            {"behavior", "MergedWithNext"},
                                            {"invert", false}}}) {
    json& file = files[cut.dump()] = files["metaspace"];
    json last = file["pre_tokenizer"];
    last["prepend_scheme"] = "always";
    file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {cut, last}}};
  }
  files["strip"] = files["gpt2"];
  files["strip"]["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  const std::string text = mixed_text();
  // Where the characters beside spaces and line ends are not ASCII's, and where lines end in two.
  std::string russian, hindi, chinese, lines;
  for (int i = 0; i < 60; ++i) {
    russian += fmt::format("слово{} и ещё,\nдругое — ", i);
    hindi += fmt::format("हिन्दी में {} शब्द\n", i);
    chinese += fmt::format("第{}行。\n“文字”\n", i);
    lines += fmt::format("word{}\r\nи\r\nand.\r\n\r\n", i);
  }
  for (const std::string& whole : {text, " " + text, "<|endoftext|>" + text + "\n", russian, hindi,
                                   chinese, lines, "\u00a0 " + russian + "\u2003 x"}) {
    for (const auto& file : files.items()) {
      CAPTURE(file.key());
      // A kind of its own, whose words end with the white space behind them.
      const bool merges = file.key().find("MergedWithPrevious") != std::string::npos;
      if (merges && whole == lines) continue;
      const auto tokenizer = tokenizer_from_json(file.value());
      const auto ids = tokenizer->encode(whole);
      CHECK(ids_in_parts(*tokenizer, whole, 64) == ids);
      CHECK(ids_in_parts(*tokenizer, whole, 1000) == ids);
    }
  }
}

// A field of Protocol Buffers: text or message, and number.
std::string field(int number, const std::string& content) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(content.size())} +
         content;
}

std::string field(int number, int value) {
  return {static_cast<char>(number << 3), static_cast<char>(value)};
}

TEST_CASE("SentencePiece: a text in parts has the ids of the whole") {
  const auto piece = [](const std::string& text, float score, int type) {
    std::string scored = field(1, text) + "\x15";
    scored.append(reinterpret_cast<const char*>(&score), sizeof score);
    return field(1, scored + field(3, type));
  };
  std::string pieces = piece("<unk>", 0, 2);
  for (const char c : std::string("abc\n.")) pieces += piece({c}, -4, 1);
  for (const char* word : {"\u2581", "\u2581a", "\u2581b", "ab", "\u2581\u2581"}) {
    pieces += piece(word, -3, 1);
  }
  std::string text;
  for (int i = 0; i < 600; ++i) {
    text += "abc"[i * i % 3];
    if (i % 4 == 1) text += i % 7 == 0 ? "\n" : i % 5 == 0 ? " .  " : " ";
  }
  for (const bool prefix : {false, true}) {
    for (const bool no_extra : {false, true}) {
      CAPTURE(prefix);
      CAPTURE(no_extra);
      const TempDir folder;
      const fs::path path = folder / "tokenizer.model";
      write_file_atomic(
          path, pieces + field(3, field(1, "identity") + field(3, prefix) + field(4, no_extra)));
      std::unique_ptr<Tokenizer> tokenizer;
      try {
        tokenizer = load_tokenizer({.type = "sentencepiece", .file = path.string()});
      } catch (const Error& error) {
        MESSAGE(error.diagnostics().front().what);  // built without it
        return;
      }
      for (const std::string& whole : {text, " " + text}) {
        CHECK(ids_in_parts(*tokenizer, whole, 40) == tokenizer->encode(whole));
      }
    }
  }
}

TEST_CASE("text of tokens that come one by one is whole characters") {
  const std::string text = "né \u4e2d\u6587 \U0001F600!";
  for (const char* name : {"gpt2", "metaspace"}) {
    CAPTURE(name);
    const auto tokenizer = tokenizer_from_json(reference().at("tokenizers").at(name).at("file"));
    const auto prompt = tokenizer->encode("the ");
    auto ids = tokenizer->encode("the " + text);
    TokenText stream(*tokenizer, {});
    std::string shown, buffer;
    for (const int32_t id : ids) {
      const std::string piece = stream.add(id);
      CHECK(tokenizer::whole_utf8(piece, buffer).data() == piece.data());
      shown += piece;
    }
    CHECK(shown + stream.rest() == tokenizer->decode(ids));
  }
  // A text whose characters are bytes of three tokens each, and broken ones between them.
  const auto spelled = tokenizer_from_json(reference().at("tokenizers").at("metaspace").at("file"));
  for (const bool broken : {false, true}) {
    CAPTURE(broken);
    std::vector<int32_t> ids;
    const json& vocab =
        reference().at("tokenizers").at("metaspace").at("file").at("model").at("vocab");
    const auto add = [&](std::string_view bytes) {
      for (const char byte : bytes) {
        ids.push_back(vocab.at(fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte))));
      }
    };
    std::string expected;
    for (int i = 0; i < 12; ++i) {
      add("\u4e2d\u00e9");
      expected += "\u4e2d\u00e9";
      if (!broken || i % 4 != 3) continue;
      add("\xff");
      ids.push_back(vocab.at("a"));
      expected += "\ufffda";
    }
    TokenText stream(*spelled, spelled->encode("the"));
    std::string shown;
    for (const int32_t id : ids) shown += stream.add(id);
    CHECK(shown + stream.rest() == expected);
  }
  // What never becomes whole is shown at the end.
  const auto bytes = make_byte_tokenizer();
  TokenText stream(*bytes, {'a'});
  CHECK(stream.add(0xE4) == "");
  CHECK(stream.add(0xB8) == "");
  CHECK(stream.rest() == "\xE4\xB8");
}

}  // namespace
}  // namespace mtl
