// Strict UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mtl {

// Reads the character that starts at text[pos], which lies inside the text. On success advances
// `pos` past it and returns nullptr; else leaves `pos` at its first byte and returns what is wrong
// with it ("truncated character", ...).
const char* read_utf8(std::string_view text, size_t& pos, char32_t& code_point);

// Bytes of the character at text[pos]; 0 where there is none.
size_t utf8_length(std::string_view text, size_t pos);

// Where the next character behind `pos` begins, and the one before it: bytes that continue a
// character are passed over, whatever they follow, and both stay within the text.
size_t next_character(std::string_view text, size_t pos);
size_t previous_character(std::string_view text, size_t pos);

// Appends a code point that is a Unicode scalar value.
void append_utf8(std::string& text, char32_t code_point);

}  // namespace mtl
