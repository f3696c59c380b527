// What the tests of the CPU engine's ops share: tensors with their memory, the devices to test, and
// the comparison with double-precision references.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/device/cpu/cpu_device.h"
#include "runtime/device/device_under_test.h"
#include "support/emulated_cuda.h"

namespace mtl::test {

inline float float_of_bf16(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}
// Round to nearest even by looking at the two neighbours: slower and simpler than the kernels.
inline uint16_t bf16_of_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  const uint32_t low = bits & 0xffff;
  const uint32_t down = bits >> 16;
  if (low < 0x8000 || (low == 0x8000 && down % 2 == 0)) return static_cast<uint16_t>(down);
  return static_cast<uint16_t>(down + 1);
}

// f16 by the compiler's own conversions, which are libgcc's here: none of our code.
inline float float_of_f16(uint16_t x) {
  return static_cast<float>(std::bit_cast<_Float16>(x));
}
inline uint16_t f16_of_float(float x) {
  return std::bit_cast<uint16_t>(static_cast<_Float16>(x));
}

// FP8 by the definition of its formats, in double: none of our code.
inline double float8_by_definition(DType dtype, uint8_t code) {
  const int fraction = dtype == DType::f8_e4m3 ? 3 : 2, bias = dtype == DType::f8_e4m3 ? 7 : 15;
  const int exponent = (code & 0x7f) >> fraction, rest = code & ((1 << fraction) - 1);
  const double sign = code & 0x80 ? -1 : 1;
  if (dtype == DType::f8_e4m3 ? (code & 0x7f) == 0x7f : exponent == 31) {
    return rest == 0 ? sign * INFINITY : NAN;
  }
  const double significand = (exponent > 0 ? 1 : 0) + std::ldexp(rest, -fraction);
  return sign * std::ldexp(significand, std::max(exponent, 1) - bias);
}
// The values of all codes: tests read and write millions of them.
inline const std::array<double, 256>& float8_values(DType dtype) {
  const auto made = [](DType of) {
    std::array<double, 256> values{};
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = float8_by_definition(of, static_cast<uint8_t>(i));
    }
    return values;
  };
  static const std::array<double, 256> e4m3 = made(DType::f8_e4m3), e5m2 = made(DType::f8_e5m2);
  return dtype == DType::f8_e4m3 ? e4m3 : e5m2;
}
inline double float8_value(DType dtype, uint8_t code) {
  return float8_values(dtype)[code];
}
// The nearest of all finite codes by search, of two that are equally near the even one: so what is
// too large becomes the largest. NaN stays one.
inline uint8_t nearest_float8(DType dtype, double value) {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return sign | 0x7f;
  const uint8_t last = dtype == DType::f8_e4m3 ? 0x7e : 0x7b;
  const std::array<double, 256>& values = float8_values(dtype);
  const double size = std::abs(value);
  if (size >= values[last]) return sign | last;
  // Codes without a sign go up with their values.
  const auto above = static_cast<uint8_t>(
      std::upper_bound(values.begin(), values.begin() + last, size) - values.begin());
  const auto below = static_cast<uint8_t>(above - 1);
  const double up = values[above] - size, down = size - values[below];
  return sign | (down < up || (down == up && below % 2 == 0) ? below : above);
}

// A tensor that owns its memory, with a guard of known bytes behind it; at an address that is no
// multiple of a vector's size, where nothing else is said.
class Held {
 public:
  // From a multiple of 16 bytes to the tensor, in elements.
  inline static int64_t usual_offset = 1;

