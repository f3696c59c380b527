#include "runtime/device/cuda/attention_trial.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <vector>

namespace mtl::cuda {

namespace {

class DeviceTensor {
 public:
  DeviceTensor(Device& device, DType dtype, std::vector<int64_t> shape) : device_(device) {
    view = Tensor(nullptr, dtype, shape);
    view.data = device.allocate(static_cast<size_t>(view.bytes()));
  }
  ~DeviceTensor() { device_.free(view.data); }
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;

  std::vector<char> bytes() const {
    std::vector<char> host(static_cast<size_t>(view.bytes()));
    device_.copy_to_host(host.data(), view);
    return host;
  }
  Tensor view;

 private:
  Device& device_;
};

float value_of(const std::vector<char>& bytes, DType dtype, size_t i) {
  if (dtype == DType::f32) return reinterpret_cast<const float*>(bytes.data())[i];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(bytes.data())[i];
  if (dtype == DType::f16) return static_cast<float>(std::bit_cast<_Float16>(bits));
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// |a - b| / |a|
double distance(const std::vector<char>& a, const std::vector<char>& b, DType dtype) {
  double apart = 0, size = 0;
  const size_t count = a.size() / static_cast<size_t>(bytes_of(dtype));
  for (size_t i = 0; i < count; ++i) {
    const double x = static_cast<double>(value_of(a, dtype, i));
    const double y = static_cast<double>(value_of(b, dtype, i));
    apart += (x - y) * (x - y);
    size += x * x;
  }
  return std::sqrt(apart / std::max(size, 1e-30));
}

double largest_difference(const std::vector<char>& a, const std::vector<char>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size() / sizeof(float); ++i) {
    const double apart = std::abs(static_cast<double>(value_of(a, DType::f32, i)) -
                                  static_cast<double>(value_of(b, DType::f32, i)));
    if (!(apart <= largest)) largest = apart;  // a NaN stays
    if (std::isnan(largest)) break;
  }
  return largest;
}

// Between -2 and 2, in an order that does not repeat with any tensor's rows.
void fill_random(Device& device, const Tensor& x, uint64_t seed) {
  constexpr int64_t kPeriod = 1'000'003;
  std::vector<float> values(static_cast<size_t>(std::min(kPeriod, x.numel())));
  for (float& value : values) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    value = static_cast<float>(static_cast<int64_t>(seed >> 40) - (1 << 23)) * 0x1p-22f;
  }
  const DeviceTensor wide(device, DType::f32, {static_cast<int64_t>(values.size())});
  device.copy_from_host(wide.view, values.data());
  for (int64_t first = 0; first < x.numel(); first += kPeriod) {
    const int64_t count = std::min(kPeriod, x.numel() - first);
    const Tensor flat(x.data, x.dtype, {x.numel()});
    device.cast(wide.view.slice(0, count), flat.slice(first, count));
  }
}

}  // namespace

AttentionTrial try_attention(Device& device, const AttentionForm& form, const AttentionKernel& own,
                             const AttentionKernel& other) {
  const int64_t rows = form.batch * form.seq;
  const DeviceTensor qkv(device, form.dtype, {rows, form.row()});
  const DeviceTensor dout(device, form.dtype, {rows, form.out_width()});
  const DeviceTensor out(device, form.dtype, {rows, form.out_width()});
  const DeviceTensor lse(device, DType::f32, {form.batch, form.heads, form.seq});
  const DeviceTensor dqkv(device, form.dtype, {rows, form.row()});
  fill_random(device, qkv.view, 1);
  fill_random(device, dout.view, 2);
  AttentionShape shape;
  shape.batch = form.batch;
  shape.seq = form.seq;
  shape.heads = shape.total_heads = form.heads;
  shape.kv_heads = form.kv_heads;
  shape.head_dim = form.head_dim;
  shape.value_dim = form.value_dim;
  shape.scale = 1.0f / std::sqrt(static_cast<float>(form.head_dim));
  const Attention forward = {.shape = shape, .qkv = qkv.view, .out = out.view, .lse = lse.view};
  const AttentionBackward backward = {.shape = shape,
                                      .qkv = qkv.view,
                                      .out = out.view,
                                      .lse = lse.view,
                                      .dout = dout.view,
                                      .dqkv = dqkv.view};
  struct Result {
    std::vector<char> out, lse, gradient;
    double seconds = 0;
  };
  const auto run = [&](const AttentionKernel& kernel) {
    Result result;
    const auto once = [&] {
      kernel.forward(forward);
      kernel.backward(backward);
    };
    once();
    result.out = out.bytes();
    result.lse = lse.bytes();
    result.gradient = dqkv.bytes();
    // The first time builds what later ones reuse.
    constexpr int kRuns = 5;
    for (int i = 0; i < kRuns; ++i) {
      device.synchronize();
      const auto begin = std::chrono::steady_clock::now();
      once();
      device.synchronize();
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      result.seconds = i == 0 ? seconds : std::min(result.seconds, seconds);
    }
    return result;
  };
  const Result ours = run(own), theirs = run(other);
  AttentionTrial trial;
  trial.out_error = distance(ours.out, theirs.out, form.dtype);
  trial.lse_error = largest_difference(ours.lse, theirs.lse);
  trial.gradient_error = distance(ours.gradient, theirs.gradient, form.dtype);
  trial.repeats = dqkv.bytes() == theirs.gradient;  // theirs ran last, several times
  trial.own_seconds = ours.seconds;
  trial.cudnn_seconds = theirs.seconds;
  return trial;
}

}  // namespace mtl::cuda
