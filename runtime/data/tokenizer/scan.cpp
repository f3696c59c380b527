// Each alternative of the patterns begins with characters of other classes, or is told apart by the
// next one, so that one look at one or two characters chooses the alternative, and the rest is
// running to the end of a class. Runs of spaces are the only place where the expressions step back.
#include "runtime/data/tokenizer/scan.h"

#include "runtime/data/tokenizer/unicode.h"

namespace mtl::tokenizer {

namespace {

// A text and the classes of its characters.
struct Reader {
  const CharClasses& classes;
  const char* text;
  size_t end;

  explicit Reader(std::string_view all)
      : classes(CharClasses::get()), text(all.data()), end(all.size()) {}

  unsigned char byte(size_t at) const { return static_cast<unsigned char>(text[at]); }

  // The class of the character at `at` < end; moves `at` behind it.
  CharClass next(size_t& at) const {
    if (byte(at) < 0x80) return classes.of_ascii(byte(at++));
    const Character character = read_character(text + at);
    at += character.bytes;
    return classes.of(character.code);
  }

  // Behind the characters of this class.
  size_t run(CharClass wanted, size_t at) const {
    while (at < end) {
      size_t after = at;
      if (next(after) != wanted) break;
      at = after;
    }
    return at;
  }
};

// Behind the contraction that begins with the apostrophe at `at`; 0 if there is none.
template <bool any_case>
size_t contraction(const Reader& reader, size_t at) {
  const auto letter = [&](size_t i) -> unsigned char {
    if (i >= reader.end) return 0;
    const unsigned char c = reader.byte(i);
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<unsigned char>(c | 0x20) : c;
  };
  switch (letter(at + 1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return at + 2;
    case 'r':
    case 'v':
      return letter(at + 2) == 'e' ? at + 3 : 0;
    case 'l':
      return letter(at + 2) == 'l' ? at + 3 : 0;
    case 0xC5:  // U+017F, the long s, is a lower-case S
      return any_case && letter(at + 2) == 0xBF ? at + 3 : 0;
    default:
      return 0;
  }
}

// The pieces of white space that begin at `begin`: `\s+(?!\S)|\s+` leaves the last one to what
// follows. `newlines`: `\s*[\r\n]+` comes first.
template <bool newlines>
size_t space(const Reader& reader, size_t begin) {
  size_t at = begin, last = begin, behind_newline = 0;
  while (at < reader.end) {
    size_t after = at;
    const CharClass found = reader.next(after);
    if (found != kSpace && found != kNewline) break;
    last = at;
    at = after;
    if (found == kNewline) behind_newline = at;
  }
  if (newlines && behind_newline != 0) return behind_newline;
  return at == reader.end || last == begin ? at : last;
}

size_t scan_gpt2(std::string_view text, size_t begin) {
  const Reader reader(text);
  if (text[begin] == '\'') {
    if (const size_t end = contraction<false>(reader, begin)) return end;
  }
  size_t at = begin;
  CharClass first = reader.next(at);
  if (text[begin] == ' ' && at < reader.end) {
    size_t after = at;
    const CharClass second = reader.next(after);
    if (second != kSpace && second != kNewline) {
      first = second;
      at = after;
    }
  }
  if (first == kSpace || first == kNewline) return space<false>(reader, begin);
  return reader.run(first, at);
}

template <int max_digits>
size_t scan_llama(std::string_view text, size_t begin) {
  const Reader reader(text);
  if (text[begin] == '\'') {
    if (const size_t end = contraction<true>(reader, begin)) return end;
  }
  size_t at = begin;
  const CharClass first = reader.next(at);
  if (first == kLetter) return reader.run(kLetter, at);
  if (first == kNumber) {
    for (int digits = 1; digits < max_digits && at < reader.end; ++digits) {
      size_t after = at;
      if (reader.next(after) != kNumber) break;
      at = after;
    }
    return at;
  }
  CharClass second = kSpace;
  size_t after = at;
  if (at < reader.end) second = reader.next(after);
  if (first != kNewline && second == kLetter) return reader.run(kLetter, after);
  if (first == kOther || (text[begin] == ' ' && second == kOther)) {
    at = reader.run(kOther, at);
    while (at < reader.end && (text[at] == '\r' || text[at] == '\n')) ++at;
    return at;
  }
  return space<true>(reader, begin);
}

}  // namespace

Scanner scanner_of(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return scan_gpt2;
  if (pattern == kLlama3Pattern) return scan_llama<3>;
  if (pattern == kQwen2Pattern) return scan_llama<1>;
  return nullptr;
}

}  // namespace mtl::tokenizer
