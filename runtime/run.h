// The run: from train.yaml to a checked plan. Used by `mtl launch` and `mtl plan` before anything
// starts, and by every worker, which reads the run directory (run_directory.h).
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "runtime/plan/forecast/beside_steps.h"
#include "runtime/plan/plan.h"
#include "runtime/prompts.h"
#include "runtime/rank_memory.h"
#include "runtime/run_data.h"
#include "runtime/spec/train_spec.h"

namespace mtl {

struct RunRequest {
  SpecSources sources;
  int world = 1;
  // Asked for what each rank may take, where train.micro_batch is auto; null = that is not known.
  std::function<std::optional<RankMemory>()> memory = {};
  // For a plan the data may still be elsewhere, if data.vocab is given: that is a warning then.
  bool plan_only = false;
  // Of a run that goes on: plan and samples follow from what its newest checkpoint has consumed.
  std::filesystem::path run_dir = {};
};

// Everything that can be known before a run, checked together: configuration, plan, data. Throws
// one Error (Exit::config, or Exit::data when only the data is at fault) with all problems.
struct CheckedRun {
  ResolvedSpec resolved;
  Plan plan;
  RunData corpus;
  Prompts prompts;
  std::vector<Diagnostic> warnings;
  // How train.micro_batch auto was chosen to fit the memory; "" = it was not. `resolved` has the
  // number then, so that workers and other machines take the same.
  std::string micro_batch_words = {};
  // The same of train.steps, where it follows from what a run has consumed (run_length.h).
  std::string steps_words = {};
};
CheckedRun check_run(const RunRequest& request);
// What its plan knows of the data.
DataFacts facts_of(const CheckedRun& run);
// What it does beside its steps. Of data that lie elsewhere (plan_only) only what the settings say.
BesideSteps beside_steps(const CheckedRun& run);

// resolved_yaml(), in which a chosen train.micro_batch and train.steps say so.
std::string resolved_text(const CheckedRun& run);

}  // namespace mtl
