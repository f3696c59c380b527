#include "ptx/tensor_cores.h"

namespace mtl::ptx {

Handler find_tensor_cores(const Opcode& opcode, Instruction& instruction) {
  if (const Handler found = find_warp_products(opcode, instruction)) return found;
  return find_group_products(opcode, instruction);
}

}  // namespace mtl::ptx
