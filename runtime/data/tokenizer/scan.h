// The patterns that almost every byte-level tokenizer has, as hand-written scanners: the same
// pieces as the regular expression (tests/runtime/data compare the two), many times as fast.
#pragma once

#include <cstddef>
#include <string_view>

namespace mtl::tokenizer {

// The end of the piece that begins at text[begin]; begin < text.size(), valid UTF-8. The pieces of
// these patterns tile the text.
using Scanner = size_t (*)(std::string_view text, size_t begin);

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Null for a pattern that has no scanner.
Scanner scanner_of(std::string_view pattern);

}  // namespace mtl::tokenizer
