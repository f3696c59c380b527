// What every device asks of a product in FP8 (Matmul in op_arguments.h).
#pragma once

#include <string>

#include "runtime/device/device.h"

namespace mtl {

// Whether it is one: then both operands have to be FP8.
inline bool is_float8_matmul(const Matmul& args) {
  return is_float8(args.a.dtype) || is_float8(args.b.dtype);
}

// What does not fit of types, forms and multiples; empty if everything does. The shapes fit each
// other.
std::string float8_misfit(const Matmul& args);

}  // namespace mtl
