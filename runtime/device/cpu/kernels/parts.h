// What each kernel source contributes to the table of its instruction set.
#pragma once

#include "runtime/device/cpu/kernels/table.h"

namespace mtl::kernels::MTL_ISA {

void add_elementwise_kernels(VectorKernels& table);
void add_float8_kernels(VectorKernels& table);
void add_norm_kernels(VectorKernels& table);
void add_head_norm_kernels(VectorKernels& table);
void add_wide_norm_kernels(VectorKernels& table);
void add_rotary_kernels(VectorKernels& table);
void add_activation_kernels(VectorKernels& table);
void add_expert_kernels(VectorKernels& table);
void add_position_kernels(VectorKernels& table);
void add_cross_entropy_kernels(VectorKernels& table);
void add_optimizer_kernels(VectorKernels& table);

}  // namespace mtl::kernels::MTL_ISA
