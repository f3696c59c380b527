// The arguments of Device's ops; what holds for all of them is said in device.h. Apart from Device,
// whose headers of the standard library would be read eight times for each file of CUDA kernels.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/device/dropout.h"
#include "runtime/device/optimizer_arguments.h"
#include "runtime/device/tensor.h"

namespace mtl {

// C[m,n] = (accumulate ? C : 0) + op(A)[m,k] * op(B)[k,n] (+ bias[n]); f32 accumulation, but where
// C is 16 bits wide a GPU may round the product to C's type before C or the bias is added. A, B
// have one type; C that type or f32. With transpose_a, A is stored [k,m]; with transpose_b, B is
// stored [n,k].
//
// FP8: A and B f8_e4m3, or one of them f8_e5m2; C bf16 or f32, the bias bf16 or f32. Their values
// are multiplied by *scale_a and *scale_b (Quantize). As the tensor cores of Hopper want them, both
// lie along k (transpose_b without transpose_a), and n and k are multiples of 16.
enum class Epilogue {
  none,
  gelu,       // aux = the value before GELU (same type as C), C = gelu_tanh(aux)
  gelu_grad,  // C = (A*B) * gelu_tanh'(aux)
};
struct Matmul {
  Tensor a, b, c;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  Tensor bias = {};  // f32 or compute type, [n]; optional
  Epilogue epilogue = Epilogue::none;
  Tensor aux = {};
  // With Epilogue::gelu: C need not have the bits that gelu_forward makes of aux, for nothing will
  // make it again. It may then be the GELU of the sum before that is rounded into aux.
  bool gelu_once = false;
  Tensor scale_a = {}, scale_b = {};  // FP8: f32 [1], on the device, at a multiple of 16 bytes
  // At most one of them, f32; not with FP8. As bias_grad has them, with the same `accumulate`: [m],
  // the sums of the rows of A as it is stored, with transpose_a; [n], those of B, without
  // transpose_b. Of the gradient of a weight they are the bias's.
  Tensor sums_of_a = {}, sums_of_b = {};
};

// FP8 with one scale per tensor: y = x * s to nearest even, beyond the largest value that one
// (saturated), with s = largest value of y's type / amax, at most 2^126; and inverse = 1 / s. Of
// amax 0 s is 1. An amax that is no finite number makes `inverse` NaN, so that products say it.
struct Quantize {
  Tensor x;           // compute type [n, c]
  Tensor amax;        // f32 [1]: the largest |x|, of all ranks' parts where x is one of them
  Tensor y;           // f8_e4m3 or f8_e5m2 [n, c]; may be absent
  Tensor transposed;  // the same [c, n or more], what is more is 0; may be absent, not both
  Tensor inverse;     // f32 [1], written
};

// y = (x - mean) * rstd * gamma + beta over the last dimension. gamma, beta: compute type. mean,
// rstd: f32 [n].
// Without `mean` it is RMS normalisation (arXiv 1910.07467), forward and backward:
// y = x * rstd * gamma + beta, rstd = 1 / sqrt(mean(x^2) + eps).
struct LayerNorm {
  Tensor x, gamma, beta, y, mean, rstd;  // beta may be absent (no bias)
  float eps = 1e-5f;
  Tensor amax = {};  // of y
};

// out = residual + scale * dropout(x + bias).
struct ResidualAdd {
  Tensor x, bias, residual, out;  // [n, c]; bias [c], optional; out may be residual
  Dropout dropout = {};
  int64_t first_row = 0;  // index of an element: (first_row + row) * c + column
  float scale = 1;
  explicit operator bool() const { return static_cast<bool>(out); }  // whether there is one
};

// The gradient of x (and of x + bias): dx = scale * dropout'(dout); the residual's is dout itself.
// With neither: a copy.
struct DropoutBackward {
  Tensor dout, dx;  // [n, c], same type; dx may be dout
  Dropout dropout = {};
  int64_t first_row = 0;
  float scale = 1;
};

struct LayerNormBackward {
  Tensor dy, x, gamma, mean, rstd;
  Tensor dx;             // receives the gradient; with add_to_dx it is added (the residual path)
  Tensor dgamma, dbeta;  // f32 [c]; none where gamma is not trained; dbeta may be absent anyway
  bool add_to_dx = false;
  bool accumulate = false;  // of dgamma, dbeta
  Tensor amax = {};         // of dx as it lies there afterwards
};

// SwiGLU (arXiv 2002.05202) and its siblings: x [n, 2f] = gate | up, y [n, f] = g(gate) * (up +
// offset). What g is: silu(x) = x sigmoid(x), gelu_tanh, or quick_gelu(x) = x sigmoid(1.702 x).
// With a clamp c the gate is min(gate, c) first, and up lies within -c and c (gpt-oss: quick_gelu,
// offset 1, clamp 7); what was clamped has no gradient.
enum class GateForm { silu, gelu_tanh, quick_gelu };
struct GatedUnit {
  GateForm gate = GateForm::silu;
  float offset = 0;
  float clamp = 0;  // 0 = none
};
struct Swiglu {
  Tensor x, y;
  Tensor amax = {};  // of y
  GatedUnit unit = {};
};
// Rows that go on times a weight each, weights[index[i]] y[i], and what backward makes of that:
// with dy the gradient of the product, dweights[index[i]] = y[i] . dy[i].
struct RowWeights {
  Tensor index;              // i32 [n]
  Tensor weights, dweights;  // f32
};
struct SwigluBackward {
  Tensor dy, x, dx;  // dx [n, 2f], written, distinct from x
  Tensor amax = {};  // of dx
  Tensor y = {};     // written if it is there: the bits that swiglu_forward makes of x
  RowWeights rows = {};
  GatedUnit unit = {};
};

// Rotary positions (arXiv 2104.09864), in place on the q and k heads of rows [n, (heads + 2
// kv_heads) * head_dim] of a qkv projection: of what is rotated of a head, element i of the first
// half is paired with element i of the second half (Hugging Face's rotate_half), and each pair is
// turned by the angle of its position. A table whose cos and sin are those of the angle times a
// number stretches as well (YaRN), backward too.
struct Rope {
  Tensor qkv;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  // f32 [at least seq, dim]: cos of a position's dim/2 angles, then sin. dim is even and at most
  // head_dim: the first dim elements of a head are turned, the others stay.
  Tensor table;
  int64_t seq = 0;  // row i has position (first_row + i) % seq
  int64_t first_row = 0;
  bool backward = false;  // with -sin: the gradient
  // i32 [n]: the positions of the rows, where they do not simply count; each a row of the table.
  Tensor positions = {};
};

// RMS normalisation of each head's vector (QK-norm), in place on the columns [first_column,
// first_column + heads * head_dim) of the rows: x = x * rstd * gamma, one rstd per row and head.
struct HeadNorm {
  Tensor x;    // [n, width]
  Tensor raw;  // [n, raw_width]: receives these columns, at the same place, as they were
  int64_t first_column = 0, heads = 0, head_dim = 0;
  Tensor gamma;  // compute type [head_dim]
  Tensor rstd;   // f32 [n, heads]
  float eps = 1e-6f;
};
struct HeadNormBackward {
  Tensor dx;   // [n, width]: holds dy in these columns, overwritten with the gradient of the input
  Tensor raw;  // as saved
  int64_t first_column = 0, heads = 0, head_dim = 0;
  Tensor gamma, rstd;
  Tensor dgamma;  // f32 [head_dim], or none
  bool accumulate = false;
};

// RMS normalisation of columns [first_column, first_column + columns) of the rows as one vector
// each (the QK-norm of OLMo 2), in place: x = x * rstd * gamma, rstd = 1 / sqrt(squares * inverse +
// eps). Ranks may divide the columns: wide_norm_squares() gives the sum over the rank's own, which
// is summed over the ranks before wide_norm_forward().
struct WideNorm {
  Tensor x;    // [n, width]
  Tensor raw;  // [n, raw_width]: receives these columns, at the same place, as they were
  int64_t first_column = 0, columns = 0;
  Tensor gamma;       // compute type [columns]
  Tensor squares;     // f32 [n]: sums of the squares of x
  float inverse = 0;  // of the number of elements that are summed
  float eps = 1e-6f;
};
// As above, in two steps too: wide_norm_products() gives sums of dy gamma x rstd,
// wide_norm_backward() the gradients: dx = rstd (dy gamma - x rstd products inverse), dgamma (+)=
// sum over rows of dy x rstd.
struct WideNormBackward {
  Tensor dx;   // [n, width]: holds dy in these columns, overwritten with the gradient of the input
  Tensor raw;  // as saved
  int64_t first_column = 0, columns = 0;
  Tensor gamma, squares;  // squares: of all ranks
  Tensor products;        // f32 [n]
  Tensor dgamma;          // f32 [columns], or none
  float inverse = 0, eps = 1e-6f;
  bool accumulate = false;  // of dgamma
};

// The heads of latent attention (DeepSeek-V2, arXiv 2405.04434, (9) to (19)), from what its
// projections made to the qkv of attention. A query is head_dim elements of `queries`, the last
// rope_dim of them rotated. Of `pairs` a head has its keys' first head_dim - rope_dim elements, and
// behind them its value; the last rope_dim elements of a key are the last of `latents`, rotated,
// the same for all heads. What is rotated are pairs of neighbours, elements 2 i and 2 i + 1, by the
// angle of a position, as Rope's are.
struct LatentHeads {
  Tensor queries;  // [n, heads * head_dim]
  Tensor pairs;    // [n, heads * (head_dim - rope_dim + value_dim)]
  Tensor latents;  // [n, rope_dim or more]
  Tensor qkv;      // [n, heads * (2 head_dim + value_dim)]: written
  int64_t heads = 0, head_dim = 0, rope_dim = 0, value_dim = 0;
  Tensor table;                         // f32 [positions, rope_dim], as Rope's
  int64_t seq = 0, first_position = 0;  // row i has position first_position + i % seq
  Tensor positions = {};                // i32 [n], as Rope's
  // From the gradient of qkv to those of the three; of `latents` to the last rope_dim columns alone
  // (the sum over the heads, ascending and in f32).
  bool backward = false;
};

// Columns [from_column, from_column + columns) of the rows of `from` become columns [to_column, ..)
// of those of `to`.
struct CopyColumns {
  Tensor from, to;  // [n, ..], same type, no overlap
  int64_t from_column = 0, to_column = 0, columns = 0;
};

// Causal self-attention with grouped queries. Q, K and V are columns of one projection: row t of
// sequence b starts at qkv + (b*seq + t) * row_stride elements; q heads first, then k heads,
// head_dim each, then v heads, value_dim each.
struct AttentionShape {
  int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;  // local heads of this TP rank
  float scale = 1;                                                    // 1/sqrt(head_dim)
  int64_t value_dim = 0;  // of a head's values and results, at most head_dim; 0 = head_dim
  int64_t values() const { return value_dim > 0 ? value_dim : head_dim; }
  int64_t qkv_width() const { return (heads + kv_heads) * head_dim + kv_heads * values(); }
  Dropout dropout = {};
  // Index of element (b, h, q, k) for dropout: ((b * total_heads + first_head + h) * seq + q) * seq
  // + k.
  int64_t first_head = 0, total_heads = 0;
  // Forward only: the outputs of queries before this one are known already; they may be written
  // again with the same values.
  int64_t first_query = 0;
  // ALiBi: scores += alibi_slope(first_head + h, total_heads) * (k - q).
  bool alibi = false;
  // A query sees the newest this many keys, its own included (sliding window); 0 = all before it.
  int64_t window = 0;
  // Compute type [heads]: of each head a score of no key that its softmax counts with the others
  // (gpt-oss; Megatron-LM's learnable softmax), so that weights add up to less than 1; lse counts
  // it too. Neither scaled nor capped, and dropout does not see it.
  Tensor sinks = {};
  // Caps the scaled scores x: cap tanh(x / cap) takes their place (Gemma 2); 0 = none. Not with
  // ALiBi.
  float cap = 0;
  // i32 [batch*seq]: the first key, from 0 within the sequence, that the query of that row sees;
  // ascending within a sequence and never behind the query (documents packed into a sequence).
  // Without it: all. Both limits hold where both are given.
  Tensor first_key = {};
};
// The slope of head `head` (from 0) of `heads` (arXiv 2108.12409). With n the largest power of two
// <= heads: 2^(-8 (head + 1) / n) for head < n, then every second of the slopes of 2n heads,
// beginning with the first (the paper's rule for other head counts, BLOOM's too). Host arithmetic,
// the same for every device.
float alibi_slope(int64_t head, int64_t heads);

struct Attention {
  AttentionShape shape;
  Tensor qkv;  // [batch*seq, qkv_width()]
  Tensor out;  // [batch*seq, heads * values()]
  Tensor lse;  // f32 [batch, heads, seq]: log-sum-exp of the scaled scores, saved for backward
};
struct AttentionBackward {
  AttentionShape shape;
  Tensor qkv, out, lse, dout;
  Tensor dqkv;       // written
  Tensor room = {};  // optional, aligned to 16 bytes: for partial results, if it is enough
};
// The gradient of AttentionShape::sinks: dsinks[h] (+)= the sum over b and q of -exp(sinks[h] -
// lse[b, h, q]) out . dout of that row and head. In an order that shapes alone decide, in f32.
struct AttentionSinksBackward {
  AttentionShape shape;
  Tensor out, dout, lse;  // as AttentionBackward's
  Tensor dsinks;          // f32 [heads]
  bool accumulate = false;
};

// Mixture of experts: every token goes to k of E feed-forward blocks, none is dropped (Mixtral,
// arXiv 2401.04088). An assignment t k + j is the j-th expert of token t, experts ascending. For
// the matmuls, assignments are put into rows: by expert, then by token.
//
// What an expert weighs is its score: its probability (softmax over all logits) or the sigmoid of
// its logit (DeepSeek-V3, arXiv 2412.19437); `normalize` divides those of a token's chosen experts
// by their sum (of sigmoids: and 1e-20, as there). In the end all are multiplied by `scale`.
//
// With several groups of experts/groups neighbours each, a token takes its experts from the best
// `group_topk` groups alone: a group's score is the sum of its `group_best` best experts'
// (DeepSeek-V2: 1, V3: 2; Megatron-LM's group_limited_topk: k / group_topk) of what they are chosen
// by: sigmoid and bias, the logit, or, if softmax is not normalised, the probability. Among equals
// the smaller index wins.
struct ExpertScores {
  bool sigmoid = false;
  bool normalize = true;
  float scale = 1;
  int groups = 1, group_topk = 1;  // at most kMostExpertGroups
  int group_best = 1;              // at most experts / groups
};
inline constexpr int kMostExpertGroups = 64;
struct ExpertRoutes {
  Tensor weights;      // f32 [n, k]
  Tensor experts;      // i32 [n, k]
  Tensor rows;         // i32 [n, k]: the row of an assignment
  Tensor assignments;  // i32 [n k]: the assignment of a row
  Tensor counts;       // i32 [E]: rows of each expert
};
struct RouteExperts {
  // f32 [n, E]; the k largest win, among equals the smaller index; a NaN is smallest
  Tensor logits;
  ExpertScores scores = {};
  // f32 [E], with sigmoid: the k largest of score + bias win instead. It takes no part in weights.
  Tensor bias = {};
  ExpertRoutes routes;  // written
};
// The gradient of the logits, of what follows from the weights and of two losses, each a mean over
// tokens:
//  - aux, the load-balancing loss (Switch Transformer, arXiv 2101.03961, (4) to (6); for k experts
//    as Megatron-LM moe_utils.py's): of a sequence of S tokens, E / (k S^2) sum_i n_i sum_t p_ti,
//    with p the scores of all experts, divided by their sum, and n_i the tokens of the sequence
//    that expert i gets (counted, no gradient). 1 when balanced. It is the mean over tokens of
//    sum_i p_ti E n_i / (k S).
//  - z (ST-MoE, arXiv 2202.08906, (5)): the square of log sum exp of the logits.
struct RouteExpertsBackward {
  Tensor logits;
  ExpertScores scores = {};
  ExpertRoutes routes;
  Tensor dweights;  // f32 [n, k]
  Tensor dlogits;   // compute type [n, E], written
  int64_t seq = 0;  // tokens of a sequence; divides n, unless there are
  // i32 [sequences x seq, k]: the experts of all tokens, where the n are a share of each sequence.
  Tensor sequence_experts = {};
  float aux_scale = 0;  // gradient of a token's aux, and of its z
  float z_scale = 0;
  Tensor losses;  // f32 [2, n], written: aux, then z, of each token
};
// to[i] = from[index[i] / divide], times weights[index[i]] if there are weights. `to` may be `from`
// where every row stays where it is.
struct GatherRows {
  Tensor from;   // [n, c]
  Tensor index;  // i32 [m]
  int64_t divide = 1;
  Tensor weights = {};  // f32
  Tensor to;            // [m, c]
};
// sums[index[i]] += rows[i] . vector, in f32.
struct AddRowProducts {
  Tensor rows;    // [n, c]
  Tensor vector;  // [c], of the same type
  Tensor index;   // i32 [n], each once
  Tensor sums;    // f32
};
// to[t] = the sum over j, ascending and in f32, of from[rows[t, j]], each times weights[t, j] if
// there are weights.
struct CombineRows {
  Tensor from;          // [m, c]
  Tensor rows;          // i32 [n, k]
  Tensor weights = {};  // f32 [n, k]
  Tensor to;            // [n, c]
};
// A block that all tokens go through, beside the experts: to[t] += from[t], times the sigmoid of
// gate[t] if there is a gate (Qwen2-MoE, arXiv 2407.10671).
struct AddShared {
  Tensor from;       // [n, c]
  Tensor gate = {};  // f32 [n, 1]
  Tensor to;         // [n, c]
};
// The way back through y = sigmoid(gate) x, by rows: dgate = the derivative of the sigmoid times
// x . dy; dy becomes the gradient of x, and x becomes y.
struct AddSharedBackward {
  Tensor x, dy;  // [n, c]
  Tensor gate;   // f32 [n, 1]
  Tensor dgate;  // compute type [n, 1], written
};
// sums[e] += counts[e]: whole numbers below 2^53, so that any order of sums gives the same.
struct CountExperts {
  Tensor counts;  // i32 [E]
  Tensor sums;    // f64 [E]
};
// Balance without a loss (L. Wang et al., arXiv 2408.15664; as Megatron-LM's expert bias): the bias
// of an expert that got fewer tokens than the mean of its row rises by `rate`, of one that got more
// it falls. Nothing changes where `factor` is no finite number.
struct BalanceExperts {
  Tensor counts;  // f64 [layers, E]
  Tensor bias;    // f32 [layers, E]
  double rate = 0;
  Tensor factor;  // f32 [1], as GradientScale::factor
};

// Columns as blocks (what ranks exchange of heads). `rows` [n, c] has sections side by side (q, k
// and v, say), each divided evenly into pieces. Block p of `blocks` [parts n, w] has one piece of
// every section, side by side: of a section with as many pieces as parts its own, of one with fewer
// (a divisor) piece p pieces / parts, so that neighbours have the same.
struct ColumnSection {
  int64_t columns = 0, pieces = 1;
  int64_t width() const { return columns / pieces; }
};
struct ColumnBlocks {
  Tensor rows, blocks;  // same type, no overlap
  int64_t parts = 1;
  std::array<ColumnSection, 3> sections = {};  // without columns: there is none
  // Rows from blocks: the sum of a piece's blocks, in their order and in f32. Else blocks from
  // rows.
  bool to_rows = false;
};

// Vocabulary-parallel cross-entropy on a shard of the logits: [n, local columns], of which `valid`
// are real and stand for ids first .. first+valid-1 (padding columns follow). Three small results
// are reduced over TP between the calls.
struct CrossEntropy {
  Tensor logits;   // compute type; the backward pass overwrites it with the gradient
  float cap = 0;   // of each logit x, as of attention's scores; 0 = none
  Tensor targets;  // i32 [n], global ids; -1 = ignore this position
  int64_t first = 0, valid = 0;
  Tensor row_max;       // f32 [n]
  Tensor sum_exp;       // f32 [n]: sum of exp(logit - row_max)
  Tensor target_logit;  // f32 [n]: 0 on ranks that do not own the target
  Tensor loss;          // f32 [n]: row_max + log(sum_exp) - target_logit; 0 where ignored
};

// What Device::normalize divides by at least.
inline constexpr double kLeastNorm = 1e-7;

}  // namespace mtl
