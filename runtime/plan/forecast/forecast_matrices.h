// What Muon's matrices (matrices.h) come to, from a model's shape alone.
#pragma once

#include <vector>

#include "runtime/plan/forecast/forecast.h"

namespace mtl {

struct StageMatrices {
  // Elements of a rank, whatever ZeRO divides; experts that EP divides apart.
  double dense = 0, experts = 0;
  // Elements of all that its update takes beside them at a time, as MatrixNeeds has them.
  double scratch = 0;
  double sum() const { return dense + experts; }
};
StageMatrices stage_matrices(const Workload& work, const LayoutChoice& layout,
                             const std::vector<ChunkRange>& chunks);

// Seconds of a step that the stage's matrices are orthogonalized in and travel; `bytes`: what a
// rank sends meanwhile.
struct MatrixTime {
  double seconds = 0, bytes = 0;
};
MatrixTime matrix_time(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                       const std::vector<ChunkRange>& chunks);

}  // namespace mtl
