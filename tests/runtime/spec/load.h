// Loads settings for a test, and what is wrong with them as text.
#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>

#include "runtime/spec/train_spec.h"
#include "support/temp_dir.h"

namespace mtl::test {

inline constexpr const char* kSmallest =
    "model:\n"
    "  layers: 2\n"
    "  hidden: 64\n"
    "  heads: 4\n"
    "train:\n"
    "  global_batch: 8\n"
    "  seq_len: 32\n"
    "  steps: 10\n"
    "data:\n"
    "  train: input.txt\n";

struct Loaded {
  ResolvedSpec resolved;
  std::vector<Diagnostic> problems;
  std::string file;
};

inline Loaded load(const TempDir& dir, const std::string& text, SpecSources sources = {}) {
  Loaded loaded;
  loaded.file = sources.train_yaml = dir.file("train.yaml", text);
  Diagnostics diagnostics;
  loaded.resolved = load_spec(sources, diagnostics);
  loaded.problems = diagnostics.all();
  return loaded;
}

// The smallest file with `lines` behind it.
inline Loaded load_more(const std::string& lines, SpecSources sources = {}) {
  const TempDir dir;
  return load(dir, kSmallest + lines, std::move(sources));
}

inline Loaded load_overrides(const std::vector<std::string>& overrides) {
  return load_more("", {.train_yaml = {}, .overrides = overrides});
}

// "code: what" of all problems.
inline std::vector<std::string> texts(const Loaded& loaded) {
  std::vector<std::string> all;
  for (const Diagnostic& problem : loaded.problems) {
    all.push_back(fmt::format("{}: {}", problem.code, problem.what));
  }
  return all;
}

// The only problem after setting `override`, as "code: what | help".
inline std::string refusal(const std::string& override_text) {
  const Loaded loaded = load_overrides({override_text});
  if (loaded.problems.size() != 1) return fmt::format("{} problems", loaded.problems.size());
  const Diagnostic& problem = loaded.problems[0];
  return fmt::format("{}: {} | {}", problem.code, problem.what, problem.help);
}

inline std::string code_of(const std::string& override_text) {
  const std::string text = refusal(override_text);
  return text.substr(0, text.find(':'));
}

}  // namespace mtl::test
