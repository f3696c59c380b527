// Causal attention on the CPU: checks the arguments and spreads heads over the threads; the work of
// a head is in kernels/attention_kernels.cpp.
#pragma once

#include "runtime/device/cpu/isa.h"
#include "runtime/device/cpu/threads.h"
#include "runtime/device/device.h"

namespace mtl {

// Results are bit-equal for every number of threads. Not for use by two threads at a time.
class CpuAttention {
 public:
  explicit CpuAttention(Isa isa = cpu_isa());  // of this machine, at most

  // All throw mtl::Error (device.attention) when shapes or types do not fit.
  void forward(const Attention& args);
  void backward(const AttentionBackward& args);
  void sinks_backward(const AttentionSinksBackward& args);

 private:
  Isa isa_;
  Workspace workspace_;
};

}  // namespace mtl
