// The two tokenizers that need no training: bytes, and the characters of a text. Their JSON is
// complete, so a checkpoint can be sampled from without the text that it was trained on.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/utf8.h"
#include "runtime/data/data.h"
#include "runtime/data/tokenizer/hf_tokenizer.h"

namespace mtl {

namespace {

using tokenizer::kFormat;
using tokenizer::kVersion;

[[noreturn]] void fail_id(int32_t id, size_t position, int64_t vocab_size) {
  fail_data("data.token",
            fmt::format("token id {} at position {} is outside the vocabulary of {}", id, position,
                        vocab_size),
            "decode with the tokenizer that the model was trained with");
}

[[noreturn]] void fail_utf8(const char* why, std::string_view text, size_t pos) {
  fail_data("data.utf8",
            fmt::format("invalid UTF-8 at byte offset {}: {} (0x{:02X})", pos, why,
                        static_cast<unsigned char>(text[pos])),
            "convert the text to UTF-8, or use data.tokenizer.type: bytes");
}

class ByteTokenizer : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 256; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids(text.size());
    std::transform(text.begin(), text.end(), ids.begin(),
                   [](char c) { return static_cast<unsigned char>(c); });
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text(ids.size(), '\0');
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] > 255) fail_id(ids[i], i, vocab_size());
      text[i] = static_cast<char>(ids[i]);
    }
    return text;
  }

  nlohmann::json to_json() const override {
    return {{"format", kFormat}, {"version", kVersion}, {"type", "bytes"}};
  }
};

class CharTokenizer : public Tokenizer {
 public:
  // `characters` is strictly ascending and not empty.
  explicit CharTokenizer(std::vector<char32_t> characters)
      : characters_(std::move(characters)), id_of_(characters_.back() + 1, -1) {
    for (size_t id = 0; id < characters_.size(); ++id) {
      id_of_[characters_[id]] = static_cast<int32_t>(id);
    }
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(characters_.size()); }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    for (size_t pos = 0; pos < text.size();) {
      const size_t start = pos;
      char32_t character = 0;
      if (const char* why = read_utf8(text, pos, character)) fail_utf8(why, text, pos);
      const int32_t id = character < id_of_.size() ? id_of_[character] : -1;
      if (id < 0) {
        fail_data(
            "data.token",
            fmt::format("character U+{:04X} '{}' at byte offset {} is not one of the {} "
                        "characters that the model knows",
                        static_cast<uint32_t>(character), text.substr(start, pos - start), start,
                        characters_.size()),
            "leave the character out; a model of bytes (data.tokenizer.type: bytes) spells any "
            "text");
      }
      ids.push_back(id);
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= vocab_size()) fail_id(ids[i], i, vocab_size());
      append_utf8(text, characters_[ids[i]]);
    }
    return text;
  }

  nlohmann::json to_json() const override {
    std::string characters;
    for (const char32_t character : characters_) append_utf8(characters, character);
    return {{"format", kFormat},
            {"version", kVersion},
            {"type", "chars"},
            {"characters", std::move(characters)}};
  }

 private:
  std::vector<char32_t> characters_;  // by id
  std::vector<int32_t> id_of_;        // by code point; -1 = unknown
};

[[noreturn]] void fail_json(const std::string& what) {
  fail_data("data.tokenizer", "not a tokenizer that mtl can read: " + what,
            "use the tokenizer.json that mtl wrote beside the run or into the checkpoint");
}

}  // namespace

namespace tokenizer {

std::unique_ptr<Tokenizer> chars_from_json(const nlohmann::json& json) {
  const auto found = json.find("characters");
  if (found == json.end() || !found->is_string()) fail_json("'characters' has to be a string");
  const auto& text = found->get_ref<const std::string&>();
  std::vector<char32_t> characters;
  for (size_t pos = 0; pos < text.size();) {
    char32_t character = 0;
    if (const char* why = read_utf8(text, pos, character)) {
      fail_json(fmt::format("'characters' is not UTF-8 at byte offset {}: {}", pos, why));
    }
    if (!characters.empty() && character <= characters.back()) {
      fail_json(fmt::format("'characters' is not in ascending order at U+{:04X}",
                            static_cast<uint32_t>(character)));
    }
    characters.push_back(character);
  }
  if (characters.empty()) fail_json("'characters' is empty");
  return std::make_unique<CharTokenizer>(std::move(characters));
}

}  // namespace tokenizer

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view text) {
  std::vector<bool> seen(0x110000);
  for (size_t pos = 0; pos < text.size();) {
    char32_t character = 0;
    if (const char* why = read_utf8(text, pos, character)) fail_utf8(why, text, pos);
    seen[character] = true;
  }
  std::vector<char32_t> characters;
  for (char32_t character = 0; character < seen.size(); ++character) {
    if (seen[character]) characters.push_back(character);
  }
  if (characters.empty()) {
    fail_data("data.empty", "a character vocabulary cannot be made from an empty text",
              "give a text with at least one character");
  }
  return std::make_unique<CharTokenizer>(std::move(characters));
}

}  // namespace mtl
