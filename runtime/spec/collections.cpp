#include "runtime/spec/collections.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "runtime/spec/scalars.h"
#include "runtime/spec/values.h"

namespace mtl::spec {

namespace {

// No run has more steps or epochs.
constexpr int64_t kLastKey = 1'000'000'000'000;

// A whole number of the row's range, `name` in messages.
std::optional<Diagnostic> read_number(const Row& row, const std::string& name,
                                      const YamlValue& value, int64_t& result) {
  if (value.kind != YamlValue::Kind::scalar || value.quoted) {
    return diagnose(row, value.place,
                    {"config.type", fmt::format("{} is not a whole number", name)});
  }
  int64_t number = 0;
  if (auto problem = read_integer(name, value.text, false, number)) {
    return diagnose(row, value.place, std::move(*problem));
  }
  if (!in_range(row, number)) {
    return diagnose(row, value.place,
                    {"config.range", fmt::format("{} cannot be {}", name, quoted(value.text))});
  }
  result = number;
  return std::nullopt;
}

// What is no list, or one without items; `otherwise` says what it is then.
std::optional<Diagnostic> refuse_empty(const Row& row, const YamlValue& value,
                                       const char* otherwise) {
  if (value.kind != YamlValue::Kind::list) {
    return diagnose(row, value.place, {"config.type", fmt::format("{} {}", row.key, otherwise)});
  }
  if (value.items.empty()) {
    return diagnose(row, value.place, {"config.range", fmt::format("{} is empty", row.key)});
  }
  return std::nullopt;
}

}  // namespace

std::optional<Diagnostic> read_pair(const Row& row, const YamlValue& value, double (&pair)[2]) {
  if (value.kind != YamlValue::Kind::list) {
    return diagnose(row, value.place, {"config.type", fmt::format("{} is not a list", row.key)});
  }
  if (value.items.size() != 2) {
    return diagnose(row, value.place,
                    {"config.range",
                     fmt::format("{} has {} numbers instead of 2", row.key, value.items.size())});
  }
  double numbers[2] = {0, 0};
  for (size_t i = 0; i < 2; ++i) {
    const YamlValue& item = value.items[i];
    if (item.kind != YamlValue::Kind::scalar || item.quoted) {
      return diagnose(row, item.place,
                      {"config.type", fmt::format("{}: item {} is not a number", row.key, i + 1)});
    }
    if (auto problem = read_double(row.key, item.text, numbers[i])) {
      return diagnose(row, item.place, std::move(*problem));
    }
    if (!in_range(row, numbers[i])) {
      return diagnose(row, item.place, out_of_range(row, quoted(item.text), numbers[i]));
    }
  }
  std::copy(std::begin(numbers), std::end(numbers), std::begin(pair));
  return std::nullopt;
}

std::optional<Diagnostic> read_ramp(const Row& row, const YamlValue& value, Ramp& ramp) {
  Ramp read;
  if (value.kind == YamlValue::Kind::scalar) {
    if (auto problem = read_number(row, row.key, value, read[0])) return problem;
    ramp = std::move(read);
    return std::nullopt;
  }
  if (value.kind != YamlValue::Kind::map) {
    return diagnose(row, value.place, {"config.type", fmt::format("{} is a list", row.key)});
  }
  if (value.entries.empty()) {
    return diagnose(row, value.place, {"config.range", fmt::format("{} is empty", row.key)});
  }
  for (const YamlValue::Entry& entry : value.entries) {
    const std::string name = fmt::format("{}: {}", row.key, quoted(entry.key));
    int64_t from = 0;
    if (auto problem = read_integer(row.key, entry.key, row.suffixes, from)) {
      return diagnose(row, entry.key_place, std::move(*problem));
    }
    if (from < 0 || from > kLastKey) {
      return diagnose(row, entry.key_place,
                      {"config.range", fmt::format("{} cannot be a key", name)});
    }
    if (read.empty() && from != 0) {
      return diagnose(row, entry.key_place,
                      {"config.range", fmt::format("{} begins with {}", row.key, quoted(entry.key)),
                       fmt::format("begin with 0, like {}", row.example)});
    }
    if (!read.empty() && from <= read.rbegin()->first) {
      return diagnose(
          row, entry.key_place,
          {"config.range", fmt::format("{} stands behind {}", name, read.rbegin()->first),
           fmt::format("write the keys in ascending order, like {}", row.example)});
    }
    if (auto problem = read_number(row, name, entry.value, read[from])) return problem;
  }
  ramp = std::move(read);
  return std::nullopt;
}

std::optional<Diagnostic> read_word_or_list(const Row& row, const YamlValue& value,
                                            const WordOrList& result) {
  if (value.kind == YamlValue::Kind::scalar) {
    if (auto problem = read_choice(row, value.text, *result.word)) {
      return diagnose(row, value.place, std::move(*problem));
    }
    result.list->clear();
    return std::nullopt;
  }
  if (auto problem = refuse_empty(row, value, "is a section")) return problem;
  std::vector<int64_t> list;
  for (const YamlValue& item : value.items) {
    const std::string name = fmt::format("{}: item {}", row.key, list.size() + 1);
    if (auto problem = read_number(row, name, item, list.emplace_back())) return problem;
  }
  *result.list = std::move(list);
  return std::nullopt;
}

std::optional<Diagnostic> read_texts(const Row& row, const YamlValue& value,
                                     std::vector<std::string>& texts) {
  if (value.kind == YamlValue::Kind::scalar) {
    texts = {value.text};
    return std::nullopt;
  }
  if (value.kind != YamlValue::Kind::list) {
    return diagnose(row, value.place, {"config.type", fmt::format("{} is not a list", row.key)});
  }
  std::vector<std::string> read;
  for (const YamlValue& item : value.items) {
    if (item.kind != YamlValue::Kind::scalar) {
      return diagnose(row, item.place,
                      {"config.type", fmt::format("{}: item {} is not a text (one with a colon "
                                                  "stands in quotes)",
                                                  row.key, read.size() + 1)});
    }
    read.push_back(item.text);
  }
  texts = std::move(read);
  return std::nullopt;
}

std::optional<Diagnostic> read_words(const Row& row, const YamlValue& value,
                                     const CountedWords& result) {
  if (value.kind != YamlValue::Kind::list) {
    Problem problem{"config.type", fmt::format("{} is not a list", row.key)};
    if (value.kind == YamlValue::Kind::scalar) {
      problem.help = fmt::format("write [{}]", value.text);
    }
    return diagnose(row, value.place, std::move(problem));
  }
  if (value.items.empty()) {
    return diagnose(row, value.place, {"config.range", fmt::format("{} is empty", row.key)});
  }
  std::vector<std::string> read;
  std::map<std::string, int64_t> counts;
  for (const YamlValue& item : value.items) {
    const bool counted =
        result.counts != nullptr && item.kind == YamlValue::Kind::map && item.entries.size() == 1;
    if (item.kind != YamlValue::Kind::scalar && !counted) {
      return diagnose(
          row, item.place,
          {"config.type",
           result.counts == nullptr
               ? fmt::format("{}: item {} is no word", row.key, read.size() + 1)
               : fmt::format("{}: item {} is neither a word nor one with a number like `{}: 2`",
                             row.key, read.size() + 1, row.choices.back().value)});
    }
    std::string word;
    if (auto problem = read_choice(row, counted ? item.entries[0].key : item.text, word)) {
      return diagnose(row, item.place, std::move(*problem));
    }
    if (counted) {
      const std::string name = fmt::format("{}: {}", row.key, word);
      if (auto problem = read_number(row, name, item.entries[0].value, counts[word])) {
        return problem;
      }
    }
    if (std::find(read.begin(), read.end(), word) != read.end()) {
      return diagnose(
          row, item.place,
          {"config.range", fmt::format("{} has `{}` twice", row.key, word), "remove one of them"});
    }
    read.push_back(std::move(word));
  }
  *result.words = std::move(read);
  if (result.counts != nullptr) *result.counts = std::move(counts);
  return std::nullopt;
}

std::string count_of_numbers(const Row& row) {
  return row.most_items == 3 ? "one to three" : fmt::format("1 to {}", row.most_items);
}

std::optional<Diagnostic> read_numbers(const Row& row, const YamlValue& value,
                                       std::vector<double>& numbers) {
  if (value.kind != YamlValue::Kind::list) {
    return diagnose(row, value.place, {"config.type", fmt::format("{} is not a list", row.key)});
  }
  if (value.items.empty() || value.items.size() > row.most_items) {
    return diagnose(row, value.place,
                    {"config.range", fmt::format("{} has {} numbers instead of {}", row.key,
                                                 value.items.size(), count_of_numbers(row))});
  }
  std::vector<double> read;
  for (const YamlValue& item : value.items) {
    if (item.kind != YamlValue::Kind::scalar || item.quoted) {
      return diagnose(
          row, item.place,
          {"config.type", fmt::format("{}: item {} is not a number", row.key, read.size() + 1)});
    }
    if (auto problem = read_double(row.key, item.text, read.emplace_back())) {
      return diagnose(row, item.place, std::move(*problem));
    }
    if (!in_range(row, read.back())) {
      return diagnose(row, item.place, out_of_range(row, quoted(item.text), read.back()));
    }
  }
  if (read.front() <= 0) {
    return diagnose(row, value.items.front().place,
                    out_of_range(row, fmt::format("{}: the first weight must be above 0",
                                                  quoted(value.items.front().text))));
  }
  numbers = std::move(read);
  return std::nullopt;
}

namespace {

using Sources = std::vector<TrainSpec::Data::Source>;

// `key`: its name in messages.
std::optional<Diagnostic> read_source_list(const Row& row, const std::string& key,
                                           const YamlValue& value, Sources& list) {
  size_t weighted = 0;
  for (const YamlValue& item : value.items) {
    TrainSpec::Data::Source& source = list.emplace_back();
    const std::string name = fmt::format("{}: item {}", key, list.size());
    if (item.kind == YamlValue::Kind::scalar) {
      source.path = item.text;
    } else if (item.kind == YamlValue::Kind::map) {
      for (const YamlValue::Entry& entry : item.entries) {
        const bool scalar = entry.value.kind == YamlValue::Kind::scalar;
        if (entry.key == "path" && scalar) {
          source.path = entry.value.text;
        } else if (entry.key == "weight" && scalar && !entry.value.quoted) {
          if (auto problem = read_double(name, entry.value.text, source.weight)) {
            return diagnose(row, entry.value.place, std::move(*problem));
          }
          if (!(source.weight > 0 && source.weight <= 1e12)) {
            return diagnose(
                row, entry.value.place,
                {"config.range", fmt::format("{}: the weight must be above 0{}", name,
                                             source.weight > 0 ? ", at most 1e12" : "")});
          }
        } else {
          return diagnose(
              row, entry.key_place,
              {"config.type", fmt::format("{} has {}, which is neither a path nor a weight", name,
                                          quoted(entry.key))});
        }
      }
    }
    if (source.path.empty()) {
      return diagnose(row, item.place, {"config.type", fmt::format("{} has no path", name)});
    }
    weighted += source.weight > 0;
  }
  if (weighted > 0 && weighted < list.size()) {
    return diagnose(
        row, value.place,
        {"config.range", fmt::format("{}: {} of {} have a weight", key, weighted, list.size()),
         "give all of them a weight, or none"});
  }
  return std::nullopt;
}

// Names go into tags and keys of other files.
bool is_set_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.';
  });
}

