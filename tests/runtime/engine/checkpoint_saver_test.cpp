// Saving while training goes on: the same files as when it waits, from the step that was asked for;
// and what a disk that fails does to it.
#include "runtime/engine/checkpoint_saver.h"

#include <atomic>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <signal.h>
#include <string>
#include <vector>

#include <sys/resource.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/engine/checkpointing.h"
#include "runtime/engine/save_times.h"
#include "runtime/plan/memory/saved_parts.h"
#include "support/layouts.h"
#include "support/no_threads.h"
#include "support/specs.h"
#include "support/temp_dir.h"

using namespace mtl;
using namespace mtl::test;

namespace checkpoint_saver_test {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kVocab = 65;

TrainSpec small_spec() {
  return spec_with({.global_batch = 4, .micro_batch = 1, .steps = 100});
}

// The hashes of all parts, by tensor and place, and the state.
std::map<std::string, uint64_t> parts_of(const fs::path& dir) {
  CheckpointReader reader(dir);
  reader.verify();
  std::map<std::string, uint64_t> parts;
  for (const ChunkRecord& chunk : reader.chunks()) {
    std::string key = chunk.tensor + chunk.file;
    for (const int64_t offset : chunk.offset) key += fmt::format(",{}", offset);
    parts[key] = chunk.xxh3;
  }
  return parts;
}

const Layout kLayouts[] = {{},
                           {.dp = 2},
                           {.tp = 2},
                           {.tp = 2, .dp = 2, .pp = 2},
                           {.dp = 2, .pp = 2, .ep = 2},
                           {.dp = 4, .zero_ranks = 2},
                           {.dp = 2, .ep = 2, .zero_ranks = 2}};

TrainSpec spec_for(const Layout& layout) {
  TrainSpec spec = small_spec();
  if (layout.ep > 1) {
    spec.model.activation = "swiglu";
    spec.model.bias = false;
    spec.model.moe = {.experts = 4, .topk = 2};
  }
  return spec;
}

}  // namespace

TEST_CASE(
    "a save in the background holds the step it was asked for, whatever is trained meanwhile") {
  const auto source = markov_tokens(5'000, kVocab);
  int number = 0;
  for (const Layout& layout : kLayouts) {
    CAPTURE(layout.world());
    const TrainSpec spec = spec_for(layout);
    const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 1);
    const TempDir folder;
    std::vector<double> losses[2];
    fs::path dirs[2];
    for (const bool background : {false, true}) {
      const fs::path checkpoints = folder.path() / std::to_string(++number) / "checkpoints";
      dirs[background] = checkpoint_path(checkpoints, 3);
      std::atomic<int> committed_at{-1};
      run_layout(spec, kVocab, layout, [&](RankContext& rank) {
        CheckpointSaver saver(rank.trainer, rank.plan, rank.world, background, {});
        rank.trainer.initialise();
        for (int64_t step = 0; step < 8; ++step) {
          if (step == 3) {
            saver.begin({.attempt = {dirs[background]}, .state = {{"step", step}}});
            if (!background) CHECK(saver.finish());
          }
          const StepResult result =
              rank.trainer.step(step, *source, sampler, {.saving = saver.writing()});
          if (rank.rank == 0) losses[background].push_back(result.loss);
          saver.step_done(result.requests.saving);
          if (const auto outcome = saver.take_outcome(); outcome && rank.rank == 0) {
            CHECK(!outcome->failure);
            committed_at = static_cast<int>(step);
          }
        }
        // At the latest now.
        CHECK(saver.finish());
        CHECK(saver.finish());
      });
      CHECK(CheckpointReader(dirs[background]).state().at("step") == 3);
    }
    CHECK(losses[0] == losses[1]);
    CHECK(parts_of(dirs[0]) == parts_of(dirs[1]));
  }
}

