// The layout matrix: every way to divide a run trains the same model (design idea B).
//
// What is arithmetically the same has the same bits: pipeline and virtual stages, the order of the
// schedule, recompute, ZeRO-1, overlap, in every precision; ZeRO-2 and 3 too, where a step has one
// micro-batch. What only changes the order of sums (TP, SP, CP, DP; ZeRO-2 and 3 with several
// micro-batches, which are added up after the replicas and not before; several copies of what ZeRO
// divides, each of which is summed before they are added) stays, in fp32, within 1e-6
// at the first step, 1e-5 (Frobenius) of every first gradient, and 1e-4 over 10 steps; in half
// precision within the bounds derived in layout_matrix_half_test.cpp. (Long runs of some layouts:
// layout_test.cpp and parity_test.cpp.)
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "support/layouts.h"
#include "support/sanitized.h"

namespace mtl::test::layout_matrix {

inline constexpr int32_t kVocab = 61;
inline constexpr int64_t kSteps = kSanitized ? 2 : 10;  // of what is compared within bounds
// Of what is compared bit by bit, where nothing is left to drift: beyond the warmup, and beyond the
// growth of a loss scale.
inline constexpr int64_t kBitSteps = kSanitized ? 2 : 3;

enum class Model {
  gpt2_tied,
  gpt2_untied,
  llama_tied,
  llama_untied,
  mixtral,
  neox,
  olmo,
  sandwich,
  layers,  // that differ in their windows and rotations
  sinks,   // gpt-oss
  command  // Command R's blocks, with what Granite scales and Phi-2's head
};
inline constexpr Model kModels[] = {Model::gpt2_tied, Model::llama_untied, Model::gpt2_untied,
                                    Model::llama_tied};
// Two that stand for the others. What goes wrong with memory where a run is divided does so with
// either's blocks: with sanitizers it is one.
inline const std::vector<Model> kMainModels =
    kSanitized ? std::vector{Model::llama_untied}
               : std::vector{Model::gpt2_tied, Model::llama_untied};
// They run every row; the others run those where their heads matter.
bool runs_all(Model model);
// Eight layers, four heads, two KV heads (so that tp 4 copies them), micro-batches of one.
TrainSpec spec_of(Model model);

struct Trajectory {
  GlobalTensors initial, first_gradients;
  std::vector<double> losses, norms, scales, aux, z, turns;
  // After kBitSteps.
  GlobalTensors weights;
  double valid = 0;
};
Trajectory train(const TrainSpec& spec, Layout layout, int64_t steps, int32_t vocab = kVocab);

// `a` ran for kBitSteps, `b` perhaps for longer.
void check_bits(const Trajectory& a, const Trajectory& b);

struct Bounds {
  double first_loss, first_gradient, loss;  // relative
};
inline constexpr Bounds kFp32 = {1e-6, 1e-5, 1e-4};
void check_near(const Trajectory& split, const Trajectory& single, const Bounds& bounds);

inline void same(TrainSpec&) {}
inline void zero0(TrainSpec& s) {
  s.parallel.zero = 0;
}
inline void zero2(TrainSpec& s) {
  s.parallel.zero = 2;
}
inline void zero3(TrainSpec& s) {
  s.parallel.zero = 3;
}
inline void gpipe(TrainSpec& s) {
  s.parallel.schedule = "gpipe";
}
inline void zb_h1(TrainSpec& s) {
  s.parallel.schedule = "zb-h1";
}
inline void full(TrainSpec& s) {
  s.recompute.mode = "full";
}
inline void full_of_3(TrainSpec& s) {
  full(s);
  s.recompute.layers = 3;
}
inline void distributed(TrainSpec& s) {
  full(s);
  s.recompute.distribute = true;
}
inline void selective(TrainSpec& s) {
  s.recompute.mode = "selective";
  s.recompute.modules = {"core_attn", "norm", "mlp"};
}
// Of chunks with two layers or more; a layer beside those that make other parts, or nothing.
inline void some_layers(TrainSpec& s) {
  s.recompute.mode = "selective";
  s.recompute.modules = {"core_attn", "norm", "mlp_act", "mlp"};
  s.recompute.module_layers = {{"core_attn", 2}, {"norm", 2}, {"mlp", 1}};
}
inline void one_layer(TrainSpec& s) {
  s.recompute.mode = "selective";
  s.recompute.modules = {"core_attn", "norm", "mlp_act"};
  s.recompute.module_layers = {{"core_attn", 1}, {"norm", 1}, {"mlp_act", 1}};
}
inline void small_buckets(TrainSpec& s) {
  s.parallel.bucket_mb = 0.02;
}

// One way to run it: what differs from `spec_of` beside the layout.
struct Variant {
  std::string name;
  Layout layout;
  std::function<void(TrainSpec& spec)> change = same;
  bool any_head = false;  // run by models that do not run all, of mixtures with sanitizers
};

// A way to divide sums, and what must not change its bits.
struct Row {
  Layout base;
  bool sequence_parallel;
  std::vector<Variant> variants;
  bool any_head = false;
};

// Ways to keep gradients, or gradients and weights, in shards.
std::vector<Variant> in_shards(Layout layout);

void check_variants(const TrainSpec& spec, const Trajectory& base,
                    const std::vector<Variant>& variants, bool all);
void check_rows(const TrainSpec& spec, const std::vector<Row>& rows, bool all,
                const std::function<Bounds(const Row&)>& bounds);

}  // namespace mtl::test::layout_matrix