std::optional<Diagnostic> read_sets(const Row& row, const YamlValue& value,
                                    const TextOrSources& result) {
  std::vector<std::pair<std::string, Sources>> sets;
  for (const YamlValue::Entry& entry : value.entries) {
    const std::string key = fmt::format("{}.{}", row.key, entry.key);
    if (!is_set_name(entry.key)) {
      return diagnose(
          row, entry.key_place,
          {"config.range", fmt::format("{}: {} is no name of a set", row.key, quoted(entry.key)),
           "use letters, digits, `_`, `-` and `.`"});
    }
    Sources& list = sets.emplace_back(entry.key, Sources()).second;
    if (entry.value.kind == YamlValue::Kind::scalar && !entry.value.text.empty()) {
      list.push_back({entry.value.text, 0});
    } else if (entry.value.kind == YamlValue::Kind::list && !entry.value.items.empty()) {
      if (auto problem = read_source_list(row, key, entry.value, list)) return problem;
    } else {
      return diagnose(
          row, entry.value.place,
          {"config.type", fmt::format("{} is neither a path nor a list of paths", key)});
    }
  }
  if (sets.empty()) {
    return diagnose(row, value.place, {"config.range", fmt::format("{} is empty", row.key)});
  }
  result.text->clear();
  result.list->clear();
  *result.sets = std::move(sets);
  return std::nullopt;
}

}  // namespace

