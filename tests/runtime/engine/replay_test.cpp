// Passes that are replayed: on a GPU that does not ask twice what a pass enqueues, a run has the
// bits of one that enqueues everything anew.
#include <limits>
#include <map>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/engine/checkpointing.h"
#include "runtime/engine/on_fake_gpus.h"
#include "runtime/engine/sampling.h"
#include "support/sanitized.h"
#include "support/save_checkpoint.h"
#include "support/some_count.h"
#include "support/specs.h"
#include "support/temp_dir.h"

using namespace mtl;
using namespace mtl::test;

namespace replay_test {

namespace {

constexpr int32_t kVocab = 61;
// A checkpoint lies between them: either part records anew, and evaluates.
constexpr int64_t kSaved = kSanitized ? 2 : 5, kEnd = kSanitized ? 5 : 10;

TrainSpec gpt2_spec(const std::string& dtype = "fp32") {
  TrainSpec spec = spec_with({.layers = 4});
  spec.precision.dtype = dtype;
  spec.precision.loss_scale.window = 2;  // a scale, and so a recording, is for few steps
  spec.precision.loss_scale.initial = 1024;
  spec.train.seed = 4;
  spec.lr.max = 1e-3;
  return spec;
}

TrainSpec llama_spec(const std::string& dtype = "fp32") {
  TrainSpec spec = gpt2_spec(dtype);
  spec.model.kv_heads = 2;
  spec.model.ffn = 80;
  use_llama_blocks(spec);
  spec.model.qk_norm = true;
  spec.model.tie_embeddings = false;
  return spec;
}

TrainSpec with_dropout(TrainSpec spec) {
  spec.model.dropout = {0.1, 0.2};
  return spec;
}

enum class Targets { all, some };  // that count

// All that a run gives away.
struct Story {
  std::vector<double> numbers;
  GlobalTensors masters;
  std::map<std::string, GlobalTensors> moments;
  std::string diverged;
  bool operator==(const Story&) const = default;
};

// Steps with an evaluation between them, whose last batch is smaller, and texts that are shorter; a
// checkpoint, another trainer that loads it and goes on; and in the end a weight that is no number.
template <class Run>
Story story_of(const TrainSpec& spec, Targets targets, const std::filesystem::path& dir,
               bool diverges, const Run& run) {
  const auto tokens = markov_tokens(4000, kVocab);
  const Sampler sampler(tokens->size(), spec.train.seq_len, SampleOrder::random, 1);
  std::shared_ptr<const Samples> samples = std::make_shared<TokenWindows>(*tokens, sampler);
  if (targets == Targets::some) {
    samples = std::make_shared<SomeCount>(samples, spec.train.seq_len, answered);
  }
  Story story;
  const auto steps = [&](RankContext& rank, int64_t first, int64_t end) {
    for (int64_t step = first; step < end; ++step) {
      const StepResult result = rank.trainer.step(step, *samples, {});
      const double valid = step % 3 == 1 ? rank.trainer.evaluate(*samples, 7) : 0;
      std::vector<std::vector<int32_t>> texts = {{1}, {2, 3}, {4}};
      for (int64_t i = 0; i < 2 && step % 3 == 1; ++i) {
        const auto choose = [&](std::span<const float> logits, size_t) {
          return sample_token(logits, {}, i);
        };
        const std::vector<int32_t> next = rank.trainer.next_tokens(texts, 3, choose);
        for (size_t t = 0; t < texts.size(); ++t) texts[t].push_back(next[t]);
      }
      if (rank.rank != 0) continue;
      for (const auto& text : texts) story.numbers.push_back(text.back());
      story.numbers.insert(story.numbers.end(),
                           {result.loss, result.grad_norm, result.loss_scale, valid});
    }
  };
  // Before ranks wait for each other otherwise than by their GPUs.
  using Settle = std::function<void()>;
  run([&](RankContext& rank, const Settle& settle) {
    rank.trainer.initialise();
    steps(rank, 0, kSaved);
    rank.trainer.state();
    settle();
    save_checkpoint({dir}, {{"step", kSaved}}, 0, rank.trainer, rank.plan, rank.world);
  });
  try {
    run([&](RankContext& rank, const Settle& settle) {
      load_checkpoint(dir, rank.trainer);
      steps(rank, kSaved, kEnd);
      rank.trainer.state();
      settle();
      collect(rank.trainer, Which::master, story.masters);
      collect_moments(rank.trainer, story.moments);
      if (!diverges) return;
      set_masters(rank.trainer, [](const ParamRow& row, int64_t) {
        return row.layer == 1 ? std::numeric_limits<float>::quiet_NaN() : 0.01f;
      });
      rank.trainer.step(kEnd, *samples, {});
    });
  } catch (const Error& error) {
    if (error.diagnostics().front().code != "loss.nan") throw;
    story.diverged = error.diagnostics().front().what + error.diagnostics().front().notes.front();
  }
  return story;
}

// How often the host was spared, over all ranks.
struct Spared {
  int64_t recordings = 0, launches = 0;
};

// What the run that enqueues all gives away.
Story compare(const TrainSpec& spec, Layout layout, const Spared& least,
              Targets targets = Targets::all) {
  CAPTURE(spec.precision.dtype);
  CAPTURE(layout.tp);
  CAPTURE(layout.dp);
  CAPTURE(layout.ep);
  CAPTURE(layout.pp);
  CAPTURE(layout.virtual_stages);
  const TempDir folder;
  const Story eager =
      story_of(spec, targets, folder.path() / "a" / "step-00000001", true, [&](const auto& body) {
        run_layout(spec, kVocab, layout, [&](RankContext& rank) { body(rank, [] {}); });
      });
  REQUIRE(eager.numbers.size() == 7 * kEnd);
  REQUIRE(eager.diverged.find("first not finite: the weights") != std::string::npos);
  for (const When when : kWhen) {
    // Another order of the same work.
    if (kSanitized && when == When::late) continue;
    CAPTURE(std::string(name_of(when)));
    // Looking for it, a stage waits for its own stream, which goes on by itself on threads alone.
    const bool diverges = layout.pp == 1 || when == When::threads;
    Spared spared;
    const auto dir = folder.path() / name_of(when) / "step-00000001";
    const Story replayed = story_of(spec, targets, dir, diverges, [&](const auto& body) {
      FakeGpus gpus;
      const auto count = [&] {
        for (const auto& gpu : gpus) {
          spared.recordings += gpu->seen.recordings;
          spared.launches += gpu->seen.launches;
        }
      };
      try {
        run_on_fake_gpus(spec, kVocab, layout, gpus, {.when = when}, [&](RankContext& rank) {
          FakeGpu& gpu = *gpus[static_cast<size_t>(rank.rank)];
          body(rank, [&] { gpu.finish(); });
          gpu.finish();
        });
      } catch (...) {
        count();
        throw;
      }
      count();
    });
    CHECK(replayed.numbers == eager.numbers);
    CHECK(replayed.masters == eager.masters);
    CHECK(replayed.moments == eager.moments);
    CHECK(replayed.diverged == (diverges ? eager.diverged : ""));
    CHECK(spared.recordings >= least.recordings);
    if (!kSanitized) CHECK(spared.launches >= least.launches);
  }
  return eager;
}

}  // namespace

// A step has four micro-batches. Of the first of them and of the others there is a recording each,
// forward and backward, and one of the evaluation's; in each of the two runs. Where ranks meet
// within a pass there is one more for each time that they do.
TEST_CASE("replayed passes: one GPU has the bits of a run that enqueues all") {
  compare(gpt2_spec(), {}, {.recordings = 10, .launches = 70});
  compare(llama_spec("bf16"), {}, {.recordings = 10, .launches = 70});
}

// The FP8 copies of the weights are made outside of the passes, when the weights have changed.
TEST_CASE("replayed passes: products in FP8") {
  compare(gpt2_spec("fp8"), {}, {.recordings = 10, .launches = 70});
  compare(gpt2_spec("fp8"), {.dp = 2}, {.recordings = 64, .launches = 270});
  compare(gpt2_spec("fp8"), {.pp = 2, .virtual_stages = 2}, {.recordings = 8, .launches = 50});
}

TEST_CASE("replayed passes: a loss scale that moves") {
  compare(gpt2_spec("fp16"), {}, {.recordings = 10, .launches = 50});
}

TEST_CASE("replayed passes: batches that grow and layers that are made again") {
  TrainSpec spec = gpt2_spec();
  spec.train.batch_ramp = {{0, 4}, {4, 8}};
  spec.recompute.mode = "full";
  compare(spec, {}, {.recordings = 6, .launches = 20});
}

TEST_CASE("replayed passes: replicas and their shards") {
  compare(gpt2_spec(), {.dp = 2}, {.recordings = 60, .launches = 250});
  TrainSpec whole = llama_spec();
  whole.parallel.zero = 0;
  compare(whole, {.dp = 2}, {.recordings = 40, .launches = 160});
}

// Every pass waits for weights, or sends gradients, between its layers.
TEST_CASE("replayed passes: gradients and weights in shards") {
  TrainSpec spec = with_dropout(gpt2_spec());
  spec.parallel.zero = 2;
  compare(spec, {.dp = 2}, {.recordings = 60, .launches = 250});
  spec = llama_spec("bf16");
  spec.parallel.zero = 3;
  compare(spec, {.dp = 2}, {.recordings = 60, .launches = 250});
  compare(spec, {.dp = 4, .zero_ranks = 2}, {.recordings = 120, .launches = 400});
  spec = gpt2_spec("fp8");
  spec.parallel.zero = 3;
  spec.recompute.mode = "full";
  compare(spec, {.tp = 2, .dp = 2}, {.recordings = 350, .launches = 3000});
}

TEST_CASE("replayed passes: gradients that travel in bf16") {
  TrainSpec spec = with_dropout(gpt2_spec("bf16"));
  spec.precision.grad_reduce = "bf16";
  compare(spec, {.dp = 2}, {.recordings = 60, .launches = 250});
  spec.parallel.zero = 3;
  compare(spec, {.dp = 2}, {.recordings = 60, .launches = 250});
}

// The head takes other rows each time, of one of 16 numbers: a recording is of one of them.
TEST_CASE("replayed passes: some targets count") {
  TrainSpec llama = llama_spec("bf16");
  llama.train.logits_rows = 16;
  compare(llama, {}, {.recordings = 10, .launches = 40}, Targets::some);
  compare(gpt2_spec(), {.tp = 2}, {.recordings = 100, .launches = 400}, Targets::some);
  compare(llama_spec(), {.pp = 2, .virtual_stages = 2}, {.recordings = 8, .launches = 40},
          Targets::some);
}

TEST_CASE("replayed passes: pipelines") {
  compare(gpt2_spec(), {.pp = 2}, {.recordings = 8, .launches = 50});
  compare(llama_spec(), {.pp = 2, .virtual_stages = 2}, {.recordings = 8, .launches = 50});
}

// Backward is one recording, and what it leaves for later another.
TEST_CASE("replayed passes: weights' gradients that come later") {
  TrainSpec spec = with_dropout(gpt2_spec());
  spec.parallel.schedule = "zb-h1";
  const Story later = compare(spec, {.pp = 2}, {.recordings = 14, .launches = 70});
  spec.parallel.schedule = "1f1b";
  const Story at_once = compare(spec, {.pp = 2}, {.recordings = 8, .launches = 50});
  CHECK(later.masters == at_once.masters);
  TrainSpec llama = llama_spec("fp8");
  llama.parallel.schedule = "zb-h1";
  compare(llama, {.dp = 2, .pp = 2}, {.recordings = 70, .launches = 260});
}

// The masks of every step and micro-batch are others, in memory that a recording reads: one that
// kept a number of the pass that it was made of would drop the wrong elements.
TEST_CASE("replayed passes: dropout on one GPU and in pipelines") {
  const TrainSpec spec = with_dropout(gpt2_spec());
  const Story one = compare(spec, {}, {.recordings = 10, .launches = 70});
  // Several micro-batches are under way, each with its numbers in its slot.
  const Story two = compare(spec, {.pp = 2}, {.recordings = 8, .launches = 50});
  CHECK(two.masters == one.masters);
  compare(with_dropout(llama_spec()), {.pp = 2, .virtual_stages = 2},
          {.recordings = 8, .launches = 50});
  TrainSpec again = with_dropout(gpt2_spec("bf16"));
  again.recompute.mode = "full";
  compare(again, {.dp = 2, .pp = 2}, {.recordings = 70, .launches = 260});
}

TEST_CASE("replayed passes: dropout, batches that grow and layers that are made again") {
  TrainSpec spec = with_dropout(gpt2_spec());
  spec.train.batch_ramp = {{0, 4}, {4, 8}};
  spec.recompute.mode = "full";
  compare(spec, {}, {.recordings = 6, .launches = 20});
  spec.recompute.mode = "selective";
  compare(spec, {.pp = 2}, {.recordings = 4, .launches = 20});
}

TEST_CASE("replayed passes: some layers make parts again") {
  TrainSpec spec = with_dropout(gpt2_spec("bf16"));
  spec.recompute.mode = "selective";
  spec.recompute.modules = {"norm", "mlp_act"};
  spec.recompute.module_layers = {{"mlp_act", 1}};
  compare(spec, {.pp = 2}, {.recordings = 8, .launches = 50});
}

TEST_CASE("replayed passes: dropout on replicas and their shards") {
  compare(with_dropout(gpt2_spec()), {.dp = 2}, {.recordings = 60, .launches = 250});
}

// Each of its collectives is between two recordings.
TEST_CASE("replayed passes: tensor parallelism") {
  compare(gpt2_spec(), {.tp = 2}, {.recordings = 350, .launches = 3000});
  TrainSpec sequence = llama_spec("bf16");
  sequence.parallel.sp = "true";
  compare(sequence, {.tp = 2}, {.recordings = 350, .launches = 3000});
  compare(gpt2_spec("fp8"), {.tp = 2}, {.recordings = 350, .launches = 3000});
  TrainSpec distributed = with_dropout(gpt2_spec());
  distributed.recompute.mode = "full";
  distributed.recompute.distribute = true;
  distributed.parallel.sp = "false";
  compare(distributed, {.tp = 2}, {.recordings = 350, .launches = 3000});
  compare(llama_spec(), {.tp = 2, .dp = 2, .pp = 2}, {.recordings = 900, .launches = 3400});
}

TEST_CASE("replayed passes: sequences divided over ranks") {
  compare(with_dropout(gpt2_spec("bf16")), {.cp = 2}, {.recordings = 200, .launches = 1000});
  TrainSpec spec = llama_spec();
  spec.recompute.mode = "full";
  compare(spec, {.dp = 2, .cp = 2}, {.recordings = 200, .launches = 1000});
}

// What of a layer depends on how many rows an expert has is enqueued anew, the rest replayed.
TEST_CASE("replayed passes: a mixture of experts") {
  TrainSpec spec = llama_spec();
  spec.model.qk_norm = false;
  spec.model.moe = {.experts = 4, .topk = 2, .aux_loss = 0.01, .z_loss = 0.001};
  compare(spec, {.cp = 2}, {.recordings = 200, .launches = 1000});
  // Those at the end are divided in the same ways at once.
  if (!kSanitized) {
    compare(spec, {}, {.recordings = 50, .launches = 400});
    compare(spec, {.tp = 2}, {.recordings = 350, .launches = 2800});
    compare(spec, {.ep = 2}, {.recordings = 50, .launches = 400});
  }
  TrainSpec fp8 = spec;
  fp8.precision.dtype = "fp8";
  compare(fp8, {.ep = 2}, {.recordings = 50, .launches = 400});
  spec.parallel.ep_room = 1;
  if (!kSanitized) compare(spec, {.tp = 2, .ep = 2}, {.recordings = 350, .launches = 2600});
  spec.model.moe.score = "sigmoid";
  spec.model.moe.shared_ffn = 48;
  spec.model.moe.shared_gate = true;
  spec.model.moe.expert_bias = true;
  compare(spec, {.tp = 2, .ep = 2}, {.recordings = 350, .launches = 2600});
}

TEST_CASE("replayed passes: experts and their shards divided over ranks") {
  TrainSpec spec = llama_spec();
  spec.model.qk_norm = false;
  spec.model.moe = {.experts = 4, .topk = 2};
  spec.parallel.zero = 3;
  compare(spec, {.ep = 2}, {.recordings = 50, .launches = 400});
  compare(spec, {.dp = 2, .ep = 2}, {.recordings = 50, .launches = 400});
}

TEST_CASE("replayed passes: latents") {
  TrainSpec spec = with_dropout(llama_spec());
  spec.model.qk_norm = false;
  spec.model.kv_heads = 0;
  spec.model.head_dim = 12;
  spec.model.latent = {.kv_rank = 16, .q_rank = 24, .rope_dim = 4};
  compare(spec, {}, {.recordings = 6, .launches = 20});
  spec.recompute.mode = "selective";
  spec.recompute.modules = {"latent_up", "norm"};
  compare(spec, {.tp = 2}, {.recordings = 60, .launches = 250});
}

}  // namespace replay_test
