// Scalars are read here and not by yaml-cpp, which takes `010` for 8 and refuses `1e9`.
#include "runtime/spec/values.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mtl::spec {

namespace {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

struct Problem {
  std::string code;
  std::string what;
  std::string help = {};  // instead of "give <expected>"
};

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

// A whole number in decimal: sign, digits with `_` between them, fraction, exponent, suffix. Exact:
// what is written must be a whole number and fit 64 bits.
std::optional<Problem> read_integer(const Row& row, const std::string& text, int64_t& result) {
  const Problem no_number{"config.type",
                          fmt::format("{}: {} is not a whole number", row.key, quoted(text))};
  const Problem too_large{"config.range", fmt::format("{} cannot be {}", row.key, quoted(text))};
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
    if (!row.suffixes) {
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

std::optional<Problem> read_double(const Row& row, const std::string& text, double& result) {
  const char* begin = text.data();
  const char* const end = begin + text.size();
  if (text.starts_with('+') && !text.starts_with("+-")) ++begin;
  double value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (stop != end || error == std::errc::invalid_argument) {
    return Problem{"config.type", fmt::format("{}: {} is not a number", row.key, quoted(text))};
  }
  if (error != std::errc{} || !std::isfinite(value)) {
    return Problem{"config.range", fmt::format("{} cannot be {}", row.key, quoted(text))};
  }
  result = value;
  return std::nullopt;
}

bool in_range(const Row& row, double value) {
  const bool low = row.above_min ? value <= row.min : value < row.min;
  const bool high = row.below_max ? value >= row.max : value > row.max;
  return !low && !high;
}

// Not by way of double, which cannot tell 2^53 + 1 from 2^53. No integer has an open bound.
bool in_range(const Row& row, int64_t value) {
  return value >= static_cast<int64_t>(row.min) && value <= static_cast<int64_t>(row.max);
}

Problem out_of_range(const Row& row, const std::string& text) {
  return {"config.range", fmt::format("{} cannot be {}", row.key, text)};
}

std::string number_text(double value) {
  const bool whole = value == std::floor(value) && std::abs(value) < 1e15;
  return whole ? fmt::format("{}", static_cast<int64_t>(value)) : fmt::format("{}", value);
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
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
      problem.help = fmt::format("did you mean `{}`?", refused.instead);
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

// Two numbers: the only kind of list that the table has.
std::optional<Diagnostic> read_pair(const Row& row, const YamlValue& value, double (&pair)[2]) {
  const auto complain = [&](const YamlValue& at, Problem problem) {
    if (problem.help.empty()) problem.help = "give " + expected(row);
    return Diagnostic{
        .code = problem.code, .what = problem.what, .place = at.place, .help = problem.help};
  };
  if (value.kind != YamlValue::Kind::list) {
    return complain(value, {"config.type", fmt::format("{} is not a list", row.key)});
  }
  if (value.items.size() != 2) {
    return complain(value, {"config.range", fmt::format("{} has {} numbers instead of 2", row.key,
                                                        value.items.size())});
  }
  for (size_t i = 0; i < 2; ++i) {
    const YamlValue& item = value.items[i];
    if (item.kind != YamlValue::Kind::scalar || item.quoted) {
      return complain(item,
                      {"config.type", fmt::format("{}: item {} is not a number", row.key, i + 1)});
    }
    if (const auto problem = read_double(row, item.text, pair[i])) return complain(item, *problem);
    if (!in_range(row, pair[i])) return complain(item, out_of_range(row, quoted(item.text)));
  }
  return std::nullopt;
}

// Other YAML readers take these unquoted for something else than text.
bool needs_quotes(const std::string& text) {
  static const std::vector<std::string> special = {"null", "true", "false", "yes", "no",
                                                   "on",   "off",  "y",     "n",   "~"};
  const std::string word = lower(text);
  if (std::find(special.begin(), special.end(), word) != special.end()) return true;
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.' ||
           c == '/';
  };
  const char first = text.empty() ? ' ' : text[0];
  return !(std::isalpha(static_cast<unsigned char>(first)) || first == '/') ||
         !std::all_of(text.begin(), text.end(), plain);
}

}  // namespace

bool is_integer(const Field& field) {
  return std::holds_alternative<int*>(field) || std::holds_alternative<int64_t*>(field) ||
         std::holds_alternative<uint64_t*>(field);
}

bool is_number_list(const Field& field) {
  return std::holds_alternative<std::vector<double>*>(field) ||
         std::holds_alternative<DoublePair>(field);
}

std::optional<Diagnostic> read_value(const Row& row, const YamlValue& value, TrainSpec& spec) {
  const Field field = row.field(spec);
  const auto complain = [&](Problem problem) {
    if (problem.help.empty()) problem.help = "give " + expected(row);
    return Diagnostic{
        .code = problem.code, .what = problem.what, .place = value.place, .help = problem.help};
  };
  if (value.kind == YamlValue::Kind::null) {
    Problem problem{"config.type", fmt::format("{} has no value", row.key)};
    if (!row.required) {
      TrainSpec built_in;
      problem.help = fmt::format("give {}, or remove it (then it is {})", expected(row),
                                 print_value(row, built_in));
    }
    return complain(problem);
  }
  if (is_number_list(field)) {
    double pair[2] = {0, 0};
    if (auto diagnostic = read_pair(row, value, pair)) return diagnostic;
    if (const auto* both = std::get_if<DoublePair>(&field)) {
      *both->first = pair[0];
      *both->second = pair[1];
      return std::nullopt;
    }
    if (pair[0] <= 0) {
      return complain(out_of_range(
          row, fmt::format("[{}, {}]: the first weight must be above 0", pair[0], pair[1])));
    }
    *std::get<std::vector<double>*>(field) = {pair[0], pair[1]};
    return std::nullopt;
  }
  if (value.kind != YamlValue::Kind::scalar) {
    return complain(
        {"config.type", fmt::format("{} is one value, not a {}", row.key,
                                    value.kind == YamlValue::Kind::list ? "list" : "section")});
  }
  const std::string& text = value.text;
  const bool is_text = std::holds_alternative<std::string*>(field);
  if (value.quoted && !is_text && text != "auto") {
    return complain({"config.type", fmt::format("{}: \"{}\" in quotes is text", row.key, text),
                     "remove the quotes"});
  }
  if (is_integer(field)) {
    int64_t number = 0;
    if (row.auto_doc.empty() || text != "auto") {
      if (const auto problem = read_integer(row, text, number)) return complain(*problem);
      if (!in_range(row, number)) return complain(out_of_range(row, quoted(text)));
    }
    std::visit(
        Overloaded{[&](int* to) { *to = static_cast<int>(number); },
                   [&](int64_t* to) { *to = number; },
                   [&](uint64_t* to) { *to = static_cast<uint64_t>(number); }, [](auto&&) {}},
        field);
    return std::nullopt;
  }
  if (auto* const* to = std::get_if<bool*>(&field)) {
    if (text != "true" && text != "false") {
      return complain(
          {"config.type", fmt::format("{}: {} is neither true nor false", row.key, quoted(text))});
    }
    **to = text == "true";
    return std::nullopt;
  }
  if (auto* const* to = std::get_if<double*>(&field)) {
    double number = 0;
    if (const auto problem = read_double(row, text, number)) return complain(*problem);
    if (!in_range(row, number)) return complain(out_of_range(row, quoted(text)));
    **to = number;
    return std::nullopt;
  }
  if (const auto problem = read_text(row, text, *std::get<std::string*>(field))) {
    return complain(*problem);
  }
  return std::nullopt;
}

std::string print_value(const Row& row, const TrainSpec& spec) {
  TrainSpec copy = spec;
  const auto integer = [&](auto number) {
    return number == 0 && !row.auto_doc.empty() ? "auto" : fmt::format("{}", number);
  };
  return std::visit(
      Overloaded{
          [](bool* value) { return std::string(*value ? "true" : "false"); },
          [&](int* value) { return integer(*value); },
          [&](int64_t* value) { return integer(*value); },
          [&](uint64_t* value) { return integer(*value); },
          [](double* value) { return fmt::format("{}", *value); },
          [](std::string* value) {
            // JSON's double quotes and escapes are YAML's too.
            return needs_quotes(*value) ? nlohmann::json(*value).dump() : *value;
          },
          [](std::vector<double>* values) { return fmt::format("[{}]", fmt::join(*values, ", ")); },
          [](DoublePair pair) { return fmt::format("[{}, {}]", *pair.first, *pair.second); }},
      row.field(copy));
}

std::string range_text(const Row& row) {
  TrainSpec any;
  const Field field = row.field(any);
  if (!is_integer(field) && !is_number_list(field) && !std::holds_alternative<double*>(field)) {
    return {};
  }
  if (row.above_min || row.below_max) {
    return fmt::format("{} {}, {} {}", row.above_min ? "above" : "at least", number_text(row.min),
                       row.below_max ? "below" : "at most", number_text(row.max));
  }
  return fmt::format("{} to {}", number_text(row.min), number_text(row.max));
}

std::string type_text(const Row& row) {
  TrainSpec any;
  const Field field = row.field(any);
  if (!row.choices.empty()) {
    std::string values;
    for (const Choice& choice : row.choices) {
      values += (values.empty() ? "" : " or ") + choice.value;
    }
    return values;
  }
  if (is_integer(field)) return "integer";
  if (is_number_list(field)) return "two numbers";
  if (std::holds_alternative<bool*>(field)) return "true or false";
  if (std::holds_alternative<double*>(field)) return "number";
  return row.is_path ? "path" : "text";
}

std::string expected(const Row& row) {
  TrainSpec any;
  const Field field = row.field(any);
  const std::string range = range_text(row);
  const bool words = row.above_min || row.below_max;
  if (is_integer(field)) {
    const std::string auto_text =
        row.auto_doc.empty() ? "" : fmt::format(", or auto ({})", row.auto_doc);
    return fmt::format("a whole number {}{}{}", words ? "" : "from ", range, auto_text);
  }
  if (std::holds_alternative<double*>(field)) {
    return fmt::format("a number {}{}", words ? "" : "from ", range);
  }
  if (is_number_list(field)) {
    TrainSpec built_in;
    return fmt::format("two numbers {}{}, like {}", words ? "" : "from ", range,
                       print_value(row, built_in));
  }
  if (!row.choices.empty()) return (row.choices.size() > 1 ? "one of " : "") + type_text(row);
  if (std::holds_alternative<bool*>(field)) return "true or false";
  return row.is_path ? "a path" : "a text";
}

}  // namespace mtl::spec
