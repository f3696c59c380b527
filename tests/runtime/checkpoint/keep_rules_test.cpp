// Which checkpoints stay: properties over random runs, and the links and manifests that follow.
#include "runtime/checkpoint/keep_rules.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model_fixture.h"
#include "runtime/checkpoint/catalog.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/manifest.h"
#include "support/temp_dir.h"

namespace mtl {
namespace {

using namespace test;
namespace fs = std::filesystem;

std::vector<SavedStep> random_steps(std::mt19937_64& random) {
  std::set<int64_t> steps;
  const size_t count = random() % 14;
  while (steps.size() < count) steps.insert(static_cast<int64_t>(random() % 60));
  std::vector<SavedStep> saved;
  for (const int64_t step : steps) {
    SavedStep one{.step = step};
    const auto kind = random() % 6;
    if (kind == 1) one.metric = std::numeric_limits<double>::quiet_NaN();
    if (kind > 1) one.metric = static_cast<double>(random() % 5);  // ties are common
    saved.push_back(one);
  }
  std::shuffle(saved.begin(), saved.end(), random);
  return saved;
}

std::set<int64_t> staying(const std::vector<Kept>& kept) {
  std::set<int64_t> stay;
  for (const Kept& one : kept) {
    if (one.stays()) stay.insert(one.step);
  }
  return stay;
}

TEST_CASE("keep rules: what stays is what each rule says by itself") {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const std::vector<SavedStep> saved = random_steps(random);
    const KeepRules rules = {.last = 1 + static_cast<int64_t>(random() % 4),
                             .every = static_cast<int64_t>(random() % 8),
                             .best = static_cast<int64_t>(random() % 4),
                             .metric = "loss",
                             .lowest = random() % 2 == 0};
    std::optional<int64_t> fresh;
    if (!saved.empty() && random() % 2) fresh = saved[random() % saved.size()].step;
    const std::vector<Kept> kept = judge(rules, saved, fresh);
    REQUIRE(kept.size() == saved.size());
    size_t last = 0, best = 0;
    for (size_t i = 0; i < kept.size(); ++i) {
      CHECK(kept[i].step == saved[i].step);
      last += kept[i].last;
      best += kept[i].best;
      CHECK(kept[i].every == (rules.every > 0 && saved[i].step % rules.every == 0));
      if (saved[i].step == fresh) CHECK(kept[i].stays());
      const bool number = saved[i].metric && std::isfinite(*saved[i].metric);
      if (kept[i].best) CHECK(number);
      for (size_t j = 0; j < kept.size(); ++j) {
        // No newer one goes while an older one stays as one of the last.
        const bool counts = saved[i].step != fresh && saved[j].step != fresh;
        if (counts && kept[i].last && saved[j].step > saved[i].step) CHECK(kept[j].last);
        if (!kept[i].best || !number || kept[j].best) continue;
        // And no better one while a worse one stays as one of the best.
        const bool other = saved[j].metric && std::isfinite(*saved[j].metric);
        if (!other) continue;
        const double a = *saved[i].metric, b = *saved[j].metric;
        CHECK((rules.lowest ? a <= b : a >= b));
        if (a == b) CHECK(saved[i].step > saved[j].step);
      }
    }
    CHECK(last == std::min<size_t>(static_cast<size_t>(rules.last), saved.size()));
    const auto numbers = std::count_if(saved.begin(), saved.end(), [](const SavedStep& s) {
      return s.metric && std::isfinite(*s.metric);
    });
    CHECK(static_cast<int64_t>(best) == std::min<int64_t>(rules.best, numbers));
    // Applied again to what stays, nothing more goes.
    const std::set<int64_t> stay = staying(kept);
    std::vector<SavedStep> again;
    for (const SavedStep& one : saved) {
      if (stay.contains(one.step)) again.push_back(one);
    }
    CHECK(staying(judge(rules, again, fresh)) == stay);
    const auto first = best_step(rules, saved);
    CHECK(first.has_value() == (numbers > 0));
    CHECK((!first || rules.best == 0 || stay.contains(*first)));
  }
}

TEST_CASE("keep rules: all stay when the last ones are not counted") {
  const std::vector<SavedStep> saved = {{.step = 3}, {.step = 9}, {.step = 1}};
  CHECK(staying(judge({.last = 0, .every = 2, .best = 1}, saved)) == std::set<int64_t>{1, 3, 9});
}

struct JudgedRun {
  TempDir dir;
  std::vector<GlobalTensor> model = {{"w", DType::f32, {3, 2}, false}};
  fs::path checkpoints = dir.path() / "checkpoints";

