// cuDNN's attention on one GPU: the library's handle, and the plans of every form met so far.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "runtime/device/cuda/attention_choice.h"
#include "runtime/device/cuda/attention_trial.h"

namespace mtl::cuda {

class CudnnAttention final : public AttentionCandidate {
 public:
  // `stream`: where it enqueues. `scratch`: memory of the device for one op, 256-byte aligned.
  // `own`: what it is compared with, over `device`. Throws cudnn::Failure.
  CudnnAttention(Device& device, cudnn::Stream stream, std::function<void*(size_t)> scratch,
                 AttentionKernel own);
  ~CudnnAttention() override;

  std::string version() const override;
  int64_t prepare(const AttentionForm& form) override;
  AttentionTrial try_out(const AttentionForm& form) override;

  void forward(const AttentionForm& form, const Attention& args) override;
  void backward(const AttentionForm& form, const AttentionBackward& args) override;

 private:
  struct Plans {
    std::unique_ptr<cudnn::SdpaPlan> forward, backward;
  };
  void run(const cudnn::SdpaPlan& plan, const cudnn::SdpaTensors& tensors);

  const cudnn::Api& api_;
  Device& device_;
  const std::function<void*(size_t)> scratch_;
  const AttentionKernel own_;
  cudnn::Handle handle_ = nullptr;
  std::unique_ptr<cudnn::TargetDevice> target_;
  std::map<AttentionForm, Plans> plans_;
};

}  // namespace mtl::cuda