  Held(DType dtype, std::initializer_list<int64_t> shape, int64_t offset = usual_offset)
      : view(nullptr, dtype, shape),
        guard_at_(static_cast<size_t>(offset * bytes_of(dtype) + view.bytes())),
        bytes_(make_test_memory(guard_at_ + kGuard)) {
    std::memset(bytes_.get() + guard_at_, 0x5a, kGuard);
    view.data = bytes_.get() + offset * bytes_of(dtype);
  }
  ~Held() {
    for (size_t i = 0; i < kGuard; ++i) {
      if (bytes_[guard_at_ + i] != 0x5a) FAIL_CHECK("wrote behind the end of a tensor");
    }
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  int64_t size() const { return view.numel(); }
  double operator[](int64_t i) const {
    switch (view.dtype) {
      case DType::f32:
        return static_cast<double>(view.as<float>()[i]);
      case DType::bf16:
        return static_cast<double>(float_of_bf16(view.as<uint16_t>()[i]));
      case DType::f16:
        return static_cast<double>(float_of_f16(view.as<uint16_t>()[i]));
      case DType::f64:
        return view.as<double>()[i];
      case DType::i32:
        return view.as<int32_t>()[i];
      case DType::u8:
        return view.as<uint8_t>()[i];
      case DType::u16:
        return view.as<uint16_t>()[i];
      case DType::f8_e4m3:
      case DType::f8_e5m2:
        return float8_value(view.dtype, view.as<uint8_t>()[i]);
    }
    return 0;
  }
  void set(int64_t i, double value) {
    switch (view.dtype) {
      case DType::f32:
        view.as<float>()[i] = static_cast<float>(value);
        break;
      case DType::bf16:
        view.as<uint16_t>()[i] = bf16_of_float(static_cast<float>(value));
        break;
      case DType::f16:
        view.as<uint16_t>()[i] = f16_of_float(static_cast<float>(value));
        break;
      case DType::f64:
        view.as<double>()[i] = value;
        break;
      case DType::i32:
        view.as<int32_t>()[i] = static_cast<int32_t>(value);
        break;
      case DType::u8:
        view.as<uint8_t>()[i] = static_cast<uint8_t>(value);
        break;
      case DType::u16:
        view.as<uint16_t>()[i] = static_cast<uint16_t>(static_cast<int64_t>(value));
        break;
      case DType::f8_e4m3:
      case DType::f8_e5m2:
        view.as<uint8_t>()[i] = nearest_float8(view.dtype, value);
        break;
    }
  }
  // Normal random values (rounded to the type).
  Held& randomize(std::mt19937& random, double deviation = 1, double mean = 0) {
    std::normal_distribution<double> normal(mean, deviation);
    for (int64_t i = 0; i < size(); ++i) set(i, normal(random));
    return *this;
  }
  // Random ids in [low, high).
  Held& randomize_ids(std::mt19937& random, int low, int high) {
    std::uniform_int_distribution<int> uniform(low, high - 1);
    for (int64_t i = 0; i < size(); ++i) set(i, uniform(random));
    return *this;
  }
  std::vector<double> values() const {
    std::vector<double> result;
    for (int64_t i = 0; i < size(); ++i) result.push_back((*this)[i]);
    return result;
  }
  std::vector<uint8_t> bytes() const {
    const auto* p = view.as<const uint8_t>();
    return {p, p + view.bytes()};
  }

  Tensor view;

 private:
  static constexpr size_t kGuard = 64;
  size_t guard_at_;
  TestMemory bytes_;
};

// Pieces of flat buffers, with their table where the device under test finds it; the sums of
// squares of their cells one behind the other.
class HeldPieces {
 public:
  struct Part {
    int64_t offset = 0, count = 0, state = 0;
    bool decays = true;
    int64_t weight = -1;  // as offset
    int64_t second = -1;  // as state
    int64_t first_weight() const { return weight < 0 ? offset : weight; }
    int64_t first_second() const { return second < 0 ? state : second; }
  };
  explicit HeldPieces(const std::vector<Part>& parts)
      : table_(DType::u8, {static_cast<int64_t>(parts.size() * sizeof(Piece))}, 0) {
    constexpr int64_t kCell = kNormChunk;
    view.table = table_.view;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Part& part = parts[i];
      table_.view.as<Piece>()[i] = {.offset = part.offset,
                                    .weight = part.first_weight(),
                                    .state = part.state,
                                    .second = part.first_second(),
                                    .count = part.count,
                                    .cells = view.cells,
                                    .partial = view.cells,
                                    .decays = part.decays ? 1 : 0};
      view.cells += (part.offset + part.count - 1) / kCell - part.offset / kCell + 1;
    }
  }
  // One that is all of the buffers.
  explicit HeldPieces(int64_t count) : HeldPieces(std::vector<Part>{{.count = count}}) {}