TEST_CASE("where no thread can be started a save is there before the training goes on") {
  const auto source = markov_tokens(5'000, kVocab);
  const TrainSpec spec = small_spec();
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 1);
  const TempDir folder;
  const fs::path dir = checkpoint_path(folder / "checkpoints", 1);
  run_layout(spec, kVocab, {}, [&](RankContext& rank) {
    CheckpointSaver saver(rank.trainer, rank.plan, rank.world, true, {});
    rank.trainer.initialise();
    rank.trainer.step(0, *source, sampler, {});  // has the threads that it computes with
    const NoThreads poor;
    saver.begin({.attempt = {dir}, .state = {{"step", 1}}});
    CHECK(saver.finish());
  });
  CHECK(CheckpointReader(dir).state().at("step") == 1);
}

TEST_CASE("the copy is as large as the plan says") {
  for (const Layout& layout : kLayouts) {
    const TrainSpec spec = spec_for(layout);
    const TempDir folder;
    std::mutex mutex;
    std::map<int, int64_t> most;  // by stage
    run_layout(spec, kVocab, layout, [&](RankContext& rank) {
      rank.trainer.initialise();
      int64_t bytes = 0;
      for (const CheckpointTensor& tensor : saved_tensors(rank.trainer, rank.plan)) {
        bytes += (tensor.count * 4 + kSnapshotAlign - 1) / kSnapshotAlign * kSnapshotAlign;
      }
      const int stage = rank.trainer.coord()[Axis::pp];
      const std::lock_guard lock(mutex);
      most[stage] = std::max(most[stage], bytes);
      const StagePlan& of_stage = rank.plan.stages[static_cast<size_t>(stage)];
      const int64_t snapshot =
          snapshot_bytes(of_stage.layout, rank.plan.table, rank.plan.grid, rank.plan.optimizer);
      CHECK(bytes <= snapshot);
      if (of_stage.snapshot_bytes > 0) CHECK(of_stage.snapshot_bytes == snapshot);
      if (rank.rank + 1 == rank.plan.grid.world()) {
        CHECK(snapshot > 0);
      }
    });
  }
}

TEST_CASE("a disk that does not take a save is an outcome, and the next save succeeds") {
  ::signal(SIGXFSZ, SIG_IGN);
  const auto source = markov_tokens(5'000, kVocab);
  for (const bool background : {false, true}) {
    for (const Layout& layout : kLayouts) {
      const TrainSpec spec = spec_for(layout);
      const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 1);
      CAPTURE(background);
      CAPTURE(layout.world());
      const TempDir folder;
      const fs::path checkpoints = folder.path() / "checkpoints";
      std::atomic<int> told{0};
      run_layout(spec, kVocab, layout, [&](RankContext& rank) {
        CheckpointSaver saver(rank.trainer, rank.plan, rank.world, background, {});
        rank.trainer.initialise();
        const auto save = [&](int64_t step) {
          saver.begin({.attempt = {checkpoint_path(checkpoints, step)}, .state = {{"step", step}}});
          return saver.finish();
        };
        CHECK(save(1));
        saver.take_outcome();
        const auto limited = [&](rlim_t bytes, int64_t step) {
          rank.world.barrier();
          if (rank.rank == 0) {
            const rlimit limit = {bytes, RLIM_INFINITY};
            ::setrlimit(RLIMIT_FSIZE, &limit);
          }
          rank.world.barrier();
          const bool saved = save(step);
          rank.world.barrier();
          if (rank.rank == 0) {
            const rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
            ::setrlimit(RLIMIT_FSIZE, &none);
          }
          rank.world.barrier();
          return saved;
        };
        // Too little for a shard.
        CHECK_FALSE(limited(1000, 2));
        const auto outcome = saver.take_outcome();
        if (saver.failed_here()) {
          ++told;
          REQUIRE(outcome);
          REQUIRE(outcome->failure);
          CHECK(outcome->failure->code == "ckpt.write");
          CHECK(outcome->failure->what.find("File too large") != std::string::npos);
        }
        rank.trainer.step(0, *source, sampler, {});
        if (rank.rank == 0) {
          CHECK(check_commit(checkpoint_path(checkpoints, 1)).state == CommitState::committed);
          // Nothing is left of the attempt: its space is needed.
          CHECK(std::distance(fs::directory_iterator(checkpoints), fs::directory_iterator()) == 1);
        }
        rank.world.barrier();
        CHECK(save(2));
        CHECK(save(3));
      });
      CHECK(told == 1);
      for (const int64_t step : {1, 2, 3}) {
        CHECK_NOTHROW(CheckpointReader(checkpoint_path(checkpoints, step)).verify());
      }
    }
  }
}

