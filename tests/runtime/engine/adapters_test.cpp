// Adapters in place of the model (lora.rank): nothing else changes, in any layout, and checkpoints
// share what does not. That they learn what they should: parity_test.cpp.
#include <filesystem>
#include <set>
#include <signal.h>
#include <string>

#include <sys/resource.h>
#include <sys/stat.h>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/engine/checkpoint_saver.h"
#include "runtime/engine/checkpointing.h"
#include "support/layouts.h"
#include "support/specs.h"
#include "support/temp_dir.h"

using namespace mtl;
using namespace mtl::test;

namespace adapters_test {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kVocab = 65;

TrainSpec small_spec() {
  TrainSpec spec = spec_with({.global_batch = 8, .micro_batch = 2, .steps = 20});
  use_llama_blocks(spec);
  spec.model.kv_heads = 2;
  spec.lora = {.rank = 4, .alpha = 8};
  return spec;
}

bool of_adapter(const std::string& name) {
  return name.find(".lora_") != std::string::npos;
}

ino_t file_of(const fs::path& path) {
  struct stat is {};
  REQUIRE(::stat(path.c_str(), &is) == 0);
  return is.st_ino;
}

// Trains `spec` on one rank, with a checkpoint after each step, in turn in these folders.
void save_each(
    const TrainSpec& spec, const std::vector<fs::path>& dirs,
    const std::function<void(size_t saved)>& between = [](size_t) {}) {
  const auto source = markov_tokens(5'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 1);
  run_layout(spec, kVocab, {}, [&](RankContext& rank) {
    CheckpointSaver saver(rank.trainer, rank.plan, rank.world, true, {});
    rank.trainer.initialise();
    for (size_t i = 0; i < dirs.size(); ++i) {
      rank.trainer.step(static_cast<int64_t>(i), *source, sampler, {});
      saver.begin({.attempt = {dirs[i]},
                   .state = {{"step", i}, {"model", to_json(rank.plan.model)}},
                   .keep = {.last = 10}});
      CHECK(saver.finish());
      between(i);
    }
  });
}

// Of this process. A write beyond it is an error here, and no signal.
void limit_files(rlim_t bytes) {
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {bytes, RLIM_INFINITY};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

constexpr const char* kBase = "base-r00000.safetensors";

}  // namespace

TEST_CASE("adapters alone change, and have gradients and moments, in every layout") {
  const auto source = markov_tokens(5'000, kVocab);
  for (const int zero : {0, 1, 3}) {
    for (const Layout& layout : {Layout{}, Layout{.dp = 2}, Layout{.tp = 2, .dp = 2},
                                 Layout{.tp = 2, .pp = 2}, Layout{.dp = 2, .ep = 2}}) {
      if (zero == 3 && layout.pp > 1) continue;
      CAPTURE(zero);
      CAPTURE(layout.world());
      for (const char* dtype : {"fp32", "bf16"}) {
        CAPTURE(dtype);
        TrainSpec spec = small_spec();
        spec.parallel.zero = zero;
        spec.precision.dtype = dtype;
        if (layout.ep > 1) {
          // Neither its router changes, nor the biases that balance it.
          spec.model.moe = {.experts = 4, .topk = 2, .score = "sigmoid"};
          spec.model.moe.expert_bias = true;
          spec.model.moe.shared_ffn = 16;
        }
        const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 1);
        GlobalTensors before, after, gradients;
        std::map<std::string, GlobalTensors> moments;
        run_layout(spec, kVocab, layout, [&](RankContext& rank) {
          rank.trainer.initialise();
          collect(rank.trainer, Which::master, before);
          for (int64_t step = 0; step < 3; ++step) rank.trainer.step(step, *source, sampler, {});
          collect(rank.trainer, Which::master, after);
          collect(rank.trainer, Which::grad, gradients);
          collect_moments(rank.trainer, moments);
        });
        CHECK(before.size() == after.size());
        for (const auto& [name, values] : before) {
          CAPTURE(name);
          CHECK((values == after.at(name)) == !of_adapter(name));
          CHECK(gradients.contains(name) == of_adapter(name));
          CHECK(moments.at("exp_avg").contains(name) == of_adapter(name));
        }
      }
    }
  }
}

TEST_CASE("a model with fresh adapters is the model") {
  const auto source = markov_tokens(5'000, kVocab);
  TrainSpec spec = small_spec();
  const auto loss = [&] {
    double found = 0;
    run_layout(spec, kVocab, {}, [&](RankContext& rank) {
      rank.trainer.initialise();
      found = rank.trainer.evaluate(*source, 16);
    });
    return found;
  };
  const double with = loss();
  spec.lora = {};
  CHECK(with == loss());
}

TEST_CASE("adapters are trained in every type, in layouts as on one rank") {
  const auto source = markov_tokens(5'000, kVocab);
  for (const char* dtype : {"fp16", "bf16", "fp8"}) {
    CAPTURE(dtype);
    TrainSpec spec = small_spec();
    spec.precision.dtype = dtype;
    spec.precision.loss_scale.initial = 1024;
    spec.lr.warmup = 1;
    spec.lr.max = 0.01;
    const auto losses = [&](const Layout& layout) {
      std::vector<double> found;
      const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 1);
      run_layout(spec, kVocab, layout, [&](RankContext& rank) {
        rank.trainer.initialise();
        for (int64_t step = 0; step < 6; ++step) {
          const double loss = rank.trainer.step(step, *source, sampler, {}).loss;
          if (rank.rank == 0) found.push_back(loss);
        }
      });
      return found;
    };
    const std::vector<double> alone = losses({});
    CHECK(alone.back() < alone.front() - 0.01);
    for (const int zero : {0, 3}) {
      spec.parallel.zero = zero;
      for (const Layout& layout : {Layout{.tp = 2, .dp = 2}, Layout{.dp = 2}, Layout{.cp = 2}}) {
        const std::vector<double> divided = losses(layout);
        for (size_t i = 0; i < alone.size(); ++i) {
          CHECK(divided[i] == doctest::Approx(alone[i]).epsilon(3e-3));
        }
      }
    }
  }
}

TEST_CASE("a stage without anything to train has its part all the same") {
  // The first layer is a mixture, whose experts have no adapters.
  TrainSpec spec = small_spec();
  spec.model.moe = {.experts = 4};
  spec.model.moe.dense_layers = {1};
  spec.lora.targets = {"up", "down"};
  const auto source = markov_tokens(5'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 1);
  const TempDir folder;
  const fs::path dir = checkpoint_path(folder / "checkpoints", 1);
  std::vector<double> alone, divided;
  for (const Layout& layout : {Layout{}, Layout{.dp = 2, .pp = 2}}) {
    run_layout(spec, kVocab, layout, [&](RankContext& rank) {
      CheckpointSaver saver(rank.trainer, rank.plan, rank.world, true, {});
      rank.trainer.initialise();
      if (layout.pp > 1) load_checkpoint(dir, rank.trainer);
      for (int64_t step = 0; step < 4; ++step) {
        if (step == 2 && layout.pp == 1) {
          saver.begin({.attempt = {dir}, .state = {{"step", 2}}});
          CHECK(saver.finish());
        }
        if (step < 2 && layout.pp > 1) continue;
        const double loss = rank.trainer.step(step, *source, sampler, {}).loss;
        if (rank.rank == 0) (layout.pp == 1 ? alone : divided).push_back(loss);
      }
    });
  }
  REQUIRE(divided.size() == 2);
  CHECK(divided[0] == doctest::Approx(alone[2]).epsilon(1e-6));
  CHECK(divided[1] == doctest::Approx(alone[3]).epsilon(1e-6));
}

TEST_CASE("checkpoints of a process share the file of what is not trained") {
  const TempDir folder;
  const fs::path checkpoints = folder / "checkpoints";
  const fs::path first = checkpoint_path(checkpoints, 1), second = checkpoint_path(checkpoints, 2),
                 third = checkpoint_path(checkpoints, 3);
  TrainSpec spec = small_spec();
  spec.precision.dtype = "bf16";
  save_each(spec, {first, second, third}, [&](size_t saved) {
    if (saved == 1) fs::remove_all(second);
  });
  // The second went with all that it had; the third has written it anew.
  CHECK(file_of(first / kBase) != file_of(third / kBase));
  CheckpointReader(first).verify();
  CheckpointReader reader(third);
  reader.verify();
  std::set<std::string> narrow, wide;
  for (const ChunkRecord& chunk : reader.chunks()) {
    (chunk.dtype == "BF16" ? narrow : wide).insert(chunk.tensor);
    CHECK((chunk.file == kBase) == !of_adapter(chunk.tensor));
  }
  CHECK(narrow.contains("model.embed_tokens.weight"));
  CHECK(wide.contains("model.layers.0.mlp.down_proj.lora_A.weight.exp_avg"));

  const fs::path fourth = checkpoint_path(checkpoints, 4), fifth = checkpoint_path(checkpoints, 5);
  save_each(spec, {fourth, fifth});
  CHECK(file_of(fourth / kBase) == file_of(fifth / kBase));
  fs::remove_all(fourth);
  CheckpointReader(fifth).verify();
}

TEST_CASE("what a save has lost the next one has from the last checkpoint") {
  const TempDir folder;
  const fs::path checkpoints = folder / "checkpoints";
  const fs::path first = checkpoint_path(checkpoints, 1), lost = checkpoint_path(checkpoints, 2),
                 third = checkpoint_path(checkpoints, 3);
  const TrainSpec spec = small_spec();
  const auto source = markov_tokens(5'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 1);
  for (const Layout& layout : {Layout{}, Layout{.dp = 2}}) {
    CAPTURE(layout.world());
    fs::remove_all(checkpoints);
    run_layout(spec, kVocab, layout, [&](RankContext& rank) {
      CheckpointSaver saver(rank.trainer, rank.plan, rank.world, true, {});
      rank.trainer.initialise();
      const auto save = [&](const fs::path& dir) {
        saver.begin({.attempt = {dir}, .state = {{"step", 1}}, .keep = {.last = 10}});
        return saver.finish();
      };
      CHECK(save(first));
      // Files that are longer than this cannot be written; the base is there, and is not.
      rank.world.barrier();
      limit_files(1000);
      CHECK(!save(lost));
      limit_files(RLIM_INFINITY);
      rank.world.barrier();
      CHECK(save(third));
    });
    CHECK(file_of(first / kBase) == file_of(third / kBase));
    CheckpointReader(third).verify();
  }
}

TEST_CASE("a checkpoint of adapters is read in another layout and type") {
  const TempDir folder;
  const fs::path dir = checkpoint_path(folder / "checkpoints", 1);
  TrainSpec spec = small_spec();
  spec.precision.dtype = "bf16";
  GlobalTensors saved;
  const auto source = markov_tokens(5'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 1);
  run_layout(spec, kVocab, {.tp = 2, .dp = 2}, [&](RankContext& rank) {
    CheckpointSaver saver(rank.trainer, rank.plan, rank.world, false, {});
    rank.trainer.initialise();
    rank.trainer.step(0, *source, sampler, {});
    saver.begin({.attempt = {dir}, .state = {{"step", 1}}});
    CHECK(saver.finish());
    collect(rank.trainer, Which::master, saved);
  });
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    spec.precision.dtype = dtype;
    spec.parallel.zero = 3;
    GlobalTensors loaded;
    run_layout(spec, kVocab, {.dp = 2}, [&](RankContext& rank) {
      load_checkpoint(dir, rank.trainer);
      collect(rank.trainer, Which::master, loaded);
    });
    CAPTURE(dtype);
    for (const auto& [name, values] : saved) {
      CAPTURE(name);
      // fp16 has fewer exponents than bf16.
      const bool rounds = std::string(dtype) == "fp16" && !of_adapter(name);
      CHECK((rounds ? relative_error(loaded.at(name), values) < 1e-3 : loaded.at(name) == values));
    }
  }
}

}  // namespace adapters_test
