// Which of the ranks that hold a parameter writes it into a checkpoint, and what a rank has to copy
// for that when training goes on meanwhile.
#pragma once

#include <cstdint>

#include "runtime/plan/grid.h"
#include "runtime/plan/memory/memory.h"
#include "runtime/plan/param_layout.h"

namespace mtl {

// All of them hold the state of every parameter, and they take turns; with ZeRO each writes the
// part that it alone has, and where there are copies of it, these take turns.
bool rank_saves(const ParamLayout& layout, size_t param, const Holders& holders);

// Bytes of the copy, of the rank of the stage that has most to write: masters and moments, f32,
// each parameter's aligned to kSnapshotAlign.
inline constexpr int64_t kSnapshotAlign = 64;
int64_t snapshot_bytes(const ParamLayout& layout, const std::vector<ParamRow>& table,
                       const Grid& grid, OptimizerKind optimizer);

}  // namespace mtl