std::optional<Diagnostic> read_sources(const Row& row, const YamlValue& value,
                                       const TextOrSources& result) {
  if (value.kind == YamlValue::Kind::map && result.sets != nullptr) {
    return read_sets(row, value, result);
  }
  // Nothing of what stood there before is left.
  if (value.kind == YamlValue::Kind::scalar) {
    if (auto problem = read_text(row, value.text, *result.text)) {
      return diagnose(row, value.place, std::move(*problem));
    }
    result.list->clear();
  } else {
    if (auto problem = refuse_empty(row, value, "is a section")) return problem;
    Sources list;
    if (auto problem = read_source_list(row, row.key, value, list)) return problem;
    result.text->clear();
    *result.list = std::move(list);
  }
  if (result.sets != nullptr) result.sets->clear();
  return std::nullopt;
}

std::optional<Diagnostic> read_passed(const Row& row, const YamlValue& value,
                                      const Passed& result) {
  std::vector<std::string> texts;
  if (value.kind == YamlValue::Kind::scalar) {
    texts = {value.text};
  } else if (value.kind == YamlValue::Kind::list && (row.is_list || value.items.empty())) {
    for (const YamlValue& item : value.items) {
      if (item.kind != YamlValue::Kind::scalar) {
        return diagnose(
            row, item.place,
            {"config.type", fmt::format("{}: item {} is not a text", row.key, texts.size() + 1)});
      }
      texts.push_back(item.text);
    }
  } else {
    const bool list = value.kind == YamlValue::Kind::list;
    return diagnose(row, value.place,
                    {"config.type", value.kind == YamlValue::Kind::null
                                        ? fmt::format("{} has no value", row.key)
                                        : fmt::format("{} is one value, not a {}", row.key,
                                                      list ? "list" : "section")});
  }
  if (value.kind == YamlValue::Kind::scalar && value.text.empty()) {
    return diagnose(row, value.place, {"config.type", fmt::format("{} is empty", row.key)});
  }
  if (texts.empty()) {
    result.texts->erase(result.name);
  } else {
    (*result.texts)[result.name] = std::move(texts);
  }
  return std::nullopt;
}

}  // namespace mtl::spec
