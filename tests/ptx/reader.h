// The text of PTX, word by word.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace mtl::ptx {

inline bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\0';  // which ends a text
}
inline bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '$' || c == '%' || c == '.' || c == ':';
}
inline std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

[[noreturn]] inline void not_understood(int line, std::string_view text, std::string_view what) {
  throw std::runtime_error(fmt::format("PTX, line {}: {}: {}", line, what, trimmed(text)));
}

// Goes through a text, word by word.
class Reader {
 public:
  Reader(std::string_view text, int line) : text_(text), line_(line) {}

  int line() const { return line_; }
  size_t at() const { return at_; }
  bool ended() {
    skip();
    return at_ == text_.size();
  }
  char peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void want(char c) {
    if (!take(c))
      not_understood(line_, text_.substr(at_, 60), fmt::format("'{}' is missing before", c));
  }
  std::string_view word() {
    skip();
    const size_t begin = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    if (at_ == begin) not_understood(line_, text_.substr(at_, 60), "not understood");
    return text_.substr(begin, at_ - begin);
  }
  // Up to one of `ends`, which stays.
  std::string_view until(std::string_view ends) {
    skip();
    const size_t begin = at_;
    while (at_ < text_.size() && ends.find(text_[at_]) == ends.npos) step();
    return text_.substr(begin, at_ - begin);
  }
  std::string_view from(size_t begin) const { return text_.substr(begin, at_ - begin); }
  // Behind the '}' that closes what was opened before.
  void leave_braces() {
    for (int depth = 1; depth > 0;) {
      if (ended()) not_understood(line_, "", "'}' is missing");
      const char c = text_[at_];
      depth += c == '{' ? 1 : c == '}' ? -1 : 0;
      step();
    }
  }

 private:
  void step() {
    if (text_[at_] == '\n') ++line_;
    ++at_;
  }
  void skip() {
    while (at_ < text_.size()) {
      if (is_space(text_[at_])) {
        step();
      } else if (text_.substr(at_, 2) == "//") {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else {
        return;
      }
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_;
};

inline uint64_t number(std::string_view text, int line) {
  const std::string_view whole = text;
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  int base = 10;
  if (text.starts_with("0f") || text.starts_with("0F") || text.starts_with("0d") ||
      text.starts_with("0D") || text.starts_with("0x") || text.starts_with("0X")) {
    base = 16;
    text.remove_prefix(2);
  }
  if (base == 10 && text.ends_with('U')) text.remove_suffix(1);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) {
    not_understood(line, whole, "not a number");
  }
  return negative ? ~value + 1 : value;
}

inline size_t bytes_of(std::string_view type, int line) {
  for (const auto& [bits, bytes] : {std::pair{"8", 1}, {"16", 2}, {"32", 4}, {"64", 8}}) {
    if (type.size() > 2 && type.substr(2) == bits) return static_cast<size_t>(bytes);
  }
  not_understood(line, type, "unknown type");
}

// ".align 8 .b8 name[24]", ".u64 name", behind their state space.
struct Variable {
  std::string_view name;
  size_t align = 1, bytes = 0;
  bool open = false;  // "name[]"
};
inline Variable variable(Reader& reader) {
  Variable result;
  std::string_view word = reader.word();
  size_t align = 0;
  if (word == ".align") {
    align = number(reader.word(), reader.line());
    word = reader.word();
  }
  const size_t element = bytes_of(word, reader.line());
  if (reader.peek() == '.') {  // ".ptr .align 4": where a parameter points to
    for (const char* const part : {".ptr", ".align", ""}) {
      const std::string_view found = reader.word();
      if (*part != '\0' && found != part) not_understood(reader.line(), found, "unknown");
    }
  }
  result.align = std::max(align, element);
  result.name = reader.word();
  result.bytes = element;
  if (reader.take('[')) {
    result.open = reader.peek() == ']';
    result.bytes = result.open ? 0 : element * number(reader.word(), reader.line());
    reader.want(']');
  }
  return result;
}

inline size_t aligned(size_t value, size_t align) {
  return (value + align - 1) / align * align;
}

}  // namespace mtl::ptx
