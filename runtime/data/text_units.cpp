#include "runtime/data/text_units.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/utf8.h"
#include "runtime/data/tokenizer/unicode.h"

namespace mtl {

namespace {

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

// The character that begins at `at`; a space where there is none.
char32_t character_at(std::string_view text, size_t at) {
  char32_t code = 0;
  return read_utf8(text, at, code) == nullptr ? code : U' ';
}
char32_t character_before(std::string_view text, size_t end) {
  const size_t at = previous_character(text, end);
  return at + utf8_length(text, at) == end ? character_at(text, at) : U' ';
}
bool is_visible(char32_t code) {
  return !tokenizer::is_white_space(code);
}
bool is_letter_or_number(char32_t code) {
  const tokenizer::CharClass kind = tokenizer::CharClasses::get().of(code);
  return kind == tokenizer::kLetter || kind == tokenizer::kNumber;
}

}  // namespace

size_t cut_point(std::string_view text, size_t most, bool& forced) {
  const size_t least = most - most / 4;
  // A space first: there are vocabularies with words behind a line end in one token.
  for (size_t at = most - 1; at > least; --at) {
    if (text[at] == ' ' && is_visible(character_before(text, at)) &&
        is_visible(character_at(text, at + 1))) {
      return at;
    }
  }
  for (size_t at = most; at > least; --at) {
    if (text[at - 1] == '\n' && is_visible(character_before(text, at - 1)) &&
        is_visible(character_at(text, at))) {
      return at;
    }
    // Behind \r\n there are patterns that cut the two apart where nothing follows; and before it
    // others that take it into a token with what is no letter.
    if (text[at - 1] == '\r' && text[at] == '\n' &&
        is_letter_or_number(character_before(text, at - 1))) {
      return at - 1;
    }
  }
  forced = true;
  size_t at = most;
  // No character is longer than four bytes; what is not UTF-8 has no characters.
  while (at > most - 4 && continues_character(text[at])) --at;
  return continues_character(text[at]) ? most : at;
}

UnitCutter::UnitCutter(const TextInput& input, const CutOptions& options, const Start& start)
    : format_(input.format),
      options_(options),
      reader_(open_text(input, start.offset)),
      piece_open_(options.lines_are_documents && start.inside_document),
      inside_document_(start.inside_document),
      offset_(start.offset),
      line_(start.line) {
  fill(3);
  // A byte order mark is not text.
  if (start.offset == 0 && pending_.starts_with("\xEF\xBB\xBF")) {
    used_ = 3;
    offset_ = 3;
  }
  // Any bytes have tokens, and nobody wants those of what is no text.
  if (start.offset <= 3 && format_ == TextFormat::text && !input.as_is) {
    fill(kBeginBytes);
    no_text_ = no_text(pending_);
  }
}

bool UnitCutter::fill(size_t wanted) {
  while (pending_.size() - used_ < wanted && !at_end_) {
    if (used_ > 0) {
      pending_.erase(0, used_);
      used_ = 0;
    }
    const size_t before = pending_.size();
    pending_.resize(before + kUnitBytes);
    const size_t got = reader_->read(pending_.data() + before, kUnitBytes);
    pending_.resize(before + got);
    at_end_ = got == 0;
  }
  return pending_.size() - used_ >= wanted;
}

void UnitCutter::take(size_t bytes, TextUnit& unit) {
  unit.first_line = line_;
  unit.text.reserve(bytes + kTextPadding);
  unit.text.assign(pending_, used_, bytes);
  used_ += bytes;
  offset_ += static_cast<int64_t>(bytes);
  line_ += std::count(unit.text.begin(), unit.text.end(), '\n');
  // After a line of 16 MiB the buffer becomes small again.
  if (used_ == pending_.size() && pending_.capacity() > 4 * kTextPieceBytes) {
    std::string().swap(pending_);
    used_ = 0;
  }
}

bool UnitCutter::next(TextUnit& unit) {
  unit = TextUnit();
  if (done_) return false;
  const bool lines = format_ == TextFormat::jsonl || options_.lines_are_documents;
  const bool any = !no_text_.empty()       ? skip_file(unit)
                   : lines && !piece_open_ ? next_lines(unit)
                                           : next_piece(unit);
  if (unit.kind == TextUnit::Kind::piece) {
    unit.begins_document = !inside_document_;
    inside_document_ = !unit.ends_document;
  }
  unit.end_offset = offset_;
  unit.end_line = line_;
  unit.file_position = reader_->position();
  return any;
}

bool UnitCutter::next_lines(TextUnit& unit) {
  const bool json = format_ == TextFormat::jsonl;
  unit.kind = json ? TextUnit::Kind::json_lines : TextUnit::Kind::text_lines;
  const size_t longest = json ? kLongestLine : kTextPieceBytes;
  fill(kUnitBytes);
  if (pending_.size() == used_) {
    done_ = true;
    return false;
  }
  const std::string_view head = std::string_view(pending_).substr(used_, kUnitBytes);
  if (const size_t end = head.rfind('\n'); end != std::string_view::npos) {
    take(end + 1, unit);
    return true;
  }
  // One line is longer than a unit.
  for (size_t searched = head.size();;) {
    const size_t end = pending_.find('\n', used_ + searched);
    if (end != std::string::npos && end - used_ < longest) {
      take(end + 1 - used_, unit);
      return true;
    }
    const size_t have = pending_.size() - used_;
    if (have > longest) break;
    searched = have;
    if (!fill(have + 1)) {
      take(have, unit);
      return true;
    }
  }
  if (json) return skip_long_line(unit);
  piece_open_ = true;
  return next_piece(unit);
}

bool UnitCutter::skip_long_line(TextUnit& unit) {
  int64_t bytes = 0;
  while (true) {
    const size_t end = pending_.find('\n', used_);
    const size_t count = (end == std::string::npos ? pending_.size() : end + 1) - used_;
    used_ += count;
    bytes += static_cast<int64_t>(count);
    if (end != std::string::npos || !fill(1)) break;
  }
  unit.bad.push_back(
      {line_, fmt::format("a line of {} bytes; mtl keeps whole lines in memory up to {}", bytes,
                          kLongestLine)});
  offset_ += bytes;
  ++line_;
  return true;
}

bool UnitCutter::skip_file(TextUnit& unit) {
  unit.kind = TextUnit::Kind::text_lines;
  unit.bad.push_back(
      {1, fmt::format("the file {}; --format text takes its bytes as they are", no_text_)});
  done_ = true;
  return true;
}

bool UnitCutter::next_piece(TextUnit& unit) {
  unit.kind = TextUnit::Kind::piece;
  // One byte more says whether this is the last piece, one more what follows a cut.
  const bool longer = fill(kTextPieceBytes + 2);
  std::string_view head = std::string_view(pending_).substr(used_);
  if (piece_open_) {
    // A long line: up to its end, if that is in sight.
    const size_t end = head.find('\n');
    if (end != std::string_view::npos) {
      take(end + 1, unit);
      unit.text.pop_back();
      if (!unit.text.empty() && unit.text.back() == '\r') unit.text.pop_back();
      unit.ends_document = true;
      piece_open_ = false;
      return true;
    }
  }
  if (!longer) {
    take(head.size(), unit);
    unit.ends_document = true;
    done_ = true;
    return true;
  }
  take(cut_point(head, kTextPieceBytes, unit.forced_cut), unit);
  return true;
}

}  // namespace mtl
