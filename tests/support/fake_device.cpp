// The CPU's ops in the compute stream of a GPU that is none.
#include <cstring>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "runtime/device/replays.h"
#include "support/fake_gpu.h"

namespace mtl::test {

namespace {

using Kind = FakeGpu::Kind;

// Records what replay() is given as a GPU does: by value, once, and not again.
class FakeDevice final : public Device, private Recorder {
 public:
  explicit FakeDevice(FakeGpu& gpu) : gpu_(gpu), cpu_(make_cpu_device(1)) {}

  bool replays() const override { return true; }
  void replay(const std::string& key, const std::function<void()>& enqueue) override {
    replays_.run(key, enqueue);
  }
  void anew(const std::function<void()>& what) override { replays_.anew(what); }

  bool communicates_beside() const override { return true; }
  std::string description() const override { return "fake gpu"; }
  void* allocate(size_t bytes) override {
    no_recording();
    return gpu_.allocate(bytes);
  }
  void free(void* memory) override { gpu_.free(memory); }
  void copy_from_host(Tensor to, const void* source) override {
    no_recording();
    if (to.bytes() == 0) return;  // a rank without a part: null pointers are fine
    const auto* from = static_cast<const char*>(source);
    later([to, data = std::vector<char>(from, from + to.bytes())] {
      std::memcpy(to.data, data.data(), data.size());
    });
  }
  void copy_to_host(void* to, Tensor source) override {
    ++gpu_.seen.copies_to_host;
    wait();
    if (source.bytes() > 0) std::memcpy(to, source.data, static_cast<size_t>(source.bytes()));
  }
  void synchronize() override {
    ++gpu_.seen.waits;
    wait();
  }
  bool all_finite(Tensor x) override {
    synchronize();
    return cpu_->all_finite(x);
  }

