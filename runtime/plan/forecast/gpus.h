// The catalogue of GPUs: what a model of GPU can do at most, by the name that CUDA reports for it.
// Peaks are dense (no structured sparsity) with f32 sums, and what the vendor's data sheet says at
// its boost clock: the yardstick of `mfu`, and of plans for machines that are not at hand.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/dtype.h"

namespace mtl {

struct GpuModel {
  std::string name;          // as CUDA reports it: "NVIDIA H200"
  std::string alias;         // as people type it: "h200"
  int major = 0, minor = 0;  // compute capability
  double memory_bytes = 0;   // of the device, as sold (GB, not GiB)
  double memory_rate = 0;    // bytes/s
  double nvlink_rate = 0;    // bytes/s, both directions together; 0 = none
  double host_rate = 0;      // bytes/s and direction: 16 lanes of its PCIe
  // FLOP/s; fp8 = 0: the model has none. f32: without TF32.
  double bf16 = 0, fp16 = 0, fp8 = 0, fp32 = 0;
};

std::span<const GpuModel> gpu_catalogue();
// By either name, whatever the case, with or without "NVIDIA"; null if there is none. Names that
// only begin alike are others ("NVIDIA GeForce RTX 4090 Laptop GPU").
const GpuModel* find_gpu(std::string_view name);
// Of matrix products of this type; 0 for a type that models are not computed in.
double peak_flops(const GpuModel& gpu, DType dtype);

}  // namespace mtl
