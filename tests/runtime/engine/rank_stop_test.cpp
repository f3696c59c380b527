// A run that is asked to stop at whatever moment a rank looks, between steps, within an evaluation
// or within the texts, leaves a checkpoint from which it goes on as if nobody had asked.
#include <fcntl.h>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/step_dirs.h"
#include "runtime/comm/rank_threads.h"
#include "runtime/rank.h"
#include "runtime/run_directory.h"
#include "support/temp_dir.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;

namespace rank_stop_test {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Way {
  std::string name;
  int world = 1;
  std::vector<std::string> settings;
};

// Three steps, of which the second and the last are followed by an evaluation (two sets, in two
// parts each) and texts of two tokens.
constexpr int kLooks = 3 + 2 * (2 * 2 + 2);

class TinyRun {
 public:
  explicit TinyRun(const Way& way) : way_(way) {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "lazy dogs " + std::to_string(i % 7) + "\n";
    write_file_atomic(folder_.path() / "corpus.txt", text);
    write_file_atomic(folder_.path() / "fox.txt", text.substr(0, 300));
    write_file_atomic(folder_.path() / "dog.txt", text.substr(200, 300));
    write_file_atomic(folder_.path() / "train.yaml",
                      "model:\n  layers: 2\n  hidden: 16\n  heads: 2\n"
                      "train:\n  micro_batch: 1\n  global_batch: 2\n  seq_len: 16\n  steps: 3\n"
                      "  eval:\n    every: 2\n    iters: 2\n"
                      "    generate:\n      prompts: [\"la\", \"d\"]\n      tokens: 2\n"
                      "data:\n  tokenizer:\n    type: chars\n"
                      "checkpoint:\n  every: 2\n  keep_best:\n    k: 1\n"
                      "log:\n  every: 1\n");
    const std::string dir = folder_.path().string();
    settings_ = {"run.dir=" + dir + "/runs", "run.name=tiny", "data.train=" + dir + "/corpus.txt",
                 "data.valid={fox: " + dir + "/fox.txt, dog: " + dir + "/dog.txt}"};
    for (const std::string& setting : way.settings) set(setting);
  }

  void set(const std::string& setting) { settings_.push_back(setting); }
  // Asks for a checkpoint after that many steps of a start; 0: never.
  void ask_for_checkpoint(int after) { checkpoint_after_ = after; }

  // Rank 0 waits six seconds at its so manieth look; 0: never.
  void wait_at(int look) { wait_at_ = look; }

  // Starts the ranks. The last one alone is asked to stop, from its `stop_at`th look on; 0: never.
  Exit start(int stop_at) {
    CheckedRun run = check_run({.sources = {.train_yaml = (folder_.path() / "train.yaml").string(),
                                            .overrides = settings_},
                                .world = way_.world});
    const RunDirectory opened = open_run(run, true);
    dir_ = opened.dir;
    complete_ = opened.complete;
    if (complete_) return Exit::done;
    const int64_t fence = begin_generation(dir_, run);
    const Fd nobody(open("/dev/null", O_WRONLY | O_CLOEXEC));
    std::vector<Exit> ends(static_cast<size_t>(way_.world));
    run_rank_threads(way_.world, [&](CommWorld& world) {
      const MadeDevice device{.device = make_cpu_device(1), .why = ""};
      const bool asked = stop_at > 0 && world.rank() == way_.world - 1;
      int looks = 0, steps = 0;
      const RankWishes wishes = {.stop =
                                     [&] {
                                       ++looks;
                                       if (looks == wait_at_ && world.rank() == 0) sleep(6);
                                       return looks >= stop_at && asked;
                                     },
                                 .checkpoint = [&] { return ++steps == checkpoint_after_; },
                                 .something_to_lose = [](bool) {}};
      const RankJob job{.run_dir = dir_,
                        .run = run,
                        .progress_fd = nobody.get(),
                        .fence = static_cast<int>(fence),
                        .began = std::chrono::steady_clock::now(),
                        .wishes = wishes};
      ends[static_cast<size_t>(world.rank())] = train_rank(job, device, world);
      if (world.rank() == 0) looks_ = looks;
    });
    CHECK(std::set(ends.begin(), ends.end()).size() == 1);
    return ends.front();
  }

