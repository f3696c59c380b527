// A command of Megatron-LM as settings, for the tests of its rules.
#pragma once

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/error.h"
#include "runtime/spec/megatron_command.h"

namespace mtl::test {

struct Translated {
  std::map<std::string, std::string> settings;
  std::vector<std::string> open;
  std::string errors;
  std::string yaml;
};

inline Translated translated(const std::string& command) {
  std::istringstream in(command);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  Diagnostics diagnostics;
  const MegatronSettings settings = settings_of_megatron(words, diagnostics);
  Translated result;
  for (const auto& [key, value] : settings.settings) result.settings[key] = value;
  result.open = settings.open;
  for (const Diagnostic& diagnostic : diagnostics.all()) {
    CHECK(diagnostic.code == "config.import");
    result.errors += diagnostic.what + "\n";
  }
  result.yaml = megatron_train_yaml(settings, "a test");
  return result;
}

inline bool opens_with(const Translated& result, const std::string& text) {
  return std::any_of(result.open.begin(), result.open.end(),
                     [&](const std::string& sentence) { return sentence.starts_with(text); });
}

// Enough of a model for rules of other flags.
inline const std::string kSmall =
    "pretrain_gpt.py --num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 16 "
    "--micro-batch-size 1 --global-batch-size 8 --train-iters 100 --data-path a ";

}  // namespace mtl::test
