// How many channels NCCL may use for groups that need few (its max_ctas). It keeps buffers per
// channel, so the communicators and the forecast of memory read it here.
#pragma once

namespace mtl {

// A send that waits for its receiver keeps its multiprocessors, and there may be several.
inline constexpr int kNcclMessageChannels = 8;
// Numbers would take as much as tensors if NCCL were not told.
inline constexpr int kNcclNumbersChannels = 1;

}  // namespace mtl