  const fs::path& dir() const { return dir_; }
  bool complete() const { return complete_; }
  int looks() const { return looks_; }  // of a rank in the last start

  // What does not depend on the time.
  std::vector<std::string> lines(const std::string& file) const {
    std::vector<std::string> lines;
    std::istringstream in(file_text(dir_ / file));
    for (std::string text; std::getline(in, text);) {
      json line = json::parse(text);
      json kept;
      for (const auto& [key, value] : line.items()) {
        if (key == "step" || key == "loss" || key == "grad_norm" || key == "text" ||
            key.starts_with("valid_loss")) {
          kept[key] = value;
        }
      }
      lines.push_back(kept.dump());
    }
    return lines;
  }
  // Of the step's checkpoint: its metrics and the hashes of its tensors.
  std::string checkpoint(int64_t step) const {
    const fs::path path = checkpoint_path(dir_ / kCheckpoints, step);
    const json state = CheckpointReader(path).state();
    CHECK_FALSE(state.contains(kEvaluationLeft));
    return state.at("metrics").dump() +
           json::parse(file_text(path / "manifest.json")).at("tensors").dump();
  }
  std::vector<std::string> events(const std::string& name) const {
    std::vector<std::string> reasons;
    std::istringstream in(file_text(dir_ / "events.jsonl"));
    for (std::string text; std::getline(in, text);) {
      const json event = json::parse(text);
      if (event["event"] == name) reasons.push_back(event.value("reason", ""));
    }
    return reasons;
  }

 private:
  TempDir folder_;
  const Way way_;
  std::vector<std::string> settings_;
  int checkpoint_after_ = 0;
  int wait_at_ = 0;
  fs::path dir_;
  bool complete_ = false;
  int looks_ = 0;
};

void check_equal(const TinyRun& run, const TinyRun& whole) {
  CHECK(run.lines("metrics.jsonl") == whole.lines("metrics.jsonl"));
  CHECK(run.lines("generated.jsonl") == whole.lines("generated.jsonl"));
  for (const int64_t step : {2, 3}) CHECK(run.checkpoint(step) == whole.checkpoint(step));
  CHECK(fs::read_symlink(run.dir() / "best") == fs::read_symlink(whole.dir() / "best"));
}

std::vector<Way> ways() {
  return {{"one rank", 1, {}},
          {"tp 2", 2, {"parallel.tp=2"}},
          {"pp 2", 2, {"parallel.pp=2", "train.eval.iters=8"}},  // it takes more at once
          {"dp 2", 2, {"parallel.zero=1"}},
          {"ZeRO-3", 2, {"parallel.zero=3"}}};
}

}  // namespace

// Each moment in one of the layouts, and each layout at three moments; that all ranks leave
// together in every layout, evaluation_parts_test shows.
TEST_CASE("a run that is stopped at any moment goes on as if nobody had asked") {
  const std::vector<Way> all = ways();
  const int every = static_cast<int>(all.size());
  for (const Way& way : all) {
    CAPTURE(way.name);
    TinyRun whole(way);
    REQUIRE(whole.start(0) == Exit::done);
    REQUIRE(whole.looks() == kLooks);
    for (int stop_at = 1 + static_cast<int>(&way - all.data()); stop_at <= kLooks;
         stop_at += every) {
      CAPTURE(stop_at);
      TinyRun run(way);
      // Also of the last step, which has an evaluation behind it.
      CHECK(run.start(stop_at) == Exit::requeue);
      const json status = json::parse(file_text(run.dir() / "status.json"));
      CHECK(status["state"] == "stopped");
      CHECK(status["checkpoint_step"] == status["step"]);
      // Nothing has been told of what was left.
      const size_t told = run.lines("metrics.jsonl").size() + run.lines("generated.jsonl").size();
      CHECK(run.start(0) == Exit::done);
      CHECK(told < run.lines("metrics.jsonl").size() + run.lines("generated.jsonl").size());
      check_equal(run, whole);
      run.start(0);
      CHECK(run.complete());
    }
  }
}

