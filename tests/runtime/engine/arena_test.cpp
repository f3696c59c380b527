// The arena is what a step uses: the planned pages are in memory after one, so that the plan of a
// run's memory neither leaves out nor makes up anything that matters.
#include <algorithm>
#include <functional>
#include <string>
#include <unistd.h>
#include <vector>

#include <sys/mman.h>

#include <doctest/doctest.h>

#include "support/layouts.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;

namespace arena_test {

namespace {

constexpr int32_t kVocab = 256;

// Large enough that what the layout leaves empty between tensors (up to a chunk of the norm each)
// does not count; every sequence has every token of the vocabulary.
TrainSpec spec_of(bool llama) {
  TrainSpec spec = spec_with({.layers = 4,
                              .hidden = 256,
                              .global_batch = 4,
                              .micro_batch = 1,
                              .seq_len = kVocab,
                              .steps = 10});
  if (llama) {
    spec.model.kv_heads = 2;
    use_llama_blocks(spec);
    spec.model.tie_embeddings = false;
  }
  return spec;
}

// The share of the arena's pages that are resident. Memory of the transport is zeroed pages that
// come when somebody touches them.
double resident_share(Trainer& trainer, const MemoryPlan& memory) {
  const ParameterState first = trainer.state().front();
  const BufferPlan* shards = memory.find("grad_shards");
  const BufferPlan* grads = shards != nullptr ? shards : memory.find("grads");
  char* arena = static_cast<char*>(first.grad.data) - first.part.gradient * bytes_of(DType::f32) -
                grads->offset;
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> pages(static_cast<size_t>((memory.total_bytes + page - 1) / page));
  if (::mincore(arena, static_cast<size_t>(memory.total_bytes), pages.data()) != 0) return -1;
  const auto resident = std::count_if(pages.begin(), pages.end(), [](auto p) { return p & 1; });
  return static_cast<double>(resident) / static_cast<double>(pages.size());
}

struct Variant {
  std::string name;
  Layout layout;
  std::function<void(TrainSpec& spec)> change = [](TrainSpec&) {};
};

}  // namespace

TEST_CASE("a step touches the pages of the planned arena") {
  const auto selective = [](TrainSpec& s) {
    s.recompute.mode = "selective";
    s.recompute.modules = {"core_attn", "mlp_act", "norm"};
  };
  const auto first_layers = [](int64_t norms, int64_t activations) {
    return [=](TrainSpec& s) {
      s.recompute.mode = "selective";
      s.recompute.modules = {"norm", "mlp_act"};
      s.recompute.module_layers = {{"norm", norms}, {"mlp_act", activations}};
    };
  };
  const Variant variants[] = {
      {"dp 2", {.dp = 2}},
      {"dp 2 bf16", {.dp = 2}, [](TrainSpec& s) { s.precision.dtype = "bf16"; }},
      {"tp 2 fp8", {.tp = 2}, [](TrainSpec& s) { s.precision.dtype = "fp8"; }},
      {"dp 2 fp8 experts",
       {.dp = 2},
       [](TrainSpec& s) {
         s.precision.dtype = "fp8";
         s.model.activation = "swiglu";
         s.model.bias = false;
         s.model.moe = {.experts = 4, .topk = 2};
       }},
      {"dp 2 zero 2", {.dp = 2}, [](TrainSpec& s) { s.parallel.zero = 2; }},
      {"dp 2 zero 3 fp8",
       {.dp = 2},
       [](TrainSpec& s) {
         s.parallel.zero = 3;
         s.precision.dtype = "fp8";
       }},
      {"dp 2 sgd", {.dp = 2}, [](TrainSpec& s) { s.optimizer.type = "sgd"; }},
      {"tp 2 selective", {.tp = 2}, selective},
      {"tp 2 some layers", {.tp = 2}, first_layers(4, 1)},
      {"pp 2 some layers", {.pp = 2}, first_layers(1, 2)},
      {"pp 2 virtual 2 some layers", {.pp = 2, .virtual_stages = 2}, first_layers(1, 1)},
      {"tp 2 fp8 some layers",
       {.tp = 2},
       [&](TrainSpec& s) {
         first_layers(2, 3)(s);
         s.precision.dtype = "fp8";
       }},
      {"tp 2 full",
       {.tp = 2},
       [](TrainSpec& s) {
         s.recompute.mode = "full";
         s.recompute.layers = 2;
       }},
      {"pp 2", {.pp = 2}},
      {"pp 2 virtual 2", {.pp = 2, .virtual_stages = 2}},
      {"pp 2 gpipe", {.pp = 2}, [](TrainSpec& s) { s.parallel.schedule = "gpipe"; }},
      {"pp 2 zb-h1", {.pp = 2}, [](TrainSpec& s) { s.parallel.schedule = "zb-h1"; }},
      {"pp 2 virtual 2 zb-h1",
       {.pp = 2, .virtual_stages = 2},
       [](TrainSpec& s) { s.parallel.schedule = "zb-h1"; }},
  };
  const SyntheticTokens source(20'000, [](int64_t i) { return static_cast<int32_t>(i % kVocab); });
  for (const bool llama : {false, true}) {
    for (const Variant& variant : variants) {
      CAPTURE(llama);
      CAPTURE(variant.name);
      TrainSpec spec = spec_of(llama);
      variant.change(spec);
      const Sampler sampler(source.size(), spec.train.seq_len, SampleOrder::sequential, 0);
      std::vector<double> shares(static_cast<size_t>(variant.layout.world()));
      run_layout(spec, kVocab, variant.layout, [&](RankContext& rank) {
        rank.trainer.initialise();
        rank.trainer.step(0, source, sampler, {});
        rank.world.barrier();  // peers write into our memory too
        shares[static_cast<size_t>(rank.rank)] =
            resident_share(rank.trainer, rank.plan.stage_of(rank.rank).memory);
      });
      // What is left: gaps between tensors, and the head's part of slots that only the other chunks
      // of the last stage come to use.
      for (const double share : shares) CHECK(share >= 0.97);
    }
  }
}

}  // namespace arena_test
