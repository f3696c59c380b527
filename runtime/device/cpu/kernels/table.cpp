// The table of one instruction set, put together from the kernel sources.
#include "runtime/device/cpu/kernels/table.h"

#include "runtime/device/cpu/kernels/parts.h"

namespace mtl::kernels::MTL_ISA {

VectorKernels table() {
  VectorKernels table = {};
  add_elementwise_kernels(table);
  add_float8_kernels(table);
  add_norm_kernels(table);
  add_head_norm_kernels(table);
  add_wide_norm_kernels(table);
  add_rotary_kernels(table);
  add_activation_kernels(table);
  add_expert_kernels(table);
  add_position_kernels(table);
  add_cross_entropy_kernels(table);
  add_optimizer_kernels(table);
  return table;
}

}  // namespace mtl::kernels::MTL_ISA