  void fill(Tensor x, float value) override {
    later([=, this] { cpu_->fill(x, value); });
  }
  void cast(Tensor from, Tensor to) override {
    later([=, this] { cpu_->cast(from, to); });
  }
  void scale(Tensor x, float f) override {
    later([=, this] { cpu_->scale(x, f); });
  }
  void add(Tensor x, Tensor y) override {
    later([=, this] { cpu_->add(x, y); });
  }
  void blend(Tensor x, Tensor y, float of_x, float of_y) override {
    later([=, this] { cpu_->blend(x, y, of_x, of_y); });
  }
  void normalize(Tensor x) override {
    later([=, this] { cpu_->normalize(x); });
  }
  void copy(Tensor from, Tensor to) override {
    later([=, this] { cpu_->copy(from, to); });
  }
  void regroup_columns(const ColumnBlocks& args) override {
    later([=, this] { cpu_->regroup_columns(args); });
  }
  void matmul(const Matmul& args) override {
    // cuBLASLt has a kernel of its own for about every form and shape.
    gpu_.load(fmt::format("{} x {} x {}, {}{}{}", args.a.numel(), args.b.numel(), args.c.numel(),
                          args.transpose_a, args.transpose_b, args.accumulate));
    later([=, this] { cpu_->matmul(args); });
  }
  void amax(Tensor x, Tensor out) override {
    later([=, this] { cpu_->amax(x, out); });
  }
  void quantize(const Quantize& args) override {
    later([=, this] { cpu_->quantize(args); });
  }
  void sum_rows(Tensor rows, Tensor sum, bool accumulate) override {
    later([=, this] { cpu_->sum_rows(rows, sum, accumulate); });
  }
  void bias_grad(Tensor dy, Tensor db, bool accumulate) override {
    later([=, this] { cpu_->bias_grad(dy, db, accumulate); });
  }
  void layernorm_forward(const LayerNorm& args) override {
    later([=, this] { cpu_->layernorm_forward(args); });
  }
  void layernorm_backward(const LayerNormBackward& args) override {
    later([=, this] { cpu_->layernorm_backward(args); });
  }
  void head_norm_forward(const HeadNorm& args) override {
    later([=, this] { cpu_->head_norm_forward(args); });
  }
  void head_norm_backward(const HeadNormBackward& args) override {
    later([=, this] { cpu_->head_norm_backward(args); });
  }
  void wide_norm_squares(const WideNorm& args) override {
    later([=, this] { cpu_->wide_norm_squares(args); });
  }
  void wide_norm_forward(const WideNorm& args) override {
    later([=, this] { cpu_->wide_norm_forward(args); });
  }
  void wide_norm_products(const WideNormBackward& args) override {
    later([=, this] { cpu_->wide_norm_products(args); });
  }
  void wide_norm_backward(const WideNormBackward& args) override {
    later([=, this] { cpu_->wide_norm_backward(args); });
  }
  void gelu_forward(Tensor x, Tensor y) override {
    later([=, this] { cpu_->gelu_forward(x, y); });
  }
  void gelu_exact_forward(Tensor x, Tensor y) override {
    later([=, this] { cpu_->gelu_exact_forward(x, y); });
  }
  void gelu_exact_backward(Tensor dy, Tensor x, Tensor y) override {
    later([=, this] { cpu_->gelu_exact_backward(dy, x, y); });
  }
  void swiglu_forward(const Swiglu& args) override {
    later([=, this] { cpu_->swiglu_forward(args); });
  }
  void swiglu_backward(const SwigluBackward& args) override {
    later([=, this] { cpu_->swiglu_backward(args); });
  }
  void route_experts(const RouteExperts& args) override {
    later([=, this] { cpu_->route_experts(args); });
  }
  void route_experts_backward(const RouteExpertsBackward& args) override {
    later([=, this] { cpu_->route_experts_backward(args); });
  }
  void add_shared(const AddShared& args) override {
    later([=, this] { cpu_->add_shared(args); });
  }
  void add_shared_backward(const AddSharedBackward& args) override {
    later([=, this] { cpu_->add_shared_backward(args); });
  }
  void count_experts(const CountExperts& args) override {
    later([=, this] { cpu_->count_experts(args); });
  }
  void balance_experts(const BalanceExperts& args) override {
    later([=, this] { cpu_->balance_experts(args); });
  }
  void gather_rows(const GatherRows& args) override {
    later([=, this] { cpu_->gather_rows(args); });
  }
  void combine_rows(const CombineRows& args) override {
    later([=, this] { cpu_->combine_rows(args); });
  }
  void add_row_products(const AddRowProducts& args) override {
    later([=, this] { cpu_->add_row_products(args); });
  }
  void rope(const Rope& args) override {
    later([=, this] { cpu_->rope(args); });
  }
  void latent_heads(const LatentHeads& args) override {
    later([=, this] { cpu_->latent_heads(args); });
  }
  void copy_columns(const CopyColumns& args) override {
    later([=, this] { cpu_->copy_columns(args); });
  }
  void attention_forward(const Attention& args) override {
    later([=, this] { cpu_->attention_forward(args); });
  }
  void attention_backward(const AttentionBackward& args) override {
    later([=, this] { cpu_->attention_backward(args); });
  }
  void attention_sinks_backward(const AttentionSinksBackward& args) override {
    later([=, this] { cpu_->attention_sinks_backward(args); });
  }
  void embedding_forward(Tensor tokens, Tensor table, int64_t first, Tensor out) override {
    later([=, this] { cpu_->embedding_forward(tokens, table, first, out); });
  }
  void embedding_backward(Tensor tokens, Tensor dout, int64_t first, Tensor dtable) override {
    later([=, this] { cpu_->embedding_backward(tokens, dout, first, dtable); });
  }
  void position_forward(Tensor x, Tensor positions, int64_t seq, Tensor out, Dropout dropout,
                        int64_t first_row) override {
    later([=, this] { cpu_->position_forward(x, positions, seq, out, dropout, first_row); });
  }
  void position_backward(Tensor dout, int64_t seq, Tensor dx, Tensor dpositions, bool accumulate,
                         Dropout dropout, int64_t first_row) override {
    later([=, this] {
      cpu_->position_backward(dout, seq, dx, dpositions, accumulate, dropout, first_row);
    });
  }
  void bias_dropout_add(const ResidualAdd& args) override {
    later([=, this] { cpu_->bias_dropout_add(args); });
  }
  void dropout_backward(const DropoutBackward& args) override {
    later([=, this] { cpu_->dropout_backward(args); });
  }
  void cross_entropy_max(const CrossEntropy& args) override {
    later([=, this] { cpu_->cross_entropy_max(args); });
  }
  void cross_entropy_sum(const CrossEntropy& args) override {
    later([=, this] { cpu_->cross_entropy_sum(args); });
  }
  void cross_entropy_loss(const CrossEntropy& args) override {
    later([=, this] { cpu_->cross_entropy_loss(args); });
  }
  void cross_entropy_backward(const CrossEntropy& args, float scale) override {
    later([=, this] { cpu_->cross_entropy_backward(args, scale); });
  }
  void sum(Tensor x, Tensor out, bool accumulate) override {
    later([=, this] { cpu_->sum(x, out, accumulate); });
  }
  void sum_squares(const SumSquares& args) override {
    later([=, this] { cpu_->sum_squares(args); });
  }
  void sum_ranges(Tensor x, Tensor ranges, Tensor out) override {
    later([=, this] { cpu_->sum_ranges(x, ranges, out); });
  }
  void gradient_scale(const GradientScale& args) override {
    later([=, this] { cpu_->gradient_scale(args); });
  }
  void adamw(const AdamW& args) override {
    later([=, this] { cpu_->adamw(args); });
  }
  void sgd(const Sgd& args) override {
    later([=, this] { cpu_->sgd(args); });
  }
  void lion(const Lion& args) override {
    later([=, this] { cpu_->lion(args); });
  }
  void momentum(const Momentum& args) override {
    later([=, this] { cpu_->momentum(args); });
  }
  void descend(const Descend& args) override {
    later([=, this] { cpu_->descend(args); });
  }

 private:
  using Work = std::vector<std::function<void()>>;

  void begin() override { recorded_ = std::make_unique<Work>(); }
  Recording end() override {
    std::unique_ptr<Work> made = std::move(recorded_);
    if (made->empty()) return nullptr;
    ++gpu_.seen.recordings;
    return made.release();
  }
  void abandon() override { recorded_.reset(); }
  void launch(Recording recording) override {
    ++gpu_.seen.launches;
    for (const auto& work : *static_cast<Work*>(recording)) later(work);
  }
  void destroy(Recording recording) override { delete static_cast<Work*>(recording); }
  void no_recording() const {
    if (replays_.recording()) throw std::logic_error("no op, and in a recording");
  }

  void wait() {
    no_recording();
    gpu_.run_until(gpu_.compute(), gpu_.compute()->enqueued);
  }
  // The line of the op that calls it stands for its kernel.
  void later(std::function<void()> work, int op = __builtin_LINE()) {
    gpu_.load(fmt::format("op {}", op));
    if (recorded_) {
      recorded_->push_back(std::move(work));
      return;
    }
    ++gpu_.seen.ops;
    gpu_.enqueue(gpu_.compute(), Kind::plain, std::move(work));
  }

  FakeGpu& gpu_;
  const std::unique_ptr<Device> cpu_;
  std::unique_ptr<Work> recorded_;
  Replays replays_{*this};
};

}  // namespace

std::unique_ptr<Device> make_fake_device(FakeGpu& gpu) {
  return std::make_unique<FakeDevice>(gpu);
}

}  // namespace mtl::test
