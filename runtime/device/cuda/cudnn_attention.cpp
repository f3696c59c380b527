#include "runtime/device/cuda/cudnn_attention.h"

#include <algorithm>

namespace mtl::cuda {

CudnnAttention::CudnnAttention(Device& device, cudnn::Stream stream,
                               std::function<void*(size_t)> scratch, AttentionKernel own)
    : api_(cudnn::load_api()), device_(device), scratch_(std::move(scratch)), own_(std::move(own)) {
  check(api_, api_.create(&handle_), "starting");
  try {
    check(api_, api_.set_stream(handle_, stream), "setting its stream");
    target_ = std::make_unique<cudnn::TargetDevice>(api_, handle_);
  } catch (...) {
    api_.destroy(handle_);
    throw;
  }
}

CudnnAttention::~CudnnAttention() {
  plans_.clear();
  target_.reset();
  api_.destroy(handle_);
}

std::string CudnnAttention::version() const {
  return cudnn::version_text(api_.get_version());
}

int64_t CudnnAttention::prepare(const AttentionForm& form) {
  using Pass = cudnn::SdpaPlan::Pass;
  Plans& plans = plans_[form];
  if (!plans.forward) {
    plans.forward = std::make_unique<cudnn::SdpaPlan>(api_, *target_, form, Pass::forward);
  }
  if (!plans.backward) {
    plans.backward = std::make_unique<cudnn::SdpaPlan>(api_, *target_, form, Pass::backward);
  }
  return std::max(plans.forward->workspace_bytes(), plans.backward->workspace_bytes());
}

AttentionTrial CudnnAttention::try_out(const AttentionForm& form) {
  return try_attention(device_, form, own_,
                       {.forward = [&](const Attention& args) { forward(form, args); },
                        .backward = [&](const AttentionBackward& args) { backward(form, args); }});
}

void CudnnAttention::forward(const AttentionForm& form, const Attention& args) {
  run(*plans_.at(form).forward, {.qkv = args.qkv.data,
                                 .out = args.out.data,
                                 .lse = args.lse.data,
                                 .scale = args.shape.scale});
}

void CudnnAttention::backward(const AttentionForm& form, const AttentionBackward& args) {
  run(*plans_.at(form).backward, {.qkv = args.qkv.data,
                                  .out = args.out.data,
                                  .lse = args.lse.data,
                                  .dout = args.dout.data,
                                  .dqkv = args.dqkv.data,
                                  .scale = args.shape.scale});
}

void CudnnAttention::run(const cudnn::SdpaPlan& plan, const cudnn::SdpaTensors& tensors) {
  plan.run(handle_, tensors, scratch_(static_cast<size_t>(plan.workspace_bytes())));
}

}  // namespace mtl::cuda
