// train.micro_batch auto under a limit: the largest that fits, said where people look.
#include "runtime/plan/micro_batch.h"

#include <doctest/doctest.h>

#include "runtime/run.h"
#include "support/temp_dir.h"

using namespace mtl;

namespace {

ResolvedSpec small_spec(int64_t batch) {
  ResolvedSpec resolved;
  TrainSpec& spec = resolved.spec;
  spec.model.layers = 4;
  spec.model.hidden = 64;
  spec.model.heads = 4;
  spec.train.seq_len = 128;
  spec.train.global_batch = batch;
  spec.train.steps = 10;
  return resolved;
}

Plan plan_of(ResolvedSpec resolved, int world, int64_t micro_batch = 0) {
  resolved.spec.train.micro_batch = micro_batch;
  Diagnostics diagnostics;
  Plan plan = make_plan(resolved, {.vocab = 256}, world, diagnostics);
  REQUIRE_FALSE(diagnostics.has_errors());
  return plan;
}

std::optional<MicroBatchChoice> choose(const ResolvedSpec& resolved, int world, int64_t limit,
                                       bool snapshots = false) {
  return fit_micro_batch(resolved, {.vocab = 256}, plan_of(resolved, world), limit, snapshots);
}

}  // namespace

TEST_CASE("the largest divisor whose arena fits is taken") {
  ResolvedSpec resolved = small_spec(96);
  for (const int pp : {1, 2}) {
    CAPTURE(pp);
    resolved.spec.parallel.pp = pp;
    const int64_t share = 96 / (4 / pp);
    for (const int64_t wanted : {int64_t{1}, int64_t{2}, int64_t{6}, share / 2}) {
      CAPTURE(wanted);
      const int64_t bytes = plan_of(resolved, 4, wanted).peak_bytes();
      const auto choice = choose(resolved, 4, bytes);
      REQUIRE(choice);
      CHECK(choice->bytes <= bytes);
      CHECK(choice->whole == share);
      CHECK(choice->bytes == plan_of(resolved, 4, choice->micro_batch).peak_bytes());
      CHECK(choice->micro_batch >= wanted);
      for (int64_t larger = choice->micro_batch + 1; larger <= share; ++larger) {
        if (share % larger == 0) CHECK(plan_of(resolved, 4, larger).peak_bytes() > bytes);
      }
      // A byte less, and it is no longer that one.
      const auto less = choose(resolved, 4, choice->bytes - 1);
      if (less) CHECK(less->micro_batch < choice->micro_batch);
    }
  }
}

TEST_CASE("nothing is chosen where nothing is to be chosen") {
  const ResolvedSpec resolved = small_spec(32);
  const int64_t whole = plan_of(resolved, 2).peak_bytes();
  CHECK_FALSE(choose(resolved, 2, whole));
  CHECK(choose(resolved, 2, whole - 1));
  CHECK_FALSE(choose(resolved, 2, 1000));  // not even one
  ResolvedSpec given = resolved;
  given.spec.train.micro_batch = 16;
  CHECK_FALSE(choose(given, 2, whole - 1));
  // Copies for checkpoints count where they take of the same memory.
  CHECK_FALSE(choose(resolved, 2, whole, false));
  CHECK(choose(resolved, 2, whole, true));
}

TEST_CASE("every phase of a growing batch is divided") {
  ResolvedSpec resolved = small_spec(0);
  resolved.spec.train.batch_ramp = {{0, 24}, {5, 60}};
  const auto choice = choose(resolved, 1, plan_of(resolved, 1, 4).peak_bytes());
  REQUIRE(choice);
  CHECK(choice->whole == 12);
  CHECK(choice->micro_batch == 4);
}

TEST_CASE("a checked run takes the choice and its resolved.yaml says why") {
  const test::TempDir dir;
  std::string text;
  for (int i = 0; i < 400; ++i) text += "Many hands make light work, said the first rank.\n";
  const std::string corpus = dir.file("corpus.txt", text);
  const std::string yaml =
      dir.file("train.yaml",
               "model: {layers: 2, hidden: 64, heads: 4}\n"
               "train: {global_batch: 32, seq_len: 64, steps: 3}\ndata:\n  train: " +
                   corpus + "\n");
  RunRequest request;
  request.sources.train_yaml = yaml;
  const CheckedRun free = check_run(request);
  CHECK(free.plan.micro_batch == 32);
  CHECK(free.micro_batch_words.empty());
  CHECK(resolved_text(free) == resolved_yaml(free.resolved));

  int asked = 0;
  request.memory = [&]() -> std::optional<RankMemory> {
    ++asked;
    return RankMemory{free.plan.peak_bytes() - 1, "half a thimble", false};
  };
  const CheckedRun run = check_run(request);
  CHECK(asked == 1);
  CHECK(run.plan.micro_batch == 16);
  CHECK(run.plan.largest().shape.micro_batches == 2);
  CHECK(run.micro_batch_words.find("16 of 32 sequences") != std::string::npos);
  const std::string resolved = resolved_text(run);
  CHECK(resolved.find("\n  micro_batch: 16  # auto: 16 of 32") != std::string::npos);
  CHECK(resolved.find("half a thimble\n") != std::string::npos);
  // Workers read it back, and are given the same without asking anybody.
  request.sources.train_yaml = dir.file("resolved.yaml", resolved);
  CHECK(check_run(request).plan.micro_batch == 16);
  CHECK(asked == 1);
}

TEST_CASE("what a rank may take is a part of the machine") {
  const auto one = rank_memory(1, true), four = rank_memory(4, true);
  REQUIRE(one);
  REQUIRE(four);
  CHECK(one->host);
  CHECK(one->bytes < machine_memory_bytes());
  CHECK(one->bytes > machine_memory_bytes() / 2);
  CHECK(four->bytes == doctest::Approx(static_cast<double>(one->bytes) / 4).epsilon(0.001));
}
