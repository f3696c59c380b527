// A device that says where a step's time goes: it waits for the other one after every op, and adds
// up by op, with the least that the op can take (op_work.h). The sum is more than an undisturbed
// step takes (launches are not hidden any more); what it shows is which part to look at.
//
// Without another device it does nothing but count: the least time of a step on a device that is
// not at hand. Then its memory is address space, never touched, and what comes back is zero.
//
// An Error of an op has a note that says which one it was, with its tensors.
#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include <fmt/format.h>

#include "common/error.h"
#include "op_watch.h"
#include "op_work.h"
#include "runtime/device/device.h"

namespace mtl::bench {

class TimedDevice final : public Device {
 public:
  // `device` may be null.
  TimedDevice(Device* device, const DeviceRates& rates) : device_(device), rates_(rates) {}

  struct Share {
    double seconds = 0;
    double least = 0;  // seconds
    int64_t calls = 0;
  };
  const std::map<std::string, Share>& shares() const { return shares_; }
  void clear() { shares_.clear(); }
  // Called with every product.
  std::function<void(const Matmul&)> on_matmul;
  // May be null.
  OpWatch* watch = nullptr;

  bool communicates_beside() const override { return !device_ || device_->communicates_beside(); }
  bool has_float8() const override { return !device_ || device_->has_float8(); }
  bool host_memory() const override { return device_ && device_->host_memory(); }
  std::string description() const override { return device_ ? device_->description() : "none"; }
  void* allocate(size_t bytes) override {
    if (device_) return device_->allocate(bytes);
    void* const space =
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) throw std::bad_alloc();
    return space;  // until the program ends
  }
  void expect(const KernelNeeds& needs) override {
    if (device_) device_->expect(needs);
  }
  void* allocate_on_host(size_t bytes) override {
    return device_ ? device_->allocate_on_host(bytes) : allocate(bytes);
  }
  void free(void* pointer) override {
    if (device_) device_->free(pointer);
  }
  void synchronize() override {
    if (device_) device_->synchronize();
  }
  void copy_from_host(Tensor to, const void* from) override {
    timed("copy from host", moves({to}), [&] { device_->copy_from_host(to, from); });
  }
  void copy_to_host(void* to, Tensor from) override {
    if (!device_) std::memset(to, 0, static_cast<size_t>(from.bytes()));
    timed("copy to host", moves({from}), [&] { device_->copy_to_host(to, from); });
  }
  void fill(Tensor x, float value) override {
    timed("elementwise", moves({x}), [&] { device_->fill(x, value); });
  }
  void cast(Tensor from, Tensor to) override {
    timed("elementwise", moves({from, to}), [&] { device_->cast(from, to); });
  }
  void scale(Tensor x, float factor) override {
    timed("elementwise", moves({x, x}), [&] { device_->scale(x, factor); });
  }
  void add(Tensor x, Tensor y) override {
    timed("elementwise", moves({x, y, y}), [&] { device_->add(x, y); });
  }
  void blend(Tensor x, Tensor y, float of_x, float of_y) override {
    timed("elementwise", moves({x, y, y}), [&] { device_->blend(x, y, of_x, of_y); });
  }
  void normalize(Tensor x) override {
    timed("elementwise", moves({x, x, x}), [&] { device_->normalize(x); });
  }
  void copy(Tensor from, Tensor to) override {
    timed("elementwise", moves({from, to}), [&] { device_->copy(from, to); });
  }
  void regroup_columns(const ColumnBlocks& args) override {
    timed("elementwise", moves({args.rows, args.blocks}), [&] { device_->regroup_columns(args); });
  }
  void matmul(const Matmul& args) override {
    if (on_matmul) on_matmul(args);
    const char* form = args.transpose_a ? "matmul, gradient of weights" : "matmul";
    // The sums of an operand apart, as most devices make them. A GPU that has them in the product
    // (MTL_PRODUCTS) takes less for a step than these parts.
    Matmul product = args;
    product.sums_of_a = product.sums_of_b = {};
    timed(form, work_of(product), [&] { device_->matmul(product); });
    if (args.sums_of_a) bias_grad(args.a, args.sums_of_a, args.accumulate);
    if (args.sums_of_b) bias_grad(args.b, args.sums_of_b, args.accumulate);
  }
  void amax(Tensor x, Tensor out) override {
    timed("fp8: largest value", moves({x}), [&] { device_->amax(x, out); });
  }
  void quantize(const Quantize& args) override {
    timed("fp8: quantize", work_of(args), [&] { device_->quantize(args); });
  }
  void sum_rows(Tensor rows, Tensor sum, bool accumulate) override {
    timed("sum of ranks", moves({rows, sum}), [&] { device_->sum_rows(rows, sum, accumulate); });
  }
  void bias_grad(Tensor dy, Tensor db, bool accumulate) override {
    timed("bias gradient", moves({dy}), [&] { device_->bias_grad(dy, db, accumulate); });
  }
  void layernorm_forward(const LayerNorm& args) override {
    timed("norm", work_of(args), [&] { device_->layernorm_forward(args); });
  }
  void layernorm_backward(const LayerNormBackward& args) override {
    timed("norm backward", work_of(args), [&] { device_->layernorm_backward(args); });
  }
  void head_norm_forward(const HeadNorm& args) override {
    timed("norm", work_of(args), [&] { device_->head_norm_forward(args); });
  }
  void head_norm_backward(const HeadNormBackward& args) override {
    timed("norm backward", work_of(args), [&] { device_->head_norm_backward(args); });
  }
  void wide_norm_squares(const WideNorm& args) override {
    timed("norm", work_of(args, 1), [&] { device_->wide_norm_squares(args); });
  }
  void wide_norm_forward(const WideNorm& args) override {
    timed("norm", work_of(args, 3), [&] { device_->wide_norm_forward(args); });
  }
  void wide_norm_products(const WideNormBackward& args) override {
    timed("norm backward", work_of(args, 2), [&] { device_->wide_norm_products(args); });
  }
  void wide_norm_backward(const WideNormBackward& args) override {
    timed("norm backward", work_of(args, 3), [&] { device_->wide_norm_backward(args); });
  }
  void gelu_forward(Tensor x, Tensor y) override {
    timed("activation", moves({x, y}), [&] { device_->gelu_forward(x, y); });
  }
  void gelu_exact_forward(Tensor x, Tensor y) override {
    timed("activation", moves({x, y}), [&] { device_->gelu_exact_forward(x, y); });
  }
  void gelu_exact_backward(Tensor dy, Tensor x, Tensor y) override {
    timed("activation", moves({dy, x, dy, y}), [&] { device_->gelu_exact_backward(dy, x, y); });
  }
  void swiglu_forward(const Swiglu& args) override {
    timed("activation", work_of(args), [&] { device_->swiglu_forward(args); });
  }
  void swiglu_backward(const SwigluBackward& args) override {
    timed("activation", work_of(args), [&] { device_->swiglu_backward(args); });
  }
  void route_experts(const RouteExperts& args) override {
    timed("experts", moves({args.logits}), [&] { device_->route_experts(args); });
  }
  void route_experts_backward(const RouteExpertsBackward& args) override {
    timed("experts", moves({args.logits, args.dlogits}),
          [&] { device_->route_experts_backward(args); });
  }
  void add_shared(const AddShared& args) override {
    timed("experts", moves({args.from, args.to, args.to}), [&] { device_->add_shared(args); });
  }
  void add_shared_backward(const AddSharedBackward& args) override {
    timed("experts", moves({args.x, args.x, args.dy, args.dy}),
          [&] { device_->add_shared_backward(args); });
  }
  void count_experts(const CountExperts& args) override {
    timed("experts", moves({args.counts}), [&] { device_->count_experts(args); });
  }
  void balance_experts(const BalanceExperts& args) override {
    timed("experts", moves({args.counts}), [&] { device_->balance_experts(args); });
  }
  void gather_rows(const GatherRows& args) override {
    timed("experts", moves({args.to, args.to}), [&] { device_->gather_rows(args); });
  }
  void combine_rows(const CombineRows& args) override {
    timed("experts", moves({args.from, args.to}), [&] { device_->combine_rows(args); });
  }
  void add_row_products(const AddRowProducts& args) override {
    timed("experts", moves({args.rows}), [&] { device_->add_row_products(args); });
  }
  void rope(const Rope& args) override {
    timed("rope", work_of(args), [&] { device_->rope(args); });
  }
  void latent_heads(const LatentHeads& args) override {
    timed("latent heads", moves({args.qkv, args.qkv}), [&] { device_->latent_heads(args); });
  }
  void copy_columns(const CopyColumns& args) override {
    timed("elementwise", work_of(args), [&] { device_->copy_columns(args); });
  }
  void attention_forward(const Attention& args) override {
    timed("attention", work_of(args), [&] { device_->attention_forward(args); });
  }
  void attention_backward(const AttentionBackward& args) override {
    timed("attention backward", work_of(args), [&] { device_->attention_backward(args); });
  }
  void attention_sinks_backward(const AttentionSinksBackward& args) override {
    timed("attention backward", moves({args.out, args.dout}),
          [&] { device_->attention_sinks_backward(args); });
  }
  void embedding_forward(Tensor tokens, Tensor table, int64_t first, Tensor out) override {
    timed("embedding", moves({tokens, out, out}),
          [&] { device_->embedding_forward(tokens, table, first, out); });
  }
  void embedding_backward(Tensor tokens, Tensor dout, int64_t first, Tensor dtable) override {
    timed("embedding", moves({tokens, dout, dout}),
          [&] { device_->embedding_backward(tokens, dout, first, dtable); });
  }
  void position_forward(Tensor x, Tensor positions, int64_t seq, Tensor out, Dropout dropout,
                        int64_t first_row) override {
    timed("embedding", moves({x, out}),
          [&] { device_->position_forward(x, positions, seq, out, dropout, first_row); });
  }
  void position_backward(Tensor dout, int64_t seq, Tensor dx, Tensor dpositions, bool accumulate,
                         Dropout dropout, int64_t first_row) override {
    timed("embedding", moves({dout, dx}), [&] {
      device_->position_backward(dout, seq, dx, dpositions, accumulate, dropout, first_row);
    });
  }
  void bias_dropout_add(const ResidualAdd& args) override {
    timed("residual", moves({args.x, args.residual, args.out}),
          [&] { device_->bias_dropout_add(args); });
  }
  void add_norm_forward(const ResidualAdd& add, const LayerNorm& norm) override {
    OpWork work = work_of(norm);
    work.bytes += bytes_of({add.x, add.residual});  // what it gives is counted as the norm's x
    timed("residual, norm", work, [&] { device_->add_norm_forward(add, norm); });
  }
  void dropout_backward(const DropoutBackward& args) override {
    timed("residual", moves({args.dout, args.dx}), [&] { device_->dropout_backward(args); });
  }
  void cross_entropy_max(const CrossEntropy& args) override {
    timed("cross entropy", moves({args.logits}), [&] { device_->cross_entropy_max(args); });
  }
  void cross_entropy_sum(const CrossEntropy& args) override {
    timed("cross entropy", moves({args.logits}), [&] { device_->cross_entropy_sum(args); });
  }
  void cross_entropy_loss(const CrossEntropy& args) override {
    timed("cross entropy", moves({args.loss}), [&] { device_->cross_entropy_loss(args); });
  }
  void cross_entropy_losses(const CrossEntropy& args) override {
    timed("cross entropy", moves({args.logits}), [&] { device_->cross_entropy_losses(args); });
  }
  void cross_entropy_both(const CrossEntropy& args, float scale) override {
    timed("cross entropy", moves({args.logits, args.logits}),
          [&] { device_->cross_entropy_both(args, scale); });
  }
  void cross_entropy_backward(const CrossEntropy& args, float scale) override {
    timed("cross entropy", moves({args.logits, args.logits}),
          [&] { device_->cross_entropy_backward(args, scale); });
  }
  void sum(Tensor x, Tensor out, bool accumulate) override {
    timed("sums", moves({x}), [&] { device_->sum(x, out, accumulate); });
  }
  void sum_squares(const SumSquares& args) override {
    timed("sums", work_of(args), [&] { device_->sum_squares(args); });
  }
  void sum_ranges(Tensor x, Tensor ranges, Tensor out) override {
    timed("sums", moves({x}), [&] { device_->sum_ranges(x, ranges, out); });
  }
  void gradient_scale(const GradientScale& args) override {
    timed("optimizer", OpWork(), [&] { device_->gradient_scale(args); });
  }
  void adamw(const AdamW& args) override {
    timed("optimizer", work_of(args), [&] { device_->adamw(args); });
  }
  void sgd(const Sgd& args) override {
    timed("optimizer", work_of(args), [&] { device_->sgd(args); });
  }
  void lion(const Lion& args) override {
    timed("optimizer", work_of(args), [&] { device_->lion(args); });
  }
  void momentum(const Momentum& args) override {
    timed("optimizer", work_of(args), [&] { device_->momentum(args); });
  }
  void descend(const Descend& args) override {
    timed("optimizer", work_of(args), [&] { device_->descend(args); });
  }
  bool all_finite(Tensor x) override { return !device_ || device_->all_finite(x); }

 private:
  template <class Op>
  void timed(const char* part, const OpWork& work, const Op& op) {
    Share& share = shares_[part];
    ++share.calls;
    share.least += least_seconds(work, rates_);
    if (!device_) return;
    const auto words = [part, calls = share.calls, &work] {
      return fmt::format("{}, call {} of it: {}", part, calls, words_of(work.tensors));
    };
    if (watch != nullptr) watch->begin(words);
    const auto start = std::chrono::steady_clock::now();
    try {
      op();
      device_->synchronize();
    } catch (const Error& error) {
      if (watch != nullptr) watch->end();
      std::vector<Diagnostic> told = error.diagnostics();
      told.front().notes.push_back("in " + words());
      throw Error(error.exit(), std::move(told));
    }
    if (watch != nullptr) watch->end();
    share.seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  Device* device_;
  DeviceRates rates_;
  std::map<std::string, Share> shares_;
};

}  // namespace mtl::bench
