// Causal attention by cuDNN: the flash pattern of its graph API, forward and backward, on tensors
// as Attention (op_arguments.h) has them. The mask is part of the graph (row index >= column
// index), for the SDPA operation of cuDNN 9.19 has none. Backward is the deterministic form: the
// gradient of the queries is a product of its own, for which cuDNN keeps dS in its workspace.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "runtime/device/cuda/cudnn_api.h"

namespace mtl::cudnn {

// What a graph is made for. bf16 or f16.
struct SdpaForm {
  int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  DType dtype = DType::bf16;
  int64_t value_dim = 0;  // where it is not head_dim
  auto operator<=>(const SdpaForm&) const = default;
  int64_t values() const { return value_dim > 0 ? value_dim : head_dim; }
  int64_t query_width() const { return heads * head_dim; }
  int64_t key_width() const { return kv_heads * head_dim; }
  int64_t row() const { return query_width() + key_width() + kv_heads * values(); }
  int64_t out_width() const { return heads * values(); }
};
// "2x1024, 12 heads of 64, BF16"; "4x4096, 16 heads of 192 and 128, BF16" where values have others
std::string describe(const SdpaForm& form);

// The GPU that plans are made for: the one of a handle, or one that is described (cuDNN's JSON), so
// that a plan can be made and refused where there is none. Throws Failure.
class TargetDevice {
 public:
  TargetDevice(const Api& api, Handle handle);
  TargetDevice(const Api& api, const std::string& json);
  ~TargetDevice();
  TargetDevice(const TargetDevice&) = delete;
  TargetDevice& operator=(const TargetDevice&) = delete;
  Descriptor get() const { return descriptor_; }

 private:
  const Api& api_;
  Descriptor descriptor_ = nullptr;
};

// Where the tensors of a call are. `lse`: f32 [batch, heads, seq], natural logarithm.
struct SdpaTensors {
  const void* qkv = nullptr;
  void* out = nullptr;  // backward reads it, and lse
  void* lse = nullptr;
  const void* dout = nullptr;
  void* dqkv = nullptr;
  float scale = 1;
};

// A finalized plan. Throws Failure with what cuDNN says if it has none that is deterministic.
class SdpaPlan {
 public:
  enum class Pass { forward, backward };
  SdpaPlan(const Api& api, const TargetDevice& device, const SdpaForm& form, Pass pass);
  ~SdpaPlan();
  SdpaPlan(const SdpaPlan&) = delete;
  SdpaPlan& operator=(const SdpaPlan&) = delete;

  // Bytes that run() needs, 256-byte aligned.
  int64_t workspace_bytes() const;
  // Enqueues on the handle's stream. Throws Failure.
  void run(Handle handle, const SdpaTensors& tensors, void* workspace) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mtl::cudnn
