// Texts that a model continues while it is trained: every layout chooses the same tokens, by scores
// that are those of the model alone, and the training does not notice.
#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/engine/sampling.h"
#include "runtime/engine/solo_model.h"
#include "support/layouts.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;

namespace texts_test {

namespace {

constexpr int32_t kVocab = 61;
constexpr int64_t kTokens = 6;

TrainSpec spec_of(bool mixture = false) {
  TrainSpec spec = spec_with({.layers = 4, .micro_batch = 1, .seq_len = 96});
  spec.model.dropout.hidden = 0.1;
  if (mixture) {
    use_llama_blocks(spec);
    spec.model.tie_embeddings = false;
    spec.model.moe = {.experts = 4,
                      .topk = 2,
                      .score = "sigmoid",
                      .shared_ffn = 48,
                      .shared_gate = true,
                      .expert_bias = true,
                      .bias_rate = 0.1};
  }
  spec.init.std = 0.2;  // so that no two tokens score alike
  spec.train.seed = 11;
  spec.lr.max = 1e-3;
  return spec;
}

struct Written {
  std::vector<std::vector<int32_t>> texts;
  std::map<std::pair<size_t, size_t>, std::vector<float>> logits;  // by text and length
  std::vector<double> losses;                                      // two before it, two behind it
  GlobalTensors weights;
};

// Three texts, so that replicas have different numbers of them; one ends before the others do.
Written write(const TrainSpec& spec, Layout layout, bool generates = true) {
  const auto source = markov_tokens(20'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, spec.train.seed);
  Written result;
  std::mutex mutex;
  run_layout(spec, kVocab, layout, [&](RankContext& rank) {
    rank.trainer.initialise();
    std::vector<std::vector<int32_t>> texts = {{5}, {7, 8, 9, 10, 11}, {}};
    for (int32_t i = 0; i < 36; ++i) texts[2].push_back(i);  // in the second half of its pass
    std::vector<double> losses;
    for (int64_t step = 0; step < 4; ++step) {
      if (step == 2) collect(rank.trainer, Which::master, result.weights);
      for (int64_t i = 0; i < kTokens && step == 2 && generates; ++i) {
        const auto choose = [&](std::span<const float> logits, size_t text) -> int32_t {
          const std::lock_guard lock(mutex);
          result.logits[{text, texts[text].size()}] = {logits.begin(), logits.end()};
          return text == 1 && i > 2 ? -1 : sample_token(logits, {}, i);
        };
        const std::vector<int32_t> next = rank.trainer.next_tokens(texts, 36 + kTokens - 1, choose);
        for (size_t t = 0; t < next.size(); ++t) {
          if (next[t] >= 0) texts[t].push_back(next[t]);
        }
      }
      losses.push_back(rank.trainer.step(step, *source, sampler, {}).loss);
    }
    const std::lock_guard lock(mutex);
    if (rank.rank == 0) {
      result.texts = texts;
      result.losses = losses;
    }
    CHECK(texts.at(1).size() == (generates ? 8 : 5));  // the same on every rank
  });
  return result;
}

// In the middle of a training they are those of its weights, in a model that knows no layout.
void check_scores(const Written& written, const ModelShape& shape) {
  const auto device = make_cpu_device(1);
  SoloModel model(shape, *device, shape.max_seq);
  model.fill([&](const ParamRow& row, const std::vector<int64_t>&, Tensor weights) {
    const std::vector<float>& values = written.weights.at(row.name);
    std::fill_n(weights.as<float>(), weights.numel(), 0.0f);
    std::copy(values.begin(), values.end(), weights.as<float>());  // what pads lies behind
  });
  for (const auto& entry : written.logits) {
    const size_t text = entry.first.first, length = entry.first.second;
    CAPTURE(text);
    CAPTURE(length);
    const std::span<const int32_t> ids(written.texts[text]);
    const std::vector<float> alone = model.next_logits(ids.first(length), 0);
    CHECK(relative_error(entry.second, alone) < 1e-5);
  }
}

void check_same(const Written& one, const Written& other, double bound) {
  CHECK(one.texts == other.texts);
  REQUIRE(one.logits.size() == other.logits.size());
  for (const auto& [of, logits] : one.logits) {
    if (bound == 0) {
      CHECK(logits == other.logits.at(of));
    } else {
      CHECK(relative_error(logits, other.logits.at(of)) < bound);
    }
  }
}

}  // namespace

TEST_CASE("a text goes on alike in every layout, and the training does not notice") {
  const TrainSpec spec = spec_of();
  const Written one = write(spec, {});
  CHECK(one.texts[0].size() == 7);
  CHECK(one.texts[2].size() == 42);
  ModelShape shape;
  run_layout(spec, kVocab, {}, [&](RankContext& rank) { shape = rank.plan.model; });
  check_scores(one, shape);
  CHECK(one.losses == write(spec, {}, false).losses);
  SUBCASE("the same bits") {
    check_same(one, write(spec, {.pp = 2}), 0);
    check_same(one, write(spec, {.pp = 2, .virtual_stages = 2}), 0);
    TrainSpec other = spec;
    other.recompute.mode = "full";
    check_same(one, write(other, {}), 0);
  }
  SUBCASE("sums in another order") {
    for (const std::string sp : {"true", "false"}) {
      CAPTURE(sp);
      TrainSpec other = spec;
      other.parallel.sp = sp;
      check_same(one, write(other, {.tp = 2}), 1e-4);
      check_same(one, write(other, {.tp = 2, .pp = 2}), 1e-4);
    }
    check_same(one, write(spec, {.cp = 2}), 1e-4);
    check_same(one, write(spec, {.tp = 2, .cp = 2}), 1e-4);
    for (const int zero : {1, 3}) {
      CAPTURE(zero);
      TrainSpec other = spec;
      other.parallel.zero = zero;
      other.train.micro_batch = 2;
      const Written divided = write(other, {.dp = 2});
      check_same(one, divided, 1e-4);
      CHECK(divided.losses == write(other, {.dp = 2}, false).losses);
    }
    TrainSpec documents = spec;
    documents.data.reset_attention_at_eod = documents.data.reset_positions_at_eod = true;
    check_same(one, write(documents, {.pp = 2}), 1e-4);
  }
}

TEST_CASE("experts are divided where texts go on too, and texts fit where few tokens do") {
  const TrainSpec spec = spec_of(true);
  const Written one = write(spec, {});
  check_same(one, write(spec, {.ep = 2}), 1e-4);
  check_same(one, write(spec, {.tp = 2, .ep = 2}), 1e-4);
  TrainSpec half = spec_of();
  half.precision.dtype = "bf16";
  const Written rounded = write(half, {});
  for (const auto& [of, logits] : rounded.logits) {
    CHECK(std::ranges::all_of(logits, [](float x) { return std::isfinite(x); }));
  }
  CHECK(rounded.logits.size() == 16);
}

}  // namespace texts_test
