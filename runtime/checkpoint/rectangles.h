// Rectangles of row-major tensors of any number of dimensions: what two have in common, and how to
// walk one that lies in two tensors at once. Loading any layout from any layout is nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mtl {

using Dims = std::vector<int64_t>;

struct Rect {
  Dims offset;
  Dims extent;
};

// The product of `extent` (1 for no dimensions); nothing if one is negative or the product exceeds
// 2^62.
std::optional<int64_t> volume(const Dims& extent);
// Of the same number of dimensions as `shape`, and inside it. Does not overflow.
bool inside(const Rect& rect, const Dims& shape);
// What both cover; nothing if that is no element. Both are inside one shape.
std::optional<Rect> intersection(const Rect& a, const Rect& b);
// Some part of `shape` that no rectangle covers, the first in row-major order of its corner.
std::optional<Rect> first_hole(const Dims& shape, const std::vector<Rect>& rects);

// "[0, 128]"
std::string to_string(const Dims& dims);
// "[0:128, 64:96]"
std::string to_string(const Rect& rect);

// The contiguous runs, as long as possible, of a rectangle that lies at `a_offset` in a tensor of
// `a_shape` and at `b_offset` in one of `b_shape`, in ascending order in both.
class RunCursor {
 public:
  RunCursor(const Dims& a_shape, const Dims& a_offset, const Dims& b_shape, const Dims& b_offset,
            const Dims& extent);
  bool done() const { return left_ == 0; }
  int64_t a() const { return a_; }  // elements from the start of the tensor
  int64_t b() const { return b_; }
  int64_t length() const { return length_; }
  void next();

 private:
  struct Axis {
    int64_t extent, a_stride, b_stride, index;
  };
  std::vector<Axis> axes_;  // outside the runs; the fastest first
  int64_t a_ = 0;
  int64_t b_ = 0;
  int64_t length_ = 1;
  int64_t left_ = 1;  // runs, this one included
};

}  // namespace mtl
