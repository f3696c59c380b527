// The training runs that the benchmarks of a GPU are about; tests/reference/gpu_baseline.py has the
// same in PyTorch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/error.h"
#include "common/text.h"
#include "runtime/engine/trainer.h"
#include "spread_tokens.h"
#include "support/some_count.h"
#include "support/specs.h"

namespace mtl::bench {

struct Shape {
  bool llama;
  int64_t vocab, layers, hidden, heads, kv_heads, ffn;
  int64_t batch, seq, micro_batches;  // sequences of a micro-batch; micro-batches of a step
  int steps;
  bool cut = false;  // of the layers as many as fit (Run)
};
// 124m, 1.5b: GPT-2; llama-8b: Llama 3's, as many of its 32 layers as fit, with its vocabulary;
// tiny and tiny-llama are to try a program anywhere. 1.5b in PyTorch takes about 90 GB
// (calculated), so on a GPU of 80 GB it is measured in smaller micro-batches.
inline const std::map<std::string, Shape>& shapes() {
  static const std::map<std::string, Shape> all = {
      {"tiny", {false, 512, 2, 64, 4, 4, 256, 2, 64, 2, 4}},
      {"tiny-llama", {true, 512, 2, 64, 4, 2, 160, 2, 64, 2, 4}},
      {"124m", {false, 50257, 12, 768, 12, 12, 3072, 32, 1024, 4, 10}},
      {"1.5b", {false, 50257, 48, 1600, 25, 25, 6400, 16, 1024, 4, 5}},
      {"llama-1b-4k", {true, 128256, 16, 2048, 32, 8, 8192, 4, 4096, 4, 4}},
      {"llama-8b", {true, 128256, 32, 4096, 32, 8, 14336, 2, 8192, 4, 3, true}},
      {"llama-8b-2k", {true, 128256, 32, 4096, 32, 8, 14336, 8, 2048, 4, 3, true}},
  };
  return all;
}

// "124m-fp8" is 124m in fp8; "1.5b-norm-act7-b21-fp8" makes normalised rows again, and the
// activations of 7 layers (-act: of all; recompute.mode: selective), with 21 sequences a
// micro-batch and as many of those as come to no more of them in a step. "tiny-asks-muon" has
// targets that do not count in the loss, in each sample another share, and is trained by Muon;
// "tiny-lora" has adapters of rank 16 trained in its place.
struct NamedShape {
  std::string name = {};
  TrainSpec::Recompute recompute = {};
  int64_t batch = 0;  // 0: the shape's
  bool fp8 = false, lora = false, muon = false, asks = false;
};
inline NamedShape named_shape(const std::string& title) {
  NamedShape named = {.name = title};
  const auto take = [&](const std::string& suffix) {
    const bool is_there = named.name.ends_with(suffix);
    if (is_there) named.name.resize(named.name.size() - suffix.size());
    return is_there;
  };
  // The number behind a suffix, 0 = there is none.
  const auto take_number = [&](const std::string& suffix) -> int64_t {
    const size_t at = named.name.rfind(suffix);
    if (at == std::string::npos) return 0;
    const auto number = to_number<int64_t>(named.name.substr(at + suffix.size()));
    if (!number || *number <= 0) return 0;
    named.name.resize(at);
    return *number;
  };
  TrainSpec::Recompute& recompute = named.recompute;
  std::vector<std::string> modules;
  named.fp8 = take("-fp8");
  named.lora = take("-lora");
  named.muon = take("-muon");
  named.asks = take("-asks");
  named.batch = take_number("-b");
  if (const int64_t layers = take_number("-act"); layers > 0) {
    modules = {"mlp_act"};
    recompute.module_layers["mlp_act"] = layers;
  } else if (take("-act")) {
    modules = {"mlp_act"};
  }
  if (take("-norm")) modules.insert(modules.begin(), "norm");
  if (modules.empty()) return named;
  recompute.mode = "selective";
  recompute.modules = modules;
  return named;
}
// What to say of names that are none; empty: they all are.
inline std::string unknown_shape(const std::vector<std::string>& titles) {
  for (const std::string& title : titles) {
    if (shapes().contains(named_shape(title).name)) continue;
    std::vector<std::string> known;
    for (const auto& [name, shape] : shapes()) known.push_back(name);
    return fmt::format("there is no shape {}: {}", title, fmt::join(known, ", "));
  }
  return "";
}

inline TrainSpec spec_of(const Shape& shape, const NamedShape& named) {
  TrainSpec spec = test::spec_with({.layers = shape.layers,
                                    .hidden = shape.hidden,
                                    .heads = shape.heads,
                                    .global_batch = shape.micro_batches * shape.batch,
                                    .micro_batch = shape.batch,
                                    .seq_len = shape.seq,
                                    .steps = 1000});
  spec.model.kv_heads = shape.kv_heads;
  spec.model.ffn = shape.ffn;
  spec.model.max_seq = shape.seq;
  if (shape.llama) {
    test::use_llama_blocks(spec);
    spec.model.position.base = 500000;
    spec.model.tie_embeddings = false;
  }
  spec.precision.dtype = named.fp8 ? "fp8" : "bf16";
  spec.recompute = named.recompute;
  if (named.muon) spec.optimizer.type = "muon";
  if (named.lora) spec.lora.rank = 16;
  return spec;
}

// A shape as it is trained: its tokens and its plan. Layers are left out of a shape that may be
// cut until its plan in bf16, with nothing made again, takes no more than kShare of the GPU's
// memory, so that PyTorch, which takes more for the same model, can be measured beside it.
struct Run {
  static constexpr double kShare = 0.76;

  // memory_bytes: of the whole GPU; 0 = there is none, and nothing is left out.
  Run(const std::string& title, double memory_bytes)
      : shape(shapes().at(named_shape(title).name)),
        source(shape.vocab),
        sampler(source.size(), shape.seq, SampleOrder::random, 1),
        world(make_self_world()) {
    const NamedShape named = named_shape(title);
    const auto bytes = [&] {
      return static_cast<double>(plan_of(spec_of(shape, {})).total_bytes());
    };
    while (shape.cut && memory_bytes > 0 && shape.layers > 1 && bytes() > kShare * memory_bytes) {
      --shape.layers;
    }
    if (named.batch > 0) {
      shape.micro_batches = std::max<int64_t>(1, shape.micro_batches * shape.batch / named.batch);
      shape.batch = named.batch;
    }
    resolved.spec = spec_of(shape, named);
    plan = plan_of(resolved.spec);
    samples = std::make_shared<TokenWindows>(source, sampler);
    if (named.asks) {
      samples = std::make_shared<test::SomeCount>(samples, shape.seq, test::answered);
    }
  }
  // Of a step, of whose tokens `counted` count in the loss.
  double flops(double counted) const {
    const auto tokens = static_cast<double>(plan.tokens_of_step(0));
    return plan.cost.flops_per_token * tokens -
           flops_per_token_of_head(plan.model) * (tokens - counted);
  }
  double flops() const { return flops(static_cast<double>(plan.tokens_of_step(0))); }

  Shape shape;
  ResolvedSpec resolved;
  Plan plan;
  SpreadTokens source;
  Sampler sampler;
  std::shared_ptr<const Samples> samples;
  std::unique_ptr<CommWorld> world;

 private:
  Plan plan_of(const TrainSpec& spec) const {
    ResolvedSpec given;
    given.spec = spec;
    Diagnostics diagnostics;
    Plan made = make_plan(given, {.vocab = shape.vocab}, 1, diagnostics);
    diagnostics.throw_if_errors();
    return made;
  }
};

}  // namespace mtl::bench
