// Scalars are read here and not by yaml-cpp, which takes `010` for 8 and refuses `1e9`.
#include "runtime/spec/scalars.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include <fmt/format.h>

#include "common/error.h"
#include "common/text.h"

namespace mtl::spec {

namespace {

// Decimal places that a suffix stands for; nothing if the letter is none.
std::optional<int> suffix_places(char letter) {
  switch (letter) {
    case 'k':
    case 'K':
      return 3;
    case 'm':
    case 'M':
      return 6;
    case 'g':
    case 'G':
      return 9;
    default:
      return std::nullopt;
  }
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

std::string quoted(const std::string& text) {
  constexpr size_t kLongest = 60;
  std::string shown;
  for (const char c : text) {
    if (shown.size() >= kLongest && (static_cast<unsigned char>(c) & 0xC0) != 0x80) {
      return fmt::format("`{}...`", shown);
    }
    shown += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return fmt::format("`{}`", shown);
}

std::string number_text(double value) {
  const bool whole = value == std::floor(value) && std::abs(value) < 1e15;
  return whole ? fmt::format("{}", static_cast<int64_t>(value)) : fmt::format("{}", value);
}

std::optional<Problem> read_integer(const std::string& name, const std::string& text, bool suffixes,
                                    int64_t& result) {
  const Problem no_number{"config.type",
                          fmt::format("{}: {} is not a whole number", name, quoted(text))};
  const Problem too_large{"config.range", fmt::format("{} cannot be {}", name, quoted(text))};
  size_t i = 0;
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) ++i;

  std::string digits;
  const size_t first = i;
  for (; i < text.size(); ++i) {
    if (is_digit(text[i])) {
      digits += text[i];
    } else if (text[i] != '_' || i == first || text[i - 1] == '_' || i + 1 >= text.size() ||
               !is_digit(text[i + 1])) {
      break;
    }
  }
  if (digits.empty()) return no_number;
  if (digits.size() > 1 && digits[0] == '0') {
    Problem problem = no_number;
    problem.what += ": it starts with 0";
    problem.help = "remove the leading zeros: some programs read them as octal";
    return problem;
  }
  int64_t places = 0;  // to append to the digits, or to cut off when negative
  if (i < text.size() && text[i] == '.') {
    for (++i; i < text.size() && is_digit(text[i]); ++i) {
      digits += text[i];
      --places;
    }
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && text[i] == '+') ++i;
    int exponent = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + i, end, exponent);
    if (error == std::errc::result_out_of_range) return too_large;
    if (error != std::errc{}) return no_number;
    places += exponent;
    i = static_cast<size_t>(stop - text.data());
  }
  if (i + 1 == text.size() && suffix_places(text[i])) {
    if (!suffixes) {
      Problem problem = no_number;
      problem.help = "write the number in full: whether k is 1000 or 1024 is a matter of taste";
      return problem;
    }
    places += *suffix_places(text[i]);
    ++i;
  }
  if (i != text.size()) return no_number;

  for (; places < 0 && !digits.empty() && digits.back() == '0'; ++places) digits.pop_back();
  if (places < 0 && !digits.empty()) return no_number;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.empty()) {
    result = 0;
    return std::nullopt;
  }
  constexpr int64_t kMostDigits = 19;
  if (places > kMostDigits) return too_large;
  if (places > 0) digits.append(static_cast<size_t>(places), '0');
  if (negative) digits.insert(0, 1, '-');
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), result);
  if (error != std::errc{}) return too_large;
  return std::nullopt;
}

namespace {

struct TimeUnit {
  char letter;
  int64_t seconds;
};
// The largest first.
constexpr TimeUnit kTimeUnits[] = {{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}};

}  // namespace

std::optional<Problem> read_duration(const std::string& name, const std::string& text,
                                     int64_t& seconds) {
  if (text == "0") {
    seconds = 0;
    return std::nullopt;
  }
  // About the whole of what was written, with its unit.
  const Problem no_time{"config.type", fmt::format("{}: {} is not a time", name, quoted(text))};
  const Problem out_of_range{"config.range", fmt::format("{} cannot be {}", name, quoted(text))};
  for (const TimeUnit& unit : kTimeUnits) {
    if (text.size() < 2 || text.back() != unit.letter) continue;
    int64_t count = 0;
    const std::string number = text.substr(0, text.size() - 1);
    if (auto problem = read_integer(name, number, false, count)) {
      problem->what = (problem->code == "config.type" ? no_time : out_of_range).what;
      // "1ms" is no number with a suffix, but a unit that there is not.
      if (suffix_places(number.back())) problem->help.clear();
      return problem;
    }
    if (count < 0 || count > INT64_MAX / unit.seconds) return out_of_range;
    seconds = count * unit.seconds;
    return std::nullopt;
  }
  return no_time;
}

