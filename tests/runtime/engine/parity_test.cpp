// Against PyTorch: the same initial weights and batches give the same losses, gradient norms and
// first gradients. The numbers and every definition are in tests/reference/README.md.
#include <cmath>
#include <fstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "support/layouts.h"

using namespace mtl;
using namespace mtl::test;

namespace {

constexpr int64_t kSeq = 64;
constexpr uint64_t kVocab = 65;

uint64_t fnv1a64(const std::string& s) {
  uint64_t h = 0xcbf29ce484222325ULL;
  for (unsigned char c : s) h = (h ^ c) * 0x100000001b3ULL;
  return h;
}

uint64_t splitmix64(uint64_t x) {
  uint64_t z = x + 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

uint64_t reference_hash(const std::string& name, int64_t i) {
  return splitmix64(fnv1a64(name) + static_cast<uint64_t>(i));
}

float reference_weight(const std::string& name, int64_t i) {
  const auto k = static_cast<int64_t>(reference_hash(name, i) >> 40);
  const auto v = static_cast<float>(static_cast<double>(k - 8388608) * 0x1p-26);
  const bool gamma = name.find("ln_") != std::string::npos && name.ends_with(".weight");
  return gamma ? static_cast<float>(1.0 + static_cast<double>(v)) : v;
}

// Window w of the sequential sampler is the reference's sequence w of kSeq + 1 tokens.
class ReferenceTokens : public TokenSource {
 public:
  int64_t size() const override { return 50 * 12 * kSeq + 1; }
  void read(int64_t first, std::span<int32_t> out) const override {
    REQUIRE(first % kSeq == 0);
    REQUIRE(out.size() == kSeq + 1);
    uint64_t id = 0;
    for (size_t t = 0; t < out.size(); ++t) {
      const uint64_t r =
          reference_hash("tokens", first / kSeq * (kSeq + 1) + static_cast<int64_t>(t));
      id = t == 0 || (r >> 32) % 4 == 0 ? r % kVocab : (7 * id + 3) % kVocab;
      out[t] = static_cast<int32_t>(id);
    }
  }
  uint64_t fingerprint() const override { return 0; }
};

void set_reference_weights(Trainer& trainer) {
  trainer.initialise();
  set_masters(trainer,
              [](const ParamRow& row, int64_t i) { return reference_weight(row.name, i); });
}

nlohmann::json reference() {
  std::ifstream in(MTL_SOURCE_DIR "/tests/reference/gpt2_small.json");
  REQUIRE(in.good());
  return nlohmann::json::parse(in);
}

// The tensors of a small, trusted safetensors file of F32.
GlobalTensors reference_gradients() {
  std::ifstream in(MTL_SOURCE_DIR "/tests/reference/gpt2_small_grads.safetensors",
                   std::ios::binary);
  REQUIRE(in.good());
  uint64_t length = 0;
  in.read(reinterpret_cast<char*>(&length), sizeof length);
  std::string header(length, '\0');
  in.read(header.data(), static_cast<std::streamsize>(length));
  const nlohmann::json entries = nlohmann::json::parse(header);
  GlobalTensors tensors;
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    const auto begin = entry.at("data_offsets")[0].get<uint64_t>();
    const auto end = entry.at("data_offsets")[1].get<uint64_t>();
    std::vector<float>& data = tensors[name];
    data.resize((end - begin) / sizeof(float));
    in.seekg(static_cast<std::streamoff>(8 + length + begin));
    in.read(reinterpret_cast<char*>(data.data()), static_cast<std::streamsize>(end - begin));
  }
  REQUIRE(in.good());
  return tensors;
}

TrainSpec reference_spec() {
  TrainSpec spec;
  spec.model.layers = 4;
  spec.model.hidden = 128;
  spec.model.heads = 4;
  spec.train.global_batch = 12;
  spec.train.seq_len = kSeq;
  spec.train.steps = 50;
  spec.optimizer.beta2 = 0.99;
  spec.lr.max = 1e-3;
  spec.lr.min = 1e-4;
  spec.lr.warmup = 5;
  return spec;
}

}  // namespace

TEST_CASE("losses and gradients equal PyTorch's, in every layout") {
  const nlohmann::json expected = reference();
  const GlobalTensors expected_gradients = reference_gradients();
  for (const Layout layout : {Layout{1, 1}, {1, 2}, {2, 1}, {2, 2}}) {
    CAPTURE(layout.tp);
    CAPTURE(layout.dp);
    GlobalTensors gradients;
    std::vector<StepResult> steps;
    run_layout(reference_spec(), kVocab, layout, [&](RankContext& rank) {
      const ReferenceTokens source;
      const Sampler sampler(source.size(), kSeq, SampleOrder::sequential, 0);
      set_reference_weights(rank.trainer);
      rank.trainer.gradients(0, source, sampler);
      collect(rank.trainer, Which::grad, gradients);
      for (int64_t step = 0; step < 50; ++step) {
        const StepResult result = rank.trainer.step(step, source, sampler, {});
        if (rank.rank == 0) steps.push_back(result);
      }
    });
    CHECK(gradients.size() == expected_gradients.size());
    for (const auto& [name, gradient] : expected_gradients) {
      CAPTURE(name);
      CHECK(relative_error(gradients.at(name), gradient) < 1e-4);
    }
    for (size_t i = 0; i < steps.size(); ++i) {
      CAPTURE(i);
      CHECK(steps[i].loss == doctest::Approx(expected.at("loss")[i].get<double>()).epsilon(1e-4));
      CHECK(steps[i].grad_norm ==
            doctest::Approx(expected.at("grad_norm")[i].get<double>()).epsilon(1e-3));
      CHECK(steps[i].lr ==
            doctest::Approx(expected.at("lr").at("values")[i].get<double>()).epsilon(1e-12));
    }
  }
}
