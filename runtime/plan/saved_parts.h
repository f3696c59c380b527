// Which replica (dp x cp) writes which parameter into a checkpoint, and what it has to copy
// for that when training goes on meanwhile.
#pragma once

#include <cstdint>

#include "runtime/plan/param_layout.h"
#include "runtime/plan/pipeline.h"

namespace mtl {

struct Plan;
struct StagePlan;

// Every replica holds the state of every parameter, and they take turns; with ZeRO each writes
// the part that it alone has.
bool replica_saves(const ParamLayout& layout, size_t param, int replicas, int replica);

// Bytes of the copy, of the rank of the stage that has most to write: masters and moments, f32,
// each parameter's aligned to kSnapshotAlign.
inline constexpr int64_t kSnapshotAlign = 64;
int64_t snapshot_bytes(const ParamLayout& layout, int replicas, int moments);

}  // namespace mtl
