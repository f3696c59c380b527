#include "runtime/engine/masters.h"

#include <algorithm>
#include <vector>

#include "common/half_types.h"

namespace mtl {

namespace {

constexpr int64_t kAtOnce = int64_t{1} << 20;  // elements that are brought to the host

// Weights of 16 bits as f32, and back.
void read_rounded(Device& device, Tensor weights, float* to) {
  std::vector<uint16_t> half(static_cast<size_t>(std::min(weights.numel(), kAtOnce)));
  for (int64_t at = 0; at < weights.numel(); at += kAtOnce) {
    const int64_t count = std::min(weights.numel() - at, kAtOnce);
    device.copy_to_host(half.data(), weights.slice(at, count));
    widen(weights.dtype, half.data(), count, to + at);
  }
}

void write_rounded(Device& device, Tensor weights, const float* from) {
  std::vector<uint16_t> half(static_cast<size_t>(std::min(weights.numel(), kAtOnce)));
  for (int64_t at = 0; at < weights.numel(); at += kAtOnce) {
    const int64_t count = std::min(weights.numel() - at, kAtOnce);
    narrow(weights.dtype, from + at, count, half.data());
    device.copy_from_host(weights.slice(at, count), half.data());
  }
}

}  // namespace

void Masters::read(Device& device, int64_t at, int64_t n, float* to) const {
  if (whole) return device.copy_to_host(to, whole.slice(at, n));
  if (!rests) return read_rounded(device, weights.slice(at, n), to);
  std::vector<uint16_t> upper(static_cast<size_t>(std::min(n, kAtOnce))), lower(upper.size());
  for (; n > 0; at += kAtOnce, to += kAtOnce, n -= kAtOnce) {
    const int64_t count = std::min(n, kAtOnce);
    device.copy_to_host(upper.data(), weights.slice(at, count));
    device.copy_to_host(lower.data(), rests.slice(at, count));
    for (int64_t i = 0; i < count; ++i) {
      to[i] = f32_of_parts({upper[static_cast<size_t>(i)], lower[static_cast<size_t>(i)]});
    }
  }
}

void Masters::write(Device& device, int64_t at, int64_t n, const float* from) const {
  if (whole) return device.copy_from_host(whole.slice(at, n), from);
  if (!rests) return write_rounded(device, weights.slice(at, n), from);
  std::vector<uint16_t> upper(static_cast<size_t>(std::min(n, kAtOnce))), lower(upper.size());
  for (; n > 0; at += kAtOnce, from += kAtOnce, n -= kAtOnce) {
    const int64_t count = std::min(n, kAtOnce);
    for (int64_t i = 0; i < count; ++i) {
      const F32Parts parts = parts_of_f32(from[i]);
      upper[static_cast<size_t>(i)] = parts.bf16;
      lower[static_cast<size_t>(i)] = parts.rest;
    }
    device.copy_from_host(weights.slice(at, count), upper.data());
    device.copy_from_host(rests.slice(at, count), lower.data());
  }
}

}  // namespace mtl
