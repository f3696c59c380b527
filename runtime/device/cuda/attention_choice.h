// Which kernel computes an attention op: ours, or cuDNN's. Nothing here calls CUDA or cuDNN, so the
// tests see every outcome on the host.
//
// MTL_ATTENTION says what is wanted: `own` (as without it), `split` (ours, but on Hopper always
// with two kernels for backward), `mma` (ours, but also on Hopper the one for every GPU), `cudnn`,
// or `auto`, which tries both on random data of the op's form and takes cuDNN's where it is right,
// gives the same bits twice and is faster. Decided once per form, and kept.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "runtime/device/cuda/cudnn_sdpa.h"
#include "runtime/device/device.h"

namespace mtl::cuda {

enum class AttentionMode { own, split, mma, automatic, cudnn };
// Of MTL_ATTENTION; null or empty = own. Throws Error (Exit::usage) "gpu.attention".
AttentionMode attention_mode(const char* variable);
kernel_scratch::Backward backward_of(AttentionMode mode);  // of ours on Hopper

using AttentionForm = cudnn::SdpaForm;
// The form of a call that cuDNN may compute. Nothing: it stays with our kernel, whatever is wanted:
// f32, other head sizes than 64, 96, 128, 256 and 192 with values of 128, dropout, ALiBi, sinks, a
// cap, a window, documents, the last queries alone, tensors that are not aligned to 16 bytes.
std::optional<AttentionForm> form_for_cudnn(const AttentionShape& shape, DType dtype);

// What a trial of both kernels on the same data has shown. Errors are relative Frobenius distances
// from our kernel's, of the log-sum-exp the largest difference; NaN counts as wrong.
struct AttentionTrial {
  double out_error = 0, lse_error = 0, gradient_error = 0;
  bool repeats = true;                        // backward gave the same bits twice
  double own_seconds = 0, cudnn_seconds = 0;  // forward and backward
};

struct AttentionKernel {
  std::function<void(const Attention&)> forward;
  std::function<void(const AttentionBackward&)> backward;
};

// What the decision asks of cuDNN. All throw cudnn::Failure or Error.
class AttentionCandidate {
 public:
  virtual ~AttentionCandidate() = default;
  virtual std::string version() const = 0;
  // Makes the plans of a form; returns the bytes of workspace that they need.
  virtual int64_t prepare(const AttentionForm& form) = 0;
  virtual AttentionTrial try_out(const AttentionForm& form) = 0;
  // Of a form that is prepared. After a Failure the op may be done again by another kernel.
  virtual void forward(const AttentionForm& form, const Attention& args) = 0;
  virtual void backward(const AttentionForm& form, const AttentionBackward& args) = 0;
};

struct AttentionChoice {
  bool cudnn = false;
  std::string why;  // "cuDNN 9.19.0: ..." or "our kernel: ..."
};

class AttentionChooser {
 public:
  // `open` gives the candidate, or throws cudnn::Failure where there is no cuDNN. Called at most
  // once, and not at all for `own`. `tell`: a line for people, when a choice changes in use.
  using Open = std::function<AttentionCandidate&()>;
  AttentionChooser(AttentionMode mode, AttentionKernel own, Open open,
                   std::function<void(const std::string&)> tell)
      : mode_(mode), own_(std::move(own)), open_(std::move(open)), tell_(std::move(tell)) {}

  // Decides, where it is not decided yet. With `cudnn`, throws Error (Exit::environment)
  // "gpu.attention" where it cannot be.
  const AttentionChoice& choose(const AttentionForm& form);
  // The same in words, of any call.
  std::string words(const AttentionShape& shape, DType dtype);

  void forward(const Attention& args);
  void backward(const AttentionBackward& args);

 private:
  bool is_own() const { return mode_ != AttentionMode::automatic && mode_ != AttentionMode::cudnn; }
  AttentionChoice decide(const AttentionForm& form);
  AttentionChoice judge(AttentionCandidate& candidate, const AttentionForm& form);
  // Whether cuDNN has done it. When it fails in use: with `auto` our kernel goes on from here, with
  // `cudnn` it is an Error.
  bool by_cudnn(const AttentionShape& shape, const Tensor& qkv, bool is_aligned,
                const std::function<void(const AttentionForm&)>& work);

  const AttentionMode mode_;
  const AttentionKernel own_;
  const Open open_;
  const std::function<void(const std::string&)> tell_;
  AttentionCandidate* candidate_ = nullptr;
  std::map<AttentionForm, AttentionChoice> choices_;
};

}  // namespace mtl::cuda
