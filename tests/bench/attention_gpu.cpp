// Attention alone on one GPU: TFLOP/s forward and backward of each of our kernels and of cuDNN's,
// on the forms of usual models; DeepSeek's have values of 128 elements, Gemma's heads 256.
//   build/bench/attention_gpu [--tiny | --once] [KERNEL ...]
// Ends with 1 if a row could not be measured. --once measures nothing: it calls each once, on two
// of the forms, for a profiler that looks on. FLOPs are those of causal attention: a product of the
// lower triangle is batch heads dim seq^2, two of them forward and five backward (the two that some
// of ours compute again do not count). Medians over rounds of calls that the host waits for once.
// `own` is wgmma on Hopper, `split` the same with two kernels for backward, `mma` the kernel for
// every GPU.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/error.h"
#include "runtime/device/make_device.h"

using namespace mtl;

namespace {

using Clock = std::chrono::steady_clock;

struct Form {
  int64_t batch, seq, heads, kv_heads, head_dim;
  int64_t value_dim = head_dim;
};
constexpr Form kForms[] = {
    {32, 1024, 12, 12, 64},      {8, 1024, 25, 25, 64},         {4, 4096, 32, 8, 64},
    {8, 2048, 32, 32, 96},       {8, 1024, 32, 8, 128},         {4, 2048, 32, 8, 128},
    {2, 4096, 32, 8, 128},       {1, 8192, 32, 32, 128},        {2, 8192, 32, 8, 128},
    {4, 4096, 16, 16, 192, 128}, {1, 4096, 128, 128, 192, 128}, {2, 4096, 8, 4, 256}};
constexpr Form kTiny[] = {{1, 64, 2, 1, 64}, {1, 64, 2, 2, 192, 128}};
constexpr Form kOnce[] = {{32, 1024, 12, 12, 64}, {2, 8192, 32, 8, 128}};

class Memory {
 public:
  Memory(Device& device, DType dtype, std::initializer_list<int64_t> shape)
      : view(nullptr, dtype, shape), device_(device) {
    view.data = device.allocate(static_cast<size_t>(view.bytes()));
  }
  ~Memory() { device_.free(view.data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Tensor view;

 private:
  Device& device_;
};

// Values of size 1 or so: zeros would cost less power, and so time. Some are drawn, and repeated.
void fill(Device& device, Tensor x) {
  static const std::vector<uint16_t> drawn = [] {
    std::vector<uint16_t> values(1 << 20);
    uint32_t state = 1;
    for (uint16_t& value : values) {
      state = state * 1664525 + 1013904223;
      value = static_cast<uint16_t>(0x3f00 | (state >> 16 & 0x80ff));  // bf16 in 0.5 .. 2, any sign
    }
    return values;
  }();
  const auto some = static_cast<int64_t>(drawn.size());
  for (int64_t first = 0; first < x.numel(); first += some) {
    device.copy_from_host(x.slice(first, std::min(some, x.numel() - first)), drawn.data());
  }
}

// Seconds of one call: the median of some rounds, or the first call's.
template <class Call>
double seconds_of(Device& device, bool once, Call call) {
  const auto round = [&](int calls) {
    device.synchronize();
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    device.synchronize();
    return std::chrono::duration<double>(Clock::now() - begin).count() / calls;
  };
  if (once) return round(1);
  round(1);
  const int calls = std::clamp(static_cast<int>(0.01 / round(1)), 1, 100);
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) times.push_back(round(calls));
  std::nth_element(times.begin(), times.begin() + 3, times.end());
  return times[3];
}

void measure(const std::string& kernel, const Form& form, bool once) {
  setenv("MTL_ATTENTION", kernel.c_str(), 1);  // read when the device is opened
  MadeDevice made = make_device({});
  Device& device = *made.device;
  AttentionShape shape;
  shape.batch = form.batch;
  shape.seq = form.seq;
  shape.heads = form.heads;
  shape.kv_heads = form.kv_heads;
  shape.head_dim = form.head_dim;
  shape.value_dim = form.value_dim;
  shape.scale = 0.01f;
  const int64_t rows = form.batch * form.seq, wide = form.heads * form.value_dim,
                in = shape.qkv_width();
  const Memory qkv(device, DType::bf16, {rows, in}), dqkv(device, DType::bf16, {rows, in});
  const Memory out(device, DType::bf16, {rows, wide}), dout(device, DType::bf16, {rows, wide});
  const Memory lse(device, DType::f32, {form.batch * form.heads, form.seq});
  fill(device, qkv.view);
  fill(device, dout.view);
  const double forward = seconds_of(device, once, [&] {
    device.attention_forward({shape, qkv.view, out.view, lse.view});
  });
  const double backward = seconds_of(device, once, [&] {
    device.attention_backward({shape, qkv.view, out.view, lse.view, dout.view, dqkv.view});
  });
  const double product = static_cast<double>(form.batch * form.heads) *
                         static_cast<double>(form.seq) * static_cast<double>(form.seq);
  const auto keys = static_cast<double>(form.head_dim),
             values = static_cast<double>(form.value_dim);
  const double forward_flops = product * (keys + values);
  const double backward_flops = product * (3 * keys + 2 * values);
  fmt::print("{:>3} {:>6} {:>5} {:>3} {:>4}  {:6} {:9.3f} {:9.0f} {:9.3f} {:9.0f}\n", form.batch,
             form.seq, form.heads, form.kv_heads, form.head_dim, kernel, 1e3 * forward,
             forward_flops / forward / 1e12, 1e3 * backward, backward_flops / backward / 1e12);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  bool tiny = false, once = false;
  std::vector<std::string> kernels;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--tiny") {
      tiny = true;
    } else if (word == "--once") {
      once = true;
    } else {
      kernels.push_back(word);
    }
  }
  if (kernels.empty()) kernels = {"mma", "cudnn", "split", "own"};
  const std::span<const Form> forms = tiny   ? std::span<const Form>(kTiny)
                                      : once ? std::span<const Form>(kOnce)
                                             : std::span<const Form>(kForms);
  int code = 0;
  try {
    fmt::print("{}\n", make_device({}).description());
  } catch (const Error& error) {
    fmt::print(stderr, "{}", error.what());
    return static_cast<int>(error.exit());
  }
  fmt::print("  B      T heads  kv  dim  kernel  fwd ms  fwd TF/s    bwd ms  bwd TF/s\n");
  for (const std::string& kernel : kernels) {
    for (const Form& form : forms) {
      try {
        measure(kernel, form, once);
      } catch (const Error& error) {
        fmt::print("{:>3} {:>6} {:>5} {:>3} {:>4}  {:6} not measured: {}\n", form.batch, form.seq,
                   form.heads, form.kv_heads, form.head_dim, kernel,
                   error.diagnostics().front().what);
        std::fflush(stdout);
        code = 1;
      }
    }
  }
  return code;
}
