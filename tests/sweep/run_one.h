// One run from its settings to its end, in a process of its own, by what `mtl launch` does before
// it starts a worker and by the worker itself: ranks are threads of that process, or processes
// below it (launch.spawn: processes).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sweep/settings.h"

namespace mtl::sweep {

struct Outcome {
  enum class End {
    done,
    stopped,  // as it was asked to: by the signal, or with a checkpoint
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
  int took_ms = 0;
};

// A signal that a run gets on its way, if it still is then.
struct Interruption {
  int lines = 0;     // of metrics.jsonl that it has written,
  int after_ms = 0;  // and so long after that (or after its start)
  int signal = 0;    // SIGKILL or SIGTERM
  int rank = 0;      // that is killed, where ranks are processes
};

// `name`: of the folder for it in `folder`. A run that is there goes on, from its newest
// checkpoint.
Outcome run_one(const Settings& settings, const std::filesystem::path& folder,
                const std::string& name, const std::optional<Interruption>& interruption = {});

// A copy of a run as it was when it had written the checkpoint of `step`, under another name.
void copy_run_until(const Outcome& run, int64_t step, const std::filesystem::path& folder,
                    const std::string& name);

// Steps with a checkpoint, ascending.
std::vector<int64_t> checkpoint_steps(const std::filesystem::path& run);

}  // namespace mtl::sweep
