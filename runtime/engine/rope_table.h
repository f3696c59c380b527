// The tables of rotary positions.
#pragma once

#include <vector>

#include "runtime/device/device.h"
#include "runtime/model/context.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

// [positions, rotary_dim], row by row: cos(position * frequency) of the rotary_dim / 2 frequencies
// (rope_frequencies), then their sin, both times rope_amplitude. Rounded once, from double.
// `longest`: tokens of the longest text.
std::vector<float> rope_table(const ModelShape& shape, int64_t positions, int64_t longest);

// Fills those that the plan has (kRopeTable, kWindowRopeTable).
void fill_rope_tables(const Arena& arena, Device& device, const ModelShape& shape,
                      int64_t positions, int64_t longest);

}  // namespace mtl
