// The CPU engine behind Device. Its methods are spread over cpu_*.cpp by idea; each checks its
// arguments, splits the work over OpenMP threads and combines in an order that does not depend on
// them. The loops themselves are in kernels/.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/device/cpu/attention.h"
#include "runtime/device/cpu/isa.h"
#include "runtime/device/cpu/kernels/table.h"
#include "runtime/device/cpu/matmul.h"
#include "runtime/device/device.h"

namespace mtl {

// The loops compiled for `isa`; to be called only on a machine that has it.
kernels::VectorKernels vector_kernels(Isa isa);

// The fixed cutting of rows for sums over them: at most 128 chunks (so that combining them is
// cheap), of at least 32 rows. Depends on nothing but the row count.
struct RowChunks {
  explicit RowChunks(int64_t total)
      : rows(std::max<int64_t>(32, (total + 127) / 128)), count((total + rows - 1) / rows) {}
  int64_t rows, count;
};

class CpuDevice final : public Device {
 public:
  // `threads` as for make_cpu_device(). It becomes the OpenMP thread count of the calling thread
  // too, which oneDNN uses.
  CpuDevice(int threads, Isa isa);
  ~CpuDevice() override;
  CpuDevice(const CpuDevice&) = delete;
  CpuDevice& operator=(const CpuDevice&) = delete;

  bool communicates_beside() const override { return false; }
  std::string description() const override;

  void* allocate(size_t bytes) override;
  void free(void* pointer) override;
  void copy_from_host(Tensor destination, const void* source) override;
  void copy_to_host(void* destination, Tensor source) override;
  void synchronize() override {}

  void fill(Tensor x, float value) override;
  void cast(Tensor from, Tensor to) override;
  void scale(Tensor x, float factor) override;
  void add(Tensor x, Tensor y) override;
  void blend(Tensor x, Tensor y, float of_x, float of_y) override;
  void normalize(Tensor x) override;
  void copy(Tensor from, Tensor to) override;
  void regroup_columns(const ColumnBlocks& args) override;
  void matmul(const Matmul& args) override {
    matmul_.run(args);
    sum_operand(args);
  }
  void amax(Tensor x, Tensor out) override;
  void quantize(const Quantize& args) override;
  void bias_grad(Tensor dy, Tensor db, bool accumulate) override;
  void sum_rows(Tensor rows, Tensor sum, bool accumulate) override;
  void layernorm_forward(const LayerNorm& args) override;
  void layernorm_backward(const LayerNormBackward& args) override;
  void head_norm_forward(const HeadNorm& args) override;
  void head_norm_backward(const HeadNormBackward& args) override;
  void wide_norm_squares(const WideNorm& args) override;
  void wide_norm_forward(const WideNorm& args) override;
  void wide_norm_products(const WideNormBackward& args) override;
  void wide_norm_backward(const WideNormBackward& args) override;
  void gelu_forward(Tensor x, Tensor y) override;
  void gelu_exact_forward(Tensor x, Tensor y) override;
  void gelu_exact_backward(Tensor dy, Tensor x, Tensor y) override;
  void swiglu_forward(const Swiglu& args) override;
  void swiglu_backward(const SwigluBackward& args) override;
  void route_experts(const RouteExperts& args) override;
  void route_experts_backward(const RouteExpertsBackward& args) override;
  void add_shared(const AddShared& args) override;
  void add_shared_backward(const AddSharedBackward& args) override;
  void count_experts(const CountExperts& args) override;
  void balance_experts(const BalanceExperts& args) override;
  void gather_rows(const GatherRows& args) override;
  void combine_rows(const CombineRows& args) override;
  void add_row_products(const AddRowProducts& args) override;
  void rope(const Rope& args) override;
  void latent_heads(const LatentHeads& args) override;
  void copy_columns(const CopyColumns& args) override;
  void attention_forward(const Attention& args) override { attention_.forward(args); }
  void attention_backward(const AttentionBackward& args) override { attention_.backward(args); }
  void attention_sinks_backward(const AttentionSinksBackward& args) override {
    attention_.sinks_backward(args);
  }
  void embedding_forward(Tensor tokens, Tensor table, int64_t first, Tensor out) override;
  void embedding_backward(Tensor tokens, Tensor dout, int64_t first, Tensor dtable) override;
  void position_forward(Tensor x, Tensor positions, int64_t seq, Tensor out, Dropout dropout,
                        int64_t first_row) override;
  void position_backward(Tensor dout, int64_t seq, Tensor dx, Tensor dpositions, bool accumulate,
                         Dropout dropout, int64_t first_row) override;
  void bias_dropout_add(const ResidualAdd& args) override;
  void dropout_backward(const DropoutBackward& args) override;
  void cross_entropy_max(const CrossEntropy& args) override;
  void cross_entropy_sum(const CrossEntropy& args) override;
  void cross_entropy_loss(const CrossEntropy& args) override;
  void cross_entropy_backward(const CrossEntropy& args, float scale) override;
  void sum(Tensor x, Tensor out, bool accumulate) override;
  void sum_squares(const SumSquares& args) override;
  void sum_ranges(Tensor x, Tensor ranges, Tensor out) override;
  void gradient_scale(const GradientScale& args) override;
  void adamw(const AdamW& args) override;
  void sgd(const Sgd& args) override;
  void lion(const Lion& args) override;
  void momentum(const Momentum& args) override;
  void descend(const Descend& args) override;
  bool all_finite(Tensor x) override;

 private:
  const kernels::TypedKernels& typed(DType dtype) const {
    if (dtype == DType::bf16) return kernels_.bf16;
    return dtype == DType::f16 ? kernels_.f16 : kernels_.f32;
  }

  using Work = std::function<void(int64_t begin, int64_t end)>;
  // work(begin, end) on every thread's share of [0, n); shares begin at multiples of `grain`. For
  // work whose result does not depend on where the range is cut.
  void split(int64_t n, int64_t grain, const Work& work) const;
  // split() for rows of `cols` elements: a share is worth a thread from a few thousand elements on.
  void split_rows(int64_t rows, int64_t cols, const Work& work) const;

  // The bits of the largest |x|: without its sign a float is the larger the larger its bits are,
  // and NaN is the largest.
  uint32_t largest_bits(Tensor x) const;
  // What `amax` of an op's arguments means, if it is there.
  void raise_amax(Tensor amax, Tensor written) const;

  // At least `count` floats of scratch memory, valid until the next call.
  float* workspace(int64_t count);

  int threads_;
  Isa isa_;
  kernels::VectorKernels kernels_;
  CpuMatmul matmul_;
  CpuAttention attention_;
  std::unordered_map<void*, size_t> allocations_;
  std::vector<float> workspace_;
};

// Dropout as the loops take it, of the pass that is there now; nothing when it is off.
std::optional<kernels::Mask> mask_of(const Dropout& dropout);

}  // namespace mtl
