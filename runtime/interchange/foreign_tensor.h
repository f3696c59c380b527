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
  Dims at;         // in the tensor, in its axes
  // Rows of the tensor from one of the part to the next; 1 where it is transposed.
  int64_t row_step = 1;
  bool transposed = false;
  float plus = 0;  // the parameter's values are those of the tensor and this
};

struct ForeignTensor {
  std::string name;  // in the files
  Dims shape;
  std::vector<ForeignPart> parts;
  bool replicated = false;  // over TP, where the files are those of ranks
};

// The part as a tensor of its own, of a tensor as the files have it.
StridedTensor view_of(const ForeignPart& part, StridedTensor tensor);

// Its values, of parameters as `read` has them; 0 where there are none.
std::vector<float> assemble(const ForeignTensor& tensor, const std::vector<ParamRow>& table,
                            const std::function<std::vector<float>(const ParamRow&)>& read);

}  // namespace mtl