std::string duration_text(int64_t seconds) {
  for (const TimeUnit& unit : kTimeUnits) {
    if (seconds > 0 && seconds % unit.seconds == 0) {
      return fmt::format("{}{}", seconds / unit.seconds, unit.letter);
    }
  }
  return "0";
}

std::optional<Problem> read_double(const std::string& name, const std::string& text,
                                   double& result) {
  const char* begin = text.data();
  const char* const end = begin + text.size();
  if (text.starts_with('+') && !text.starts_with("+-")) ++begin;
  double value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (stop != end || error == std::errc::invalid_argument) {
    return Problem{"config.type", fmt::format("{}: {} is not a number", name, quoted(text))};
  }
  if (error != std::errc{} || !std::isfinite(value)) {
    return Problem{"config.range", fmt::format("{} cannot be {}", name, quoted(text))};
  }
  result = value;
  return std::nullopt;
}

// What is below 1 is to be so in what computes with it, in fp32: a decay of 1 forgets nothing, and
// learns nothing.
bool in_range(const Row& row, double value) {
  const auto rounded = static_cast<double>(static_cast<float>(value));
  const bool low = row.above_min ? value <= row.min : value < row.min;
  const bool high = row.below_max ? std::max(value, rounded) >= row.max : value > row.max;
  return !low && !high;
}

// Not by way of double, which cannot tell 2^53 + 1 from 2^53. No integer has an open bound.
bool in_range(const Row& row, int64_t value) {
  return value >= static_cast<int64_t>(row.min) && value <= static_cast<int64_t>(row.max);
}

Problem out_of_range(const Row& row, const std::string& text) {
  return {"config.range", fmt::format("{} cannot be {}", row.key, text)};
}

Problem out_of_range(const Row& row, const std::string& text, double value) {
  Problem problem = out_of_range(row, text);
  if (value > row.min && value < row.max) {
    problem.what += fmt::format(", which is {} in fp32", static_cast<float>(value));
  }
  return problem;
}

std::optional<Problem> read_choice(const Row& row, const std::string& text, std::string& result) {
  std::vector<std::string> values;
  for (const Choice& choice : row.choices) {
    if (choice.value == text) {
      result = text;
      return std::nullopt;
    }
    values.push_back(choice.value);
  }
  Problem problem{"config.enum", fmt::format("{} cannot be {}", row.key, quoted(text))};
  for (const Refused& refused : row.refused) {
    if (refused.value != text && refused.value != lower(text)) continue;
    if (!refused.instead.empty()) {
      problem.help = fmt::format("did you mean `{}`{}?", refused.instead, refused.why);
    } else {
      problem.what += ": " + refused.why;
    }
    return problem;
  }
  if (const auto near = did_you_mean(lower(text), values)) {
    problem.help = fmt::format("did you mean `{}`?", *near);
  }
  return problem;
}

std::optional<Problem> read_text(const Row& row, const std::string& text, std::string& result) {
  if (!row.choices.empty()) return read_choice(row, text, result);
  if (text.find('\n') != std::string::npos) {
    return Problem{"config.range", fmt::format("{} has several lines", row.key)};
  }
  if (text.empty()) return Problem{"config.range", fmt::format("{} is empty", row.key)};
  if (row.is_path && text.starts_with('~')) {
    Problem problem = out_of_range(row, quoted(text));
    problem.what += ": `~` is a word of the shell and not read here";
    problem.help = "write the whole path";
    return problem;
  }
  if (row.is_name &&
      (text.find('/') != std::string::npos || text == "." || text == ".." || text.size() > 200)) {
    Problem problem = out_of_range(row, quoted(text));
    problem.help = "it names a folder: give a short word without `/`";
    return problem;
  }
  result = text;
  return std::nullopt;
}

}  // namespace mtl::spec
