// mtl worker as a task of srun: N tasks on several nodes train what mtl launch trains.
#include <filesystem>
#include <fstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "support/slurm.h"

using namespace mtl::test;

namespace {

std::vector<std::string> losses_of(const std::filesystem::path& dir) {
  std::vector<std::string> losses;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (!entry.is_directory() || entry.is_symlink()) continue;
    std::ifstream in(entry.path() / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      const auto object = nlohmann::json::parse(line);
      if (object.contains("loss")) losses.push_back(object["loss"].dump());
    }
  }
  return losses;
}

}  // namespace

TEST_CASE("srun starts the ranks of a train.yaml and they train the same") {
  REQUIRE_MESSAGE(Slurm::missing().empty(), Slurm::missing());
  const Slurm slurm(4);
  std::ofstream corpus(slurm.work() / "corpus.txt");
  for (int i = 0; i < 400; ++i) corpus << "the quick brown fox jumps over " << i % 7 << "\n";
  corpus.close();
  std::ofstream(slurm.work() / "train.yaml")
      << "run:\n  name: tiny\nmodel:\n  layers: 2\n  hidden: 32\n  heads: 4\n"
         "train:\n  micro_batch: 1\n  global_batch: 12\n  seq_len: 16\n  steps: 10\n"
         "data:\n  train: corpus.txt\n  tokenizer:\n    type: chars\n"
         "checkpoint:\n  every: 5\nlog:\n  every: 1\n";
  const std::map<std::string, std::string> env = {{"MTL_DEVICE", "cpu"}, {"OMP_NUM_THREADS", "1"}};
  const CommandEnd end =
      slurm.run({"srun", "-N4", "-n4", MTL_PROGRAM, "worker", "train.yaml", "run.dir=slurm"}, env);
  CAPTURE(end.err);
  CHECK(end.code == 0);
  const CommandEnd launched = slurm.run(
      {MTL_PROGRAM, "launch", "--num_processes", "4", "train.yaml", "run.dir=launched"}, env);
  REQUIRE_MESSAGE(launched.code == 0, launched.err);
  CHECK(losses_of(slurm.work() / "slurm/tiny").size() == 10);
  CHECK(losses_of(slurm.work() / "slurm/tiny") == losses_of(slurm.work() / "launched/tiny"));
  CHECK(slurm.processes().empty());
}
