// What the engine has of a GPU's memory beside the arena: kernels' partial results, cuBLASLt's
// workspace, and messages to other pipeline stages that wait to leave. What libraries take without
// being asked (CUDA's context and code, NCCL's buffers: forecast_nccl.cpp) is not ours to say.
#pragma once

#include "runtime/device/kernel_scratch.h"
#include "runtime/plan/memory/memory.h"

namespace mtl {

// The largest ops of a stage's steps.
KernelNeeds kernel_needs(const ModelShape& shape, const MemoryNeeds& needs,
                         const MemoryPlan& memory);

struct Plan;
struct StagePlan;

struct GpuMemory {
  int64_t scratch = 0;    // of the op that takes most
  int64_t workspace = 0;  // of products
  int64_t total() const { return scratch + workspace; }
};
// `hopper`: of capability 9.0 with the attention that it has by itself (MTL_ATTENTION), or else of
// any other GPU.
GpuMemory gpu_memory(const KernelNeeds& needs, bool hopper);
// On any GPU, as the NCCL transport copies them.
int64_t message_memory(const Plan& plan, const StagePlan& stage);

}  // namespace mtl
