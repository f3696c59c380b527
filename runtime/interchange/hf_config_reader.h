// The fields of a config.json, each read in its range or refused (import.config), and none passed
// over in silence. For the files that read one only.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/error.h"

namespace mtl {

// More layers than any model has.
inline constexpr int64_t kMostLayers = 100'000;

class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& json, std::string file, Diagnostics& diagnostics)
      : json_(json), file_(std::move(file)), diagnostics_(diagnostics) {}
  // Of the object that is the field `key`; refused and taken for an empty one if it is none.
  ConfigReader section(const std::string& key);

  // null counts as not there.
  const nlohmann::json* find(const std::string& key) {
    seen_.insert(key);
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  int64_t size(const std::string& key, std::optional<int64_t> otherwise = std::nullopt) {
    const nlohmann::json* const value = find(key);
    if (value == nullptr) {
      if (otherwise) return *otherwise;
      refuse(named(key) + " is missing", "is this the config.json of the model?");
      return 1;
    }
    constexpr double kMost = 1 << 30;
    if (!value->is_number() || value->get<double>() < 0 || value->get<double>() > kMost ||
        value->get<double>() != std::floor(value->get<double>())) {
      refuse(fmt::format("{} is {}, not a size", named(key), shown(*value)));
      return 1;
    }
    return static_cast<int64_t>(value->get<double>());
  }
  double number(const std::string& key, double otherwise) {
    const nlohmann::json* const value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) {
      refuse(fmt::format("{} is {}, not a number", named(key), shown(*value)));
      return otherwise;
    }
    return value->get<double>();
  }
  // As train.yaml takes it.
  struct Range {
    double least, most;
    bool above = false;  // `least` itself is outside
  };
  // A missing one that has no `otherwise` is refused.
  double number_in(const Range& range, const std::string& key,
                   std::optional<double> otherwise = std::nullopt) {
    if (find(key) == nullptr) {
      if (!otherwise) refuse(named(key) + " is missing");
      return otherwise.value_or(range.most);
    }
    const double read = number(key, otherwise.value_or(range.most));
    const bool enough = range.above ? read > range.least : read >= range.least;
    if (enough && read <= range.most) return read;
    refuse(fmt::format("{} is {}, and has to be {} {} and at most {}", named(key), read,
                       range.above ? "above" : "at least", range.least, range.most));
    return otherwise.value_or(range.most);
  }
  // `count` numbers above 0. A missing list is refused, and empty.
  std::vector<double> factors(const std::string& key, int64_t count) {
    const nlohmann::json* const value = find(key);
    if (value == nullptr) {
      refuse(named(key) + " is missing");
      return {};
    }
    const bool numbers =
        value->is_array() && std::all_of(value->begin(), value->end(), [](const auto& item) {
          return item.is_number() && item.template get<double>() > 0;
        });
    if (!numbers || static_cast<int64_t>(value->size()) != count) {
      refuse(fmt::format("{} is not a list of {} numbers above 0", named(key), count));
      return {};
    }
    return value->get<std::vector<double>>();
  }
  // null is false, as Python takes it.
  bool boolean(const std::string& key, bool otherwise) {
    const nlohmann::json* const value = find(key);
    if (value == nullptr) return otherwise && !json_.contains(key);
    if (!value->is_boolean()) {
      refuse(fmt::format("{} is {}, not true or false", named(key), shown(*value)));
      return otherwise;
    }
    return value->get<bool>();
  }
  std::string text(const std::string& key, const std::string& otherwise) {
    const nlohmann::json* const value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) {
      refuse(fmt::format("{} is {}, not a name", named(key), shown(*value)));
      return otherwise;
    }
    return value->get<std::string>();
  }
  // A switch that changes the mathematics to something that we do not have.
  void require(const std::string& key, bool wanted, bool otherwise, const std::string& why) {
    if (boolean(key, otherwise) == wanted) return;
    refuse(fmt::format("{} is {}: {}", named(key), !wanted, why),
           "this model cannot be run by mtl");
  }
  void refuse(const std::string& what,
              const std::string& help = "compare config.json with the original model's") {
    diagnostics_.add({.code = "import.config", .what = file_ + ": " + what, .help = help});
  }
  void warn(const std::string& what, const std::string& help) {
    diagnostics_.add({.code = "import.config",
                      .what = file_ + ": " + what,
                      .help = help,
                      .severity = Diagnostic::Severity::warning});
  }
  // At the end: refuses a quantised or otherwise changed model, and warns of fields that nobody
  // here has heard of.
  void finish();
  const nlohmann::json& json() const { return json_; }

 private:
  std::string named(const std::string& key) const { return fmt::format("'{}'{}", key, of_); }
  static std::string shown(const nlohmann::json& value) {
    std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    if (text.size() > 60) text = text.substr(0, 57) + "...";
    return text;
  }

  const nlohmann::json& json_;
  const std::string file_;
  std::string of_;  // " of 'rope_scaling'"
  Diagnostics& diagnostics_;
  std::set<std::string> seen_;
};

}  // namespace mtl
