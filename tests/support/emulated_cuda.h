// The CUDA engine's kernels on the host (gpu_on_host.h) as a Device: what differs from the real one
// is that memory is the host's, that everything is done when an op returns, and that matrix
// products are the CPU engine's (the real ones are cuBLASLt's).
#pragma once

#include <optional>
#include <vector>

#include "runtime/device/cpu/cpu_device.h"
#include "runtime/device/cuda/ops_device.h"

namespace mtl::test {

class EmulatedCuda : public cuda::OpsDevice {
 public:
  // `hopper`: with the kernels for one, and this backward.
  explicit EmulatedCuda(int multiprocessors = 3,
                        std::optional<kernel_scratch::Backward> hopper = std::nullopt)
      : multiprocessors_(multiprocessors), hopper_(hopper) {}
  bool communicates_beside() const override { return true; }
  std::string description() const override { return "cuda kernels on the host"; }
  void* allocate(size_t bytes) override { return cpu_.allocate(bytes); }
  void free(void* pointer) override { cpu_.free(pointer); }
  void copy_from_host(Tensor destination, const void* source) override {
    const int64_t bytes = destination.bytes();
    if (bytes > 0 && bytes <= cuda::kMostBytesInArguments) {
      return cuda::write(*this, destination, source);
    }
    cpu_.copy_from_host(destination, source);
  }
  void copy_to_host(void* destination, Tensor source) override {
    cpu_.copy_to_host(destination, source);
  }
  void synchronize() override {}
  // The steps around a product that are kernels of ours; Device has them only as its parts.
  void add_bias(Tensor from, Tensor bias, Tensor to, bool accumulate) {
    cuda::add_bias(*this, from, bias, to, accumulate);
  }
  void gelu_backward(Tensor dy, Tensor aux) { cuda::gelu_backward(*this, dy, aux); }
  // The activation by our own kernel, as on the GPU: gelu_forward has to give the same bits.
  void matmul(const Matmul& args) override {
    Matmul product = args;
    product.epilogue = Epilogue::none;
    if (args.epilogue == Epilogue::gelu) product.c = args.aux;
    product.sums_of_a = product.sums_of_b = {};
    cpu_.matmul(product);
    if (args.epilogue == Epilogue::gelu) cuda::gelu_forward(*this, args.aux, args.c);
    if (args.epilogue == Epilogue::gelu_grad) cuda::gelu_backward(*this, args.c, args.aux);
    sum_operand(args);
  }
  bool all_finite(Tensor x) override {
    int32_t found = 0;
    cuda::find_not_finite(*this, x, Tensor(&found, DType::i32, {1}));
    return found == 0;
  }

 protected:
  // NaNs each time: an op must not find what another has left. One more allocation per op, so that
  // AddressSanitizer sees where it ends.
  void* scratch(int64_t bytes) override {
    scratch_.assign((static_cast<size_t>(bytes) + 511) / 256 * 256, 0xff);
    const auto misfit = reinterpret_cast<uintptr_t>(scratch_.data()) % 256;
    return scratch_.data() + (misfit == 0 ? 0 : 256 - misfit);
  }

 private:
  cuda::Stream stream() const override { return nullptr; }
  int multiprocessors() const override { return multiprocessors_; }
  bool has_warpgroups() const override { return hopper_.has_value(); }
  kernel_scratch::Backward hopper_backward() const override { return hopper_.value(); }

  int multiprocessors_;
  std::optional<kernel_scratch::Backward> hopper_;
  CpuDevice cpu_{1, Isa::base};
  std::vector<unsigned char> scratch_;
};

}  // namespace mtl::test
