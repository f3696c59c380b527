// Saving and loading a trainer: bit-identical resume, and any layout from any layout.
#include "runtime/engine/checkpointing.h"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/files.h"
#include "runtime/checkpoint/checkpoint.h"
#include "support/layouts.h"
#include "support/sanitized.h"
#include "support/save_checkpoint.h"
#include "support/specs.h"
#include "support/temp_dir.h"

using namespace mtl;
using namespace mtl::test;

namespace checkpointing_test {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kVocab = 65;
// A run of `end` steps is saved before step `save_at`.
struct Length {
  int64_t save_at, end;
};
constexpr Length length(int64_t save_at, int64_t end) {
  return kSanitized ? Length{1, 2} : Length{save_at, end};
}

TrainSpec gpt2_spec() {
  TrainSpec spec = spec_with({.layers = 4});
  spec.model.dropout = {0.1, 0.1};
  return spec;
}

// Two KV heads, of which tp 4 keeps copies, and a head of its own.
TrainSpec llama_spec() {
  TrainSpec spec = gpt2_spec();
  spec.model.kv_heads = 2;
  spec.model.ffn = 80;
  use_llama_blocks(spec);
  spec.model.qk_norm = true;
  spec.model.tie_embeddings = false;
  return spec;
}

// One way to run a spec.
struct Way {
  std::string name;
  Layout layout;
  int zero = 1;
  std::string sp = "auto";
  std::string offload = "none";
};

struct State {
  GlobalTensors master;
  std::map<std::string, GlobalTensors> moments;
  bool operator==(const State&) const = default;
};

// Runs steps [first, end) after loading `from`, if it is given, and saves to `to`, if it is given,
// before step `save_at`.
struct Journey {
  int64_t first = 0;
  int64_t end = 0;
  fs::path from = {};
  fs::path to = {};
  int64_t save_at = 0;
};
struct Outcome {
  std::vector<double> losses;  // of all steps
  State saved, last;           // `saved`: at save_at, or as loaded
};

void collect_state(Trainer& trainer, State& state) {
  collect(trainer, Which::master, state.master);
  collect_moments(trainer, state.moments);
}

Outcome travel(TrainSpec spec, const Way& way, const Journey& journey) {
  spec.parallel.zero = way.zero;
  spec.parallel.sp = way.sp;
  spec.optimizer.offload = way.offload;
  const auto source = markov_tokens(5'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 1);
  Outcome outcome;
  run_layout(spec, kVocab, way.layout, [&](RankContext& rank) {
    if (journey.from.empty()) {
      rank.trainer.initialise();
    } else {
      load_checkpoint(journey.from, rank.trainer);
      collect_state(rank.trainer, outcome.saved);
    }
    for (int64_t step = journey.first; step < journey.end; ++step) {
      if (!journey.to.empty() && step == journey.save_at) {
        save_checkpoint({journey.to}, {{"step", step}}, 0, rank.trainer, rank.plan, rank.world);
        collect_state(rank.trainer, outcome.saved);
      }
      const double loss = rank.trainer.step(step, *source, sampler, {}).loss;
      if (rank.rank == 0) outcome.losses.push_back(loss);
    }
    collect_state(rank.trainer, outcome.last);
  });
  return outcome;
}

fs::path checkpoint_in(const TempDir& folder, int number, const Length& length) {
  return folder.path() / std::to_string(number) / fmt::format("step-{:08}", length.save_at);
}
Outcome travel_all(const TrainSpec& spec, const Way& way, const Length& length,
                   const fs::path& to) {
  return travel(spec, way, {.end = length.end, .to = to, .save_at = length.save_at});
}
Outcome travel_on(const TrainSpec& spec, const Way& way, const Length& length,
                  const fs::path& from) {
  return travel(spec, way, {.first = length.save_at, .end = length.end, .from = from});
}

std::vector<double> from_step(const std::vector<double>& losses, int64_t step) {
  return {losses.begin() + step, losses.end()};
}
void check_losses(const Outcome& resumed, const Outcome& whole, const Length& length) {
  for (size_t i = 0; i < resumed.losses.size(); ++i) {
    const double loss = whole.losses[static_cast<size_t>(length.save_at) + i];
    CHECK(resumed.losses[i] == doctest::Approx(loss).epsilon(1e-5));
  }
}

}  // namespace

TEST_CASE("resume in the same layout is bit-identical to the uninterrupted run") {
  constexpr Length kLength = length(3, 6);
  const TempDir folder;
  const Way ways[] = {
      {"one rank", {}},
      {"dp 2 with ZeRO-1", {.dp = 2}},
      {"dp 2 without", {.dp = 2}, 0},
      {"dp 2 with ZeRO-2", {.dp = 2}, 2},
      {"dp 2 with ZeRO-3", {.dp = 2}, 3},
      {"dp 4 with two copies of shards", {.dp = 4, .zero_ranks = 2}, 3},
      {"pp 2 virtual 2", {.pp = 2, .virtual_stages = 2}},
      {"tp 2", {.tp = 2}, 1, "false"},
      {"tp 2 with sp", {.tp = 2}},
      {"tp 4 with copies of the KV heads", {.tp = 4}},
      {"tp 2 dp 2 pp 2", {.tp = 2, .dp = 2, .pp = 2}},
      {"dp 2 cp 2", {.dp = 2, .cp = 2}},
  };
  int number = 0;
  struct Run {
    std::string name, dtype;
    TrainSpec spec;
  };
  for (Run run : {Run{"GPT-2", "fp32", gpt2_spec()},
                  {"GPT-2", "fp16", gpt2_spec()},
                  {"LLaMA", "bf16", llama_spec()},
                  {"GPT-2", "fp8", gpt2_spec()},
                  {"LLaMA", "fp8", llama_spec()}}) {
    run.spec.precision.dtype = run.dtype;
    run.spec.precision.loss_scale.window = 2;  // the scale is part of what is resumed
    for (const Way& way : ways) {
      // What a type has of its own is with every layout: all ways with the smallest and the largest
      // state, two with the others.
      const bool all = run.dtype == "fp32" || (run.dtype == "fp8" && run.name == "LLaMA");
      if (kSanitized && !all && way.zero != 3) continue;
      CAPTURE(run.name);
      CAPTURE(run.dtype);
      CAPTURE(way.name);
      const fs::path dir = checkpoint_in(folder, ++number, kLength);
      const Outcome whole = travel_all(run.spec, way, kLength, dir);
      const Outcome resumed = travel_on(run.spec, way, kLength, dir);
      CHECK(resumed.saved == whole.saved);
      CHECK(resumed.losses == from_step(whole.losses, kLength.save_at));
      CHECK(resumed.last == whole.last);
    }
  }
}

TEST_CASE("layouts that keep each other's bits resume each other's runs with the same bits") {
  constexpr Length kLength = length(3, 6);
  const TempDir folder;
  // Within a set the sums are the same (layout_matrix_test.cpp).
  const std::vector<Way> sets[] = {
      {{"one rank", {}},
       {"pp 2", {.pp = 2}},
       {"pp 2 virtual 2", {.pp = 2, .virtual_stages = 2}},
       {"pp 4", {.pp = 4}}},
      {{"dp 2 with ZeRO-1", {.dp = 2}},
       {"dp 2 without", {.dp = 2}, 0},
       {"dp 2, offloaded", {.dp = 2}, 1, "auto", "cpu"},
       {"dp 2 pp 2", {.dp = 2, .pp = 2}}},
      {{"dp 2 with ZeRO-2", {.dp = 2}, 2},
       {"dp 2 with ZeRO-3, offloaded", {.dp = 2}, 3, "auto", "cpu"}},
      {{"tp 2 with sp", {.tp = 2}}, {"tp 2 with sp pp 2", {.tp = 2, .pp = 2}}},
  };
  int number = 0;
  for (const bool llama : {false, true}) {
    TrainSpec spec = llama ? llama_spec() : gpt2_spec();
    spec.precision.dtype = llama ? "bf16" : "fp32";
    for (const std::vector<Way>& set : sets) {
      for (const Way& from : set) {
        const fs::path dir = checkpoint_in(folder, ++number, kLength);
        const Outcome whole = travel_all(spec, from, kLength, dir);
        for (const Way& to : set) {
          CAPTURE(llama);
          CAPTURE(from.name);
          CAPTURE(to.name);
          const Outcome resumed = travel_on(spec, to, kLength, dir);
          CHECK(resumed.saved == whole.saved);
          CHECK(resumed.losses == from_step(whole.losses, kLength.save_at));
          CHECK(resumed.last == whole.last);
        }
      }
    }
  }
}

TEST_CASE("any layout loads what any layout saved") {
  constexpr Length kLength = length(3, 5);
  const TempDir folder;
  const Way ways[] = {
      {"one rank", {}},
      {"tp 2 pp 2", {.tp = 2, .pp = 2}, 1, "false"},
      {"dp 2 without ZeRO", {.dp = 2}, 0},
      {"dp 4 with ZeRO-1", {.dp = 4}},
      {"dp 4 with two copies of shards", {.dp = 4, .zero_ranks = 2}},
      {"tp 2 dp 2 with ZeRO-3", {.tp = 2, .dp = 2}, 3},
      {"tp 4 with copies of the KV heads", {.tp = 4}},
      {"dp 2 cp 2 without ZeRO", {.dp = 2, .cp = 2}, 0},
      {"tp 2 dp 2 pp 2 virtual 2", {.tp = 2, .dp = 2, .pp = 2, .virtual_stages = 2}},
  };
  int number = 0;
  for (const TrainSpec& spec : {gpt2_spec(), llama_spec()}) {
    for (const Way& from : ways) {
      const fs::path dir = checkpoint_in(folder, ++number, kLength);
      const Outcome whole = travel_all(spec, from, kLength, dir);
      for (const Way& to : ways) {
        // Either model half of the pairs, both together all.
        const bool gpt2 = spec.model.kv_heads == 0;
        if (kSanitized && ((&from - ways + (&to - ways)) % 2 == 0) != gpt2) continue;
        CAPTURE(spec.model.kv_heads);
        CAPTURE(from.name);
        CAPTURE(to.name);
        const Outcome resumed = travel_on(spec, to, kLength, dir);
        CHECK(resumed.saved == whole.saved);
        check_losses(resumed, whole, kLength);
      }
    }
  }
}

TEST_CASE("experts are loaded by whatever ranks divide them") {
  constexpr Length kLength = length(3, 5);
  const TempDir folder;
  TrainSpec spec = llama_spec();
  spec.model.moe = {.experts = 4,
                    .topk = 2,
                    .aux_loss = 0.01,
                    .score = "sigmoid",
                    .shared_ffn = 48,
                    .shared_gate = true,
                    .expert_bias = true,
                    .bias_rate = 0.01};
  const Way ways[] = {
      {"one rank", {}},
      {"dp 2 without ZeRO", {.dp = 2}, 0},
      {"ep 2", {.ep = 2}},
      {"dp 2 ep 2", {.dp = 2, .ep = 2}},
      {"dp 2 ep 2 without ZeRO", {.dp = 2, .ep = 2}, 0},
      {"pp 2 ep 4", {.pp = 2, .ep = 4}},
      {"tp 2 cp 2 ep 2", {.tp = 2, .cp = 2, .ep = 2}},
  };
  int number = 0;
  for (const Way& from : ways) {
    const fs::path dir = checkpoint_in(folder, ++number, kLength);
    const Outcome whole = travel_all(spec, from, kLength, dir);
    for (const Way& to : ways) {
      // Every way saves and loads; of the pairs every second one has to do.
      if (kSanitized && (&from - ways + (&to - ways)) % 2 != 0) continue;
      CAPTURE(from.name);
      CAPTURE(to.name);
      const Outcome resumed = travel_on(spec, to, kLength, dir);
      CHECK(resumed.saved == whole.saved);
      check_losses(resumed, whole, kLength);
      if (&from == &to) CHECK(resumed.last == whole.last);
    }
  }
}

TEST_CASE("a rank that was given up between its look at the fence and the commit changes nothing") {
  const TempDir folder;
  const TrainSpec spec = gpt2_spec();
  // What the next fence saved at the same step, by a layout of its own and with other weights.
  const auto saved_by_others = [&](const fs::path& dir) {
    TrainSpec other = spec;
    other.train.seed = 99;
    run_layout(other, kVocab, {.dp = 2}, [&](RankContext& rank) {
      rank.trainer.initialise();
      save_checkpoint({dir, 2}, {{"step", 3}}, 0, rank.trainer, rank.plan, rank.world);
    });
  };
  const auto read = [](const fs::path& dir) {
    std::map<std::string, std::string> files;
    for (const auto& file : fs::directory_iterator(dir)) {
      files[file.path().filename()] = read_file(file.path());
    }
    return files;
  };
  for (const int look : {1, 2}) {
    CAPTURE(look);
    const fs::path dir = folder.path() / std::to_string(look) / "checkpoints" / "step-00000003";
    int64_t fence = 1;
    int looks = 0;
    std::map<std::string, std::string> before;
    const auto still_ours = [&] {
      if (fence > 1) throw Error(Exit::run_failed, Diagnostic{.code = "ckpt.fenced", .what = ""});
      if (++looks != look) return;
      fence = 2;
      fence_off_attempts(dir.parent_path(), fence);
      saved_by_others(dir);
      before = read(dir);
    };
    std::string code;
    run_layout(spec, kVocab, {}, [&](RankContext& rank) {
      rank.trainer.initialise();
      try {
        save_checkpoint({dir, 1}, {{"step", 3}}, 1, rank.trainer, rank.plan, rank.world,
                        still_ours);
      } catch (const Error& error) {
        code = error.diagnostics().front().code;
      }
    });
    CHECK(looks == look);
    CHECK(code == "ckpt.fenced");
    REQUIRE(!before.empty());
    CHECK(read(dir) == before);
    CheckpointReader reader(dir);
    reader.verify();
    CHECK(reader.state()["fence"] == 2);
  }
}

}  // namespace checkpointing_test
