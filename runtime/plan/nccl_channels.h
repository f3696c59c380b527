// What NCCL and our transport over it have of a GPU's memory for a group. How many channels NCCL
// may use for groups that need few (its max_ctas). It keeps buffers per channel, so the
// communicators and the forecast of memory read it here.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mtl {

// A send that waits for its receiver keeps its multiprocessors, and there may be several.
inline constexpr int kNcclMessageChannels = 8;
// Numbers would take as much as tensors if NCCL were not told.
inline constexpr int kNcclNumbersChannels = 1;

// Messages leave from copies, so many as the CPU's transports buffer. Room for two there is always:
// with one the interleaved pipeline keeps going (tests/runtime/engine/streams_test.cpp); with more
// a rank can run ahead of its neighbour.
inline constexpr int64_t kNcclBufferedBytes = int64_t{64} << 20;
inline int64_t nccl_message_slots(int64_t bytes, int64_t buffered) {
  constexpr int64_t kLeast = 2, kMost = 64, kPiece = int64_t{1} << 20;
  return std::clamp(buffered / std::max(bytes, kPiece), kLeast, kMost);
}
inline int64_t nccl_message_stride(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

}  // namespace mtl
