// A view of device memory: pointer, element type, row-major shape. It owns nothing (the arena does)
// and never allocates.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "common/dtype.h"

namespace mtl {

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<int64_t, 4> dims = {1, 1, 1, 1};

  Tensor() = default;
  Tensor(void* data_, DType dtype_, std::initializer_list<int64_t> shape)
      : Tensor(data_, dtype_, std::span<const int64_t>(shape.begin(), shape.size())) {}
  Tensor(void* data_, DType dtype_, std::span<const int64_t> shape)
      : data(data_), dtype(dtype_), rank(static_cast<int>(shape.size())) {
    assert(shape.size() <= dims.size());
    for (size_t i = 0; i < shape.size(); ++i) dims[i] = shape[i];
  }

  explicit operator bool() const { return data != nullptr; }
  int64_t dim(int i) const { return dims[static_cast<size_t>(i)]; }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dim(i);
    return n;
  }
  // As a matrix: the last dimension is the columns, all others the rows.
  int64_t cols() const { return rank == 0 ? 1 : dim(rank - 1); }
  int64_t rows() const { return cols() == 0 ? 0 : numel() / cols(); }
  int64_t bytes() const { return numel() * bytes_of(dtype); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  // Where an element of the matrix lies.
  char* at(int64_t row, int64_t column) const {
    return static_cast<char*>(data) + (row * cols() + column) * bytes_of(dtype);
  }
  // `count` elements from element `first`, as a vector.
  Tensor slice(int64_t first, int64_t count) const {
    return Tensor(static_cast<char*>(data) + first * bytes_of(dtype), dtype, {count});
  }
  // `count` rows from row `first`, as a matrix.
  Tensor row_slice(int64_t first, int64_t count) const {
    return Tensor(slice(first * cols(), 0).data, dtype, {count, cols()});
  }
};

}  // namespace mtl
