#include "runtime/interchange/foreign_weights.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "common/half.h"
#include "runtime/checkpoint/elements.h"

namespace mtl {

namespace {

[[noreturn]] void bad_parameter(const std::string& parameter, const std::string& what) {
  throw Error(Exit::data, {.code = "import.tensor",
                           .what = fmt::format("'{}': {}", parameter, what),
                           .help = "the files are damaged or of another model than they say"});
}

template <class T>
T load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// NaN and infinity are the numbers whose exponent has all its bits.
int64_t count_not_finite(const float* values, int64_t count) {
  constexpr uint32_t kExponent = 0x7f800000;
  int64_t bad = 0;
  for (int64_t i = 0; i < count; ++i) {
    bad += (std::bit_cast<uint32_t>(values[i]) & kExponent) == kExponent;
  }
  return bad;
}

// `count` elements, `stride` bytes apart.
void convert(DType dtype, const char* from, int64_t stride, int64_t count, float* to) {
  switch (dtype) {
    case DType::bf16:
      for (int64_t i = 0; i < count; ++i, from += stride) {
        const uint32_t bits = uint32_t{load<uint16_t>(from)} << 16;
        std::memcpy(to + i, &bits, sizeof bits);
      }
      return;
    case DType::f16:
      for (int64_t i = 0; i < count; ++i, from += stride) {
        to[i] = f16_to_f32(load<uint16_t>(from));
      }
      return;
    case DType::f64:
      for (int64_t i = 0; i < count; ++i, from += stride) {
        to[i] = static_cast<float>(load<double>(from));
      }
      return;
    case DType::f32:
      if (stride == 4) {
        std::memcpy(to, from, static_cast<size_t>(count) * 4);
        return;
      }
      for (int64_t i = 0; i < count; ++i, from += stride) to[i] = load<float>(from);
      return;
    case DType::i32:
    case DType::u8:
    case DType::u16:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      break;
  }
}

// The numbers of 4 bits: a sign, two bits of exponent and one of mantissa.
constexpr std::array<float, 16> kFp4 = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                        -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// 2^(byte - 127), or NaN.
float mx_scale(uint8_t byte) {
  return byte == 0xff ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, byte - 127);
}

// `count` elements of MXFP4 from element `at` on, `stride` elements apart.
void convert_mxfp4(const StridedTensor& source, int64_t at, int64_t stride, int64_t count,
                   float* to) {
  const char* const blocks = source.file->bytes().data() + source.byte_offset;
  const char* const scales = source.scales->file->bytes().data() + source.scales->byte_offset;
  int64_t group = -1;
  float scale = 0;
  for (int64_t i = 0; i < count; ++i, at += stride) {
    if (at / kMxGroup != group) {
      group = at / kMxGroup;
      scale = mx_scale(static_cast<uint8_t>(scales[group]));
    }
    const auto pair = static_cast<uint8_t>(blocks[at / 2]);
    to[i] = kFp4[at % 2 == 0 ? pair & 0xf : pair >> 4] * scale;
  }
}

// The source's strides by axis of the parameter.
Dims strides_of(const WeightPiece& piece) {
  Dims strides = piece.source.strides;
  if (piece.transposed) std::reverse(strides.begin(), strides.end());
  return strides;
}

// The last byte of a tensor is inside its file; sums do not overflow.
bool fits_file(const StridedTensor& source) {
  if (source.byte_offset < 0 || source.strides.size() != source.shape.size()) return false;
  const auto elements = volume(source.shape);
  if (!elements) return false;
  if (*elements == 0) return true;
  const auto last = last_element(source.shape, source.strides);
  const auto bytes = static_cast<int64_t>(source.file->bytes().size());
  if (source.scales) {
    const auto scales = static_cast<int64_t>(source.scales->file->bytes().size());
    return last && source.byte_offset < bytes && *last / 2 < bytes - source.byte_offset &&
           source.scales->byte_offset >= 0 && source.scales->byte_offset < scales &&
           *last / kMxGroup < scales - source.scales->byte_offset;
  }
  const int64_t element = bytes_of(source.dtype);
  return last && source.byte_offset <= bytes - element &&
         *last <= (bytes - element - source.byte_offset) / element;
}

// Returns how many of the numbers are not finite.
int64_t copy_common(const WeightPiece& piece, const Rect& common, const ParamRect& wanted,
                    const CheckpointTensor& tensor, ElementWriter& elements) {
  const Dims strides = strides_of(piece);
  const Dims local = contiguous_strides(tensor.local_shape);
  const size_t dims = common.extent.size();
  const int64_t element = bytes_of(piece.source.dtype);
  Dims at = piece.at;
  if (piece.transposed) std::reverse(at.begin(), at.end());
  int64_t from = 0, to = 0;  // elements, of the corner
  for (size_t d = 0; d < dims; ++d) {
    from += (at[d] + common.offset[d] - piece.rect.offset[d]) * strides[d];
    to += (wanted.local_offset[d] + common.offset[d] - wanted.global_offset[d]) * local[d];
  }
  const char* const base = piece.source.file->bytes().data() + piece.source.byte_offset;
  // At most two dimensions, or one row of each: the last axis is converted in bounded parts.
  const int64_t columns = common.extent[dims - 1];
  const int64_t column_stride = strides[dims - 1] * element;
  constexpr int64_t kPart = 1 << 16;
  std::vector<float> part(static_cast<size_t>(std::min(columns, kPart)));
  Dims index(dims, 0);
  int64_t not_finite = 0;
  while (true) {
    int64_t row_from = from, row_to = to;
    for (size_t d = 0; d + 1 < dims; ++d) {
      row_from += index[d] * strides[d];
      row_to += index[d] * local[d];
    }
    for (int64_t done = 0; done < columns; done += kPart) {
      const int64_t count = std::min(kPart, columns - done);
      if (piece.source.scales) {
        convert_mxfp4(piece.source, row_from + done * strides[dims - 1], strides[dims - 1], count,
                      part.data());
      } else {
        convert(piece.source.dtype, base + row_from * element + done * column_stride, column_stride,
                count, part.data());
      }
      not_finite += count_not_finite(part.data(), count);
      if (piece.plus != 0) {
        for (int64_t i = 0; i < count; ++i) part[static_cast<size_t>(i)] += piece.plus;
      }
      elements.write(row_to + done - tensor.first,
                     {reinterpret_cast<const char*>(part.data()), static_cast<size_t>(count) * 4});
    }
    size_t d = dims - 1;
    while (d > 0 && ++index[d - 1] == common.extent[d - 1]) index[--d] = 0;
    if (d == 0) return not_finite;
  }
}

}  // namespace

