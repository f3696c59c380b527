// A character model so small that a test can afford it, trained from a folder that all machines of
// a lab share; and what its runs leave behind.
#pragma once

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cluster/jobs.h"
#include "runtime/checkpoint/checkpoint.h"
#include "support/text.h"

namespace mtl::test {

using nlohmann::json;

class TinyRun {
 public:
  TinyRun(const Cluster& cluster, int steps, int checkpoint_every = 3) : cluster_(cluster) {
    cluster.write("corpus.txt", fox_text());
    cluster.write("train.yaml",
                  "run:\n  name: tiny\n"
                  "model:\n  layers: 2\n  hidden: 32\n  heads: 4\n"
                  "train:\n  micro_batch: 1\n  global_batch: 12\n  seq_len: 16\n  steps: " +
                      std::to_string(steps) +
                      "\n  eval:\n    iters: 2\n"
                      "data:\n  train: corpus.txt\n  tokenizer:\n    type: chars\n"
                      "checkpoint:\n  every: " +
                      std::to_string(checkpoint_every) + "\nlog:\n  every: 1\n");
  }

  // Trains in the run directory `name`.
  Command train(const std::string& name, std::vector<std::string> flags,
                const std::vector<std::string>& settings = {}, int machine = 0) const {
    flags.insert(flags.end(), {"train.yaml", "run.dir=" + (cluster_.work() / name).string()});
    flags.insert(flags.end(), settings.begin(), settings.end());
    return cluster_.launch(flags, machine, {{"OMP_NUM_THREADS", "1"}});
  }
  CommandEnd trained(const std::string& name, const std::vector<std::string>& flags,
                     const std::vector<std::string>& settings = {}) const {
    return train(name, flags, settings).wait(2 * kPatience);
  }

  // The one run there; empty if there is none yet.
  fs::path run(const std::string& name) const {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(cluster_.work() / name / "tiny", none)) {
      if (entry.is_directory() && !entry.is_symlink()) return entry.path();
    }
    return {};
  }
  std::vector<json> metrics(const std::string& name) const {
    std::vector<json> lines;
    std::istringstream in(file_text(run(name) / "metrics.jsonl"));
    for (std::string line; std::getline(in, line);) {
      const json object = json::parse(line, nullptr, false);
      if (!object.is_discarded()) lines.push_back(object);
    }
    return lines;
  }
  // By step, of the last time that it was taken: loss, norm of the gradient, validation loss.
  std::map<int, std::string> losses(const std::string& name) const {
    std::map<int, std::string> steps;
    for (const json& line : metrics(name)) {
      std::string text;
      for (const char* key : {"loss", "grad_norm", "valid_loss"}) {
        if (line.contains(key)) text += std::string(key) + " " + line[key].dump() + " ";
      }
      if (line.contains("step") && !text.empty()) {
        std::string& step = steps[line["step"].get<int>()];
        step = line.contains("valid_loss") ? step + text : text;
      }
    }
    return steps;
  }
  int last_step(const std::string& name) const {
    const auto steps = losses(name);
    return steps.empty() ? -1 : steps.rbegin()->first;
  }
  // Committed checkpoints, by name.
  std::vector<std::string> checkpoints(const std::string& name) const {
    std::vector<std::string> found;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(run(name) / "checkpoints", none)) {
      if (fs::exists(entry.path() / "COMMITTED")) found.push_back(entry.path().filename());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  // The fence of every checkpoint by step, after each byte of it was verified. Throws.
  std::map<int, int> verified(const std::string& name) const {
    std::map<int, int> fences;
    for (const std::string& saved : checkpoints(name)) {
      CheckpointReader reader(run(name) / "checkpoints" / saved);
      reader.verify();
      fences[reader.state().at("step").get<int>()] = reader.state().at("fence").get<int>();
    }
    return fences;
  }
  // The steps that its starts went on from, but for those from the beginning.
  std::vector<int> resumed_at(const std::string& name) const {
    std::vector<int> steps;
    std::istringstream in(file_text(run(name) / "events.jsonl"));
    for (std::string line; std::getline(in, line);) {
      const json object = json::parse(line, nullptr, false);
      if (!object.is_discarded() && object.value("event", "") == "resumed")
        steps.push_back(object.at("step").get<int>());
    }
    return steps;
  }
  // The hashes of every tensor of the last checkpoint, by name and place.
  std::map<std::string, std::string> weights(const std::string& name) const {
    std::map<std::string, std::string> tensors;
    const auto saved = checkpoints(name);
    if (saved.empty()) return tensors;
    const json manifest =
        json::parse(file_text(run(name) / "checkpoints" / saved.back() / "manifest.json"));
    for (const auto& [tensor, row] : manifest.at("tensors").items()) {
      for (const json& chunk : row.at("chunks")) {
        tensors[tensor + " " + chunk.at("offset").dump() + chunk.at("extent").dump()] =
            chunk.at("xxh3").dump();
      }
    }
    return tensors;
  }
  bool reached(const std::string& name, int step, Milliseconds within = kPatience) const {
    return wait_until([&] { return last_step(name) >= step; }, within);
  }

 private:
  const Cluster& cluster_;
};

}  // namespace mtl::test
