// The ops of Device on a GPU, without a device: each enqueues its kernels on a stream. A family per
// .cu file; what an op does is said in device.h and op_arguments.h. The same sources run on the
// host in the tests (gpu.h), so nothing here may need a driver.
//
// All reductions have an order that depends on shapes alone, never on how many multiprocessors
// there are or which block comes first: no atomics of floating point but maxima (amax.h) and sums
// whose turns are fixed (attention_query_sums.h).
#pragma once

#include <cstddef>

#include "runtime/device/cuda/gpu.h"
#include "runtime/device/kernel_scratch.h"
#include "runtime/device/op_arguments.h"

namespace mtl::cuda {

// Where an op enqueues its kernels, and memory for partial results.
class Queue {
 public:
  virtual ~Queue() = default;
  virtual Stream stream() const = 0;
  // How many blocks a grid that strides over its work should have at most.
  virtual int multiprocessors() const = 0;
  // Whether kernels for sm_90a run there (warpgroup.h).
  virtual bool has_warpgroups() const = 0;
  // Which backward attention has there.
  virtual kernel_scratch::Backward hopper_backward() const = 0;
  // At least `bytes` of device memory, 256-byte aligned, for the op that asks: what was there is
  // overwritten by the next op. One piece per op. How much: kernel_scratch.h.
  virtual void* scratch(int64_t bytes) = 0;
};

// elementwise.cu
void fill(Queue& queue, Tensor x, float value);
void cast(Queue& queue, Tensor from, Tensor to);
void scale(Queue& queue, Tensor x, float factor);
void add(Queue& queue, Tensor x, Tensor y);
void blend(Queue& queue, Tensor x, Tensor y, float of_x, float of_y);
void normalize(Queue& queue, Tensor x);
void copy(Queue& queue, Tensor from, Tensor to);
void regroup_columns(Queue& queue, const ColumnBlocks& args);
void copy_columns(Queue& queue, const CopyColumns& args);
// So many bytes of the host travel as a kernel's arguments: no memory of the host has to wait for
// the copy, and the host for none.
inline constexpr int64_t kMostBytesInArguments = 64;
void write(Queue& queue, Tensor to, const void* from);
// activation.cu
void gelu_forward(Queue& queue, Tensor x, Tensor y);
// dy <- dy * gelu_tanh'(aux), in place: what cuBLASLt's epilogue would do.
void gelu_backward(Queue& queue, Tensor dy, Tensor aux);
void gelu_exact_forward(Queue& queue, Tensor x, Tensor y);
void gelu_exact_backward(Queue& queue, Tensor dy, Tensor x, Tensor y);
void swiglu_forward(Queue& queue, const Swiglu& args);
void swiglu_backward(Queue& queue, const SwigluBackward& args);
// matmul_bias.cu: to [n, c] = (accumulate ? to : 0) + from + bias [c]; from f32, may be `to`; bias
// and to of any compute type.
void add_bias(Queue& queue, Tensor from, Tensor bias, Tensor to, bool accumulate);
// float8.cu
void amax(Queue& queue, Tensor x, Tensor out);
void quantize(Queue& queue, const Quantize& args);
// norm.cu
void layernorm_forward(Queue& queue, const LayerNorm& args);
void add_norm_forward(Queue& queue, const ResidualAdd& add, const LayerNorm& norm);
void layernorm_backward(Queue& queue, const LayerNormBackward& args);
// head_norm.cu
void head_norm_forward(Queue& queue, const HeadNorm& args);
void head_norm_backward(Queue& queue, const HeadNormBackward& args);
// wide_norm.cu
void wide_norm_squares(Queue& queue, const WideNorm& args);
void wide_norm_forward(Queue& queue, const WideNorm& args);
void wide_norm_products(Queue& queue, const WideNormBackward& args);
void wide_norm_backward(Queue& queue, const WideNormBackward& args);
// experts.cu
void route_experts(Queue& queue, const RouteExperts& args);
void route_experts_backward(Queue& queue, const RouteExpertsBackward& args);
void add_shared(Queue& queue, const AddShared& args);
void add_shared_backward(Queue& queue, const AddSharedBackward& args);
void count_experts(Queue& queue, const CountExperts& args);
void balance_experts(Queue& queue, const BalanceExperts& args);
void gather_rows(Queue& queue, const GatherRows& args);
void combine_rows(Queue& queue, const CombineRows& args);
void add_row_products(Queue& queue, const AddRowProducts& args);
// rope.cu
void rope(Queue& queue, const Rope& args);
// latent_heads.cu
void latent_heads(Queue& queue, const LatentHeads& args);
// attention_forward.cu, attention_backward.cu
void attention_forward(Queue& queue, const Attention& args);
void attention_backward(Queue& queue, const AttentionBackward& args);
// attention_sinks.cu
void attention_sinks_backward(Queue& queue, const AttentionSinksBackward& args);
// What the two multiply with, where tensors are aligned: "wgmma", "mma" or "no tensor cores".
const char* own_attention_kind(const Queue& queue, const AttentionShape& s, DType dtype);
// embedding.cu
void embedding_forward(Queue& queue, Tensor tokens, Tensor table, int64_t first, Tensor out);
void embedding_backward(Queue& queue, Tensor tokens, Tensor dout, int64_t first, Tensor dtable);
// position.cu
void position_forward(Queue& queue, Tensor x, Tensor positions, int64_t seq, Tensor out,
                      Dropout dropout, int64_t first_row);
void position_backward(Queue& queue, Tensor dout, int64_t seq, Tensor dx, Tensor dpositions,
                       bool accumulate, Dropout dropout, int64_t first_row);
// dropout.cu
void bias_dropout_add(Queue& queue, const ResidualAdd& args);
void dropout_backward(Queue& queue, const DropoutBackward& args);
// cross_entropy.cu
void cross_entropy_max(Queue& queue, const CrossEntropy& args);
void cross_entropy_sum(Queue& queue, const CrossEntropy& args);
void cross_entropy_loss(Queue& queue, const CrossEntropy& args);
void cross_entropy_losses(Queue& queue, const CrossEntropy& args);
void cross_entropy_both(Queue& queue, const CrossEntropy& args, float scale);
void cross_entropy_backward(Queue& queue, const CrossEntropy& args, float scale);
// reduction.cu
void bias_grad(Queue& queue, Tensor dy, Tensor db, bool accumulate);
void sum_rows(Queue& queue, Tensor rows, Tensor sum, bool accumulate);
void sum(Queue& queue, Tensor x, Tensor out, bool accumulate);
void sum_squares(Queue& queue, const SumSquares& args);
void sum_ranges(Queue& queue, Tensor x, Tensor ranges, Tensor out);
void gradient_scale(Queue& queue, const GradientScale& args);
// Into one i32 on the device: not 0 if there is an infinity or a NaN.
void find_not_finite(Queue& queue, Tensor x, Tensor found);
// optimizer.cu
void adamw(Queue& queue, const AdamW& args);
void sgd(Queue& queue, const Sgd& args);
void lion(Queue& queue, const Lion& args);
void momentum(Queue& queue, const Momentum& args);
void descend(Queue& queue, const Descend& args);

}  // namespace mtl::cuda
