// What the lanes of a warp of the emulated GPU bring to each other: shuffles, votes, barriers.
// Lanes may be at different exchanges (their masks may differ), so each result stays until all its
// readers have come to their next.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "support/gpu_on_host.h"

namespace mtl::gpu_on_host {

class WarpExchange {
 public:
  // `present`: the lanes that there are.
  void begin(unsigned present) {
    present_ = present;
    waiting_ = 0;
    std::fill(reads_, reads_ + 32, -1);
    std::fill(readers_, readers_ + 33, 0);
  }

  // A lane comes to an exchange of those that `mask` names. True: it is the last of them, and all
  // may read the result.
  bool bring(unsigned lane, unsigned mask, const void* mine, size_t bytes) {
    if ((mask >> lane & 1) == 0) {
      throw std::runtime_error("a warp operation whose mask does not name the lane that calls it");
    }
    if ((mask & ~present_) != 0) {
      throw std::runtime_error("a warp operation names a lane that is not there");
    }
    if (reads_[lane] >= 0) readers_[reads_[lane]] &= ~(1u << lane);
    if (bytes > 0) std::memcpy(brought_ + lane * kLaneBytes, mine, bytes);
    masks_[lane] = mask;
    waiting_ |= 1u << lane;
    if (!complete(mask)) return false;
    make_result(mask, bytes);
    waiting_ &= ~mask;
    return true;
  }
  // Of the exchange that a lane came to last.
  unsigned char* result_of(unsigned lane) { return results_[reads_[lane]]; }

 private:
  bool complete(unsigned mask) const {
    if ((waiting_ & mask) != mask) return false;
    for (unsigned left = mask; left != 0; left &= left - 1) {
      if (masks_[std::countr_zero(left)] != mask) return false;
    }
    return true;
  }
  void make_result(unsigned mask, size_t bytes) {
    int free = 0;  // one of 33: 32 lanes read at most 32 others
    while (readers_[free] != 0) ++free;
    readers_[free] = mask;
    for (unsigned left = mask; left != 0; left &= left - 1) {
      const auto lane = static_cast<size_t>(std::countr_zero(left));
      reads_[lane] = free;
      if (bytes == 0) continue;
      std::memcpy(results_[free] + lane * kLaneBytes, brought_ + lane * kLaneBytes, bytes);
    }
  }

  unsigned char brought_[32 * kLaneBytes];
  unsigned char results_[33][32 * kLaneBytes];
  unsigned readers_[33];
  int reads_[32];       // the result that a lane may still read; -1: none
  unsigned masks_[32];  // of the exchange that a lane is at
  unsigned present_ = 0, waiting_ = 0;
};

}  // namespace mtl::gpu_on_host
