// Which products of a run are made in FP8 (precision.dtype: fp8): those of the linears of the
// layers, forward and backward, but for the first and last layers that stay in bf16, as all else
// does. Each operand has one scale per rank's tensor, made from what it
// holds now ("current" scaling; P. Micikevicius et al., arXiv 2209.05433): activations and weights
// E4M3, gradients of outputs E5M2. The rows of a rank's experts are one tensor, their weights are
// not.
//
// A GPU multiplies FP8 along k only, in multiples of 16; so weights have a copy in each
// orientation, and a linear whose sizes on a rank do not fit stays in bf16.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "runtime/plan/model_shape.h"

namespace mtl {

struct Float8 {
  bool on = false;
  // Layers at the start and the end of the model that stay in bf16 (Megatron-LM's
  // num_layers_at_start_in_bf16 and num_layers_at_end_in_bf16).
  int64_t first = 0, last = 0;
  bool holds(const ModelShape& shape, int64_t layer) const {
    return on && layer >= first && layer < shape.layers - last;
  }
  int64_t layers(const ModelShape& shape) const { return layers_in(shape, 0, shape.layers); }
  // Of layers [begin, end).
  int64_t layers_in(const ModelShape& shape, int64_t begin, int64_t end) const {
    const int64_t from = std::max(begin, first), to = std::min(end, shape.layers - last);
    return on ? std::max<int64_t>(0, to - from) : 0;
  }
};

// The linears of a layer that are no expert's, in the order of layer_linears(); beside experts the
// last two of the first four are those of the block that all tokens go through.
// Behind these four stand those that make queries, keys and values of latents, in place of the
// first.
inline constexpr int64_t kUsualLinears = 4;
inline constexpr std::array kLinearSlots = {"attn.qkv",    "attn.proj", "mlp.up",       "mlp.down",
                                            "attn.q_down", "attn.q",    "attn.kv_down", "attn.kv"};
// How many of them a model may have.
inline int64_t linear_slots(const ModelShape& shape) {
  return shape.has_latents() ? std::ssize(kLinearSlots) : kUsualLinears;
}

// A linear of a layer, as a rank of `tp` x `ep` has it. An expert's is named by its place on the
// rank, expert_slot(0, "up") the first, since every rank has others there.
struct LocalLinear {
  std::string slot;
  int64_t in = 0, out = 0;
  int64_t expert = -1;    // of one: its place,
  const char* part = "";  // and "up" or "down"
};
// All of a layer; and those of them that FP8 takes, for sequences of `seq` tokens. What an expert's
// linears are given is filled up to such a number of rows.
std::vector<LocalLinear> layer_linears(const ModelShape& shape, int tp, int ep);
std::vector<LocalLinear> float8_linears(const ModelShape& shape, int64_t seq, int tp, int ep);
int64_t float8_filled_up(int64_t rows);

// Which of a layer's linears these are, for those who only count; one expert speaks for all.
struct Float8Linears {
  bool qkv = false, proj = false, up = false, down = false, experts = false;
  bool q_down = false, q = false, kv_down = false, kv = false;  // of latents
};
Float8Linears float8_kinds(const ModelShape& shape, int64_t seq, int tp);

// The copies of a linear's weight in the memory plan, behind the layer's and the linear's name:
// [out, in] for forward, [in, out] for backward.
inline constexpr const char* kFloat8Forward = ".fp8";
inline constexpr const char* kFloat8Backward = ".fp8t";
inline constexpr const char* kFloat8Inverse = ".fp8_inverse";  // f32 [1]: of the scale
// The largest value of each weight of a layer, f32, in one buffer: they travel together.
inline constexpr const char* kFloat8Amax = "fp8.amax";
// Numbers that belong together, f32: the inverse of a scale comes first, at a multiple of 16 bytes,
// since cuBLASLt has no product whose scales lie elsewhere.
inline constexpr int64_t kFloat8Numbers = 4;
// Of x and dy of the linears of all layers, [layers, linear_slots(), kFloat8Numbers], in the slot:
// the inverse of the scale of x, which backward needs again, the largest |x|, and the largest |dy|.
inline constexpr const char* kFloat8Operands = "fp8.operands";
// x along the tokens, [in, tokens], behind the layer's and the linear's name: where forward makes
// it for backward, and x itself need not be kept. Elsewhere x is gathered (sequence parallelism),
// made again (recompute), or kept for others as well (attention's result), and rounded again.
inline constexpr const char* kFloat8Kept = ".fp8_x";
// On their way into the experts' products (model/float8_rows.h): the rows of all, or an expert's dy
// along the tokens; an expert's x along the tokens; and for these three, [3, kFloat8Numbers], the
// inverse of the scale and the largest magnitude.
inline constexpr const char* kFloat8ExpertRows = "fp8.expert_rows";
inline constexpr const char* kFloat8ExpertX = "fp8.expert_x";
inline constexpr const char* kFloat8ExpertNumbers = "fp8.expert_numbers";

}  // namespace mtl