TEST_CASE("a rank that was given up commits nothing in the background either") {
  const TrainSpec spec = small_spec();
  for (const int look : {1, 2}) {
    CAPTURE(look);
    const TempDir folder;
    const fs::path dir = folder.path() / "checkpoints" / "step-00000003";
    std::atomic<int> looks{0};
    std::string code;
    run_layout(spec, kVocab, {}, [&](RankContext& rank) {
      rank.trainer.initialise();
      CheckpointSaver saver(rank.trainer, rank.plan, rank.world, true, [&] {
        if (++looks < look) return;
        fence_off_attempts(dir.parent_path(), 2);
        throw Error(Exit::run_failed, Diagnostic{.code = "ckpt.fenced", .what = ""});
      });
      try {
        saver.begin({.attempt = {dir, 1}, .state = {{"step", 3}}});
        saver.finish();
      } catch (const Error& error) {
        code = error.diagnostics().front().code;
      }
    });
    CHECK(code == "ckpt.fenced");
    CHECK(!fs::exists(dir));
  }
}

TEST_CASE("save times: after some time, and after a failure sooner, then ever later") {
  using std::chrono::seconds;
  const SaveTimes::Time begin{};
  SaveTimes never(seconds(0), begin);
  CHECK_FALSE(never.due(0, begin + seconds(1'000'000)));
  SaveTimes times(seconds(60), begin);
  CHECK_FALSE(times.due(5, begin + seconds(59)));
  CHECK(times.due(5, begin + seconds(60)));
  times.began(begin + seconds(60));
  CHECK_FALSE(times.due(6, begin + seconds(119)));
  int64_t step = 10;
  for (const int64_t wait : {1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256}) {
    times.failed(step);
    CHECK_FALSE(times.due(step + wait - 1, begin + seconds(60)));
    CHECK(times.due(step + wait, begin + seconds(60)));
    times.began(begin + seconds(60));
    CHECK_FALSE(times.due(step + wait, begin + seconds(60)));  // it is under way
    step += wait;
  }
  CHECK(times.failures() == 11);
  times.succeeded();
  CHECK_FALSE(times.due(step + 1'000'000, begin + seconds(60)));
}

TEST_CASE("a state with a number that is none is found, on whatever rank it is") {
  for (const Layout& layout : kLayouts) {
    const TrainSpec spec = spec_for(layout);
    run_layout(spec, kVocab, layout, [&](RankContext& rank) {
      rank.trainer.initialise();
      CHECK(state_is_finite(rank.trainer, rank.world));
      if (rank.rank + 1 == rank.plan.grid.world()) {
        for (const ParameterState& parameter : rank.trainer.state()) {
          if (parameter.master.numel() == 0) continue;
          static_cast<float*>(parameter.moments[1].second.data)[parameter.master.numel() - 1] =
              std::numeric_limits<float>::infinity();
          break;
        }
      }
      const bool somebody_has_some = layout.dp == 1;  // a shard of a small model may be empty
      if (somebody_has_some) CHECK_FALSE(state_is_finite(rank.trainer, rank.world));
    });
  }
}

}  // namespace checkpoint_saver_test
