#include "runtime/device/cuda/attention_choice.h"

#include <string_view>

#include <fmt/format.h>

#include "common/error.h"

namespace mtl::cuda {

namespace {

// cuDNN's deterministic backward keeps dS of all heads; beyond this, `auto` does not take memory
// that the plan knows nothing of.
constexpr int64_t kMostWorkspace = int64_t{1} << 30;
// Two kernels that round in different places; a mistake is of the order of 1.
constexpr double kMostError16 = 2e-2, kMostLseError = 1e-2;

bool aligned(const Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

bool within(double error, double bound) {
  return error <= bound;  // not for a NaN
}

std::string ours(const std::string& why) {
  return "our kernel: " + why;
}

[[noreturn]] void refuse(const AttentionForm& form, const std::string& why) {
  throw Error(Exit::environment,
              {.code = "gpu.attention",
               .what = fmt::format("MTL_ATTENTION=cudnn, and cuDNN cannot compute attention {}: {}",
                                   describe(form), why),
               .help = "install cuDNN 9.8 or later for this CUDA (PyTorch brings one in "
                       "site-packages/nvidia/cudnn/lib; LD_LIBRARY_PATH finds it), or use "
                       "MTL_ATTENTION=auto or own"});
}

}  // namespace

AttentionMode attention_mode(const char* variable) {
  const std::string_view wanted = variable != nullptr ? variable : "";
  if (wanted.empty() || wanted == "own") return AttentionMode::own;
  if (wanted == "split") return AttentionMode::split;
  if (wanted == "mma") return AttentionMode::mma;
  if (wanted == "auto") return AttentionMode::automatic;
  if (wanted == "cudnn") return AttentionMode::cudnn;
  throw Error(Exit::usage, {.code = "gpu.attention",
                            .what = fmt::format("MTL_ATTENTION={} is no attention kernel", wanted),
                            .help = "it is own, split, mma, auto or cudnn"});
}

kernel_scratch::Backward backward_of(AttentionMode mode) {
  if (mode == AttentionMode::split) return kernel_scratch::Backward::split;
  return kernel_scratch::Backward::measured;
}

std::optional<AttentionForm> form_for_cudnn(const AttentionShape& shape, DType dtype) {
  const bool sixteen_bits = dtype == DType::bf16 || dtype == DType::f16;
  const auto known = [](int64_t dim) {
    return dim == 64 || dim == 96 || dim == 128 || dim == 192 || dim == 256;
  };
  // Heads of 192 are those whose values have 128 elements (DeepSeek's).
  const bool known_head = known(shape.head_dim) && known(shape.values()) &&
                          (shape.head_dim != 192 || shape.values() == 128);
  const bool limited = shape.first_key || (shape.window > 0 && shape.window < shape.seq);
  if (!sixteen_bits || !known_head || limited || shape.dropout || shape.alibi || shape.sinks ||
      shape.cap > 0 || shape.first_query > 0 || shape.batch <= 0 || shape.seq <= 0 ||
      !(shape.scale > 0)) {
    return std::nullopt;
  }
  return AttentionForm{.batch = shape.batch,
                       .seq = shape.seq,
                       .heads = shape.heads,
                       .kv_heads = shape.kv_heads,
                       .head_dim = shape.head_dim,
                       .dtype = dtype,
                       .value_dim = shape.values() == shape.head_dim ? 0 : shape.values()};
}

const AttentionChoice& AttentionChooser::choose(const AttentionForm& form) {
  const auto found = choices_.find(form);
  if (found != choices_.end()) return found->second;
  return choices_.emplace(form, decide(form)).first->second;
}

std::string AttentionChooser::words(const AttentionShape& shape, DType dtype) {
  const std::optional<AttentionForm> form = form_for_cudnn(shape, dtype);
  if (!form) return "attention by " + ours("this kind is not for cuDNN");
  return fmt::format("attention {} by {}", describe(*form), choose(*form).why);
}

bool AttentionChooser::by_cudnn(const AttentionShape& shape, const Tensor& qkv, bool is_aligned,
                                const std::function<void(const AttentionForm&)>& work) {
  if (is_own() || !is_aligned) return false;
  const std::optional<AttentionForm> form = form_for_cudnn(shape, qkv.dtype);
  if (!form || !choose(*form).cudnn) return false;
  try {
    work(*form);
    return true;
  } catch (const cudnn::Failure& failure) {
    if (mode_ == AttentionMode::cudnn) refuse(*form, failure.why);
    choices_[*form] = {.cudnn = false, .why = ours("cuDNN has failed: " + failure.why)};
    tell_(words(shape, qkv.dtype));
    return false;
  }
}

void AttentionChooser::forward(const Attention& args) {
  const bool is_aligned = aligned(args.qkv) && aligned(args.out) && aligned(args.lse);
  const auto work = [&](const AttentionForm& form) { candidate_->forward(form, args); };
  if (!by_cudnn(args.shape, args.qkv, is_aligned, work)) own_.forward(args);
}

void AttentionChooser::backward(const AttentionBackward& args) {
  const bool is_aligned = aligned(args.qkv) && aligned(args.out) && aligned(args.lse) &&
                          aligned(args.dout) && aligned(args.dqkv);
  const auto work = [&](const AttentionForm& form) { candidate_->backward(form, args); };
  if (!by_cudnn(args.shape, args.qkv, is_aligned, work)) own_.backward(args);
}

AttentionChoice AttentionChooser::decide(const AttentionForm& form) {
  if (is_own()) return {.cudnn = false, .why = ours("MTL_ATTENTION=auto tries cuDNN's")};
  try {
    if (candidate_ == nullptr) candidate_ = &open_();
    return judge(*candidate_, form);
  } catch (const cudnn::Failure& failure) {
    if (mode_ == AttentionMode::cudnn) refuse(form, failure.why);
    return {.cudnn = false, .why = ours(failure.why)};
  } catch (const Error& error) {  // no memory for a trial, say
    if (mode_ == AttentionMode::cudnn) throw;
    return {.cudnn = false, .why = ours(error.diagnostics().front().what)};
  }
}

AttentionChoice AttentionChooser::judge(AttentionCandidate& candidate, const AttentionForm& form) {
  const std::string name = "cuDNN " + candidate.version();
  const int64_t workspace = candidate.prepare(form);
  if (mode_ == AttentionMode::cudnn) return {.cudnn = true, .why = name + ": MTL_ATTENTION=cudnn"};
  if (workspace > kMostWorkspace) {
    return {.cudnn = false,
            .why = ours(fmt::format("{} needs {:.1f} GiB more for it", name,
                                    static_cast<double>(workspace) / (1 << 30)))};
  }
  const AttentionTrial trial = candidate.try_out(form);
  if (!within(trial.out_error, kMostError16) || !within(trial.gradient_error, kMostError16) ||
      !within(trial.lse_error, kMostLseError)) {
    return {.cudnn = false,
            .why = ours(fmt::format("{} gives other numbers (distance of the outputs {:.2g}, of "
                                    "the gradients {:.2g}, of the log-sum-exp {:.2g})",
                                    name, trial.out_error, trial.gradient_error, trial.lse_error))};
  }
  if (!trial.repeats) {
    return {.cudnn = false, .why = ours(name + " gives other bits the second time")};
  }
  const std::string times = fmt::format("{:.3g} ms, our kernel {:.3g} ms",
                                        1e3 * trial.cudnn_seconds, 1e3 * trial.own_seconds);
  if (!(trial.cudnn_seconds < trial.own_seconds)) {
    return {.cudnn = false, .why = ours(fmt::format("{} is not faster: {}", name, times))};
  }
  return {.cudnn = true, .why = fmt::format("{}: {}", name, times)};
}

}  // namespace mtl::cuda
