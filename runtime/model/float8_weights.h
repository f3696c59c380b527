// The FP8 copies of the linears' weights (plan/float8.h), in both orientations: made again when
// the weights have changed, once per step and not per micro-batch. The scale of a weight that is
// split over TP is that of all its parts, so that it does not depend on the layout.
#pragma once

#include <map>
#include <vector>

#include "runtime/model/context.h"
#include "runtime/plan/schedule/pipeline.h"

namespace mtl {

// The copies of one weight; none where its products are not in FP8. `place`: as LocalLinear::slot.
struct Float8Weight {
  Float8Weight() = default;
  Float8Weight(const BlockContext& context, int64_t layer, const std::string& place);
  Tensor forward, backward;  // [out, in] and [in, out]
  Tensor inverse;            // of the scale, f32 [1]
  explicit operator bool() const { return static_cast<bool>(forward); }
};

class Float8Weights {
 public:
  // Of the layers of `chunks` that have such copies in the memory plan.
  Float8Weights(const BlockContext& context, const std::vector<ChunkRange>& chunks);
  // The weights have changed: no copy is right any more.
  void changed();
  // Before forward of a layer whose weights are complete. With TP, all its ranks call it in the
  // same order: a layer's largest values travel in one reduction.
  void prepare(int64_t layer);
  void prepare_all();

 private:
  struct Linear {
    Float8Weight copies;
    Tensor weight;
    bool out_in = false;
  };
  struct Layer {
    std::vector<Linear> linears;
    Tensor amax;  // f32, one per linear
  };
  void make(const Layer& layer) const;

  const BlockContext& context_;
  std::map<int64_t, Layer> layers_;
  // By where copies lie: the layer that they are of now. Layers may take turns with that memory.
  std::map<const void*, int64_t> made_;
};

}  // namespace mtl
