// A text cut into units of work: whole lines, or pieces of a document that is larger than memory
// should be.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/text_input.h"

namespace mtl {

constexpr size_t kUnitBytes = size_t{256} << 10;     // of lines, about
constexpr size_t kTextPieceBytes = size_t{1} << 20;  // of a document that is encoded in pieces
constexpr size_t kLongestLine = size_t{16} << 20;    // of JSON Lines: it must be in memory whole
constexpr size_t kTextPadding = 64;                  // readable bytes behind the text of a unit

struct BadLine {
  int64_t line = 0;
  std::string what;
};

struct TextUnit {
  enum class Kind { json_lines, text_lines, piece };
  Kind kind = Kind::json_lines;
  std::string text;        // with a capacity of kTextPadding more
  int64_t first_line = 1;  // of the file
  // Of a piece: whether the document begins and ends with it.
  bool begins_document = false;
  bool ends_document = false;
  bool forced_cut = false;   // a piece that ends where a tokenizer might not have ended a word
  std::vector<BadLine> bad;  // lines that were too long to be kept, or a file
  // Of the file, behind this unit: where to go on after an interruption.
  int64_t end_offset = 0;
  int64_t end_line = 1;
  int64_t file_position = 0;  // bytes of the file used so far
};

struct CutOptions {
  bool lines_are_documents = false;  // of plain text
};

// Where at most `most` bytes of `text`, which is longer, may be cut so that the tokenizers of the
// GPT-2, Llama and Qwen kind give the same ids for the parts as for the whole: before a space or
// behind a line end, with something else on both sides, or before a \r\n behind a letter or
// number. Without such a place in the last quarter it is between two characters, and `forced`
// becomes true.
size_t cut_point(std::string_view text, size_t most, bool& forced);

class UnitCutter {
 public:
  // Where an earlier cutter was behind one of its units.
  struct Start {
    int64_t offset = 0;
    int64_t line = 1;
    bool inside_document = false;  // behind a piece that did not end it
  };
  UnitCutter(const TextInput& input, const CutOptions& options, const Start& start);
  // False at the end of the file.
  bool next(TextUnit& unit);

 private:
  bool fill(size_t wanted);  // false if the file ends before
  bool next_lines(TextUnit& unit);
  bool next_piece(TextUnit& unit);
  bool skip_long_line(TextUnit& unit);
  bool skip_file(TextUnit& unit);
  void take(size_t bytes, TextUnit& unit);

  TextFormat format_;
  CutOptions options_;
  std::unique_ptr<TextReader> reader_;
  std::string pending_;
  size_t used_ = 0;  // of pending_
  bool at_end_ = false;
  std::string no_text_;           // why the file is passed over as a whole; empty: it is not
  bool piece_open_ = false;       // a line of text that is too long for a unit
  bool inside_document_ = false;  // the next piece goes on with the one before
  bool done_ = false;
  int64_t offset_ = 0;
  int64_t line_ = 1;
};

}  // namespace mtl
