// The weights of a model that somebody else wrote, as parameters of ours: each is tiled by pieces,
// and a piece is a strided view into a file. That is enough for every format here: a whole tensor,
// a tensor-parallel shard, the rows of one head in a fused projection, a matrix to be transposed,
// one expert of many in a tensor, 4-bit floats with scales.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/dtype.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/rectangles.h"
#include "runtime/interchange/mapped_file.h"

namespace mtl {

// A tensor in a file: element [i, j, ...] is at byte_offset + (i * strides[0] + ...) * element.
struct StridedTensor {
  std::shared_ptr<const MappedFile> file;
  DType dtype = DType::f32;  // f32, bf16, f16, f64, or u8 with scales
  int64_t byte_offset = 0;
  Dims shape;
  Dims strides;  // elements
  // MXFP4 (Open Compute Project's MX formats 1.0): an element is half a byte, the lower half first,
  // and each 32 that lie beside each other have a byte here, which is the exponent of their scale.
  // The first element begins such a group.
  struct Scales {
    std::shared_ptr<const MappedFile> file;
    int64_t byte_offset = 0;
  };
  std::optional<Scales> scales = {};

  // The tensor begins that many elements later; with scales, whole groups.
  void skip(int64_t elements);
};
inline constexpr int64_t kMxGroup = 32;  // elements that share a scale
// The dtype of a safetensors name, if it is a floating-point number that is known here.
bool float_dtype(std::string_view name, DType& dtype);
// Row-major strides.
Dims contiguous_strides(const Dims& shape);
// How far the last element is from the first; nothing if a stride is negative or that is beyond
// 2^60. `shape` has elements.
std::optional<int64_t> last_element(const Dims& shape, const Dims& strides);

// The part `rect` of a parameter lies at `at` in `source`; with `transposed`, its two axes are
// swapped there. Values are those of the source, plus `plus`.
struct WeightPiece {
  Rect rect;
  StridedTensor source;
  Dims at;
  bool transposed = false;
  float plus = 0;
};

class ForeignWeights {
 public:
  // Throws Error (Exit::data) import.tensor unless the piece lies inside parameter and source, and
  // the source inside its file.
  void add(const std::string& parameter, const Dims& shape, WeightPiece piece);
  // Every parameter is covered exactly, or Error import.tensor.
  void check_tiling() const;
  // As CheckpointReader::read, of f32. The global shape may have fewer rows than there are (a
  // vocabulary without its padding). Error import.tensor also for numbers that are not finite.
  void read(CheckpointTensor& tensor) const;

 private:
  struct Parameter {
    Dims shape;
    std::vector<WeightPiece> pieces;
  };
  std::map<std::string, Parameter> parameters_;
};

}  // namespace mtl
