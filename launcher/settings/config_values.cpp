#include "launcher/settings/config_values.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/text.h"

namespace mtl {

namespace {

// YAML 1.1's words, in any case; accelerate's files have all of them.
std::optional<bool> as_bool(const std::string& text) {
  const std::string word = lower(text);
  if (word == "true" || word == "yes" || word == "on") return true;
  if (word == "false" || word == "no" || word == "off") return false;
  return std::nullopt;
}

}  // namespace

bool is_null(const YamlValue& value) {
  return value.kind == YamlValue::Kind::null;
}

bool is_neutral(const YamlValue& value) {
  switch (value.kind) {
    case YamlValue::Kind::null:
      return true;
    case YamlValue::Kind::scalar:
      return value.text.empty() || as_bool(value.text) == false;
    case YamlValue::Kind::list:
      return value.items.empty();
    case YamlValue::Kind::map:
      return std::all_of(value.entries.begin(), value.entries.end(),
                         [](const YamlValue::Entry& entry) { return is_neutral(entry.value); });
  }
  return false;
}

void ConfigValues::bad(const YamlValue& value, const std::string& what, const std::string& help) {
  diagnostics_.add({.code = "config.bad_value", .what = what, .place = value.place, .help = help});
}

bool ConfigValues::is_single(const std::string& key, const YamlValue& value) {
  if (value.kind == YamlValue::Kind::scalar) return true;
  bad(value, key + " is a single value, not a list or a section");
  return false;
}

void ConfigValues::text(const std::string& key, const YamlValue& value, std::string& target) {
  if (is_single(key, value) && !value.text.empty()) target = value.text;
}

void ConfigValues::choice(const std::string& key, const YamlValue& value, std::string& target,
                          const std::vector<std::string>& choices) {
  if (!is_single(key, value)) return;
  if (std::find(choices.begin(), choices.end(), value.text) != choices.end()) {
    target = value.text;
    return;
  }
  const auto near = did_you_mean(value.text, choices);
  bad(value, fmt::format("{} cannot be '{}'", key, value.text),
      near ? fmt::format("did you mean '{}'?", *near)
           : fmt::format("it is one of {}", fmt::join(choices, ", ")));
}

void ConfigValues::whole(const std::string& key, const YamlValue& value, int& target, int least,
                         int most) {
  if (!is_single(key, value)) return;
  const auto number = to_number<int>(value.text);
  if (number && *number >= least && *number <= most) {
    target = *number;
    return;
  }
  bad(value, fmt::format("{} cannot be '{}'", key, value.text),
      most == INT_MAX ? fmt::format("it is a whole number, at least {}", least)
                      : fmt::format("it is a whole number from {} to {}", least, most));
}

void ConfigValues::truth(const std::string& key, const YamlValue& value, bool& target) {
  if (!is_single(key, value)) return;
  if (const auto truth = as_bool(value.text)) {
    target = *truth;
  } else {
    bad(value, fmt::format("{} cannot be '{}'", key, value.text), "it is true or false");
  }
}

}  // namespace mtl
