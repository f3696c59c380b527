// Settings of train.yaml as they are written on a command line (key=value), so that a drawn run can
// be taken apart setting by setting, and typed again by hand.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/plan/plan.h"
#include "runtime/spec/train_spec.h"

namespace mtl::sweep {

class Settings {
 public:
  // A later value replaces an earlier one.
  void set(const std::string& key, const std::string& value);
  void set(const std::string& key, int64_t value) { set(key, std::to_string(value)); }
  void erase(std::string_view key);
  // "" or `fallback` where it is not set.
  std::string text(std::string_view key) const;
  int64_t number(std::string_view key, int64_t fallback) const;
  // These, and over them others.
  Settings with(const Settings& others) const;
  const std::vector<std::pair<std::string, std::string>>& all() const { return all_; }
  std::vector<std::string> overrides() const;
  // Ranks that its degrees ask for.
  int world() const;
  bool operator==(const Settings&) const = default;

 private:
  std::vector<std::pair<std::string, std::string>> all_;
};

// What a command line says over an empty train.yaml.
SpecSources sources_of(const Settings& settings, const std::string& train_yaml);

// The plan of a model with that many token ids; nothing if the settings are refused.
struct Planned {
  TrainSpec spec;
  Plan plan;
  std::string refusal;  // what is said, of settings that are refused
};
bool plan_of(const Settings& settings, const std::string& train_yaml, int64_t vocab,
             Planned& planned);

}  // namespace mtl::sweep
