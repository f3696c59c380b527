// What a product multiplies: memory of a GPU with random values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <cuda_runtime_api.h>
#include <map>
#include <vector>

#include "runtime/device/cuda/cuda_errors.h"
#include "runtime/device/cuda/matmul_plan.h"

namespace mtl::bench {

class GpuMemory {
 public:
  explicit GpuMemory(int64_t bytes) {
    if (bytes > 0) cuda::check(cudaMalloc(&data_, static_cast<size_t>(bytes)), "memory");
  }
  ~GpuMemory() { cudaFree(data_); }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

inline void copy_bytes(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "filling memory");
}

// Values of about 1, of any sign: zeros would cost less power, and so time. Some are made by the
// host and repeated by the GPU.
inline void fill(const Tensor& x, void* to, cudaStream_t stream) {
  constexpr size_t kPiece = size_t{16} << 20;
  static std::map<DType, std::vector<char>> pieces;
  std::vector<char>& piece = pieces[x.dtype];
  if (piece.empty()) {
    piece.resize(kPiece);
    uint32_t state = 1;
    for (size_t i = 0; i + 4 <= kPiece; i += 4) {
      state = state * 1664525 + 1013904223;
      const uint32_t mixed = state ^ state >> 15;
      uint32_t word = 0;
      switch (x.dtype) {
        case DType::bf16:
          word = 0x3f003f00 | (mixed & 0x80ff80ff);
          break;
        case DType::f8_e4m3:
          word = 0x30303030 | (mixed & 0x8f8f8f8f);
          break;
        case DType::f8_e5m2:
          word = 0x38383838 | (mixed & 0x87878787);
          break;
        default:
          word = 0x3f000000 | (mixed & 0x80ffffff);
      }
      std::memcpy(piece.data() + i, &word, 4);
    }
  }
  const auto bytes = static_cast<size_t>(x.bytes());
  char* const memory = static_cast<char*>(to);
  size_t done = std::min(kPiece, bytes);
  copy_bytes(memory, piece.data(), done, stream);
  for (; done < bytes; done = std::min(bytes, 2 * done)) {
    copy_bytes(memory + done, memory, std::min(done, bytes - done), stream);
  }
}

struct ProductOperands {
  ProductOperands(const Matmul& args, cudaStream_t stream)
      : a(args.a.bytes()),
        b(args.b.bytes()),
        c(args.c.bytes()),
        scale(256),
        bias(args.bias ? args.bias.bytes() : 0),
        aux(args.aux ? args.aux.bytes() : 0) {
    fill(args.a, a.data(), stream);
    fill(args.b, b.data(), stream);
    fill(args.c, c.data(), stream);
    if (args.bias) fill(args.bias, bias.data(), stream);
    if (args.aux) fill(args.aux, aux.data(), stream);
    const float one = 1;
    copy_bytes(scale.data(), &one, sizeof one, stream);
    cuda::check(cudaStreamSynchronize(stream), "filling memory");
  }
  // `sums`: to where an operand is summed.
  cuda::LtOperands of(const cuda::MatmulPlan& plan, const Matmul& args,
                      void* sums = nullptr) const {
    void* const scales = args.scale_a ? scale.data() : nullptr;
    return {.first = b.data(),
            .second = a.data(),
            .result = c.data(),
            .bias = plan.bias_in_gemm ? bias.data() : sums,
            .aux = plan.gemm.ld_aux > 0 ? aux.data() : nullptr,
            .scale_first = scales,
            .scale_second = scales};
  }
  GpuMemory a, b, c, scale, bias, aux;
};

}  // namespace mtl::bench
