// The run: from train.yaml to a checked plan and a run directory. Used by `mtl launch` and `mtl
// plan` before anything starts, and by every worker, which reads the same run directory.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "runtime/checkpoint/keep_rules.h"
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

// resolved_yaml(), in which a chosen train.micro_batch and train.steps say so.
std::string resolved_text(const CheckedRun& run);

struct RunDirectory {
  std::filesystem::path dir;         // run.dir/run.name/<id>
  std::filesystem::path checkpoint;  // to resume from; empty = from the start
  int64_t resume_step = 0;
  int64_t resume_samples = 0;  // consumed by then
  bool complete = false;       // nothing is left to train
  std::vector<Diagnostic> warnings;
  Fd lock;  // while it is held, no other launch works in `dir` (run.busy)
};
// Refuses a plan that this machine has no memory for (memory.host): of what lies in it, so of the
// arenas unless they are on GPUs; nothing where the ranks are on other machines. Finds the run to
// resume (checkpoint.resume: auto = the newest run of that name with a committed checkpoint; must =
// there has to be one; never = a new one) and checks that its checkpoint is of the same model and
// data, or makes a new directory. Writes train.yaml, resolved.yaml, plan.json, env.json,
// tokenizer.json. `nodes`: machines that share the run's memory evenly.
RunDirectory open_run(const CheckedRun& run, std::optional<bool> arenas_on_host, int nodes = 1);

// The lock of RunDirectory; throws run.busy.
Fd lock_run(const std::filesystem::path& dir);

// Before workers start in it, each time: what the run directory says about the layout follows `run`
// (a job may go on with fewer ranks), and workers that were started before and are still alive
// somewhere (a machine that was cut off) change no checkpoint any more. Returns the fence that the
// new ones are given (MTL_RUN_FENCE); it only ever grows. The length of a run that has had other
// batches is put right (run_length.h).
int64_t begin_generation(const std::filesystem::path& dir, CheckedRun& run);
// Throws Error "ckpt.fenced" (Exit::run_failed) if the run has gone on without workers of `fence`
// (0: there is no fence for them).
void check_fence(const std::filesystem::path& dir, int64_t fence);

// The directory that a person means by RUN: a run directory, run.dir/run.name (its newest run), or
// a checkpoint directory.
std::filesystem::path find_run(const std::string& text);
// The checkpoint that a person means by RUN or CHECKPOINT: it, or the newest complete one of the
// run. It is not verified. Throws Error (Exit::data) run.missing, ckpt.missing.
std::filesystem::path find_checkpoint(const std::string& text);
// The same, and every byte of a run's is verified: damaged ones are passed over, which is said on
// stderr.
std::filesystem::path find_intact_checkpoint(const std::string& text);

// checkpoint.keep_*, and those of a run directory by its resolved.yaml (all stay, if that cannot be
// read).
KeepRules keep_rules(const TrainSpec::Checkpoint& settings);
KeepRules keep_rules_of_run(const std::filesystem::path& dir);

}  // namespace mtl
