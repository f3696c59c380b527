// Settings of a launch as tests give them, and what becomes of them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "launcher/request/launch_request.h"

namespace mtl::test {

using Values = std::vector<std::pair<std::string, std::string>>;

inline FlagValues values(const Values& given, const std::string& before = "--") {
  FlagValues all;
  for (const auto& [name, text] : given) {
    const LaunchFlag* flag = find_launch_flag(name);
    REQUIRE_MESSAGE(flag != nullptr, name);
    FlagValue& value = all[flag->name];
    value.origin = before + name;
    value.texts.push_back(text);
  }
  return all;
}

struct Outcome {
  LaunchRequest request;
  std::vector<std::string> codes;
  std::string words;
};

inline Outcome resolved(const Values& flags, const LaunchConfig& file = {}, bool train_yaml = false,
                        const FlagValues& environment = {}) {
  Diagnostics diagnostics;
  Outcome outcome;
  outcome.request = resolve_launch(file, {.environment = environment, .flags = values(flags)},
                                   train_yaml, diagnostics);
  for (const Diagnostic& diagnostic : diagnostics.all()) {
    outcome.codes.push_back(diagnostic.code);
    outcome.words += diagnostic.what + " / " + diagnostic.help + "\n";
  }
  return outcome;
}

inline LaunchConfig file_of(const std::string& text) {
  Diagnostics diagnostics;
  LaunchConfig config = parse_launch_config(text, "c.yaml", diagnostics);
  for (const Diagnostic& diagnostic : diagnostics.all()) CAPTURE(diagnostic.what);
  CHECK_FALSE(diagnostics.has_errors());
  return config;
}

}  // namespace mtl::test
