// The decoder of utf8.h: one table-free pass, with a reason for each kind of damage, because "file
// is not UTF-8" sends a person hunting while "overlong form at byte 1234" does not.
#include "common/utf8.h"

namespace mtl {

const char* read_utf8(std::string_view text, size_t& pos, char32_t& code_point) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(pos);
  if (first < 0x80) {
    code_point = first;
    ++pos;
    return nullptr;
  }
  size_t length = 0;
  char32_t value = 0;
  char32_t smallest = 0;
  if (first < 0xC0) return "stray continuation byte";
  if (first < 0xE0) {
    length = 2, value = first & 0x1F, smallest = 0x80;
  } else if (first < 0xF0) {
    length = 3, value = first & 0x0F, smallest = 0x800;
  } else if (first < 0xF8) {
    length = 4, value = first & 0x07, smallest = 0x10000;
  } else {
    return "byte that never occurs in UTF-8";
  }
  for (size_t i = 1; i < length; ++i) {
    if (pos + i >= text.size()) return "truncated character at the end";
    if ((byte(pos + i) & 0xC0) != 0x80) return "truncated character";
    value = (value << 6) | (byte(pos + i) & 0x3F);
  }
  if (value < smallest) return "overlong form";
  if (value >= 0xD800 && value <= 0xDFFF) return "surrogate (UTF-16 half)";
  if (value > 0x10FFFF) return "code point above U+10FFFF";
  code_point = value;
  pos += length;
  return nullptr;
}

size_t utf8_length(std::string_view text, size_t pos) {
  size_t end = pos;
  char32_t ignored = 0;
  return pos < text.size() && read_utf8(text, end, ignored) == nullptr ? end - pos : 0;
}

namespace {

bool continues(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

}  // namespace

size_t next_character(std::string_view text, size_t pos) {
  if (pos < text.size()) ++pos;
  while (pos < text.size() && continues(text[pos])) ++pos;
  return pos;
}

size_t previous_character(std::string_view text, size_t pos) {
  if (pos > 0) --pos;
  while (pos > 0 && continues(text[pos])) --pos;
  return pos;
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace mtl
