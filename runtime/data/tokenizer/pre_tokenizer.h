// The pre-tokenizers of tokenizer.json: how a text is cut into the pieces that BPE works on.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/data/tokenizer/scan.h"

namespace mtl::tokenizer {

// Where a piece begins: with the whole text, somewhere behind, or where an earlier part of a text
// that is encoded in parts has ended, as if nothing lay between.
enum class Begins : uint8_t { text, behind, goes_on };

struct Piece {
  std::string_view text = {};
  Begins begins = Begins::behind;
  // From `begin` to `end`.
  Piece part(size_t begin, size_t end) const {
    return {text.substr(begin, end - begin), begin == 0 ? begins : Begins::behind};
  }
};

// The pieces of one text at a time, and the texts that exist nowhere else.
struct Pieces {
  std::vector<Piece> now, before;
  std::deque<std::string> texts;
};

class PreTokenizer {
 public:
  // Null stands for none: the text is one piece. Throws Error data.tokenizer.
  PreTokenizer(const nlohmann::json* json, const std::string& place);
  ~PreTokenizer();

  // The vocabulary spells bytes, not characters.
  bool byte_level() const { return byte_level_; }
  // What cuts the text if it is one scanner and nothing else; else null.
  Scanner only_scanner() const { return only_scanner_; }
  // The result is in pieces.now, and points into text.text and pieces.texts.
  void split(const Piece& text, Pieces& pieces) const;

  class Step;

 private:
  void add(const nlohmann::json& json, const std::string& place, int depth);

  std::vector<std::unique_ptr<Step>> steps_;
  bool byte_level_ = false;
  Scanner only_scanner_ = nullptr;
};

}  // namespace mtl::tokenizer
