// The vector loops as plain functions on ranges of rows or elements, one table per instruction set.
// Each call is the work of one thread: splitting and combining is the business of cpu/*.cpp.
//
// Pointers to activations are void*: of the type that the table of typed loops is named for. Rows
// are contiguous unless a stride is given. An output may be the input of the same shape.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace mtl::kernels {

// Dropout as the loops use it: element i is kept iff its Philox word >= threshold.
struct Mask {
  uint64_t key;
  uint32_t threshold;
  float scale;
};

struct NormForward {
  const void *x, *gamma, *beta;  // beta may be null
  void* y;
  float *mean, *rstd;  // mean: not with RMS normalisation
  int64_t rows, cols;
  float eps;
};
struct NormBackward {
  const void *dy, *x, *gamma;
  const float *mean, *rstd;  // mean: not with RMS normalisation
  void* dx;
  float *dgamma, *dbeta;  // [cols], written: the sums over these rows; dbeta may be null
  int64_t rows, cols;
  bool add_to_dx;
};

// Heads of `dim` columns side by side: pointers are at the first of them, rows `stride` elements
// apart.
struct HeadNormRows {
  void *x, *raw;
  const void* gamma;
  float* rstd;  // [rows, heads]
  int64_t rows, stride, raw_stride, heads, dim;
  float eps;
};
struct HeadNormRowsBackward {
  void* dx;
  const void *raw, *gamma;
  const float* rstd;
  float* dgamma;  // [dim], written: the sums over these rows and heads
  int64_t rows, stride, raw_stride, heads, dim;
};

// Columns of rows as one vector each: pointers are at the first of them, rows `stride` elements
// apart. What a loop does not need may be null.
struct WideNormRows {
  void *x, *raw;
  const void* gamma;
  float* squares;  // [rows]
  int64_t rows, stride, raw_stride, columns;
  float inverse, eps;
};
struct WideNormRowsBackward {
  void* dx;
  const void *raw, *gamma;
  const float* squares;
  float* products;  // [rows]
  float* dgamma;    // [columns], written: the sums over these rows
  int64_t rows, stride, raw_stride, columns;
  float inverse, eps;
};

// Turns the first `turned` elements of the heads of each row by the angles of its position,
// positions[row] or (row0 + row) % seq.
struct RopeRows {
  void* x;
  const float* table;  // [positions, turned]: cos of turned / 2 angles, then their sin
  int64_t rows, stride, heads, dim, turned;
  int64_t row0, seq;
  bool backward;
  const int32_t* positions = nullptr;
};

// The heads of latent attention (op_arguments.h), forward or backward. Rows are contiguous but
// those of `latents`, of which the pointer is at the first of its rope_dim columns.
struct LatentRows {
  void *queries, *pairs, *latents, *qkv;
  const float* table;  // [positions, rope_dim], as in RopeRows
  int64_t rows, latent_stride, heads, dim, rope_dim, value_dim;
  int64_t row0, seq, first_position;  // of a row without positions: first + (row0 + row) % seq
  bool backward;
  const int32_t* positions;  // or null
};

// GatedUnit (op_arguments.h). Loops of plain ones, SwiGLU and GeGLU, do not look at the rest.
struct UnitTerms {
  bool gelu, plain;
  float steep;  // the sigmoid's argument is so many times the gate
  float offset;
  float bound;  // infinite: nothing is clamped
};
// x [rows, 2 width] = gate | up, y and dy [rows, width]
struct Swiglu {
  const void* x;
  void* y;  // backward: may be null
  int64_t rows, width;
  UnitTerms unit;
  // Backward only.
  const void* dy = nullptr;
  void* dx = nullptr;  // [rows, 2 width]
  // Of each row its number among weights and dweights; null: rows have no weights.
  const int32_t* index = nullptr;
  const float* weights = nullptr;
  float* dweights = nullptr;
};

// to = the sum over j of rows[j] of `from`, times weights[j] unless `weights` is null.
struct CombineRow {
  const void* from;  // rows of `cols`
  const int32_t* rows;
  const float* weights;
  int64_t count;
  void* to;
  int64_t cols;
};

// out = residual + mask * (x + addend[(row0 + row) % period])
struct AddRows {
  const void *x, *addend, *residual;  // addend and residual may be null
  void* out;
  int64_t rows, cols;
  int64_t row0, period;
  const Mask* mask;        // null: no dropout
  uint64_t first_element;  // the dropout index of element (0, 0)
  float scale = 1;
};
// dx = mask * dout, dpositions[(row0 + i) % seq] (+)= sum of rows i, i + seq, i + 2 seq ... of the
// same in f32, for i in [begin, end).
struct PositionBackward {
  const void* dout;
  void* dx;
  float* dpositions;
  int64_t rows, seq, cols, row0, begin, end;
  bool accumulate;
  const Mask* mask;
  uint64_t first_element;  // the dropout index of element (0, 0) of dout
};

struct CrossEntropyRows {
  void* logits;
  const int32_t* targets;
  int64_t rows, stride, first, valid;
  float *row_max, *sum_exp, *target_logit;
  float cap;  // 0: none
};

