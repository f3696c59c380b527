// SentencePiece's own files, read by its library. Its ids, its normalization and its "▁" are the
// library's; nothing is added before or behind a text.
#include <mutex>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/data/tokenizer/hf_tokenizer.h"
#include "runtime/data/tokenizer/json_fields.h"
#include "runtime/data/tokenizer/unicode.h"

#ifdef MTL_SENTENCEPIECE
#include <sentencepiece_processor.h>
#endif

namespace mtl::tokenizer {

#ifdef MTL_SENTENCEPIECE

namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string to_base64(std::string_view bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t three = 0;
    for (size_t i = 0; i < 3; ++i) {
      three = three << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    }
    for (size_t i = 0; i < 4; ++i) {
      text += at + i <= bytes.size() ? kDigits[three >> (18 - 6 * i) & 0x3F] : '=';
    }
  }
  return text;
}

std::string from_base64(std::string_view text, const std::string& place) {
  std::string bytes;
  while (text.ends_with('=')) text.remove_suffix(1);
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) refuse(place, "is not base64");
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes += static_cast<char>(bits >> count & 0xFF);
    }
  }
  return bytes;
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model, const std::string& eod, const std::string& place)
      : model_(std::move(model)) {
    const auto status = processor_.LoadFromSerializedProto(model_);
    if (!status.ok()) {
      refuse(place, fmt::format("SentencePiece cannot read it: {}", status.ToString()));
    }
    if (!eod.empty()) {
      for (int id = 0; id < processor_.GetPieceSize() && !eod_; ++id) {
        if (processor_.IdToPiece(id) == eod) eod_ = id;
      }
      if (!eod_) {
        refuse(place,
               fmt::format("{}, which is to end documents, is not in the vocabulary", shown(eod)),
               "name a token of the vocabulary with data.tokenizer.eod");
      }
    } else if (processor_.eos_id() >= 0) {
      eod_ = processor_.eos_id();
    }
  }

  int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::optional<int32_t> eod() const override { return eod_; }

  std::vector<int32_t> encode(std::string_view text) const override {
    return encode(processor_, text);
  }

  // The library knows whole texts only. A space between two words is what its dummy prefix puts
  // before the second one, if that is all that stands there; anything else needs none.
  std::vector<int32_t> encode_part(std::string_view text, TextPart part) const override {
    if (part.begins && part.ends) return encode(text);
    std::call_once(parts_made_, [this] { make_parts(); });
    if (newline_is_space_ && !part.ends && text.ends_with('\n')) text.remove_suffix(1);
    if (part.begins) return encode(text);
    const bool space = text.starts_with(' ');
    if (space) text.remove_prefix(1);
    return encode(space || newline_is_space_ ? with_prefix_ : without_prefix_, text);
  }

  std::optional<SpecialToken> special(std::string_view name) const override {
    const int id = processor_.PieceToId({name.data(), name.size()});
    if (!processor_.IsControl(id)) return std::nullopt;
    return SpecialToken{.id = id};
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::vector<int> known(ids.begin(), ids.end());
    for (size_t i = 0; i < known.size(); ++i) {
      if (known[i] < 0 || known[i] >= vocab_size()) {
        throw Error(
            Exit::data,
            Diagnostic{
                .code = "data.token",
                .what = fmt::format("token id {} at position {} is outside the vocabulary of {}",
                                    known[i], i, vocab_size()),
                .help = "decode with the tokenizer that the model was trained with"});
      }
    }
    std::string text;
    const auto status = processor_.Decode(known, &text);
    if (!status.ok()) {
      throw Error(Exit::data, Diagnostic{.code = "data.token",
                                         .what = "SentencePiece: " + status.ToString(),
                                         .help = "decode with the tokenizer of the model"});
    }
    return text;
  }

  nlohmann::json to_json() const override {
    nlohmann::json json = {{"format", kFormat},
                           {"version", kVersion},
                           {"type", "sentencepiece"},
                           {"model", to_base64(model_)}};
    if (eod_) json["eod"] = processor_.IdToPiece(*eod_);
    return json;
  }

 private:
  using Processor = sentencepiece::SentencePieceProcessor;

  static std::vector<int32_t> encode(const Processor& processor, std::string_view text) {
    std::string buffer;
    text = whole_utf8(text, buffer);
    std::vector<int> ids;
    const auto status = processor.Encode({text.data(), text.size()}, &ids);
    if (!status.ok()) {
      throw Error(Exit::data, Diagnostic{.code = "data.token",
                                         .what = "SentencePiece: " + status.ToString(),
                                         .help = "look at the text with a smaller part of it"});
    }
    return ids;
  }

  // The model is a message of Protocol Buffers, in which a message that comes again is merged with
  // the one before: these bytes are normalizer_spec (3) with add_dummy_prefix (3).
  void make_parts() const {
    const auto load = [&](Processor& processor, char prefix) {
      const auto status =
          processor.LoadFromSerializedProto(model_ + std::string{'\x1A', 2, '\x18', prefix});
      if (!status.ok()) {
        refuse("the tokenizer",
               fmt::format("SentencePiece cannot read its model again: {}", status.ToString()));
      }
    };
    load(with_prefix_, 1);
    load(without_prefix_, 0);
    newline_is_space_ = encode("a\nb") == encode("a b");
  }

  const std::string model_;
  Processor processor_;
  // For texts in parts, made when there is the first one.
  mutable std::once_flag parts_made_;
  mutable Processor with_prefix_, without_prefix_;
  mutable bool newline_is_space_ = false;
  std::optional<int32_t> eod_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string model, const std::string& eod,
                                                        const std::string& place) {
  return std::make_unique<SentencePieceTokenizer>(std::move(model), eod, place);
}

std::unique_ptr<Tokenizer> sentencepiece_from_json(const nlohmann::json& json) {
  const std::string place = "the tokenizer";
  return make_sentencepiece_tokenizer(from_base64(string_member(json, "model", place), "'model'"),
                                      string_member(json, "eod", place, ""), place);
}

#else

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string, const std::string&,
                                                        const std::string& place) {
  refuse(place, "this mtl was built without SentencePiece",
         "build it where libsentencepiece-dev is installed, or convert the tokenizer to "
         "tokenizer.json");
}

std::unique_ptr<Tokenizer> sentencepiece_from_json(const nlohmann::json&) {
  return make_sentencepiece_tokenizer("", "", "the tokenizer");
}

#endif

}  // namespace mtl::tokenizer
