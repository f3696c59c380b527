// A run so small that a test can afford it: its recipe, and what it leaves behind.
#pragma once

#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "support/processes.h"
#include "support/text.h"

namespace mtl::test {

namespace fs = std::filesystem;
using nlohmann::json;

// A model of a few thousand parameters on a text that repeats itself.
inline void write_recipe(const Shell& shell, int steps) {
  shell.write("corpus.txt", fox_text());
  shell.write("train.yaml",
              "run:\n  name: tiny\n"
              "model:\n  layers: 2\n  hidden: 32\n  heads: 4\n"
              "train:\n  micro_batch: 2\n  global_batch: 4\n  seq_len: 16\n  steps: " +
                  std::to_string(steps) +
                  "\n  eval:\n    iters: 2\n"
                  "data:\n  train: corpus.txt\n  tokenizer:\n    type: chars\n"
                  "checkpoint:\n  every: 5\nlog:\n  every: 5\n");
}

// Trains with `settings` beside the recipe and expects it to end well.
inline Outcome launch(const Shell& shell, int ranks, std::vector<std::string> settings,
                      const std::vector<std::string>& more = {}) {
  settings.insert(settings.begin(),
                  {"launch", "--num_processes", std::to_string(ranks), "train.yaml"});
  settings.insert(settings.end(), more.begin(), more.end());
  const Outcome outcome = shell.mtl(settings);
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  return outcome;
}

// The one run of that name.
inline fs::path run_of(const Shell& shell) {
  std::vector<fs::path> runs;
  for (const auto& entry : fs::directory_iterator(shell.dir() / "runs/tiny")) {
    if (entry.is_directory() && !entry.is_symlink()) runs.push_back(entry.path());
  }
  REQUIRE(runs.size() == 1);
  return runs[0];
}

inline std::vector<json> metrics_of(const fs::path& run) {
  std::vector<json> lines;
  std::istringstream in(file_text(run / "metrics.jsonl"));
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

inline json status_of(const fs::path& run) {
  return json::parse(file_text(run / "status.json"));
}

// Of its last checkpoint.
inline json state_of(const fs::path& run) {
  return json::parse(file_text(run / "latest" / "manifest.json"))["state"];
}

// The losses of the runs below that folder, as they were written.
inline std::vector<std::string> losses_below(const fs::path& dir) {
  std::vector<std::string> losses;
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (!entry.is_directory() || entry.is_symlink()) continue;
    for (const json& line : metrics_of(entry.path())) {
      if (line.contains("loss")) losses.push_back(line["loss"].dump());
    }
  }
  return losses;
}

// As `mtl launch` with two processes has them.
inline std::vector<std::string> losses_of_launch(const Shell& shell) {
  const Outcome launched =
      shell.mtl({"launch", "--num_processes", "2", "train.yaml", "run.dir=launched"},
                {{"OMP_NUM_THREADS", "1"}});
  REQUIRE_MESSAGE(launched.code == 0, launched.err);
  return losses_below(shell.dir() / "launched/tiny");
}

// The bytes of every tensor, by name, from all shards.
inline std::map<std::string, std::string> tensors_of(const fs::path& checkpoint) {
  std::map<std::string, std::string> tensors;
  const json manifest = json::parse(file_text(checkpoint / "manifest.json"));
  for (const auto& [name, tensor] : manifest.at("tensors").items()) {
    std::map<std::string, std::string> chunks;  // by where they lie in the tensor
    for (const json& chunk : tensor.at("chunks")) {
      chunks[chunk.at("offset").dump() + chunk.at("extent").dump()] = chunk.at("xxh3").dump();
    }
    for (const auto& [place, hash] : chunks) tensors[name] += place + hash;
  }
  return tensors;
}

inline void wait_for_text(const Shell& shell, const std::string& text) {
  wait_until([&] { return has(file_text(shell.dir() / "stderr.txt"), text); });
}

// A worker of a job of this shell, found by its environment; 0 = there is none.
inline pid_t worker_with(const Shell& shell, const std::string& text) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string environment = file_text(entry.path() / "environ");
    if (has(environment, "HF_HOME=" + (shell.dir() / "hf").string()) &&
        has(environment, std::string("\0RANK=", 6)) && has(environment, text)) {
      return std::stoi(entry.path().filename().string());
    }
  }
  return 0;
}

}  // namespace mtl::test
