#include "runtime/data/tokenizer/decoder.h"

#include <charconv>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/data/tokenizer/byte_alphabet.h"
#include "runtime/data/tokenizer/json_fields.h"
#include "runtime/data/tokenizer/normalizer.h"
#include "runtime/data/tokenizer/unicode.h"

namespace mtl::tokenizer {

namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

// Bytes come back as they are: what is no UTF-8 by itself may be whole with the next token.
class ByteLevel : public Decoder {
  void apply(std::vector<TokenText>& tokens) const override {
    for (TokenText& token : tokens) {
      if (token.added) continue;
      if (auto bytes = from_byte_characters(token.text)) token.text = std::move(*bytes);
    }
  }
};

// "<0x41>" is the byte 0x41; bytes in a row that are no text are one U+FFFD each.
class ByteFallback : public Decoder {
  void apply(std::vector<TokenText>& tokens) const override {
    std::vector<TokenText> out;
    std::string bytes, buffer;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (whole_utf8(bytes, buffer).data() == bytes.data()) {
        out.push_back({bytes});
      } else {
        out.resize(out.size() + bytes.size(), {"\xEF\xBF\xBD"});
      }
      bytes.clear();
    };
    for (TokenText& token : tokens) {
      const std::string& text = token.text;
      unsigned byte = 0;
      const bool is_byte =
          text.size() == 6 && text.starts_with("<0x") && text.ends_with('>') &&
          std::from_chars(text.data() + 3, text.data() + 5, byte, 16).ptr == text.data() + 5;
      if (is_byte) {
        bytes += static_cast<char>(byte);
      } else {
        flush();
        out.push_back(std::move(token));
      }
    }
    flush();
    tokens = std::move(out);
  }
};

class Fuse : public Decoder {
  void apply(std::vector<TokenText>& tokens) const override {
    TokenText all;
    for (const TokenText& token : tokens) all.text += token.text;
    tokens = {std::move(all)};
  }
};

// Takes up to `start` characters `content` from the front, and up to `stop` from the back.
class StripDecoder : public Decoder {
 public:
  StripDecoder(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void apply(std::vector<TokenText>& tokens) const override {
    for (TokenText& token : tokens) {
      std::string_view text = token.text;
      for (int64_t i = 0; i < start_ && text.starts_with(content_); ++i) {
        text.remove_prefix(content_.size());
      }
      for (int64_t i = 0; i < stop_ && text.ends_with(content_); ++i) {
        text.remove_suffix(content_.size());
      }
      token.text = std::string(text);
    }
  }

 private:
  const std::string content_;
  const int64_t start_, stop_;
};

class Replace : public Decoder {
 public:
  explicit Replace(std::unique_ptr<Normalizer> replace) : replace_(std::move(replace)) {}
  void apply(std::vector<TokenText>& tokens) const override {
    std::string buffer;
    for (TokenText& token : tokens) {
      token.text = std::string(whole_utf8(token.text, buffer));
      replace_->apply(token.text);
    }
  }

 private:
  const std::unique_ptr<Normalizer> replace_;
};

class MetaspaceDecoder : public Decoder {
 public:
  MetaspaceDecoder(std::string replacement, bool prepends)
      : replacement_(std::move(replacement)), prepends_(prepends) {}
  void apply(std::vector<TokenText>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      replace_all(tokens[i].text, replacement_, i == 0 && prepends_ ? "" : " ");
    }
  }

 private:
  const std::string replacement_;
  const bool prepends_;
};

class BpeSuffix : public Decoder {
 public:
  explicit BpeSuffix(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(std::vector<TokenText>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      replace_all(tokens[i].text, suffix_, i + 1 == tokens.size() ? "" : " ");
    }
  }

 private:
  const std::string suffix_;
};

class SequenceDecoder : public Decoder {
 public:
  explicit SequenceDecoder(std::vector<std::unique_ptr<Decoder>> steps)
      : steps_(std::move(steps)) {}
  void apply(std::vector<TokenText>& tokens) const override {
    for (const auto& step : steps_) step->apply(tokens);
  }

 private:
  const std::vector<std::unique_ptr<Decoder>> steps_;
};

class Spaces : public Decoder {
  void apply(std::vector<TokenText>& tokens) const override {
    for (size_t i = 1; i < tokens.size(); ++i) tokens[i].text.insert(tokens[i].text.begin(), ' ');
  }
};

}  // namespace

std::unique_ptr<Decoder> make_decoder(const nlohmann::json* json, const std::string& place) {
  if (json == nullptr || json->is_null()) return std::make_unique<Spaces>();
  const std::string& type = string_member(*json, "type", place);
  if (type == "ByteLevel") return std::make_unique<ByteLevel>();
  if (type == "ByteFallback") return std::make_unique<ByteFallback>();
  if (type == "Fuse") return std::make_unique<Fuse>();
  if (type == "Strip") {
    const std::string& content = string_member(*json, "content", place);
    if (content.empty() || read_character(content.data()).bytes != content.size()) {
      refuse(place, fmt::format("'content' has to be one character, not {}", shown(content)));
    }
    constexpr int64_t kMost = 1 << 20;
    return std::make_unique<StripDecoder>(content, size_member(*json, "start", place, kMost),
                                          size_member(*json, "stop", place, kMost));
  }
  if (type == "Replace") return std::make_unique<Replace>(make_normalizer(json, place));
  if (type == "Metaspace") {
    const bool prepends = optional_member(*json, "prepend_scheme")
                              ? string_member(*json, "prepend_scheme", place) != "never"
                              : bool_member(*json, "add_prefix_space", place, true);
    return std::make_unique<MetaspaceDecoder>(string_member(*json, "replacement", place), prepends);
  }
  if (type == "BPEDecoder") {
    return std::make_unique<BpeSuffix>(string_member(*json, "suffix", place, "</w>"));
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Decoder>> steps;
    for (const nlohmann::json& step : list_member(*json, "decoders", place)) {
      const std::string here = fmt::format("{}.decoders[{}]", place, steps.size());
      if (step.is_null()) refuse(here, "is null");
      steps.push_back(make_decoder(&step, here));
    }
    return std::make_unique<SequenceDecoder>(std::move(steps));
  }
  refuse(place, fmt::format("the decoder {} is not one that mtl has", shown(type)),
         "mtl has ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, BPEDecoder and "
         "Sequence");
}

}  // namespace mtl::tokenizer
