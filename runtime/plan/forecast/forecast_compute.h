// Seconds of a layer and of the head on one rank.
#pragma once

#include "runtime/plan/forecast/forecast.h"

namespace mtl {

// Seconds by what limits them.
struct Work {
  double matmul = 0, attention = 0, memory_bound = 0;
  double sum() const { return matmul + attention + memory_bound; }
  Work& operator+=(const Work& other);
};
Work operator*(const Work& work, double times);

struct PassWork {
  Work forward, backward, again;  // again: what recompute forwards once more
  double later = 0;               // of backward: what ZB-H1 leaves for later
};

// The time of C[m, n] = A[m, k] B[k, n]. What a large product reaches (Cluster::matmul_share) falls
// with few tiles of 128 x 128 per multiprocessor (the last wave is partly empty) and with a short
// inner dimension (prologue and epilogue of a tile). `out_bytes`: moved per element of C; memory is
// read and written beside the computation.
double matmul_time(const Cluster& cluster, double m, double n, double k, bool fp8, DType compute,
                   double out_bytes);
double stream_time(const Cluster& cluster, double bytes);

// Of a layer in FP8 where the layout has such; of its others by `layout` without. `parts`: what the
// layer makes again, where the layout makes no whole layers again.
PassWork layer_work(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                    const Software& software, const PartsAgain& parts);
PassWork head_work(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                   const Software& software);
Work embedding_work(const Workload& work, const LayoutChoice& layout, const Cluster& cluster);

}  // namespace mtl
