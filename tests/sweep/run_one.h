// One run from its settings to its end, in a process of its own, by what `mtl launch` does before
// it starts a worker and by the worker itself (launch.spawn: threads).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sweep/settings.h"

namespace mtl::sweep {

struct Outcome {
  enum class End {
    done,
    refused,  // before it began, with an error
    failed,   // on its way, with an error
    crashed,  // with a signal
    hung,
  };
  End end = End::done;
  std::string code;                   // of the first error
  std::string text;                   // what it said
  std::filesystem::path dir;          // of the run, if it began
  std::vector<nlohmann::json> steps;  // metrics.jsonl
  std::vector<nlohmann::json> texts;  // generated.jsonl, without seconds
  int64_t planned_bytes = 0;
};

// `name`: of the folder for it in `folder`. A run that is there goes on, from its newest
// checkpoint.
Outcome run_one(const Settings& settings, const std::filesystem::path& folder,
                const std::string& name);

// A copy of a run as it was when it had written the checkpoint of `step`, under another name.
void copy_run_until(const Outcome& run, int64_t step, const std::filesystem::path& folder,
                    const std::string& name);

// Steps with a checkpoint, ascending.
std::vector<int64_t> checkpoint_steps(const std::filesystem::path& run);

}  // namespace mtl::sweep
