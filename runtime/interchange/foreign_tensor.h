// A tensor as somebody else's files have it, and which parts of our parameters it holds. A format
// is a table of these; import reads by it, export writes by it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/checkpoint/rectangles.h"
#include "runtime/interchange/foreign_weights.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

struct ForeignPart {
  size_t row = 0;  // of shard_table(shape, false)
  Rect rect;       // of the parameter
  // In the tensor, in its axes. Where these are more than the parameter's, the part lies at one
  // index of each of the first (the experts of gpt-oss).
  Dims at;
  // From one row of the part to the next, along the axis of the tensor that the rows follow.
  int64_t step = 1;
  bool transposed = false;
  float plus = 0;  // the parameter's values are those of the tensor and this
};

struct ForeignTensor {
  std::string name;  // in the files
  Dims shape;
  std::vector<ForeignPart> parts;
  bool replicated = false;  // over TP, where the files are those of ranks
  bool mxfp4 = false;       // in two tensors of bytes (hf_mxfp4.h); import only
};

// The part as a tensor of its own, of a tensor as the files have it.
StridedTensor view_of(const ForeignPart& part, StridedTensor tensor);

// The tensor as others whose values follow each other in it: one for each index of the first axis
// where there are three axes, or else the whole. No part is in two of them.
std::vector<ForeignTensor> slices_of(const ForeignTensor& tensor);

// Its values, of parameters as `read` has them; 0 where there are none.
std::vector<float> assemble(const ForeignTensor& tensor, const std::vector<ParamRow>& table,
                            const std::function<std::vector<float>(const ParamRow&)>& read);

}  // namespace mtl
