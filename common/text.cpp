#include "common/text.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <sstream>
#include <system_error>

#include <fmt/format.h>

namespace mtl {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

char upper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = lower(c);
  return result;
}

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = upper(c);
  return result;
}

bool contains_ignoring_case(std::string_view text, std::string_view part) {
  return std::search(text.begin(), text.end(), part.begin(), part.end(),
                     [](char a, char b) { return lower(a) == lower(b); }) != text.end();
}

template <typename Number>
std::optional<Number> to_number(std::string_view text) {
  Number number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}
template std::optional<int> to_number(std::string_view);
template std::optional<int64_t> to_number(std::string_view);
template std::optional<uint64_t> to_number(std::string_view);
template std::optional<double> to_number(std::string_view);

std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kAtMost = 8;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kAtMost; ++i) text += (i > 0 ? ", " : "") + names[i];
  if (names.size() > kAtMost) text += fmt::format(" and {} more", names.size() - kAtMost);
  return text;
}

bool is_shell_variable(std::string_view word) {
  if (word.size() < 2) return false;
  if (word.front() == '`') return word.find('`', 1) == word.size() - 1;
  if (word.front() != '$') return false;
  if (word[1] == '{') return word.find('}') == word.size() - 1;
  if (word[1] == '(') return word.back() == ')';
  const std::string_view name = word.substr(1);
  if (name == "@" || name == "*") return true;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (lower(c) >= 'a' && lower(c) <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace mtl
