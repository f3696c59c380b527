#include "launcher/config/shell_arithmetic.h"

#include <cctype>
#include <charconv>

namespace mtl {

namespace {

constexpr int kDeepest = 64;  // brackets and signs in each other

class Arithmetic {
 public:
  Arithmetic(const std::string& text,
             const std::function<std::string(const std::string&)>& variable)
      : text_(text), variable_(variable) {}

  std::optional<int64_t> value() {
    const int64_t result = sum();
    if (next() != '\0') good_ = false;
    return good_ ? std::optional(result) : std::nullopt;
  }

 private:
  char next() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  int64_t sum() {
    int64_t result = product();
    for (char c = next(); good_ && (c == '+' || c == '-'); c = next()) {
      ++at_;
      const int64_t other = product();
      const bool beyond = c == '+' ? __builtin_add_overflow(result, other, &result)
                                   : __builtin_sub_overflow(result, other, &result);
      if (beyond) good_ = false;
    }
    return result;
  }

  int64_t product() {
    int64_t result = factor();
    for (char c = next(); good_ && (c == '*' || c == '/' || c == '%'); c = next()) {
      ++at_;
      const int64_t other = factor();
      if (c == '*') {
        if (__builtin_mul_overflow(result, other, &result)) good_ = false;
      } else if (other == 0 || (other == -1 && result == INT64_MIN)) {
        good_ = false;
      } else {
        result = c == '/' ? result / other : result % other;
      }
    }
    return result;
  }

  int64_t factor() {
    const char c = next();
    if (depth_ > kDeepest) good_ = false;
    if (!good_) return 0;
    if (c == '-') {
      ++at_;
      ++depth_;
      const int64_t result = negated(factor());
      --depth_;
      return result;
    }
    if (c == '(') {
      ++at_;
      ++depth_;
      const int64_t result = sum();
      --depth_;
      if (next() != ')') good_ = false;
      ++at_;
      return result;
    }
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) return number(word());
    if (c == '$') ++at_;
    const bool braces = c == '$' && next() == '{';
    if (braces) ++at_;
    const std::string name = word();
    if (braces && next() == '}') ++at_;
    return number(name.empty() ? name : variable_(name));
  }

  int64_t negated(int64_t value) {
    int64_t result = 0;
    if (__builtin_sub_overflow(int64_t{0}, value, &result)) good_ = false;
    return result;
  }

  std::string word() {
    const size_t start = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_')) {
      ++at_;
    }
    return text_.substr(start, at_ - start);
  }

  int64_t number(const std::string& text) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    // 010 is 8 in a shell, and nobody means it.
    const bool octal = text.size() > 1 && text[0] == '0';
    if (text.empty() || octal || error != std::errc() || end != text.data() + text.size()) {
      good_ = false;
    }
    return value;
  }

  const std::string& text_;
  const std::function<std::string(const std::string&)>& variable_;
  size_t at_ = 0;
  int depth_ = 0;
  bool good_ = true;
};

}  // namespace

std::optional<int64_t> shell_arithmetic(
    const std::string& expression, const std::function<std::string(const std::string&)>& variable) {
  return Arithmetic(expression, variable).value();
}

}  // namespace mtl
