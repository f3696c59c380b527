// A unit of text becomes tokens: what the worker threads of `mtl data tokenize` do, one encoder
// each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/chat/encoder.h"
#include "runtime/data/data.h"
#include "runtime/data/indexed_dataset.h"
#include "runtime/data/text_units.h"

namespace mtl {

struct EncodeOptions {
  std::vector<std::string> json_keys = {"text"};
  bool append_eod = false;  // the tokenizer has one then
  TokenType type = TokenType::u16;
  // Lines are conversations: two outputs, the tokens and, as u8, whether each is to be learned.
  const chat::Encoder* chat = nullptr;

  size_t outputs() const { return chat != nullptr ? 2 : json_keys.size(); }
  TokenType type_of(size_t output) const {
    return chat != nullptr && output == 1 ? TokenType::u8 : type;
  }
};

// The documents of a unit for one output.
struct EncodedTexts {
  std::vector<std::byte> tokens;         // as in the .bin
  std::vector<int64_t> lengths;          // tokens of each sequence
  std::vector<int64_t> sequence_counts;  // of each document
};

struct EncodedUnit {
  std::vector<EncodedTexts> keys;  // as the outputs of the options; one for plain text
  std::vector<BadLine> bad;        // in the order of the lines
  int64_t blank_lines = 0;
  int64_t forced_cuts = 0;
  int64_t learned_tokens = 0;  // of conversations
};

class UnitEncoder {
 public:
  UnitEncoder(const Tokenizer& tokenizer, const EncodeOptions& options);
  ~UnitEncoder();
  EncodedUnit encode(const TextUnit& unit);

 private:
  struct Json;
  void json_line(const char* line, size_t size, EncodedUnit& out);
  void add_conversation(const std::vector<chat::Message>& messages, EncodedUnit& out);
  void add_text(std::string_view text, EncodedTexts& out, EncodedUnit& unit);
  void add_piece(std::string_view text, TextPart part, EncodedTexts& out);
  void end_document(EncodedTexts& out);

  const Tokenizer& tokenizer_;
  const EncodeOptions& options_;
  std::unique_ptr<Json> json_;
  int64_t open_sequences_ = 0;  // of the document that is being made
};

}  // namespace mtl
