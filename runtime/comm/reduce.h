// The arithmetic of a reduction over ranks, shared by the transports of CPU memory: always in rank
// order, so that every rank and every transport gets the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/comm/communicator.h"

namespace mtl {

bool reducible(DType dtype);

// outputs[k][i] = ((inputs[0][i] + inputs[1][i]) + inputs[2][i]) + ... for every k (or the maximum;
// NaN wins). bf16 and f16 are summed in f32 and rounded once, to nearest even; i32 wraps. An output
// may be an input (the same address), else they do not overlap.
void reduce_in_order(DType dtype, Reduce op, std::span<const void* const> inputs,
                     std::span<void* const> outputs, int64_t numel);

}  // namespace mtl
