// Two attention kernels side by side: forward and backward on the same random data, how far their
// results are apart, whether the second gives its bits again, and how long each takes.
#pragma once

#include "runtime/device/cuda/attention_choice.h"

namespace mtl::cuda {

// Both kernels enqueue on `device`, whose memory the trial takes for its time (about six times the
// projection's). Throws what they and the device throw.
AttentionTrial try_attention(Device& device, const AttentionForm& form, const AttentionKernel& own,
                             const AttentionKernel& other);

}  // namespace mtl::cuda
