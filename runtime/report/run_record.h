// What a run directory says about its run, read for a person: whatever is missing, damaged or still
// being written is left out and never an error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/metrics/run_settings.h"
#include "runtime/report/curve.h"

namespace mtl {

struct RunEvent {
  std::string time;
  std::string name;  // "resumed", "failed"; several checkpoints in a row are one
  int64_t first_step = 0, last_step = 0;
  int64_t count = 1;
  std::string words;  // the reason, with its code
};

// What the model wrote behind a prompt after a step.
struct GeneratedText {
  int64_t step = 0;
  std::string prompt, text;
  std::string ended;  // why it stopped before it had all tokens; "" = it did not
};

struct RunRecord {
  std::filesystem::path dir;
  std::string name, id;  // the folder of the run's name, and its own
  std::string state;     // running, done, stopped, failed, lost (see metrics/run_state.h); unknown
                         // if nothing says so
  std::string reason;    // of a failure
  std::optional<int> exit_code;
  std::string began, last_heard;  // times; "" = never
  int64_t step = 0, steps = 0;    // done, and of the whole run; 0 = unknown
  int64_t tokens = 0;             // that those steps have learned from; 0 = unknown
  double seconds = 0;             // that the run was at work, without the time between its starts
  double tokens_per_s = 0;        // the mean of the steps that were logged, but for the first
  int64_t starts = 0, failures = 0, checkpoints = 0, skipped = 0;
  int64_t damaged_lines = 0;             // of metrics.jsonl, events.jsonl and generated.jsonl
  std::map<std::string, Curve> curves;   // by the names of metrics.jsonl; "gpus.power_w"
  std::vector<RunEvent> events;          // the newest of very many
  std::vector<std::string> start_lines;  // what the newest start opened with
  // In the order of the steps: the first, the newest and some between them.
  std::vector<GeneratedText> generated;
  std::vector<RunSetting> settings;
  nlohmann::json plan, environment;  // objects, perhaps empty

  const Curve* curve(const std::string& key) const;
};

// `buckets`: of each curve.
RunRecord read_run(const std::filesystem::path& dir, size_t buckets = 200);

}  // namespace mtl
