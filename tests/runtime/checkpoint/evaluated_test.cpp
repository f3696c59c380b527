// evaluated.json: an evaluation that was left when a checkpoint was saved, and is done.
#include <filesystem>
#include <limits>
#include <set>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "model_fixture.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/manifest.h"
#include "support/temp_dir.h"
#include "support/text.h"

namespace mtl {
namespace {

using namespace test;
namespace fs = std::filesystem;
using nlohmann::json;

struct LeftRun {
  TempDir dir;
  fs::path checkpoints = dir.path() / "checkpoints";

  fs::path path(int64_t step) const { return checkpoint_path(checkpoints, step); }
  // With an evaluation that is left, unless `left` is empty.
  void save_step(int64_t step, const std::string& left, json metrics) {
    const CheckpointAttempt attempt{path(step), 1};
    json state = {{"step", step}, {"metrics", std::move(metrics)}};
    if (!left.empty()) state[kEvaluationLeft] = left;
    prepare_checkpoint(attempt);
    commit_checkpoint(attempt, {}, state, {});
  }
  json state(int64_t step) const { return CheckpointReader(path(step)).state(); }
};

TEST_CASE("evaluated: what is done is no longer left, and its metrics are the checkpoint's") {
  LeftRun run;
  run.save_step(1, "", {{"loss", 3}, {"valid_loss", 2.5}});
  run.save_step(2, kNotEvaluated, {{"loss", 2}});
  CHECK(run.state(2).at(kEvaluationLeft) == kNotEvaluated);
  const std::string manifest = file_text(run.path(2) / kManifestName);
  const KeepRules best = {.best = 1, .metric = "valid_loss", .lowest = true};

  complete_evaluation({run.path(2), 1}, {{"valid_loss", 1.5}}, best);
  const json state = run.state(2);
  CHECK_FALSE(state.contains(kEvaluationLeft));
  CHECK(state.at("metrics") == json{{"loss", 2}, {"valid_loss", 1.5}});
  CHECK(state.at("step") == 2);
  // What was committed stays as it is, nothing is left over, and `best` is the better one.
  CHECK(file_text(run.path(2) / kManifestName) == manifest);
  CHECK(names_in(run.checkpoints) == std::set<std::string>{"step-00000001", "step-00000002"});
  CHECK(fs::read_symlink(run.dir.path() / "best") == fs::path("checkpoints/step-00000002"));
  for (const SavedStep& saved : saved_steps(run.checkpoints, best)) {
    CHECK(saved.metric == (saved.step == 1 ? 2.5 : 1.5));
  }
  // Once more, as by ranks that start from there again.
  complete_evaluation({run.path(2), 2}, {{"valid_loss", 4}}, best);
  CHECK(run.state(2).at("metrics").at("valid_loss") == 4);
  CHECK(fs::read_symlink(run.dir.path() / "best") == fs::path("checkpoints/step-00000001"));
}

TEST_CASE("evaluated: a file that cannot be read, or that nobody asked for, says nothing") {
  LeftRun run;
  run.save_step(1, kNotContinued, {{"loss", 2}, {"valid_loss", 1}});
  run.save_step(2, "", {{"loss", 2}});
  for (const char* text :
       {"", "{", "[]", "3", "null", "{}", R"({"metrics": 3})", R"({"metrics": [1]})"}) {
    CAPTURE(text);
    run.dir.file("checkpoints/step-00000001/evaluated.json", text);
    const json state = run.state(1);
    CHECK(state.at(kEvaluationLeft) == kNotContinued);
    CHECK(state.at("metrics") == json{{"loss", 2}, {"valid_loss", 1}});
  }
  // No file of its own.
  fs::remove(run.path(1) / kEvaluatedName);
  run.dir.file("elsewhere.json", R"({"metrics": {}})");
  fs::create_symlink(run.dir.path() / "elsewhere.json", run.path(1) / kEvaluatedName);
  CHECK(run.state(1).contains(kEvaluationLeft));
  fs::remove(run.path(1) / kEvaluatedName);
  fs::create_directory(run.path(1) / kEvaluatedName);
  CHECK(run.state(1).contains(kEvaluationLeft));
  fs::remove(run.path(1) / kEvaluatedName);
  // Texts have no metrics: they are done all the same.
  run.dir.file("checkpoints/step-00000001/evaluated.json", R"({"metrics": {}})");
  CHECK_FALSE(run.state(1).contains(kEvaluationLeft));
  CHECK(run.state(1).at("metrics").at("valid_loss") == 1);
  // Of a checkpoint that has left nothing.
  run.dir.file("checkpoints/step-00000002/evaluated.json", R"({"metrics": {"valid_loss": 9}})");
  CHECK(run.state(2).at("metrics") == json{{"loss", 2}});
}

TEST_CASE("evaluated: a checkpoint that is gone is an error, not a new folder") {
  LeftRun run;
  run.save_step(1, kNotEvaluated, {{"loss", 2}});
  fs::remove_all(run.path(1));
  CHECK_THROWS_AS(complete_evaluation({run.path(1), 1}, json::object(), {}), Error);
  CHECK_FALSE(fs::exists(run.path(1)));
}

}  // namespace
}  // namespace mtl
