// Device's ops by those of ops.h, for whoever has a Queue: the GPU (cuda_device.h), and the tests'
// GPU on the host.
#pragma once

#include "runtime/device/cuda/ops.h"

namespace mtl::cuda {

class OpsDevice : public Device, protected Queue {
 public:
  void fill(Tensor x, float value) override { cuda::fill(*this, x, value); }
  void cast(Tensor from, Tensor to) override { cuda::cast(*this, from, to); }
  void scale(Tensor x, float factor) override { cuda::scale(*this, x, factor); }
  void add(Tensor x, Tensor y) override { cuda::add(*this, x, y); }
  void blend(Tensor x, Tensor y, float of_x, float of_y) override {
    cuda::blend(*this, x, y, of_x, of_y);
  }
  void normalize(Tensor x) override { cuda::normalize(*this, x); }
  void copy(Tensor from, Tensor to) override { cuda::copy(*this, from, to); }
  void regroup_columns(const ColumnBlocks& args) override { cuda::regroup_columns(*this, args); }
  void amax(Tensor x, Tensor out) override { cuda::amax(*this, x, out); }
  void quantize(const Quantize& args) override { cuda::quantize(*this, args); }
  void sum_rows(Tensor rows, Tensor sum, bool accumulate) override {
    cuda::sum_rows(*this, rows, sum, accumulate);
  }
  void bias_grad(Tensor dy, Tensor db, bool accumulate) override {
    cuda::bias_grad(*this, dy, db, accumulate);
  }
  void layernorm_forward(const LayerNorm& args) override { cuda::layernorm_forward(*this, args); }
  void layernorm_backward(const LayerNormBackward& args) override {
    cuda::layernorm_backward(*this, args);
  }
  void head_norm_forward(const HeadNorm& args) override { cuda::head_norm_forward(*this, args); }
  void head_norm_backward(const HeadNormBackward& args) override {
    cuda::head_norm_backward(*this, args);
  }
  void wide_norm_squares(const WideNorm& args) override { cuda::wide_norm_squares(*this, args); }
  void wide_norm_forward(const WideNorm& args) override { cuda::wide_norm_forward(*this, args); }
  void wide_norm_products(const WideNormBackward& args) override {
    cuda::wide_norm_products(*this, args);
  }
  void wide_norm_backward(const WideNormBackward& args) override {
    cuda::wide_norm_backward(*this, args);
  }
  void gelu_forward(Tensor x, Tensor y) override { cuda::gelu_forward(*this, x, y); }
  void gelu_exact_forward(Tensor x, Tensor y) override { cuda::gelu_exact_forward(*this, x, y); }
  void gelu_exact_backward(Tensor dy, Tensor x, Tensor y) override {
    cuda::gelu_exact_backward(*this, dy, x, y);
  }
  void swiglu_forward(const Swiglu& args) override { cuda::swiglu_forward(*this, args); }
  void swiglu_backward(const SwigluBackward& args) override { cuda::swiglu_backward(*this, args); }
  void route_experts(const RouteExperts& args) override { cuda::route_experts(*this, args); }
  void route_experts_backward(const RouteExpertsBackward& args) override {
    cuda::route_experts_backward(*this, args);
  }
  void add_shared(const AddShared& args) override { cuda::add_shared(*this, args); }
  void add_shared_backward(const AddSharedBackward& args) override {
    cuda::add_shared_backward(*this, args);
  }
  void count_experts(const CountExperts& args) override { cuda::count_experts(*this, args); }
  void balance_experts(const BalanceExperts& args) override { cuda::balance_experts(*this, args); }
  void gather_rows(const GatherRows& args) override { cuda::gather_rows(*this, args); }
  void combine_rows(const CombineRows& args) override { cuda::combine_rows(*this, args); }
  void add_row_products(const AddRowProducts& args) override {
    cuda::add_row_products(*this, args);
  }
  void rope(const Rope& args) override { cuda::rope(*this, args); }
  void latent_heads(const LatentHeads& args) override { cuda::latent_heads(*this, args); }
  void copy_columns(const CopyColumns& args) override { cuda::copy_columns(*this, args); }
  void attention_forward(const Attention& args) override { cuda::attention_forward(*this, args); }
  void attention_backward(const AttentionBackward& args) override {
    cuda::attention_backward(*this, args);
  }
  void attention_sinks_backward(const AttentionSinksBackward& args) override {
    cuda::attention_sinks_backward(*this, args);
  }
  void embedding_forward(Tensor tokens, Tensor table, int64_t first, Tensor out) override {
    cuda::embedding_forward(*this, tokens, table, first, out);
  }
  void embedding_backward(Tensor tokens, Tensor dout, int64_t first, Tensor dtable) override {
    cuda::embedding_backward(*this, tokens, dout, first, dtable);
  }
  void position_forward(Tensor x, Tensor positions, int64_t seq, Tensor out, Dropout dropout,
                        int64_t first_row) override {
    cuda::position_forward(*this, x, positions, seq, out, dropout, first_row);
  }
  void position_backward(Tensor dout, int64_t seq, Tensor dx, Tensor dpositions, bool accumulate,
                         Dropout dropout, int64_t first_row) override {
    cuda::position_backward(*this, dout, seq, dx, dpositions, accumulate, dropout, first_row);
  }
  void add_norm_forward(const ResidualAdd& add, const LayerNorm& norm) override {
    cuda::add_norm_forward(*this, add, norm);
  }
  void bias_dropout_add(const ResidualAdd& args) override { cuda::bias_dropout_add(*this, args); }
  void dropout_backward(const DropoutBackward& args) override {
    cuda::dropout_backward(*this, args);
  }
  void cross_entropy_max(const CrossEntropy& args) override {
    cuda::cross_entropy_max(*this, args);
  }
  void cross_entropy_sum(const CrossEntropy& args) override {
    cuda::cross_entropy_sum(*this, args);
  }
  void cross_entropy_loss(const CrossEntropy& args) override {
    cuda::cross_entropy_loss(*this, args);
  }
  void cross_entropy_both(const CrossEntropy& args, float scale) override {
    cuda::cross_entropy_both(*this, args, scale);
  }
  void cross_entropy_losses(const CrossEntropy& args) override {
    cuda::cross_entropy_losses(*this, args);
  }
  void cross_entropy_backward(const CrossEntropy& args, float scale) override {
    cuda::cross_entropy_backward(*this, args, scale);
  }
  void sum(Tensor x, Tensor out, bool accumulate) override { cuda::sum(*this, x, out, accumulate); }
  void sum_squares(const SumSquares& args) override { cuda::sum_squares(*this, args); }
  void sum_ranges(Tensor x, Tensor ranges, Tensor out) override {
    cuda::sum_ranges(*this, x, ranges, out);
  }
  void gradient_scale(const GradientScale& args) override { cuda::gradient_scale(*this, args); }
  void adamw(const AdamW& args) override { cuda::adamw(*this, args); }
  void sgd(const Sgd& args) override { cuda::sgd(*this, args); }
  void lion(const Lion& args) override { cuda::lion(*this, args); }
  void momentum(const Momentum& args) override { cuda::momentum(*this, args); }
  void descend(const Descend& args) override { cuda::descend(*this, args); }
};

}  // namespace mtl::cuda