TEST_CASE("an evaluation that is left again and again is told of once") {
  const std::string left = "evaluation after step 2 left behind ";
  const std::string why = " batches: the run is asked to stop";
  const std::vector<Way> all = ways();
  for (const Way& way : {all[2], all[4]}) {
    const std::string done = way.name == "pp 2" ? "4 of 16" : "1 of 4";
    CAPTURE(way.name);
    TinyRun whole(way);
    REQUIRE(whole.start(0) == Exit::done);
    TinyRun run(way);
    CHECK(run.start(4) == Exit::requeue);  // two steps, and one part
    CHECK(run.lines("metrics.jsonl").size() == 2);
    CHECK(run.events("evaluation_left") == std::vector<std::string>{left + done + why});
    for (const int stop_at : {1, 2}) {  // before any of it, and after a part
      CHECK(run.start(stop_at) == Exit::requeue);
      CHECK(run.lines("metrics.jsonl").size() == 2);
      CHECK(json::parse(file_text(run.dir() / "status.json"))["step"] == 2);
    }
    CHECK(run.events("evaluation_left").size() == 3);
    CHECK(run.start(0) == Exit::done);
    check_equal(run, whole);
  }
}

TEST_CASE("what was evaluated when all was killed is not told twice") {
  const Way way{"dp 2", 2, {"parallel.zero=1"}};
  TinyRun whole(way);
  REQUIRE(whole.start(0) == Exit::done);
  TinyRun run(way);
  CHECK(run.start(4) == Exit::requeue);
  // As a run leaves it that was killed before it had saved what it had told.
  const fs::path metrics = run.dir() / "metrics.jsonl", texts = run.dir() / "generated.jsonl";
  write_file_atomic(metrics, file_text(metrics) + "{\"step\":2,\"valid_loss\":1.5}\n");
  write_file_atomic(texts, file_text(texts) + "{\"step\":2,\"prompt\":\"la\",\"text\":\"x\"}\n");
  CHECK(run.start(0) == Exit::done);
  check_equal(run, whole);
}

TEST_CASE(
    "an evaluation that would outlast health.max_time is left, but not by ranks that begin with "
    "it") {
  const Way way{"tp 2", 2, {"parallel.tp=2"}};
  TinyRun whole(way);
  REQUIRE(whole.start(0) == Exit::done);
  TinyRun run(way);
  run.set("health.max_time=5s");
  run.wait_at(4);  // two steps, and one part
  CHECK(run.start(0) == Exit::requeue);
  CHECK(run.events("evaluation_left") ==
        std::vector<std::string>{"evaluation after step 2 left behind 1 of 4 batches: the run is "
                                 "asked to stop"});
  CHECK(json::parse(file_text(run.dir() / "status.json"))["step"] == 2);
  // The time is over within what was left, which is ended; the one behind the last step is left.
  run.wait_at(2);
  CHECK(run.start(0) == Exit::requeue);
  const std::vector<std::string> left = run.events("evaluation_left");
  REQUIRE(left.size() == 2);
  CHECK(left[1].starts_with("evaluation after step 3 left behind 0 of 4 batches"));
  run.wait_at(0);
  CHECK(run.start(0) == Exit::done);
  check_equal(run, whole);
}

TEST_CASE("a checkpoint that was asked for gets the evaluation that it is compared by") {
  // As one by checkpoint.every_time: no step is due for it.
  const Way way{"one rank", 1, {"train.eval.every=100", "checkpoint.every=100"}};
  TinyRun whole(way), run(way);
  for (TinyRun* one : {&whole, &run}) one->ask_for_checkpoint(2);
  REQUIRE(whole.start(0) == Exit::done);
  CHECK(run.start(4) == Exit::requeue);  // two steps, and one part
  CHECK(run.events("evaluation_left").size() == 1);
  CHECK(run.start(0) == Exit::done);
  check_equal(run, whole);
}

TEST_CASE("an evaluation that is left is not done where nobody wants it any more") {
  TinyRun run({"one rank", 1, {}});
  CHECK(run.start(4) == Exit::requeue);
  CHECK(run.events("evaluation_left").size() == 1);
  run.set("train.eval.every=3");
  run.set("checkpoint.keep_best.k=0");
  CHECK(run.start(0) == Exit::done);
  std::vector<std::string> steps;
  std::istringstream in(file_text(run.dir() / "metrics.jsonl"));
  for (std::string text; std::getline(in, text);) {
    const json line = json::parse(text);
    if (line.contains("valid_loss")) steps.push_back(line["step"].dump());
  }
  CHECK(steps == std::vector<std::string>{"3"});
}

}  // namespace rank_stop_test
