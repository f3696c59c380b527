// The run directory: opened once for a run, by whoever starts its ranks, and what it keeps of the
// run beside checkpoints, metrics and logs.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "runtime/checkpoint/keep_rules.h"
#include "runtime/run.h"
#include "runtime/spec/train_spec.h"

namespace mtl {

struct RunDirectory {
  std::filesystem::path dir;         // run.dir/run.name/<id>
  std::filesystem::path checkpoint;  // to resume from; empty = from the start
  int64_t resume_step = 0;
  int64_t resume_samples = 0;  // consumed by then
  bool complete = false;       // nothing is left to train or to evaluate
  std::vector<Diagnostic> warnings;
  Fd lock;  // while it is held, no other launch works in `dir` (run.busy)
};
// Refuses a plan that this machine has no memory for (memory.host): of what lies in it, so of the
// arenas unless they are on GPUs; nothing where the ranks are on other machines. Finds the run to
// resume (checkpoint.resume: auto = the newest run of that name with a committed checkpoint; must =
// there has to be one; never = a new one) and checks that its checkpoint is of the same model and
// data, or makes a new directory. Writes train.yaml, resolved.yaml, plan.json, env.json,
// tokenizer.json. `nodes`: machines that share the run's memory evenly. `before_writing` is called
// when the run is found, which may take long, and before anything is made.
RunDirectory open_run(const CheckedRun& run, std::optional<bool> arenas_on_host, int nodes = 1,
                      const std::function<void()>& before_writing = {});

// The <id> of a run that begins then: date and time (UTC), and of four letters two that go on with
// the fraction of the second and two by chance. By name runs are sorted as they began, to a
// thousandth of a second.
std::string run_id(std::chrono::system_clock::time_point when);

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

// checkpoint.keep_*, and those of a run directory by its resolved.yaml (all stay, if that cannot be
// read).
KeepRules keep_rules(const TrainSpec::Checkpoint& settings);
KeepRules keep_rules_of_run(const std::filesystem::path& dir);

}  // namespace mtl
