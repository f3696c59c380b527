#include "runtime/data/token_text.h"

#include <algorithm>

namespace mtl {

namespace {

// More tokens than a character can have.
constexpr size_t kMost = 8;

// Whether the text ends inside a character. U+FFFD may be the beginning of one: decoders that work
// on text put it there.
bool ends_inside_character(std::string_view text) {
  if (text.ends_with("\xEF\xBF\xBD")) return true;
  for (size_t back = 1; back <= std::min<size_t>(4, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t length = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    return length > back;
  }
  return false;
}

}  // namespace

TokenText::TokenText(const Tokenizer& tokenizer, std::vector<int32_t> before)
    : tokenizer_(tokenizer), ids_(std::move(before)), shown_(ids_.size()) {}

std::string TokenText::add(int32_t id) {
  ids_.push_back(id);
  return next(true);
}

std::string TokenText::rest() {
  return next(false);
}

std::string TokenText::next(bool whole) {
  const std::string before = tokenizer_.decode(std::span(ids_).first(shown_));
  const std::string all = tokenizer_.decode(ids_);
  const bool waits = whole && ids_.size() - shown_ < kMost && ends_inside_character(all);
  if (waits || all.size() <= before.size()) return "";
  // The bytes of a character may be spoilt by those behind it, after it was shown.
  const std::string text = all.starts_with(before)
                               ? all.substr(before.size())
                               : tokenizer_.decode(std::span(ids_).subspan(shown_));
  // The next text is decoded behind this one, which begins where a character does: behind other
  // tokens, the bytes of the rest of a character would be no text, and spoil all that follow.
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(shown_));
  shown_ = ids_.size();
  return text;
}

}  // namespace mtl
