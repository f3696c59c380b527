#include "runtime/data/tokenizer/byte_alphabet.h"

#include <array>

#include "common/utf8.h"

namespace mtl::tokenizer {

namespace {

struct Alphabet {
  std::array<char32_t, 256> character;
  std::array<int16_t, 0x144> byte;  // by character; -1 = none

  Alphabet() : character{}, byte{} {
    byte.fill(-1);
    char32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable =
          (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
      character[b] = printable ? static_cast<char32_t>(b) : next++;
      byte[character[b]] = static_cast<int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet made;
  return made;
}

}  // namespace

char32_t character_of(unsigned char byte) {
  return alphabet().character[byte];
}

std::string to_byte_characters(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) append_utf8(text, character_of(static_cast<unsigned char>(byte)));
  return text;
}

std::optional<std::string> from_byte_characters(std::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    char32_t code = 0;
    if (read_utf8(text, at, code) != nullptr) return std::nullopt;
    if (code >= alphabet().byte.size() || alphabet().byte[code] < 0) return std::nullopt;
    bytes += static_cast<char>(alphabet().byte[code]);
  }
  return bytes;
}

}  // namespace mtl::tokenizer
