// The printable characters that stand for the 256 bytes in the files of byte-level BPE, an idea of
// GPT-2: a byte that is printable in Latin-1 is itself, the others are U+0100 and on, in order.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mtl::tokenizer {

char32_t character_of(unsigned char byte);
// "Ġa" for " a".
std::string to_byte_characters(std::string_view bytes);
// " a" for "Ġa"; nothing if a character stands for no byte, or `text` is not UTF-8.
std::optional<std::string> from_byte_characters(std::string_view text);

}  // namespace mtl::tokenizer
