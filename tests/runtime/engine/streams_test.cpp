// The engine's communication ordered by streams and events, as on GPUs: the same numbers, bit by
// bit, as with communication that is done when it returns, whether what is enqueued runs as late or
// as early as its dependencies let it, or all at once with sends that wait for their receivers.
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/engine/on_fake_gpus.h"
#include "support/sanitized.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;

namespace streams_test {

namespace {

constexpr int32_t kVocab = 61;
constexpr int64_t kSteps = kSanitized ? 2 : 3;

TrainSpec spec_of(bool llama) {
  TrainSpec spec = spec_with({.layers = 4, .micro_batch = 1, .steps = kSteps});
  spec.model.dropout.hidden = 0.1;
  if (llama) {
    spec.model.kv_heads = 2;
    spec.model.ffn = 80;
    use_llama_blocks(spec);
    spec.model.tie_embeddings = false;
  }
  spec.train.seed = 11;
  spec.lr.max = 1e-3;
  return spec;
}

struct Outcome {
  std::vector<double> numbers;  // losses, gradient norms, the loss of the validation
  GlobalTensors masters;
  std::map<int, std::array<Traffic, kLinks>> traffic;  // by rank: of each link
};
std::mutex outcome_mutex;

void train(RankContext& rank, const TokenSource& tokens, Outcome& outcome,
           const std::function<void()>& settle) {
  const Sampler sampler(tokens.size(), rank.plan.seq, SampleOrder::random, 11);
  rank.trainer.initialise();
  std::vector<double> numbers;
  for (int64_t step = 0; step < kSteps; ++step) {
    const StepResult result = rank.trainer.step(step, tokens, sampler, {});
    numbers.push_back(result.loss);
    numbers.push_back(result.grad_norm);
  }
  numbers.push_back(rank.trainer.evaluate(tokens, 6));
  rank.trainer.state();  // weights that are still being gathered
  settle();
  collect(rank.trainer, Which::master, outcome.masters);
  if (rank.rank == 0) outcome.numbers = numbers;
  const auto traffic = traffic_of(rank.trainer);
  const std::scoped_lock lock(outcome_mutex);
  outcome.traffic[rank.rank] = traffic;
}

Outcome on_cpu(const TrainSpec& spec, Layout layout) {
  const auto tokens = markov_tokens(2000, kVocab);
  Outcome outcome;
  run_layout(spec, kVocab, layout,
             [&](RankContext& rank) { train(rank, *tokens, outcome, [] {}); });
  return outcome;
}

// The host of a mixture of experts waits for its device in the middle of a pass, and so for what
// peers send. A GPU goes on while its own host waits for others to make a group; the stand-in does
// not: groups are made before.
void make_groups(Trainer& trainer) {
  for (int link = 0; link < kLinks; ++link) {
    if (link == static_cast<int>(Link::activations) || link == static_cast<int>(Link::gradients)) {
      continue;  // pairs
    }
    trainer.groups()[static_cast<Link>(link)].barrier();
  }
}

Outcome on_streams(const TrainSpec& spec, Layout layout, When when, int64_t buffered) {
  const auto tokens = markov_tokens(2000, kVocab);
  Outcome outcome;
  FakeGpus gpus;
  // The more sends wait for their receivers, the sooner do ranks wait for each other.
  const FakeGpuOptions options = {.when = when, .lazy = buffered == 0, .buffered_bytes = buffered};
  run_on_fake_gpus(spec, kVocab, layout, gpus, options, [&](RankContext& rank) {
    if (spec.model.moe.experts > 0) make_groups(rank.trainer);
    train(rank, *tokens, outcome, [&] { gpus[static_cast<size_t>(rank.rank)]->finish(); });
  });
  return outcome;
}

void compare(const TrainSpec& spec, Layout layout) {
  CAPTURE(layout.tp);
  CAPTURE(layout.dp);
  CAPTURE(layout.pp);
  CAPTURE(layout.virtual_stages);
  CAPTURE(layout.zero_ranks);
  const Outcome cpu = on_cpu(spec, layout);
  REQUIRE(cpu.numbers.size() == 2 * kSteps + 1);
  for (const When when : kWhen) {
    // Another order of the same work, which would show memory that is used when it is gone: two
    // ranks do for that.
    if (kSanitized && when == When::late && layout.world() > 2) continue;
    CAPTURE(std::string(name_of(when)));
    // Without pipelines there are no messages.
    for (const int64_t buffered : {int64_t{0}, int64_t{64} << 20}) {
      if (layout.pp == 1 && buffered == 0) continue;
      CAPTURE(buffered);
      const Outcome streams = on_streams(spec, layout, when, buffered);
      CHECK(streams.numbers == cpu.numbers);
      CHECK(streams.masters == cpu.masters);
      const bool as_counted = streams.traffic == cpu.traffic;
      CHECK(as_counted);
    }
  }
}

}  // namespace

TEST_CASE("streams: tensor parallelism with and without sequence parallelism") {
  for (const char* sp : {"false", "true"}) {
    TrainSpec spec = spec_of(sp[0] == 't');
    spec.parallel.sp = sp;
    compare(spec, {.tp = 2});
    compare(spec, {.tp = 4});
  }
}

TEST_CASE("streams: data parallelism with shards and without and with overlap and without") {
  for (const int zero : {0, 1, 2, 3}) {
    for (const bool overlap : {true, false}) {
      CAPTURE(zero);
      CAPTURE(overlap);
      TrainSpec spec = spec_of(zero % 2 == 1);
      spec.parallel.zero = zero;
      spec.parallel.overlap.grad_reduce = overlap;
      spec.parallel.overlap.param_gather = overlap ? "auto" : "false";
      compare(spec, {.dp = 2});
      if (zero < 2) continue;
      spec = spec_of(zero % 2 == 0);
      spec.parallel.zero = zero;
      spec.parallel.overlap.grad_reduce = overlap;
      spec.recompute.mode = "full";
      spec.recompute.layers = 2;
      compare(spec, {.tp = 2, .dp = 2});
    }
  }
}

TEST_CASE("streams: gradients that travel in bf16") {
  for (const int zero : {1, 2, 3}) {
    CAPTURE(zero);
    TrainSpec spec = spec_of(zero == 2);
    spec.precision.grad_reduce = "bf16";
    spec.parallel.zero = zero;
    compare(spec, {.dp = 2});
    spec.parallel.bucket_mb = 0.05;
    spec.parallel.overlap.grad_reduce = zero != 2;
    compare(spec, {.tp = 2, .dp = 2});
  }
}

TEST_CASE("streams: several copies of what ZeRO divides") {
  for (const int zero : {1, 2, 3}) {
    CAPTURE(zero);
    TrainSpec spec = spec_of(zero == 2);
    spec.parallel.zero = zero;
    compare(spec, {.dp = 4, .zero_ranks = 2});
    spec.precision.grad_reduce = zero == 3 ? "fp32" : "bf16";
    spec.parallel.bucket_mb = 0.05;
    spec.parallel.overlap.grad_reduce = zero != 2;
    compare(spec, {.tp = 2, .dp = 4, .zero_ranks = 4});
  }
  TrainSpec spec = spec_of(true);
  spec.model.moe = {.experts = 4, .topk = 2, .aux_loss = 0.01};
  compare(spec, {.dp = 2, .ep = 2, .zero_ranks = 2});
  compare(spec, {.dp = 4, .ep = 2, .zero_ranks = 4});
}

TEST_CASE("streams: pipelines") {
  for (const bool overlap : {true, false}) {
    CAPTURE(overlap);
    TrainSpec spec = spec_of(overlap);
    spec.parallel.overlap.p2p = overlap;
    compare(spec, {.pp = 2, .virtual_stages = 2});
    if (kSanitized && !overlap) continue;
    compare(spec, {.pp = 2});
    compare(spec, {.pp = 4});
    spec.model.layers = 8;
    compare(spec, {.pp = 4, .virtual_stages = 2});
    compare(spec, {.pp = 2, .virtual_stages = 4});
  }
}

TEST_CASE("streams: sequences divided over ranks") {
  compare(spec_of(false), {.cp = 2});
  TrainSpec spec = spec_of(true);
  spec.parallel.zero = 3;
  compare(spec, {.dp = 2, .cp = 2});
  compare(spec_of(false), {.tp = 2, .pp = 2, .cp = 2});
  compare(spec_of(true), {.cp = 4});
}

TEST_CASE("streams: experts divided over ranks") {
  for (const double room : {1.0, 1e6}) {
    CAPTURE(room);
    TrainSpec spec = spec_of(true);
    spec.model.moe = {.experts = 4, .topk = 2, .aux_loss = 0.01};
    spec.parallel.ep_room = room;
    compare(spec, {.ep = 2});
    if (kSanitized && room > 1) continue;  // without turns it does less
    compare(spec, {.pp = 2});
    compare(spec, {.pp = 2, .ep = 2});
    compare(spec, {.dp = 2, .ep = 2});
    compare(spec, {.pp = 2, .ep = 4});
  }
}

TEST_CASE("streams: shards of experts that ranks divide, or that a rank has alone") {
  TrainSpec spec = spec_of(true);
  spec.model.moe = {.experts = 4, .dense_layers = {1}, .topk = 2, .aux_loss = 0.01};
  for (const int zero : {2, 3}) {
    CAPTURE(zero);
    spec.parallel.zero = zero;
    compare(spec, {.ep = 2});
    // Of so many bytes that a queue with a thread would hand them over.
    TrainSpec wide = spec;
    wide.model.moe.ffn = 512;
    compare(wide, {.ep = 2});
    compare(spec, {.dp = 2, .ep = 2});
    if (kSanitized) continue;
    compare(spec, {.dp = 2, .ep = 2, .zero_ranks = 2});
    spec.precision.grad_reduce = "bf16";
    compare(spec, {.tp = 2, .ep = 2});
    spec.precision.grad_reduce = "fp32";
  }
}

TEST_CASE("streams: latents") {
  TrainSpec spec = spec_of(true);
  spec.model.kv_heads = 0;
  spec.model.head_dim = 12;
  spec.model.latent = {.kv_rank = 16, .q_rank = 24, .rope_dim = 4};
  compare(spec, {.tp = 2});
  compare(spec, {.cp = 2});
}

TEST_CASE("streams: matrices on their way to those that orthogonalize them") {
  TrainSpec spec = spec_of(false);
  spec.optimizer.type = "muon";
  compare(spec, {});
  compare(spec, {.tp = 2, .dp = 2});
  spec.parallel.zero = 3;
  compare(spec, {.dp = 2});
  spec.parallel.zero = 0;
  compare(spec, {.tp = 2, .pp = 2});
}

TEST_CASE("streams: adapters beside weights that stay as they are") {
  TrainSpec spec = spec_of(false);
  spec.lora.rank = 4;
  compare(spec, {});
  compare(spec, {.tp = 2, .pp = 2});
  spec.parallel.zero = 3;
  compare(spec, {.tp = 2, .dp = 2});
}

TEST_CASE("streams: all at once") {
  TrainSpec spec = spec_of(false);
  compare(spec, {.tp = 2, .dp = 2, .pp = 2});
  compare(spec_of(true), {.dp = 2, .pp = 2, .virtual_stages = 2});
}

}  // namespace streams_test
