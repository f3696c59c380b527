// A device that says where a step's time goes: it waits for the other one after every op, and adds
// up by op. The sum is more than an undisturbed step takes (launches are not hidden any more); what
// it shows is which part to look at.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "runtime/device/device.h"

namespace mtl::bench {

class TimedDevice final : public Device {
 public:
  explicit TimedDevice(Device& device) : device_(device) {}

  struct Share {
    double seconds = 0;
    int64_t calls = 0;
  };
  const std::map<std::string, Share>& shares() const { return shares_; }
  void clear() { shares_.clear(); }

  bool communicates_beside() const override { return device_.communicates_beside(); }
  bool has_float8() const override { return device_.has_float8(); }
  bool host_memory() const override { return device_.host_memory(); }
  std::string description() const override { return device_.description(); }
  void* allocate(size_t bytes) override { return device_.allocate(bytes); }
  void free(void* pointer) override { device_.free(pointer); }
  void synchronize() override { device_.synchronize(); }
  void copy_from_host(Tensor to, const void* from) override {
    timed("copy from host", [&] { device_.copy_from_host(to, from); });
  }
  void copy_to_host(void* to, Tensor from) override {
    timed("copy to host", [&] { device_.copy_to_host(to, from); });
  }
  void fill(Tensor x, float value) override {
    timed("elementwise", [&] { device_.fill(x, value); });
  }
  void cast(Tensor from, Tensor to) override {
    timed("elementwise", [&] { device_.cast(from, to); });
  }
  void scale(Tensor x, float factor) override {
    timed("elementwise", [&] { device_.scale(x, factor); });
  }
  void add(Tensor x, Tensor y) override {
    timed("elementwise", [&] { device_.add(x, y); });
  }
  void copy(Tensor from, Tensor to) override {
    timed("elementwise", [&] { device_.copy(from, to); });
  }
  void matmul(const Matmul& args) override {
    const char* form = args.transpose_a ? "matmul, gradient of weights" : "matmul";
    timed(form, [&] { device_.matmul(args); });
  }
  void amax(Tensor x, Tensor out) override {
    timed("fp8: largest value", [&] { device_.amax(x, out); });
  }
  void quantize(const Quantize& args) override {
    timed("fp8: quantize", [&] { device_.quantize(args); });
  }
  void bias_grad(Tensor dy, Tensor db, bool accumulate) override {
    timed("bias gradient", [&] { device_.bias_grad(dy, db, accumulate); });
  }
  void layernorm_forward(const LayerNorm& args) override {
    timed("norm", [&] { device_.layernorm_forward(args); });
  }
  void layernorm_backward(const LayerNormBackward& args) override {
    timed("norm backward", [&] { device_.layernorm_backward(args); });
  }
  void head_norm_forward(const HeadNorm& args) override {
    timed("norm", [&] { device_.head_norm_forward(args); });
  }
  void head_norm_backward(const HeadNormBackward& args) override {
    timed("norm backward", [&] { device_.head_norm_backward(args); });
  }
  void gelu_forward(Tensor x, Tensor y) override {
    timed("activation", [&] { device_.gelu_forward(x, y); });
  }
  void swiglu_forward(const Swiglu& args) override {
    timed("activation", [&] { device_.swiglu_forward(args); });
  }
  void swiglu_backward(const SwigluBackward& args) override {
    timed("activation", [&] { device_.swiglu_backward(args); });
  }
  void route_experts(const RouteExperts& args) override {
    timed("experts", [&] { device_.route_experts(args); });
  }
  void route_experts_backward(const RouteExpertsBackward& args) override {
    timed("experts", [&] { device_.route_experts_backward(args); });
  }
  void gather_rows(const GatherRows& args) override {
    timed("experts", [&] { device_.gather_rows(args); });
  }
  void combine_rows(const CombineRows& args) override {
    timed("experts", [&] { device_.combine_rows(args); });
  }
  void weigh_rows_backward(const WeighRowsBackward& args) override {
    timed("experts", [&] { device_.weigh_rows_backward(args); });
  }
  void rope(const Rope& args) override {
    timed("rope", [&] { device_.rope(args); });
  }
  void attention_forward(const Attention& args) override {
    timed("attention", [&] { device_.attention_forward(args); });
  }
  void attention_backward(const AttentionBackward& args) override {
    timed("attention backward", [&] { device_.attention_backward(args); });
  }
  void embedding_forward(Tensor tokens, Tensor table, int64_t first, Tensor out) override {
    timed("embedding", [&] { device_.embedding_forward(tokens, table, first, out); });
  }
  void embedding_backward(Tensor tokens, Tensor dout, int64_t first, Tensor dtable) override {
    timed("embedding", [&] { device_.embedding_backward(tokens, dout, first, dtable); });
  }
  void position_forward(Tensor x, Tensor positions, int64_t seq, Tensor out, Dropout dropout,
                        int64_t first_row) override {
    timed("embedding",
          [&] { device_.position_forward(x, positions, seq, out, dropout, first_row); });
  }
  void position_backward(Tensor dout, int64_t seq, Tensor dx, Tensor dpositions, bool accumulate,
                         Dropout dropout, int64_t first_row) override {
    timed("embedding", [&] {
      device_.position_backward(dout, seq, dx, dpositions, accumulate, dropout, first_row);
    });
  }
  void bias_dropout_add(Tensor x, Tensor bias, Tensor residual, Tensor out, Dropout dropout,
                        int64_t first_row) override {
    timed("residual",
          [&] { device_.bias_dropout_add(x, bias, residual, out, dropout, first_row); });
  }
  void dropout_backward(Tensor dout, Tensor dx, Dropout dropout, int64_t first_row) override {
    timed("residual", [&] { device_.dropout_backward(dout, dx, dropout, first_row); });
  }
  void cross_entropy_max(const CrossEntropy& args) override {
    timed("cross entropy", [&] { device_.cross_entropy_max(args); });
  }
  void cross_entropy_sum(const CrossEntropy& args) override {
    timed("cross entropy", [&] { device_.cross_entropy_sum(args); });
  }
  void cross_entropy_loss(const CrossEntropy& args) override {
    timed("cross entropy", [&] { device_.cross_entropy_loss(args); });
  }
  void cross_entropy_losses(const CrossEntropy& args) override {
    timed("cross entropy", [&] { device_.cross_entropy_losses(args); });
  }
  void cross_entropy_backward(const CrossEntropy& args, float scale) override {
    timed("cross entropy", [&] { device_.cross_entropy_backward(args, scale); });
  }
  void sum(Tensor x, Tensor out, bool accumulate) override {
    timed("sums", [&] { device_.sum(x, out, accumulate); });
  }
  void sum_squares(const SumSquares& args) override {
    timed("sums", [&] { device_.sum_squares(args); });
  }
  void sum_ranges(Tensor x, Tensor ranges, Tensor out) override {
    timed("sums", [&] { device_.sum_ranges(x, ranges, out); });
  }
  void gradient_scale(const GradientScale& args) override {
    timed("optimizer", [&] { device_.gradient_scale(args); });
  }
  void adamw(const AdamW& args) override {
    timed("optimizer", [&] { device_.adamw(args); });
  }
  void sgd(const Sgd& args) override {
    timed("optimizer", [&] { device_.sgd(args); });
  }
  bool all_finite(Tensor x) override { return device_.all_finite(x); }

 private:
  template <class Op>
  void timed(const char* part, const Op& op) {
    const auto start = std::chrono::steady_clock::now();
    op();
    device_.synchronize();
    Share& share = shares_[part];
    share.seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ++share.calls;
  }

  Device& device_;
  std::map<std::string, Share> shares_;
};

}  // namespace mtl::bench
