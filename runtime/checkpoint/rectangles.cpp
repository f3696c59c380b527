// Rectangle arithmetic (rectangles.h).
#include "runtime/checkpoint/rectangles.h"

#include <algorithm>

#include <fmt/format.h>

namespace mtl {

std::optional<int64_t> volume(const Dims& extent) {
  constexpr int64_t kLimit = int64_t{1} << 62;
  int64_t product = 1;
  bool empty = false;
  for (const int64_t n : extent) {
    if (n < 0) return std::nullopt;
    empty = empty || n == 0;
  }
  if (empty) return 0;
  for (const int64_t n : extent) {
    if (n > kLimit / product) return std::nullopt;
    product *= n;
  }
  return product;
}

bool inside(const Rect& rect, const Dims& shape) {
  if (rect.offset.size() != shape.size() || rect.extent.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (rect.offset[d] < 0 || rect.extent[d] < 0 || rect.extent[d] > shape[d] ||
        rect.offset[d] > shape[d] - rect.extent[d]) {
      return false;
    }
  }
  return true;
}

std::optional<Rect> intersection(const Rect& a, const Rect& b) {
  Rect common;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
    if (begin >= end) return std::nullopt;
    common.offset.push_back(begin);
    common.extent.push_back(end - begin);
  }
  return common;
}

std::optional<Rect> first_hole(const Dims& shape, const std::vector<Rect>& rects) {
  if (volume(shape).value_or(0) == 0) return std::nullopt;
  std::vector<Rect> left = {{Dims(shape.size(), 0), shape}};
  for (const Rect& rect : rects) {
    std::vector<Rect> still_left;
    for (Rect& piece : left) {
      const auto common = intersection(piece, rect);
      if (!common) {
        still_left.push_back(std::move(piece));
        continue;
      }
      // Cuts off what lies before and behind `common`, axis by axis, until only `common` is left.
      for (size_t d = 0; d < shape.size(); ++d) {
        const int64_t begin = common->offset[d];
        const int64_t end = begin + common->extent[d];
        if (piece.offset[d] < begin) {
          still_left.push_back(piece);
          still_left.back().extent[d] = begin - piece.offset[d];
        }
        if (piece.offset[d] + piece.extent[d] > end) {
          still_left.push_back(piece);
          still_left.back().offset[d] = end;
          still_left.back().extent[d] = piece.offset[d] + piece.extent[d] - end;
        }
        piece.offset[d] = begin;
        piece.extent[d] = end - begin;
      }
    }
    left = std::move(still_left);
  }
  const auto first = std::min_element(
      left.begin(), left.end(), [](const Rect& a, const Rect& b) { return a.offset < b.offset; });
  return first == left.end() ? std::nullopt : std::optional(*first);
}

std::string to_string(const Dims& dims) {
  return fmt::format("[{}]", fmt::join(dims, ", "));
}

std::string to_string(const Rect& rect) {
  std::string text = "[";
  for (size_t d = 0; d < rect.offset.size(); ++d) {
    text += fmt::format("{}{}:{}", d ? ", " : "", rect.offset[d], rect.offset[d] + rect.extent[d]);
  }
  return text + "]";
}

RunCursor::RunCursor(const Dims& a_shape, const Dims& a_offset, const Dims& b_shape,
                     const Dims& b_offset, const Dims& extent) {
  int64_t a_stride = 1;
  int64_t b_stride = 1;
  bool contiguous = true;  // so far, from the last axis on
  for (size_t d = extent.size(); d-- > 0;) {
    a_ += a_offset[d] * a_stride;
    b_ += b_offset[d] * b_stride;
    if (contiguous) {
      length_ *= extent[d];
    } else if (extent[d] != 1) {
      axes_.push_back({extent[d], a_stride, b_stride, 0});
      left_ *= extent[d];
    }
    // The next axis out continues a run only if this one is whole in both tensors.
    contiguous = contiguous && extent[d] == a_shape[d] && extent[d] == b_shape[d];
    a_stride *= a_shape[d];
    b_stride *= b_shape[d];
  }
  if (length_ == 0) left_ = 0;
}

void RunCursor::next() {
  --left_;
  for (Axis& axis : axes_) {
    a_ += axis.a_stride;
    b_ += axis.b_stride;
    if (++axis.index < axis.extent) return;
    a_ -= axis.a_stride * axis.extent;
    b_ -= axis.b_stride * axis.extent;
    axis.index = 0;
  }
}

}  // namespace mtl
