#include "runtime/spec/values.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/text.h"
#include "runtime/spec/collections.h"

namespace mtl::spec {

namespace {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

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

std::string print_sources(const std::vector<TrainSpec::Data::Source>& sources) {
  std::vector<std::string> items;
  for (const TrainSpec::Data::Source& source : sources) {
    const std::string path = nlohmann::json(source.path).dump();
    items.push_back(source.weight > 0 ? fmt::format("{{path: {}, weight: {}}}", path, source.weight)
                                      : path);
  }
  return fmt::format("[{}]", fmt::join(items, ", "));
}

}  // namespace

bool is_integer(const Field& field) {
  return std::holds_alternative<int*>(field) || std::holds_alternative<int64_t*>(field) ||
         std::holds_alternative<uint64_t*>(field);
}

bool is_number_list(const Field& field) {
  return std::holds_alternative<DoublePair>(field);
}

bool lacks_brackets(const Row& row, const YamlValue& value) {
  if (value.kind != YamlValue::Kind::scalar || value.quoted) return false;
  TrainSpec spec;
  const Field field = row.field(spec);
  if (std::holds_alternative<CountedWords>(field)) return true;
  const bool several = value.text.find(',') != std::string::npos;
  return several && (is_number_list(field) || std::holds_alternative<std::vector<double>*>(field) ||
                     std::holds_alternative<WordOrList>(field));
}

bool is_auto(const Row& row, const TrainSpec& spec) {
  return !row.auto_doc.empty() && print_value(row, spec) == "auto";
}

Diagnostic diagnose(const Row& row, const Place& place, Problem problem) {
  if (problem.help.empty()) problem.help = "give " + expected(row);
  return {.code = std::move(problem.code),
          .what = std::move(problem.what),
          .place = place,
          .help = std::move(problem.help)};
}

std::optional<Diagnostic> read_value(const Row& row, const YamlValue& value, TrainSpec& spec) {
  const Field field = row.field(spec);
  const auto complain = [&](Problem problem) {
    return diagnose(row, value.place, std::move(problem));
  };
  const bool automatic =
      !row.auto_doc.empty() && value.kind == YamlValue::Kind::scalar && value.text == "auto";
  if (const auto* to = std::get_if<Passed>(&field)) return read_passed(row, value, *to);
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
    const DoublePair both = std::get<DoublePair>(field);
    *both.first = pair[0];
    *both.second = pair[1];
    return std::nullopt;
  }
  if (auto* const* to = std::get_if<std::vector<double>*>(&field)) {
    if (!automatic) return read_numbers(row, value, **to);
    (*to)->clear();
    return std::nullopt;
  }
  if (const auto* to = std::get_if<TextOrSources>(&field)) {
    if (!automatic) return read_sources(row, value, *to);
    to->text->clear();
    to->list->clear();
    if (to->sets != nullptr) to->sets->clear();
    return std::nullopt;
  }
  if (auto* const* to = std::get_if<Ramp*>(&field)) {
    if (!automatic) return read_ramp(row, value, **to);
    (*to)->clear();
    return std::nullopt;
  }
  if (const auto* to = std::get_if<WordOrList>(&field)) {
    return read_word_or_list(row, value, *to);
  }
  if (const auto* to = std::get_if<CountedWords>(&field)) return read_words(row, value, *to);
  if (auto* const* to = std::get_if<std::vector<std::string>*>(&field)) {
    return read_texts(row, value, **to);
  }
  if (value.kind != YamlValue::Kind::scalar) {
    return complain(
        {"config.type", fmt::format("{} is one value, not a {}", row.key,
                                    value.kind == YamlValue::Kind::list ? "list" : "section")});
  }
  const std::string& text = value.text;
  const bool is_text = std::holds_alternative<std::string*>(field);
  if (value.quoted && !is_text && text != "auto") {
    // Taking away the quotes is advice only where that is all there is to mend.
    YamlValue bare = value;
    bare.quoted = false;
    TrainSpec trial = spec;
    if (auto more = read_value(row, bare, trial)) return more;
    return complain({"config.type", fmt::format("{}: \"{}\" in quotes is text", row.key, text),
                     "remove the quotes"});
  }
  if (is_integer(field)) {
    int64_t number = 0;
    if (!automatic) {
      const auto problem = row.is_duration ? read_duration(row.key, text, number)
                                           : read_integer(row.key, text, row.suffixes, number);
      if (problem) return complain(*problem);
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
    if (!automatic) {
      if (const auto problem = read_double(row.key, text, number)) return complain(*problem);
      if (!in_range(row, number)) return complain(out_of_range(row, quoted(text), number));
    }
    **to = number;
    return std::nullopt;
  }
  std::string& to = *std::get<std::string*>(field);
  if (automatic) {
    to.clear();
  } else if (const auto problem = read_text(row, text, to)) {
    return complain(*problem);
  }
  return std::nullopt;
}

std::string print_value(const Row& row, const TrainSpec& spec) {
  TrainSpec copy = spec;
  const auto number = [&](auto value) {
    return value == 0 && !row.auto_doc.empty() ? "auto" : fmt::format("{}", value);
  };
  return std::visit(
      Overloaded{
          [](bool* value) { return std::string(*value ? "true" : "false"); },
          [&](int* value) { return number(*value); },
          [&](int64_t* value) { return row.is_duration ? duration_text(*value) : number(*value); },
          [&](uint64_t* value) { return number(*value); },
          [&](double* value) { return number(*value); },
          [&](std::string* value) {
            if (value->empty() && !row.auto_doc.empty()) return std::string("auto");
            // A choice is plain, `true` too. JSON's double quotes and escapes are YAML's too.
            const bool quotes = row.choices.empty() && needs_quotes(*value);
            return quotes ? nlohmann::json(*value).dump() : *value;
          },
          [&](std::vector<double>* values) {
            if (values->empty() && !row.auto_doc.empty()) return std::string("auto");
            return fmt::format("[{}]", fmt::join(*values, ", "));
          },
          [](DoublePair pair) { return fmt::format("[{}, {}]", *pair.first, *pair.second); },
          [](Ramp* ramp) {
            if (ramp->empty()) return std::string("auto");
            if (ramp->size() == 1) return fmt::format("{}", ramp->begin()->second);
            std::vector<std::string> entries;
            for (const auto& [from, value] : *ramp) {
              entries.push_back(fmt::format("{}: {}", from, value));
            }
            return fmt::format("{{{}}}", fmt::join(entries, ", "));
          },
          [](WordOrList value) {
            return value.list->empty() ? *value.word
                                       : fmt::format("[{}]", fmt::join(*value.list, ", "));
          },
          [](CountedWords value) {
            std::vector<std::string> items = *value.words;
            for (std::string& item : items) {
              if (value.counts == nullptr) break;
              const auto count = value.counts->find(item);
              if (count != value.counts->end()) item += fmt::format(": {}", count->second);
            }
            return fmt::format("[{}]", fmt::join(items, ", "));
          },
          [](std::vector<std::string>* texts) {
            std::vector<std::string> items = *texts;
            for (std::string& item : items) item = nlohmann::json(item).dump();
            return fmt::format("[{}]", fmt::join(items, ", "));
          },
          [](Passed value) {
            const auto found = value.texts->find(value.name);
            if (found == value.texts->end()) return std::string("[]");
            std::vector<std::string> items;
            for (const std::string& text : found->second) {
              items.push_back(nlohmann::json(text).dump());
            }
            return items.size() == 1 ? items[0] : fmt::format("[{}]", fmt::join(items, ", "));
          },
          [&](TextOrSources value) {
            if (value.sets != nullptr && !value.sets->empty()) {
              std::vector<std::string> sets;
              for (const auto& [name, sources] : *value.sets) {
                sets.push_back(
                    fmt::format("{}: {}", nlohmann::json(name).dump(), print_sources(sources)));
              }
              return fmt::format("{{{}}}", fmt::join(sets, ", "));
            }
            if (!value.list->empty()) return print_sources(*value.list);
            if (value.text->empty() && !row.auto_doc.empty()) return std::string("auto");
            return needs_quotes(*value.text) ? nlohmann::json(*value.text).dump() : *value.text;
          }},
      row.field(copy));
}

std::string either(const std::vector<std::string>& words) {
  const std::string all = fmt::format("{}", fmt::join(words, ", "));
  const size_t comma = all.rfind(", ");
  return comma == std::string::npos ? all : all.substr(0, comma) + " or " + all.substr(comma + 2);
}

std::string range_text(const Row& row) {
  TrainSpec any;
  const Field field = row.field(any);
  if (const auto* words = std::get_if<CountedWords>(&field); words && words->counts == nullptr) {
    return {};
  }
  if (std::holds_alternative<bool*>(field) || std::holds_alternative<std::string*>(field) ||
      std::holds_alternative<std::vector<std::string>*>(field) ||
      std::holds_alternative<TextOrSources>(field) || std::holds_alternative<Passed>(field)) {
    return {};
  }
  if (row.is_duration) {
    return fmt::format("{} to {}", duration_text(static_cast<int64_t>(row.min)),
                       duration_text(static_cast<int64_t>(row.max)));
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
  std::vector<std::string> values;
  for (const Choice& choice : row.choices) values.push_back(choice.value);
  if (std::holds_alternative<std::vector<std::string>*>(field)) return "list of texts";
  if (std::holds_alternative<CountedWords>(field)) {
    return fmt::format("list of {}", fmt::join(values, ", "));
  }
  if (std::holds_alternative<WordOrList>(field)) {
    return fmt::format("{} or list of integers", fmt::join(values, " or "));
  }
  if (!values.empty()) return fmt::format("{}", fmt::join(values, " or "));
  if (row.is_duration) return "time like `30m`";
  if (is_integer(field)) return "integer";
  if (std::holds_alternative<Ramp*>(field)) return "integer or map of integers";
  if (is_number_list(field)) return "two numbers";
  if (std::holds_alternative<std::vector<double>*>(field)) {
    return count_of_numbers(row) + " numbers";
  }
  if (const auto* sources = std::get_if<TextOrSources>(&field)) {
    return sources->sets != nullptr ? "path, list of paths, or several by name"
                                    : "path or list of paths with weights";
  }
  if (std::holds_alternative<bool*>(field)) return "true or false";
  if (std::holds_alternative<double*>(field)) return "number";
  if (row.is_list) return "text or list of texts";
  return row.is_path ? "path" : "text";
}

std::string expected(const Row& row) {
  TrainSpec any;
  const Field field = row.field(any);
  const std::string auto_text =
      row.auto_doc.empty() ? "" : fmt::format(", or auto ({})", row.auto_doc);
  const std::string range =
      row.above_min || row.below_max ? range_text(row) : "from " + range_text(row);
  std::vector<std::string> values;
  for (const Choice& choice : row.choices) values.push_back(choice.value);
  if (std::holds_alternative<std::vector<std::string>*>(field)) {
    return "a list of texts, like " + row.example;
  }
  if (const auto* words = std::get_if<CountedWords>(&field)) {
    const std::string numbers =
        words->counts == nullptr ? "" : fmt::format(", perhaps with whole numbers {}", range);
    return fmt::format("a list of some of {}{}, like {}", fmt::join(values, ", "), numbers,
                       row.example);
  }
  if (std::holds_alternative<WordOrList>(field)) {
    return fmt::format("{} or a list of whole numbers {}, like {}", fmt::join(values, " or "),
                       range, row.example);
  }
  if (std::holds_alternative<Ramp*>(field)) {
    return fmt::format("a whole number {}, or a map to such numbers like {}{}", range, row.example,
                       auto_text);
  }
  if (row.is_duration) return fmt::format("a time {}: 90s, 30m, 12h or 1d{}", range, auto_text);
  if (is_integer(field)) return fmt::format("a whole number {}{}", range, auto_text);
  if (std::holds_alternative<double*>(field)) {
    return fmt::format("a number {}{}", range, auto_text);
  }
  if (is_number_list(field)) {
    TrainSpec built_in;
    return fmt::format("two numbers {}, like {}", range, print_value(row, built_in));
  }
  if (std::holds_alternative<std::vector<double>*>(field)) {
    TrainSpec built_in;
    const std::string like = row.example.empty() ? print_value(row, built_in) : row.example;
    return fmt::format("{} numbers {}, like {}{}", count_of_numbers(row), range, like, auto_text);
  }
  if (const auto* sources = std::get_if<TextOrSources>(&field)) {
    if (sources->sets != nullptr) {
      return "a path, a list like [a, b], or names of them like {web: a, code: [b, c]}" + auto_text;
    }
    return "a path or a list like [{path: a, weight: 0.3}, {path: b, weight: 0.7}]" + auto_text;
  }
  if (!values.empty()) return (values.size() > 1 ? "one of " : "") + type_text(row) + auto_text;
  if (std::holds_alternative<bool*>(field)) return "true or false";
  if (row.is_list) return "a text or a list of texts";
  return row.is_path ? "a path" : "a text";
}

}  // namespace mtl::spec
