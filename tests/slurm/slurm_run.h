// A character model that a test can afford, trained in jobs of a test's SLURM, and what its runs
// leave behind.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "support/slurm.h"
#include "support/text.h"

namespace mtl::test {

namespace fs = std::filesystem;
using nlohmann::json;

inline void write_text(const Slurm& slurm, const std::string& name, const std::string& text) {
  std::ofstream(slurm.work() / name, std::ios::binary) << text;
}

inline void write_recipe(const Slurm& slurm, int steps, const std::string& more = "") {
  write_text(slurm, "corpus.txt", fox_text());
  write_text(slurm, "train.yaml",
             "model:\n  layers: 2\n  hidden: 32\n  heads: 4\n"
             "train:\n  micro_batch: 1\n  global_batch: 24\n  seq_len: 16\n  steps: " +
                 std::to_string(steps) +
                 "\ndata:\n  train: corpus.txt\n  tokenizer:\n    type: chars\n"
                 "checkpoint:\n  every: 50\nlog:\n  every: 1\n" +
                 more);
}

// The one run of that name; "" if there is none yet.
inline fs::path run_dir(const Slurm& slurm, const std::string& name) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(slurm.work() / "runs" / name, none)) {
    if (entry.is_directory() && !entry.is_symlink()) return entry.path();
  }
  return {};
}

// Of every step the text of its loss; of one that was done twice, the last.
inline std::map<int, std::string> losses(const Slurm& slurm, const std::string& name) {
  std::map<int, std::string> steps;
  std::istringstream in(file_text(run_dir(slurm, name) / "metrics.jsonl"));
  for (std::string line; std::getline(in, line);) {
    const json object = json::parse(line, nullptr, false);
    if (object.is_object() && object.contains("step") && object.contains("loss")) {
      steps[object["step"].get<int>()] = object["loss"].dump();
    }
  }
  return steps;
}

inline bool reaches_step(const Slurm& slurm, const std::string& name, int step,
                         std::chrono::seconds within = std::chrono::seconds(180)) {
  const auto until = std::chrono::steady_clock::now() + within;
  while (std::chrono::steady_clock::now() < until) {
    const auto steps = losses(slurm, name);
    if (!steps.empty() && steps.rbegin()->first >= step) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

// Nothing of any job is left, soon.
inline bool is_quiet(const Slurm& slurm, std::chrono::seconds within = std::chrono::seconds(120)) {
  const auto until = std::chrono::steady_clock::now() + within;
  while (std::chrono::steady_clock::now() < until) {
    if (slurm.processes().empty()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

// A script for sbatch; returns the job's id.
inline std::string submit(const Slurm& slurm, const std::string& name,
                          const std::vector<std::string>& options, const std::string& body) {
  write_text(slurm, name, "#!/bin/bash\n" + body + "\n");
  std::vector<std::string> argv = {"sbatch", "--parsable", "--output=" + name + ".out",
                                   "--open-mode=append"};
  argv.insert(argv.end(), options.begin(), options.end());
  argv.push_back(name);
  return slurm.ask(argv);
}

inline const std::string kMtl = MTL_PROGRAM;

}  // namespace mtl::test