  Pieces view;

 private:
  Held table_;
};

// f32 [1]: what an update multiplies the gradients by.
class HeldFactor : public Held {
 public:
  explicit HeldFactor(float value = 1) : Held(DType::f32, {1}) {
    set(0, static_cast<double>(value));
  }
};

inline std::vector<Isa> isas_of_this_machine() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::base, Isa::avx2, Isa::avx512}) {
    if (isa <= cpu_isa()) isas.push_back(isa);
  }
  return isas;
}

// Angles of rotary positions: position * 10000^(-2i / dim), as in the paper, and YaRN's amplitude.
inline void fill_table(Held& table, int64_t dim, double amplitude = 1) {
  for (int64_t at = 0; at < table.size(); ++at) {
    const int64_t position = at / dim, i = at % dim % (dim / 2);
    const double frequency =
        std::pow(1e4, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
    const double angle = static_cast<double>(position) * frequency;
    table.set(at, amplitude * (at % dim < dim / 2 ? std::cos(angle) : std::sin(angle)));
  }
}

// While it lives, tensors begin at multiples of 16 bytes, as the arena's do.
class AlignedTensors {
 public:
  AlignedTensors() { Held::usual_offset = 0; }
  ~AlignedTensors() { Held::usual_offset = 1; }
  AlignedTensors(const AlignedTensors&) = delete;
  AlignedTensors& operator=(const AlignedTensors&) = delete;
};

// body(device) for each instruction set of this machine, with two threads.
template <class Body>
void for_each_cpu_device(Body body) {
  for (const Isa isa : isas_of_this_machine()) {
    CpuDevice device(2, isa);
    INFO("device: " << device.description());
    body(static_cast<Device&>(device));
  }
}

// body(device) for the kernels of the CUDA engine, on the host or on a GPU: at odd addresses, and
// at those that allow packs of elements.
template <class Body>
void for_each_cuda_device(Body body) {
  EmulatedCuda emulated;
  Device& cuda = gpu_under_test() != nullptr ? *gpu_under_test() : emulated;
  {
    INFO("device: " << cuda.description() << ", odd addresses");
    body(cuda);
  }
  const AlignedTensors aligned;
  INFO("device: " << cuda.description() << ", aligned addresses");
  body(cuda);
}

template <class Body>
void for_each_device(Body body) {
  if (gpu_under_test() == nullptr) for_each_cpu_device(body);
  for_each_cuda_device(body);
}

// Storing moves a value by at most half a unit in the last of 8 bits (bf16: 2^-8 of it) or of 11
// (f16: 2^-11 of it, and half of the smallest subnormal). The 1 % is for values that the f32 error
// has moved over the middle between two neighbours.
inline double storage_error(DType dtype, double value) {
  if (dtype == DType::bf16) return std::abs(value) * 1.01 / 256;
  return dtype == DType::f16 ? std::abs(value) * 1.01 / 2048 + 0x1.02p-25 : 0;
}

// Every element within `error` (of the f32 arithmetic) plus the rounding of the stored type.
inline void check_close(const Held& actual, const std::vector<double>& expected, double error,
                        const std::string& what) {
  REQUIRE(actual.size() == static_cast<int64_t>(expected.size()));
  int64_t wrong = 0, first = -1;
  for (int64_t i = 0; i < actual.size(); ++i) {
    const double reference = expected[static_cast<size_t>(i)];
    const double bound = error + storage_error(actual.view.dtype, reference);
    if (!(std::abs(actual[i] - reference) <= bound)) {
      if (wrong++ == 0) first = i;
    }
  }
  if (wrong > 0) {
    FAIL_CHECK(what << ": " << wrong << " of " << actual.size() << " wrong, first at " << first
                    << ": " << actual[first] << " instead of "
                    << expected[static_cast<size_t>(first)]);
  }
  CHECK(wrong == 0);
}

inline const DType kComputeTypes[] = {DType::f32, DType::bf16, DType::f16};

// 0 or 1 / (1 - p) for element i of the pass, from Random123's Philox (defined in dropout.cpp).
double dropout_factor(const Dropout& dropout, int64_t i);

}  // namespace mtl::test
