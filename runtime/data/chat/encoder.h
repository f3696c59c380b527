// Conversations become tokens, and of each token whether a model is to learn it: what an assistant
// says and how it ends count, all else is what it reads.
//
// What people say is text, whatever it looks like: "<|im_end|>" in a message is those characters
// and ends nothing. Text between two added tokens of a format is encoded as one, as Hugging Face's
// apply_chat_template and tokenizers do it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/chat/format.h"
#include "runtime/data/data.h"

namespace mtl::chat {

struct Message {
  std::string role;
  std::string content;
  bool learn = true;  // of an assistant's; other messages never count
};

struct Encoded {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learn;  // 1: the token counts as a target
};

class Encoder {
 public:
  // Both outlive it. Throws Error (Exit::data) data.chat if the tokenizer lacks a token of the
  // format, naming the formats whose tokens it has, and if the format has one of its tokens as
  // text.
  Encoder(const Format& format, const Tokenizer& tokenizer);
  // Throws Error (Exit::data) data.chat for a role that the format has not, and for a `system` that
  // is not first or has no user behind it where the format puts it there; data.token.
  Encoded encode(std::span<const Message> messages) const;
  // Up to where an assistant begins to speak.
  std::vector<int32_t> prompt(std::span<const Message> messages) const;
  // The token that ends what an assistant says, if the format has one there.
  std::optional<int32_t> end() const { return end_; }
  const Format& format() const { return format_; }

 private:
  struct Part {
    Piece::Kind kind = Piece::Kind::text;
    std::string text;
    SpecialToken token;
  };
  using Parts = std::vector<Part>;
  class Writer;
  Parts parts_of(const Pieces& pieces);
  void write(std::span<const Message> messages, Writer& writer) const;

  const Format& format_;
  const Tokenizer& tokenizer_;
  Parts begin_;
  std::map<std::string, Parts> roles_;
  std::vector<std::string> typed_;  // tokens of the format that the tokenizer finds in any text
  std::optional<int32_t> end_;
};

}  // namespace mtl::chat
