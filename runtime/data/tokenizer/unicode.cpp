#include "runtime/data/tokenizer/unicode.h"

#include <cstring>
#include <map>
#include <simdjson.h>
#include <stdexcept>
#include <utf8proc.h>
#include <vector>

#include "common/utf8.h"
#include "runtime/data/tokenizer/regex.h"
#include "runtime/data/tokenizer/unicode_ages.h"

namespace mtl::tokenizer {

namespace {

// How many bytes of a damaged character Python replaces by one U+FFFD: the longest beginning of a
// well-formed character, at least one byte.
size_t maximal_subpart(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned first = byte(pos);
  if (first < 0xC2 || first > 0xF4) return 1;
  // The second byte has narrower bounds after some first bytes (Unicode 15, table 3-7).
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(pos + 1) < low || byte(pos + 1) > high) return 1;
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  size_t good = 2;
  while (good < length && byte(pos + good) >= 0x80 && byte(pos + good) <= 0xBF) ++good;
  return good;
}

utf8proc_category_t category(char32_t code) {
  return static_cast<utf8proc_category_t>(utf8proc_category(static_cast<utf8proc_int32_t>(code)));
}

}  // namespace

std::string_view whole_utf8(std::string_view text, std::string& buffer) {
  if (text.empty() || simdjson::validate_utf8(text.data(), text.size())) return text;
  buffer.clear();
  buffer.reserve(text.size() + text.size() / 8);
  size_t kept = 0;  // up to here it is in the buffer
  for (size_t pos = 0; pos < text.size();) {
    char32_t ignored = 0;
    if (read_utf8(text, pos, ignored) == nullptr) continue;
    buffer.append(text, kept, pos - kept);
    buffer.append("\xEF\xBF\xBD");
    pos += maximal_subpart(text, pos);
    kept = pos;
  }
  buffer.append(text, kept, text.size() - kept);
  return buffer;
}

const CharClasses& CharClasses::get() {
  static const CharClasses classes;
  return classes;
}

CharClasses::CharClasses() {
  // Every character once, and PCRE2's word on which of them are letters and numbers.
  std::string all;
  std::vector<uint8_t> of(0x110000, kOther);
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    append_utf8(all, code);
    if (is_white_space(code)) of[code] = code == '\n' || code == '\r' ? kNewline : kSpace;
  }
  for (const auto& [pattern, found] :
       {std::pair{"\\p{L}+", kLetter}, std::pair{"\\p{N}+", kNumber}}) {
    const Regex regex(pattern, "");
    Regex::Match match(regex);
    for (size_t pos = 0; match.find(all, pos); pos = match.end()) {
      for (size_t at = match.begin(); at < match.end();) {
        const Character character = read_character(all.data() + at);
        of[character.code] = found;
        at += character.bytes;
      }
    }
  }
  std::map<std::string, size_t> known;
  for (size_t block = 0; block < 0x1100; ++block) {
    const std::string content(reinterpret_cast<const char*>(&of[block << 8]), 256);
    const auto [at, is_new] = known.emplace(content, known.size());
    if (at->second >= 256) throw std::logic_error("too many kinds of blocks of characters");
    if (is_new) std::memcpy(blocks_[at->second], content.data(), 256);
    block_of_[block] = static_cast<uint8_t>(at->second);
  }
  for (size_t byte = 0; byte < 256; ++byte) ascii_[byte] = byte < 128 ? of[byte] : uint8_t{kOther};
}

bool is_white_space(char32_t code) {
  return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_word(char32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      // Alphabetic symbols (circled and squared letters), and the joiners.
      return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
             (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189) ||
             code == 0x200C || code == 0x200D;
  }
}

bool is_punctuation(char32_t code) {
  if (code < 0x80) {
    return (code >= 0x21 && code <= 0x2F) || (code >= 0x3A && code <= 0x40) ||
           (code >= 0x5B && code <= 0x60) || (code >= 0x7B && code <= 0x7E);
  }
  const utf8proc_category_t found = category(code);
  if (found >= UTF8PROC_CATEGORY_PC && found <= UTF8PROC_CATEGORY_PO) {
    return !is_in(kNotPunctuation, code);
  }
  return is_in(kMorePunctuation, code);
}

bool is_numeric(char32_t code) {
  const utf8proc_category_t found = category(code);
  return found >= UTF8PROC_CATEGORY_ND && found <= UTF8PROC_CATEGORY_NO;
}

bool is_mark(char32_t code) {
  const utf8proc_category_t found = category(code);
  if (found >= UTF8PROC_CATEGORY_MN && found <= UTF8PROC_CATEGORY_ME) {
    return !is_in(kNotMarks, code);
  }
  return is_in(kMoreMarks, code);
}

}  // namespace mtl::tokenizer