bool float_dtype(std::string_view name, DType& dtype) {
  for (const DType known : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    if (safetensors_name(known) != name) continue;
    dtype = known;
    return true;
  }
  return false;
}

void StridedTensor::skip(int64_t elements) {
  byte_offset += scales ? elements / 2 : elements * bytes_of(dtype);
  if (scales) scales->byte_offset += elements / kMxGroup;
}

Dims contiguous_strides(const Dims& shape) {
  Dims strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

std::optional<int64_t> last_element(const Dims& shape, const Dims& strides) {
  constexpr int64_t kMost = int64_t{1} << 60;
  int64_t last = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    int64_t along = 0;
    if (strides[d] < 0 || __builtin_mul_overflow(shape[d] - 1, strides[d], &along) ||
        along > kMost || (last += along) > kMost) {
      return std::nullopt;
    }
  }
  return last;
}

void ForeignWeights::add(const std::string& parameter, const Dims& shape, WeightPiece piece) {
  if (!is_compute_type(piece.source.dtype) && piece.source.dtype != DType::f64 &&
      !piece.source.scales) {
    bad_parameter(parameter, "its elements are integers");
  }
  if (shape.empty() || !inside(piece.rect, shape))
    bad_parameter(parameter, "a part lies outside it");
  Dims extent = piece.rect.extent;
  if (piece.transposed) std::reverse(extent.begin(), extent.end());
  if (!inside({piece.at, extent}, piece.source.shape)) {
    bad_parameter(parameter,
                  fmt::format("the tensor of {} in {} is too small for its part",
                              to_string(piece.source.shape), piece.source.file->path().string()));
  }
  if (!fits_file(piece.source)) {
    bad_parameter(parameter, "it does not lie inside " + piece.source.file->path().string());
  }
  Parameter& known = parameters_[parameter];
  if (!known.pieces.empty() && known.shape != shape) bad_parameter(parameter, "its parts disagree");
  known.shape = shape;
  known.pieces.push_back(std::move(piece));
}

void ForeignWeights::check_tiling() const {
  for (const auto& [name, parameter] : parameters_) {
    int64_t covered = 0;
    std::vector<Rect> rects;
    for (const WeightPiece& piece : parameter.pieces) {
      rects.push_back(piece.rect);
      covered += *volume(piece.rect.extent);
    }
    if (const auto hole = first_hole(parameter.shape, rects)) {
      bad_parameter(name, fmt::format("nothing is there of {}", to_string(*hole)));
    }
    if (covered != *volume(parameter.shape)) bad_parameter(name, "two parts of it overlap");
  }
}

void ForeignWeights::read(CheckpointTensor& tensor) const {
  const auto found = parameters_.find(tensor.name);
  if (found == parameters_.end()) bad_parameter(tensor.name, "there is no such tensor");
  const Parameter& parameter = found->second;
  bool same =
      parameter.shape.size() == tensor.shape.size() && parameter.shape[0] >= tensor.shape[0];
  for (size_t d = 1; same && d < tensor.shape.size(); ++d) {
    same = parameter.shape[d] == tensor.shape[d];
  }
  if (!same) {
    bad_parameter(tensor.name, fmt::format("it is {} there, {} is needed",
                                           to_string(parameter.shape), to_string(tensor.shape)));
  }
  ElementWriter elements(tensor);
  int64_t not_finite = 0;
  for (const ParamRect& rect : tensor.rects) {
    const Rect wanted{rect.global_offset, rect.extent};
    for (const WeightPiece& piece : parameter.pieces) {
      if (const auto common = intersection(wanted, piece.rect)) {
        not_finite += copy_common(piece, *common, rect, tensor, elements);
      }
    }
  }
  elements.flush();
  if (not_finite == 0) return;
  throw Error(Exit::data,
              {.code = "import.tensor",
               .what = fmt::format("'{}': of the numbers read, {} are NaN or infinite", tensor.name,
                                   not_finite),
               .help = "the file is damaged, or the model had diverged before it was saved: fetch "
                       "it again, or take an earlier checkpoint"});
}

}  // namespace mtl
