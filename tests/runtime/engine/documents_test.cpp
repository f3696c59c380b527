// Documents packed into a sequence: positions begin anew, attention does not look back, and what
// follows a document is not learned. Against PyTorch (tests/reference/documents_reference.py),
// against the documents each in a sequence of its own, and in every layout.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "runtime/data/orders.h"
#include "support/hash.h"
#include "support/reference.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;

namespace documents_test {

namespace {

constexpr int32_t kVocab = 61, kEod = 3;

void all_options(TrainSpec& spec) {
  spec.data.reset_positions_at_eod = true;
  spec.data.reset_attention_at_eod = true;
  spec.data.mask_eod_loss = true;
}

std::unique_ptr<Samples> documents_of(std::shared_ptr<const TokenSource> row, int64_t seq,
                                      SampleOrder order, bool mask = true) {
  return with_documents(window_samples(std::move(row), seq, order, 5, true),
                        {.eod = kEod, .mask_loss = mask});
}

enum class Model { learned_tied, rope, latent };
TrainSpec spec_of(Model model) {
  TrainSpec spec = spec_with({.layers = 4, .micro_batch = 1, .seq_len = 32, .steps = 4});
  spec.model.max_seq = 64;
  if (model != Model::learned_tied) {
    if (model == Model::rope) spec.model.kv_heads = 2;
    if (model == Model::latent) {
      spec.model.head_dim = 12;
      spec.model.latent = {.kv_rank = 16, .rope_dim = 4};
    }
    spec.model.ffn = 80;
    use_llama_blocks(spec);
    spec.model.tie_embeddings = false;
  }
  spec.model.dropout.hidden = 0.1;
  spec.train.seed = 11;
  spec.lr.max = 1e-3;
  all_options(spec);
  return spec;
}

struct Trajectory {
  GlobalTensors gradients, weights;
  std::vector<double> losses, norms;
  double valid = 0;
};

Trajectory train(const TrainSpec& spec, Layout layout, const Samples& samples) {
  Trajectory result;
  run_layout(spec, kVocab, layout, [&](RankContext& rank) {
    rank.trainer.initialise();
    rank.trainer.gradients(0, samples);
    collect(rank.trainer, Which::grad, result.gradients);
    for (int64_t step = 0; step < spec.train.steps; ++step) {
      const StepResult done = rank.trainer.step(step, samples, {});
      if (rank.rank != 0) continue;
      result.losses.push_back(done.loss);
      result.norms.push_back(done.grad_norm);
    }
    collect(rank.trainer, Which::master, result.weights);
    const double valid = rank.trainer.evaluate(samples, 7);
    if (rank.rank == 0) result.valid = valid;
  });
  return result;
}

std::shared_ptr<const TokenSource> text_with_documents() {
  auto plain = std::shared_ptr<const TokenSource>(markov_tokens(20'000, kVocab));
  return plain;  // one token in 61 or so is kEod
}

void check_close(const Trajectory& a, const Trajectory& b) {
  for (size_t i = 0; i < a.losses.size(); ++i) {
    CAPTURE(i);
    CHECK(a.losses[i] == doctest::Approx(b.losses[i]).epsilon(i == 0 ? 1e-6 : 1e-4));
    CHECK(a.norms[i] == doctest::Approx(b.norms[i]).epsilon(1e-4));
  }
  CHECK(a.valid == doctest::Approx(b.valid).epsilon(1e-4));
  for (const auto& [name, gradient] : b.gradients) {
    CAPTURE(name);
    CHECK(relative_error(a.gradients.at(name), gradient) < 1e-5);
  }
}

}  // namespace

TEST_CASE("packed documents train the same in every layout") {
  for (const Model model : {Model::learned_tied, Model::rope, Model::latent}) {
    CAPTURE(static_cast<int>(model));
    const TrainSpec spec = spec_of(model);
    const auto samples = documents_of(text_with_documents(), 32, SampleOrder::random);
    const Trajectory one = train(spec, {}, *samples);
    const auto same_bits = [&](const TrainSpec& other, Layout layout) {
      CAPTURE(layout.pp);
      CAPTURE(layout.virtual_stages);
      const Trajectory got = train(other, layout, *samples);
      CHECK(got.losses == one.losses);
      CHECK(got.norms == one.norms);
      CHECK(got.gradients == one.gradients);
      CHECK(got.weights == one.weights);
      CHECK(got.valid == one.valid);
    };
    same_bits(spec, {.pp = 2});
    same_bits(spec, {.pp = 4});  // stages with neither the embedding nor the head
    same_bits(spec, {.pp = 2, .virtual_stages = 2});
    TrainSpec again = spec;
    again.recompute.mode = "full";
    same_bits(again, {});
    same_bits(again, {.pp = 2});
    again.recompute.mode = "selective";
    same_bits(again, {});
    for (const Layout layout :
         {Layout{.tp = 2}, Layout{.dp = 2}, Layout{.tp = 2, .dp = 2}, Layout{.tp = 2, .pp = 2},
          Layout{.dp = 2, .pp = 2}, Layout{.cp = 2}, Layout{.dp = 2, .pp = 2, .cp = 2}}) {
      for (const char* sp : {"false", "true"}) {
        if (layout.tp == 1 && sp == std::string("true")) continue;
        CAPTURE(layout.tp);
        CAPTURE(layout.dp);
        CAPTURE(layout.pp);
        CAPTURE(layout.cp);
        CAPTURE(sp);
        TrainSpec other = spec;
        other.parallel.sp = sp;
        check_close(train(other, layout, *samples), one);
      }
    }
    TrainSpec larger = spec;
    larger.train.micro_batch = 4;
    for (const Layout layout : {Layout{}, Layout{.cp = 2}, Layout{.tp = 2, .cp = 2}}) {
      CAPTURE(layout.tp);
      CAPTURE(layout.cp);
      check_close(train(larger, layout, *samples), one);
    }
  }
}

namespace {

// Sequences of `kDocument` tokens with an EOD token at the end; packed, `together` to a sequence.
constexpr int64_t kDocument = 16;
class WholeDocuments : public Samples {
 public:
  explicit WholeDocuments(int64_t together) : together_(together) {}
  int64_t size() const override { return kEndless; }
  void fill(int64_t first, int64_t count, const SampleBatch& batch) const override {
    for (int64_t i = 0; i < count * together_ * kDocument; ++i) {
      const int64_t document = first * together_ + i / kDocument, at = i % kDocument;
      const auto to = static_cast<size_t>(i);
      batch.inputs[to] = token(document, at);
      batch.targets[to] = at + 1 < kDocument ? token(document, at + 1) : -1;
      const int64_t begin = i % (together_ * kDocument) - at;
      if (!batch.first_key.empty()) batch.first_key[to] = static_cast<int32_t>(begin);
      if (!batch.positions.empty()) batch.positions[to] = static_cast<int32_t>(at);
    }
  }

 private:
  static int32_t token(int64_t document, int64_t at) {
    if (at + 1 == kDocument) return kEod;
    return static_cast<int32_t>(splitmix64(static_cast<uint64_t>(document * 100 + at)) % kVocab);
  }
  int64_t together_;
};

}  // namespace

TEST_CASE("a packed document gives what it gives in a sequence of its own") {
  for (const Model model : {Model::learned_tied, Model::rope, Model::latent}) {
    CAPTURE(static_cast<int>(model));
    TrainSpec packed = spec_of(model);
    packed.model.dropout.hidden = 0;
    packed.train.seq_len = 4 * kDocument;
    packed.train.global_batch = 4;
    TrainSpec alone = packed;
    alone.train.seq_len = kDocument;
    alone.train.global_batch = 16;
    alone.train.micro_batch = 4;
    alone.data.reset_attention_at_eod = alone.data.reset_positions_at_eod = false;
    const Trajectory want = train(alone, {}, WholeDocuments(1));
    const Trajectory got = train(packed, {}, WholeDocuments(4));
    REQUIRE(got.losses.size() == want.losses.size());
    CHECK(got.losses[0] == doctest::Approx(want.losses[0]).epsilon(1e-6));
    CHECK(got.norms[0] == doctest::Approx(want.norms[0]).epsilon(1e-5));
    for (const auto& [name, gradient] : want.gradients) {
      CAPTURE(name);
      CHECK(relative_error(got.gradients.at(name), gradient) < 1e-5);
    }
    CHECK(got.losses.back() == doctest::Approx(want.losses.back()).epsilon(1e-4));
  }
}

TEST_CASE("what does not count has no part in loss and gradient of any rank") {
  // Only the last replica's sequences count.
  class LastCounts : public Samples {
   public:
    int64_t size() const override { return kEndless; }
    void fill(int64_t first, int64_t count, const SampleBatch& batch) const override {
      inner_.fill(first, count, batch);
      const int64_t seq = 2 * kDocument;
      for (int64_t i = 0; i < count; ++i) {
        if ((first + i) % 8 >= 6) continue;
        for (int64_t t = 0; t < seq; ++t) batch.targets[static_cast<size_t>(i * seq + t)] = -1;
      }
    }

   private:
    WholeDocuments inner_{2};
  };
  TrainSpec spec = spec_of(Model::rope);
  spec.model.dropout.hidden = 0;
  const Trajectory one = train(spec, {}, LastCounts());
  CHECK(one.losses[0] > 3);  // a mean over what counts, near ln 61
  check_close(train(spec, {.dp = 4}, LastCounts()), one);
  check_close(train(spec, {.dp = 2, .pp = 2}, LastCounts()), one);
  check_close(train(spec, {.dp = 2, .cp = 2}, LastCounts()), one);

  // Nothing counts: nothing is learned, and nothing is no number.
  class NothingCounts : public Samples {
   public:
    int64_t size() const override { return kEndless; }
    void fill(int64_t first, int64_t count, const SampleBatch& batch) const override {
      inner_.fill(first, count, batch);
      std::fill(batch.targets.begin(), batch.targets.end(), -1);
    }

   private:
    WholeDocuments inner_{2};
  };
  const Trajectory none = train(spec, {.dp = 2}, NothingCounts());
  CHECK(none.losses[0] == 0);
  CHECK(none.norms[0] == 0);
}

TEST_CASE("the losses of a router weigh as the tokens of the batch to those that count") {
  TrainSpec spec = spec_of(Model::rope);
  spec.model.dropout.hidden = 0;
  spec.train.micro_batch = 2;
  spec.model.moe = {.experts = 4, .topk = 2};
  const std::shared_ptr<const TokenSource> row = markov_tokens(4'000, kVocab);
  // What the two losses of the router add to the first gradient, where tokens count or all do.
  const auto of_router = [&](Layout layout, bool mask, int64_t& counted) {
    const auto samples = documents_of(row, 32, SampleOrder::random, mask);
    GlobalTensors added;
    for (const double weight : {1.0, 0.0}) {
      spec.model.moe.aux_loss = spec.model.moe.z_loss = weight;
      GlobalTensors gradients;
      run_layout(spec, kVocab, layout, [&](RankContext& rank) {
        rank.trainer.initialise();
        rank.trainer.gradients(0, *samples);
        collect(rank.trainer, Which::grad, gradients);
      });
      for (const auto& [name, gradient] : gradients) {
        std::vector<float>& sum = added[name];
        sum.resize(gradient.size());
        for (size_t i = 0; i < sum.size(); ++i) {
          sum[i] += weight > 0 ? gradient[i] : -gradient[i];
        }
      }
    }
    std::vector<int32_t> inputs(8 * 32), targets(inputs.size()), keys(inputs.size());
    std::vector<int32_t> positions(inputs.size());
    samples->fill(0, 8, {inputs, targets, keys, positions});
    counted = std::count_if(targets.begin(), targets.end(), [](int32_t id) { return id >= 0; });
    return added;
  };
  int64_t all = 0, counted = 0;
  const GlobalTensors plain = of_router({}, false, all);
  REQUIRE(all == 8 * 32);
  for (const Layout layout : {Layout{}, {.dp = 2}, {.tp = 2}, {.pp = 2}, {.ep = 2}}) {
    CAPTURE(layout.dp);
    CAPTURE(layout.tp);
    CAPTURE(layout.ep);
    const GlobalTensors masked = of_router(layout, true, counted);
    REQUIRE(counted < all - 3);
    for (const std::string name : {"model.layers.0.block_sparse_moe.gate.weight",
                                   "model.layers.3.block_sparse_moe.gate.weight"}) {
      CAPTURE(name);
      std::vector<float> expected = plain.at(name);
      for (float& value : expected) {
        value *= static_cast<float>(all) / static_cast<float>(counted);
      }
      CHECK(relative_error(masked.at(name), expected) < 1e-4);
    }
  }
}

TEST_CASE("packed documents against PyTorch") {
  std::ifstream in(MTL_SOURCE_DIR "/tests/reference/documents.json");
  const nlohmann::json want = nlohmann::json::parse(in);
  REQUIRE(want.at("eod").get<int>() == kEod);
  REQUIRE(want.at("documents").get<int>() > 5);
  for (const Layout layout :
       {Layout{}, Layout{.tp = 2}, Layout{.dp = 2, .pp = 2}, Layout{.cp = 2}}) {
    CAPTURE(layout.tp);
    CAPTURE(layout.cp);
    TrainSpec spec = read_reference("llama_small").spec;
    all_options(spec);
    GlobalTensors gradients;
    StepResult done;
    run_layout(spec, kReferenceVocab, layout, [&](RankContext& rank) {
      const auto samples = documents_of(std::make_shared<ReferenceTokens>(), spec.train.seq_len,
                                        SampleOrder::sequential);
      set_reference_weights(rank.trainer);
      rank.trainer.gradients(0, *samples);
      collect(rank.trainer, Which::grad, gradients);
      const StepResult result = rank.trainer.step(0, *samples, {});
      if (rank.rank == 0) done = result;
    });
    CHECK(done.loss == doctest::Approx(want.at("loss").get<double>()).epsilon(1e-5));
    CHECK(done.grad_norm == doctest::Approx(want.at("grad_norm").get<double>()).epsilon(1e-5));
    CHECK(gradients.size() == want.at("gradients").size());
    for (const auto& [name, gradient] : want.at("gradients").items()) {
      CAPTURE(name);
      REQUIRE(gradients.contains(name));
      CHECK(norm_of(gradients.at(name)) ==
            doctest::Approx(gradient.at("norm").get<double>()).epsilon(1e-4));
      const auto head = gradient.at("head").get<std::vector<double>>();
      const double size = gradient.at("norm").get<double>();
      for (size_t i = 0; i < head.size(); ++i) {
        CHECK(std::abs(static_cast<double>(gradients.at(name)[i]) - head[i]) < 1e-5 * size);
      }
    }
  }
}

}  // namespace documents_test
