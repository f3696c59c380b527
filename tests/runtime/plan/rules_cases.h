// Settings, and the errors that a plan must answer them with.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/plan/plan.h"
#include "runtime/spec/load.h"

namespace mtl::test {

// 4 layers, 6 heads of 8, ffn 192; steps of 12 sequences of 16 tokens.
inline ResolvedSpec ruled_spec() {
  ResolvedSpec resolved;
  TrainSpec& spec = resolved.spec;
  spec.model.layers = 4;
  spec.model.hidden = 48;
  spec.model.heads = 6;
  spec.train.global_batch = 12;
  spec.train.seq_len = 16;
  spec.train.steps = 100;
  // Every key stands in a file of its own name, so that a test sees where an error points.
  for (const std::string& key : spec_keys()) resolved.places[key] = Place{key};
  return resolved;
}

// The errors; warnings aside.
inline std::vector<Diagnostic> problems_of(const ResolvedSpec& resolved, int world,
                                           int64_t sequences = 0) {
  Diagnostics diagnostics;
  make_plan(resolved, {.vocab = 65, .sequences = sequences}, world, diagnostics);
  std::vector<Diagnostic> errors;
  for (const Diagnostic& problem : diagnostics.all()) {
    if (problem.severity == Diagnostic::Severity::error) errors.push_back(problem);
  }
  return errors;
}

inline void with_experts(TrainSpec& spec, int64_t experts) {
  spec.model.moe.experts = experts;
  spec.model.activation = "swiglu";
  spec.model.bias = false;
}

struct RuleCase {
  std::string name;
  std::function<void(TrainSpec&)> change;
  int world;
  std::string code, key, what, help;
  std::string note = {};
};

inline void check_cases(const std::vector<RuleCase>& cases) {
  for (const RuleCase& c : cases) {
    CAPTURE(c.name);
    ResolvedSpec resolved = ruled_spec();
    c.change(resolved.spec);
    const std::vector<Diagnostic> problems = problems_of(resolved, c.world);
    CHECK(problems.size() == 1);
    if (problems.empty()) continue;
    const Diagnostic& problem = problems[0];
    CHECK(problem.code == c.code);
    CHECK(problem.place.value_or(Place{}).file == c.key);
    CHECK(problem.what == c.what);
    CHECK(problem.help == c.help);
    CHECK((problem.notes.empty() ? std::string() : problem.notes[0]) == c.note);
  }
}

}  // namespace mtl::test
