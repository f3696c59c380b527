// Who works in a run directory, and in how many of them the same launch may.
#include "runtime/run_directory.h"

#include <filesystem>
#include <optional>
#include <string>

#include <doctest/doctest.h>

#include "common/file_lock.h"
#include "support/errors.h"
#include "support/temp_dir.h"

using namespace mtl;
using namespace mtl::test;

namespace run_directory_test {

namespace {

namespace fs = std::filesystem;

CheckedRun run_in(const TempDir& dir, const std::string& resume) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "lazy dogs " + std::to_string(i % 7) + "\n";
  const std::string corpus = dir.file("corpus.txt", text);
  RunRequest request;
  request.sources.train_yaml =
      dir.file("train.yaml", "model: {layers: 1, hidden: 16, heads: 2}\nrun: {name: twice, dir: " +
                                 (dir.path() / "runs").string() +
                                 "}\ntrain: {global_batch: 1, seq_len: 16, steps: 2}\ndata:\n"
                                 "  train: " +
                                 corpus +
                                 "\n  tokenizer: {type: chars}\n"
                                 "checkpoint: {resume: " +
                                 resume + "}\n");
  return check_run(request);
}

}  // namespace

TEST_CASE(
    "the same launch at the same moment trains once, and as often as a new run is asked for") {
  for (const bool again : {false, true}) {
    const TempDir dir;
    const CheckedRun run = run_in(dir, again ? "never" : "auto");
    const fs::path runs = dir.path() / "runs" / "twice";
    // The other one has found no run either, and is the first to make one.
    std::optional<RunDirectory> other;
    const auto meanwhile = [&] { other = open_run(run, true); };
    if (again) {
      const RunDirectory own = open_run(run, true, 1, meanwhile);
      CHECK(own.dir != other->dir);
      continue;
    }
    std::string text;
    CHECK(code_of([&] { open_run(run, true, 1, meanwhile); }, &text) == "run.busy");
    CHECK(text.find(other->dir.string()) != std::string::npos);
    CHECK(std::distance(fs::directory_iterator(runs), fs::directory_iterator()) == 1);
    // Once that has ended, there is none in the way.
    other.reset();
    CHECK_FALSE(open_run(run, true).dir.empty());
  }
}

TEST_CASE("a directory is one launch's at a time, that which is still to be made too") {
  const TempDir dir;
  const fs::path deep = dir.path() / "not" / "there" / "yet";
  {
    const Fd held = lock_directory_of(deep);
    CHECK(held);
    CHECK(is_locked(dir.path()) == true);
  }
  CHECK(is_locked(dir.path()) == false);
  // Relative paths lie where the program was started.
  CHECK(lock_directory_of("neither-is-this"));
}

}  // namespace run_directory_test