  void save_step(int64_t step, const KeepRules& keep, double loss) {
    RankTensors rank = whole_layout(model);
    fill(rank, model, static_cast<uint64_t>(step));
    const CheckpointAttempt attempt = {checkpoint_path(checkpoints, step)};
    prepare_checkpoint(attempt);
    const auto chunks = write_shards(attempt, 0, rank.tensors);
    const auto warnings =
        commit_checkpoint(attempt, chunks, {{"step", step}, {"metrics", {{"loss", loss}}}}, keep,
                          {{.name = kTokenizerFile, .content = "{\"a\":1}\n"}});
    CHECK(warnings.empty());
  }
  std::set<int64_t> steps() {
    std::set<int64_t> found;
    for (const SavedStep& one : saved_steps(checkpoints, {})) found.insert(one.step);
    return found;
  }
  fs::path link(const char* name) { return fs::read_symlink(dir.path() / name).filename(); }
};

TEST_CASE("keep rules: a run keeps the last, the best and every tenth, and links the best") {
  JudgedRun run;
  const KeepRules keep = {.last = 1, .every = 10, .best = 2, .metric = "loss"};
  const double losses[] = {5, 1, 4, 2, 3, 9, 8, 7, 6, 5, 4, 3};  // of steps 1, 2, ...
  for (int64_t step = 1; step <= 12; ++step) run.save_step(step, keep, losses[step - 1]);
  CHECK(run.steps() == std::set<int64_t>{2, 4, 10, 12});
  CHECK(run.link("latest") == "step-00000012");
  CHECK(run.link("best") == "step-00000002");
  run.save_step(13, keep, 0.5);
  CHECK(run.steps() == std::set<int64_t>{2, 10, 13});
  CHECK(run.link("best") == "step-00000013");
  // Without the rule the best goes with the others, and no link points at nothing.
  run.save_step(14, {.last = 1}, 0.7);
  CHECK(run.steps() == std::set<int64_t>{14});
  CHECK(!fs::is_symlink(run.dir.path() / "best"));
}

TEST_CASE("keep rules: stricter ones make room before a save, and never of what it stands on") {
  JudgedRun run;
  const KeepRules keep = {.last = 2, .every = 0, .best = 1, .metric = "loss"};
  for (int64_t step = 1; step <= 6; ++step) run.save_step(step, {}, static_cast<double>(step));
  const std::set<int64_t> all = run.steps();
  const CheckpointAttempt attempt = {checkpoint_path(run.checkpoints, 7)};
  prepare_checkpoint(attempt);
  // One that is older than others, or that is not there.
  make_room(attempt, 5, keep);
  make_room(attempt, 0, keep);
  make_room(attempt, 6, {});
  CHECK(run.steps() == all);
  // The newest is not complete: the run has gone on from another one.
  const fs::path marker = run.checkpoints / "step-00000006" / kMarkerName;
  fs::rename(marker, run.dir.path() / "marker");
  make_room(attempt, 6, keep);
  make_room(attempt, 5, keep);  // which `latest` does not point at
  CHECK(run.steps() == std::set<int64_t>{1, 2, 3, 4, 5});
  fs::rename(run.dir.path() / "marker", marker);
  make_room(attempt, 6, keep);
  CHECK(run.steps() == std::set<int64_t>{1, 5, 6});
  CHECK(run.link("latest") == "step-00000006");
  CHECK(names_in(written_path(attempt).parent_path()) ==
        std::set<std::string>{written_path(attempt).filename().string()});
  run.save_step(7, {.last = 1}, 7);
  CHECK(run.steps() == std::set<int64_t>{7});
}

TEST_CASE("keep rules: what ls says, and what prune deletes") {
  JudgedRun run;
  for (int64_t step = 1; step <= 6; ++step) run.save_step(step, {}, static_cast<double>(step % 4));
  fs::create_directories(run.checkpoints / "step-00000007.writing-3" / "checkpoint");
  fs::create_directories(run.checkpoints / "step-00000008");
  fs::resize_file(run.checkpoints / "step-00000003" / kManifestName, 10);
  const KeepRules keep = {.last = 2, .every = 0, .best = 1, .metric = "loss"};
  const auto entries = list_run(run.dir.path(), keep);
  REQUIRE(entries.size() == 8);
  std::string text;
  for (const CheckpointEntry& entry : entries) {
    text += std::to_string(entry.step) + entry.status.substr(0, 1) + (entry.kept.last ? "l" : "") +
            (entry.kept.best ? "b" : "") + (entry.latest ? "L" : "") + " ";
  }
  CHECK(text == "8u 7u 6clL 5cl 4cb 3d 2c 1c ");
  CHECK(to_json(entries[2]).at("loss") == 2.0);
  CHECK(entries[2].bytes > 24);
  const auto steps_of = [](const std::vector<CheckpointEntry>& list) {
    std::vector<int64_t> steps;
    for (const CheckpointEntry& entry : list) steps.push_back(entry.step);
    return steps;
  };
  CHECK(steps_of(prune_run(run.dir.path(), keep, true)) == std::vector<int64_t>{2, 1});
  CHECK(run.steps() == std::set<int64_t>{1, 2, 4, 5, 6});
  CHECK(steps_of(prune_run(run.dir.path(), keep, false)) == std::vector<int64_t>{2, 1});
  CHECK(run.steps() == std::set<int64_t>{4, 5, 6});
  CHECK(fs::exists(run.checkpoints / "step-00000003"));
  CHECK(fs::exists(run.checkpoints / "step-00000007.writing-3"));
}

}  // namespace
}  // namespace mtl
