// TensorBoard's own reader on the files that a run writes for it.
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cli/tiny_run.h"
#include "clients/clients.h"

using namespace mtl::test;

TEST_CASE("TensorBoard reads what metrics.jsonl has, also of a run that has gone back") {
  const auto env = accelerate_environment();
  const Shell shell;
  write_recipe(shell, 10);
  REQUIRE(shell.mtl({"launch", "train.yaml", "log.every=1"}).code == 0);
  const fs::path run = run_of(shell);
  // Back to step 5.
  fs::remove_all(run / "checkpoints/step-00000010");
  const Outcome again = shell.mtl({"launch", "train.yaml", "log.every=1", "train.steps=12"});
  REQUIRE_MESSAGE(again.code == 0, again.err);
  CHECK(run_of(shell) == run);
  const Outcome read =
      shell.run({"/usr/bin/env", "python", client("board_scalars.py"), (run / "tb").string()}, env);
  REQUIRE_MESSAGE(read.code == 0, read.err);
  const json board = json::parse(read.out);

  std::vector<int64_t> steps;
  size_t evaluations = 0;
  for (const json& line : metrics_of(run)) {
    if (line.contains("valid_loss")) {
      const json& there = board["scalars"]["valid/loss"].at(evaluations++);
      CHECK(there[0] == line["step"]);
      CHECK(there[1].get<double>() == doctest::Approx(line["valid_loss"].get<double>()));
      continue;
    }
    for (const auto& [key, tag] : std::map<std::string, std::string>{
             {"loss", "train/loss"}, {"lr", "train/lr"}, {"grad_norm", "train/grad_norm"}}) {
      const json& there = board["scalars"][tag].at(steps.size());
      CHECK(there[0] == line["step"]);
      CHECK(there[1].get<double>() == doctest::Approx(line[key].get<double>()));
    }
    steps.push_back(line["step"]);
  }
  CHECK(steps.size() == 12);
  CHECK(board["scalars"]["train/loss"].size() == 12);
  CHECK(board["scalars"]["speed/tokens_per_s"].size() == 12);
  CHECK(board["scalars"]["valid/loss"].size() == evaluations);
  CHECK(board["starts"] == json::array({0, 5}));
  CHECK(board["steps"] == 10);  // TensorBoard keeps what a tag's first value said of it
  CHECK(has(board["settings"].get<std::string>(), "    log:\n      every: 1  # command line\n"));
}
