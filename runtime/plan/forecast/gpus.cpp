#include "runtime/plan/forecast/gpus.h"

#include <vector>

#include "common/text.h"

namespace mtl {

namespace {

constexpr double kBytesPerGb = 1e9, kTera = 1e12;

// In the units of the data sheets: GB, GB/s, TFLOP/s.
struct GpuRow {
  const char *name, *alias;
  int major, minor;
  double memory, rate, nvlink, bf16, fp8, fp32;
};

// Sources: NVIDIA's data sheets of each model (A100 80GB: 2021-06; H100: 2022-10 and the table of
// the H100 NVL; H200: 2024-11; DGX B200: 2024-03, an eighth; L40S: 2023-08; A10: 2021-04; L4:
// 2023-03) and, for GeForce and RTX PRO, the appendices of the Ada (2022-09), RTX Blackwell
// (2025-01) and RTX Blackwell PRO (2025-03) architecture papers. Figures "with sparsity" are
// halved. A data sheet gives bf16 and fp16 one number. GeForce: with f32 sums, half of what its
// multiprocessors do with f16 sums.
constexpr GpuRow kGpuRows[] = {
    // name, alias, capability, GB, GB/s, NVLink GB/s, bf16, fp8, fp32
    {"NVIDIA A100-SXM4-40GB", "a100-40gb", 8, 0, 40, 1555, 600, 312, 0, 19.5},
    {"NVIDIA A100-SXM4-80GB", "a100", 8, 0, 80, 2039, 600, 312, 0, 19.5},
    {"NVIDIA A100-PCIE-40GB", "a100-pcie-40gb", 8, 0, 40, 1555, 600, 312, 0, 19.5},
    {"NVIDIA A100 80GB PCIe", "a100-pcie", 8, 0, 80, 1935, 600, 312, 0, 19.5},
    {"NVIDIA A10", "a10", 8, 6, 24, 600, 0, 125, 0, 31.2},
    {"NVIDIA L4", "l4", 8, 9, 24, 300, 0, 121, 242.5, 30.3},
    {"NVIDIA L40S", "l40s", 8, 9, 48, 864, 0, 362, 733, 91.6},
    {"NVIDIA GeForce RTX 4090", "rtx4090", 8, 9, 24, 1008, 0, 165.2, 330.3, 82.6},
    {"NVIDIA H100 80GB HBM3", "h100", 9, 0, 80, 3350, 900, 989.4, 1978.9, 66.9},
    {"NVIDIA H100 PCIe", "h100-pcie", 9, 0, 80, 2039, 600, 756, 1513, 51.2},
    {"NVIDIA H100 NVL", "h100-nvl", 9, 0, 94, 3938, 600, 835, 1671, 60},
    {"NVIDIA H200", "h200", 9, 0, 141, 4800, 900, 989.4, 1978.9, 66.9},
    {"NVIDIA H200 NVL", "h200-nvl", 9, 0, 141, 4800, 900, 836, 1671, 60},
    {"NVIDIA B200", "b200", 10, 0, 180, 8000, 1800, 2250, 4500, 75},
    {"NVIDIA GeForce RTX 5090", "rtx5090", 12, 0, 32, 1792, 0, 209.5, 419, 104.8},
    {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000", 12, 0, 96, 1792, 0, 503.8,
     1007.6, 125},
};

// Of 16 lanes, 128 bits in 130: PCIe 5.0 (32 GT/s) from Hopper on, 4.0 before.
double host_rate(int major) {
  return (major >= 9 ? 32e9 : 16e9) * 16 / 8 * 128 / 130;
}

std::vector<GpuModel> make_catalogue() {
  std::vector<GpuModel> all;
  for (const GpuRow& row : kGpuRows) {
    GpuModel gpu;
    gpu.name = row.name;
    gpu.alias = row.alias;
    gpu.major = row.major;
    gpu.minor = row.minor;
    gpu.memory_bytes = row.memory * kBytesPerGb;
    gpu.memory_rate = row.rate * kBytesPerGb;
    gpu.nvlink_rate = row.nvlink * kBytesPerGb;
    gpu.host_rate = host_rate(row.major);
    gpu.bf16 = gpu.fp16 = row.bf16 * kTera;
    gpu.fp8 = row.fp8 * kTera;
    gpu.fp32 = row.fp32 * kTera;
    all.push_back(gpu);
  }
  return all;
}

std::string plain(std::string_view name) {
  const std::string text = lower(name);
  constexpr std::string_view kVendor = "nvidia ";
  return text.starts_with(kVendor) ? text.substr(kVendor.size()) : text;
}

}  // namespace

std::span<const GpuModel> gpu_catalogue() {
  static const std::vector<GpuModel> all = make_catalogue();
  return all;
}

const GpuModel* find_gpu(std::string_view name) {
  const std::string wanted = plain(name);
  for (const GpuModel& gpu : gpu_catalogue()) {
    if (plain(gpu.name) == wanted || gpu.alias == wanted) return &gpu;
  }
  return nullptr;
}

double peak_flops(const GpuModel& gpu, DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return gpu.bf16;
    case DType::f16:
      return gpu.fp16;
    case DType::f32:
      return gpu.fp32;
    case DType::f64:
    case DType::i32:
    case DType::u8:
    case DType::u16:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      return 0;
  }
  return 0;
}

}  // namespace mtl
