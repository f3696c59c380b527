#include "runtime/spec/megatron_pattern.h"

#include <charconv>
#include <string>

namespace mtl::spec {

namespace {

using Numbers = std::vector<int64_t>;

// sum = product { "+" product }, product = part { "*" number }, part = list | "(" sum ")".
class Parser {
 public:
  Parser(std::string_view text, size_t most) : most_(most) {
    for (const char c : text) {
      if (c != ' ') text_ += c;
    }
  }
  std::optional<Numbers> read() {
    std::optional<Numbers> numbers = sum(0);
    if (at_ != text_.size()) return std::nullopt;
    return numbers;
  }

 private:
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::optional<int64_t> number() {
    int64_t value = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0) return std::nullopt;
    at_ += static_cast<size_t>(end - begin);
    return value;
  }
  std::optional<Numbers> list() {
    Numbers numbers;
    if (take(']')) return numbers;
    do {
      const std::optional<int64_t> one = number();
      if (!one) return std::nullopt;
      numbers.push_back(*one);
    } while (take(','));
    if (!take(']')) return std::nullopt;
    return numbers;
  }
  std::optional<Numbers> part(int depth) {
    if (take('[')) return list();
    if (!take('(')) return std::nullopt;
    std::optional<Numbers> inner = sum(depth + 1);
    if (!take(')')) return std::nullopt;
    return inner;
  }
  std::optional<Numbers> product(int depth) {
    std::optional<Numbers> numbers = part(depth);
    while (numbers && take('*')) {
      const std::optional<int64_t> times = number();
      if (!times) return std::nullopt;
      const Numbers once = *numbers;
      if (!once.empty() && static_cast<uint64_t>(*times) > most_ / once.size()) {
        return std::nullopt;
      }
      numbers->clear();
      for (int64_t i = 0; i < *times && !once.empty(); ++i) {
        numbers->insert(numbers->end(), once.begin(), once.end());
      }
    }
    return numbers;
  }
  std::optional<Numbers> sum(int depth) {
    if (depth > 16) return std::nullopt;
    std::optional<Numbers> numbers = product(depth);
    while (numbers && take('+')) {
      const std::optional<Numbers> more = product(depth);
      if (!more || numbers->size() + more->size() > most_) return std::nullopt;
      numbers->insert(numbers->end(), more->begin(), more->end());
    }
    return numbers;
  }

  const size_t most_;
  std::string text_;
  size_t at_ = 0;
};

}  // namespace

std::optional<std::vector<int64_t>> python_list(std::string_view text, size_t most) {
  std::optional<Numbers> numbers = Parser(text, most).read();
  if (numbers && numbers->size() > most) return std::nullopt;
  return numbers;
}

}  // namespace mtl::spec
