// What tokenizers ask about characters. Texts here are valid UTF-8: whole_utf8() comes first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mtl::tokenizer {

// `text` itself if it is valid UTF-8. Else a copy in `buffer` in which each part that is not is
// U+FFFD, as Python's decode("utf-8", errors="replace") does (the maximal subparts of Unicode 15,
// section 3.9).
std::string_view whole_utf8(std::string_view text, std::string& buffer);

struct Character {
  char32_t code;
  uint32_t bytes;
};
// The character that begins at text[0], which is there.
inline Character read_character(const char* text) {
  const auto byte = [&](int i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(text[i]));
  };
  const uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

// The classes that the patterns of byte-level BPE are made of: \p{L}, \p{N}, \s, and the rest.
enum CharClass : uint8_t { kOther = 0, kLetter = 1, kNumber = 2, kSpace = 3, kNewline = 4 };
// kNewline is \r and \n, which are spaces too. Exactly what PCRE2 says of \p{L} and \p{N} (the
// tables are made by asking it); a space is a character with the property White_Space.
class CharClasses {
 public:
  static const CharClasses& get();
  CharClass of(char32_t code) const {
    return static_cast<CharClass>(blocks_[block_of_[code >> 8]][code & 0xFF]);
  }
  CharClass of_ascii(unsigned char byte) const { return static_cast<CharClass>(ascii_[byte]); }

 private:
  CharClasses();
  uint8_t ascii_[256];  // beyond 127: kOther
  uint8_t block_of_[0x1100];
  uint8_t blocks_[256][256];
};

bool is_white_space(char32_t code);  // White_Space: not U+180E, which PCRE2 counts
bool is_word(char32_t code);         // Rust's \w
// As `tokenizers` sees them (unicode_ages.h).
bool is_punctuation(char32_t code);  // ASCII's and \p{P}
bool is_numeric(char32_t code);      // \p{N}
bool is_mark(char32_t code);         // \p{M}

}  // namespace mtl::tokenizer
