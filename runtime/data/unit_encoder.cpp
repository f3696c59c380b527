// What counts as a document is what Megatron's preprocess_data.py makes of it: a text is one
// sequence, a list of texts one sequence each, texts without tokens none, and an end-of-document
// token follows the last sequence of a document that has one.
#include "runtime/data/unit_encoder.h"

#include <algorithm>
#include <array>
#include <new>
#include <simdjson.h>

#include <fmt/format.h>

#include "common/error.h"
#include "runtime/data/chat/messages.h"

namespace mtl {

namespace {

// simdjson reads this far behind a line.
static_assert(simdjson::SIMDJSON_PADDING <= kTextPadding);

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// Of a file that is one list, perhaps over many lines.
constexpr const char* kList =
    "a list, and JSON Lines have one object in each line (jq -c '.[]' FILE makes them of it)";
bool is_list(const char* line, size_t size) {
  const std::string_view text(line, size);
  const size_t first = text.find_first_not_of(" \t");
  return first != text.npos && text[first] == '[';
}

// A line that cannot be used; what() is why.
struct Refused {
  std::string what;
};

}  // namespace

struct UnitEncoder::Json {
  simdjson::dom::parser parser;
  std::vector<simdjson::dom::element> values;  // of the keys, in their order
  std::vector<bool> found;
};

UnitEncoder::UnitEncoder(const Tokenizer& tokenizer, const EncodeOptions& options)
    : tokenizer_(tokenizer), options_(options), json_(std::make_unique<Json>()) {
  // For most lines once and for all.
  if (json_->parser.allocate(kUnitBytes)) throw std::bad_alloc();
}

UnitEncoder::~UnitEncoder() = default;

void UnitEncoder::add_piece(std::string_view text, TextPart part, EncodedTexts& out) {
  const std::vector<int32_t> ids = tokenizer_.encode_part(text, part);
  const size_t before = out.tokens.size();
  out.tokens.resize(before + ids.size() * static_cast<size_t>(bytes_of(options_.type)));
  if (!store_tokens(options_.type, ids, out.tokens.data() + before)) {
    throw Refused{"the tokenizer gives an id outside its own vocabulary"};
  }
  out.lengths.back() += static_cast<int64_t>(ids.size());
}

void UnitEncoder::add_text(std::string_view text, EncodedTexts& out, EncodedUnit& unit) {
  out.lengths.push_back(0);
  // Of a long text the ids of all of it would take several times its memory.
  TextPart part;
  while (text.size() > kTextPieceBytes + 1) {
    bool forced = false;
    const size_t cut = cut_point(text, kTextPieceBytes, forced);
    unit.forced_cuts += forced;
    part.ends = false;
    add_piece(text.substr(0, cut), part, out);
    text.remove_prefix(cut);
    part = {.begins = false};
  }
  add_piece(text, part, out);
  if (out.lengths.back() == 0) {
    out.lengths.pop_back();
  } else {
    ++open_sequences_;
  }
}

void UnitEncoder::end_document(EncodedTexts& out) {
  if (open_sequences_ > 0 && options_.append_eod) {
    const int32_t eod = *tokenizer_.eod();
    const size_t before = out.tokens.size();
    out.tokens.resize(before + static_cast<size_t>(bytes_of(options_.type)));
    store_tokens(options_.type, {&eod, 1}, out.tokens.data() + before);
    ++out.lengths.back();
  }
  out.sequence_counts.push_back(open_sequences_);
  open_sequences_ = 0;
}

void UnitEncoder::add_conversation(const std::vector<chat::Message>& messages, EncodedUnit& out) {
  const chat::Encoded encoded = options_.chat->encode(messages);
  const std::vector<int32_t> learn(encoded.learn.begin(), encoded.learn.end());
  const int64_t learned = std::count(learn.begin(), learn.end(), 1);
  if (learned == 0) {
    throw Refused{
        "there is nothing to learn in it: no 'assistant' speaks, or each has a weight of 0"};
  }
  for (size_t k = 0; k < out.keys.size(); ++k) {
    EncodedTexts& texts = out.keys[k];
    const std::vector<int32_t>& values = k == 0 ? encoded.ids : learn;
    const size_t before = texts.tokens.size();
    const TokenType type = options_.type_of(k);
    texts.tokens.resize(before + values.size() * static_cast<size_t>(bytes_of(type)));
    if (!store_tokens(type, values, texts.tokens.data() + before)) {
      throw Refused{"the tokenizer gives an id outside its own vocabulary"};
    }
    texts.lengths.push_back(std::ssize(values));
    texts.sequence_counts.push_back(1);
  }
  out.learned_tokens += learned;
}

void UnitEncoder::json_line(const char* line, size_t size, EncodedUnit& out) {
  using simdjson::dom::element_type;
  simdjson::dom::element root;
  // The text has the padding that the parser wants, so nothing is copied.
  if (const auto error = json_->parser.parse(line, size, false).get(root)) {
    if (is_list(line, size)) throw Refused{kList};
    throw Refused{fmt::format("not JSON: {}", simdjson::error_message(error))};
  }
  simdjson::dom::object object;
  if (root.get_object().get(object)) {
    throw Refused{is_list(line, size) ? kList : "not a JSON object"};
  }
  if (options_.chat != nullptr) return add_conversation(chat::messages_of(object), out);
  json_->values.assign(options_.json_keys.size(), {});
  json_->found.assign(options_.json_keys.size(), false);
  std::string known;
  for (const auto field : object) {
    if (known.size() < 100) known += fmt::format("{}'{}'", known.empty() ? "" : ", ", field.key);
    for (size_t k = 0; k < options_.json_keys.size(); ++k) {
      if (field.key != options_.json_keys[k]) continue;
      // Of a key that is there twice the last one counts, as in Python.
      json_->values[k] = field.value;
      json_->found[k] = true;
    }
  }
  for (size_t k = 0; k < options_.json_keys.size(); ++k) {
    const std::string& key = options_.json_keys[k];
    if (!json_->found[k]) {
      throw Refused{fmt::format("there is no '{}' among its keys: {}{}", key,
                                known.empty() ? "it has none" : known,
                                known.empty() ? "" : "; --json_keys names the one with the text")};
    }
    const simdjson::dom::element value = json_->values[k];
    if (value.is_string()) {
      add_text(value.get_string().value_unsafe(), out.keys[k], out);
    } else if (value.is_array()) {
      simdjson::dom::array sentences;
      if (value.get_array().get(sentences)) throw Refused{"not JSON"};
      for (const simdjson::dom::element sentence : sentences) {
        if (!sentence.is_string()) {
          throw Refused{fmt::format("an element of '{}' is not a string", key)};
        }
        add_text(sentence.get_string().value_unsafe(), out.keys[k], out);
      }
    } else {
      throw Refused{fmt::format("'{}' is neither a string nor a list of strings", key)};
    }
    end_document(out.keys[k]);
  }
}

EncodedUnit UnitEncoder::encode(const TextUnit& unit) {
  EncodedUnit out;
  out.bad = unit.bad;
  out.forced_cuts = unit.forced_cut;
  const bool as_json = unit.kind == TextUnit::Kind::json_lines;
  out.keys.resize(as_json ? options_.outputs() : 1);
  if (unit.kind == TextUnit::Kind::piece) {
    out.keys[0].lengths.push_back(0);
    try {
      add_piece(unit.text, {.begins = unit.begins_document, .ends = unit.ends_document},
                out.keys[0]);
    } catch (const Refused& refused) {
      out.bad.push_back({unit.first_line, refused.what});
    } catch (const Error& error) {
      out.bad.push_back({unit.first_line, error.diagnostics().front().what});
    }
    return out;
  }
  int64_t number = unit.first_line;
  // What a line had added before it turned out to be bad is taken back.
  std::vector<std::array<size_t, 3>> sizes(out.keys.size());
  for (size_t begin = 0; begin < unit.text.size(); ++number) {
    const size_t newline = unit.text.find('\n', begin);
    const size_t end = newline == std::string::npos ? unit.text.size() : newline;
    std::string_view line(unit.text.data() + begin, end - begin);
    begin = end + 1;
    if (is_blank(line)) {
      ++out.blank_lines;
      continue;
    }
    for (size_t k = 0; k < out.keys.size(); ++k) {
      const EncodedTexts& texts = out.keys[k];
      sizes[k] = {texts.tokens.size(), texts.lengths.size(), texts.sequence_counts.size()};
    }
    std::string what;
    try {
      if (as_json) {
        json_line(line.data(), line.size(), out);
      } else {
        if (line.ends_with('\r')) line.remove_suffix(1);
        add_text(line, out.keys[0], out);
        end_document(out.keys[0]);
      }
      continue;
    } catch (const Refused& refused) {
      what = refused.what;
    } catch (const Error& error) {
      what = error.diagnostics().front().what;
    }
    out.bad.push_back({number, what});
    open_sequences_ = 0;
    for (size_t k = 0; k < out.keys.size(); ++k) {
      out.keys[k].tokens.resize(sizes[k][0]);
      out.keys[k].lengths.resize(sizes[k][1]);
      out.keys[k].sequence_counts.resize(sizes[k][2]);
    }
  }
  if (json_->parser.capacity() > 4 * kUnitBytes) {
    // After a line of 16 MiB, not every thread keeps memory for the next one.
    json_ = std::make_unique<Json>();
    if (json_->parser.allocate(kUnitBytes)) throw std::bad_alloc();
  }
  return out;
}

}  // namespace mtl