struct AdamWRange {
  void* master;  // f32; in the table `bf16` u16, what the weights lack of it
  float *exp_avg, *exp_avg_sq;
  const float* grad;
  void* weights;  // of the table's type; null in the table `f32`
  int64_t n;
  // g = grad * grad_scale + coupled_decay * master, and with its moments m and v
  // master = master * keep - rate * m / (sqrt(v) * inverse_sqrt_correction2 + eps), with
  // rate = lr / (1 - beta1^step),
  // inverse_sqrt_correction2 = 1 / sqrt(1 - beta2^step). Decoupled weight decay is keep = 1 - lr *
  // weight_decay with coupled_decay = 0, the other is keep = 1 with coupled_decay = weight_decay.
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float rate, inverse_sqrt_correction2, eps, keep, coupled_decay, grad_scale;
};
// g = grad * grad_scale + weight_decay * master, buffer = momentum * buffer + g,
// master -= lr * buffer
struct SgdRange {
  void* master;  // and `weights`, as in AdamWRange
  float* momentum_buffer;
  const float* grad;
  void* weights;
  int64_t n;
  float lr, momentum, weight_decay, grad_scale;
};
// g = grad * grad_scale, master = master * keep - lr * sign(beta1 * exp_avg + (1 - beta1) * g),
// exp_avg = beta2 * exp_avg + (1 - beta2) * g
struct LionRange {
  void* master;  // and `weights`, as in AdamWRange
  float* exp_avg;
  const float* grad;
  void* weights;
  int64_t n;
  float lr, beta1, beta2, keep, grad_scale;
};
// g = grad * grad_scale, buffer = momentum * buffer + (1 - momentum) * g, grad = of_buffer * buffer
// + of_gradient * g
struct MomentumRange {
  float *buffer, *grad;
  int64_t n;
  float momentum, of_buffer, of_gradient, grad_scale;
};
// master = master * keep - lr * grad
struct DescendRange {
  void* master;  // and `weights`, as in AdamWRange
  const float* grad;
  void* weights;
  int64_t n;
  float lr, keep;
};

// Loops that exist for every compute type.
struct TypedKernels {
  void (*fill)(void* x, int64_t n, float value);
  void (*scale)(void* x, int64_t n, float factor);
  void (*add)(const void* x, void* y, int64_t n);
  // y = of_x * x + of_y * y
  void (*blend)(const void* x, void* y, int64_t n, float of_x, float of_y);
  void (*from_f32)(const float* from, void* to, int64_t n);
  void (*to_f32)(const void* from, float* to, int64_t n);
  bool (*all_finite)(const void* x, int64_t n);
  // The largest |x|, as bits of an f32; of NaN if there is one.
  uint32_t (*largest_bits)(const void* x, int64_t n);
  // to = x * scale, rounded to FP8 (common/float8.h).
  void (*to_e4m3)(const void* x, int64_t n, float scale, uint8_t* to);
  void (*to_e5m2)(const void* x, int64_t n, float scale, uint8_t* to);
  // sums[c] = sum of the rows.
  void (*column_sums)(const void* x, int64_t rows, int64_t cols, float* sums);
  void (*norm_forward)(const NormForward& args);
  void (*norm_backward)(const NormBackward& args);
  void (*rms_norm_forward)(const NormForward& args);
  void (*rms_norm_backward)(const NormBackward& args);
  void (*head_norm_forward)(const HeadNormRows& args);
  void (*head_norm_backward)(const HeadNormRowsBackward& args);
  void (*wide_norm_squares)(const WideNormRows& args);
  void (*wide_norm_forward)(const WideNormRows& args);
  void (*wide_norm_products)(const WideNormRowsBackward& args);
  void (*wide_norm_backward)(const WideNormRowsBackward& args);
  void (*rope)(const RopeRows& args);
  void (*latent_heads)(const LatentRows& args);
  // y = gelu_exact(x); dy *= gelu_exact'(x), where y may be null
  void (*gelu_exact_forward)(const void* x, void* y, int64_t n);
  void (*gelu_exact_backward)(const void* x, void* dy, void* y, int64_t n);
  void (*swiglu_forward)(const Swiglu& args);
  void (*swiglu_backward)(const Swiglu& args);
  // to = weight * from
  void (*scale_row)(const void* from, float weight, void* to, int64_t cols);
  void (*combine_row)(const CombineRow& args);
  float (*row_product)(const void* x, const void* y, int64_t cols);
  // Returns x . dy, and multiplies dy with the weight.
  float (*weigh_row_backward)(const void* x, void* dy, float weight, int64_t cols);
  void (*add_rows)(const AddRows& args);
  void (*position_backward)(const PositionBackward& args);
  // y += x, y f32.
  void (*add_to_f32)(const void* x, float* y, int64_t n);
  void (*cross_entropy_max)(const CrossEntropyRows& args);
  void (*cross_entropy_sum)(const CrossEntropyRows& args);
  void (*cross_entropy_backward)(const CrossEntropyRows& args, float scale);
  void (*adamw)(const AdamWRange& args);
  void (*sgd)(const SgdRange& args);
  void (*lion)(const LionRange& args);
  void (*descend)(const DescendRange& args);
};

struct VectorKernels {
  TypedKernels f32, bf16, f16;
  // out[c] = (accumulate ? out[c] : 0) + sum over i < chunks of partials[i * stride + c], in f64
  // and in the order of i.
  void (*combine)(const float* partials, int64_t chunks, int64_t stride, int64_t cols, float* out,
                  bool accumulate);
  // partials[i] = sum of squares of elements [i * 4096, (i + 1) * 4096) of the n.
  void (*sum_squares)(const float* x, int64_t n, double* partials);
  void (*momentum)(const MomentumRange& args);
  // factors[i] = 0 or mask.scale for element first + i.
  void (*mask_factors)(const Mask& mask, uint64_t first, int64_t n, float* factors);
};

// Only plain stores happen in these functions, but they are compiled for their instruction set:
// call a table's function only on a machine that has it.
namespace base {
VectorKernels table();
}
namespace avx2 {
VectorKernels table();
}
namespace avx512 {
VectorKernels table();
}

}  // namespace mtl::kernels
