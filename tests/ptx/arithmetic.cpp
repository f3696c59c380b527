// What every lane does by itself, on registers. f32 as IEEE 754 has it and as the host computes it;
// the approximations (ex2, rcp, ...) are exact here and flush what .ftz flushes.
#include <cmath>
#include <limits>

#include "ptx/lanes.h"

namespace mtl::ptx {

namespace {

float flushed(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

// Rounding as the name says: to nearest alone, what the compiler of a program writes.
bool rounds_otherwise(const Opcode& opcode) {
  return has(opcode, "rz") || has(opcode, "rp") || has(opcode, "rm");
}

template <typename T>
T smaller(T a, T b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}
template <typename T>
T larger(T a, T b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

Handler find_floating(const Opcode& opcode) {
  const std::string_view root = opcode[0];
  const bool flush = has(opcode, "ftz");
  return by_float(opcode.back(), [&](auto* t) -> Handler {
    using T = MTL_PTX_TYPE(t);
    if (rounds_otherwise(opcode)) return nullptr;
    if (flush && root != "ex2" && root != "rcp" && root != "lg2" && root != "rsqrt") return nullptr;
    if (root == "add") return of<T, T, T>([](T a, T b) { return a + b; });
    if (root == "sub") return of<T, T, T>([](T a, T b) { return a - b; });
    if (root == "mul") return of<T, T, T>([](T a, T b) { return a * b; });
    if (root == "fma") {
      return of<T, T, T, T>([](T a, T b, T c) { return std::fma(a, b, c); });
    }
    if (root == "div") return of<T, T, T>([](T a, T b) { return a / b; });
    if (root == "sqrt") return of<T, T>([](T a) { return std::sqrt(a); });
    if (root == "neg") return of<T, T>([](T a) { return -a; });
    if (root == "abs") return of<T, T>([](T a) { return std::fabs(a); });
    if (root == "min") return of<T, T, T>([](T a, T b) { return smaller(a, b); });
    if (root == "max") return of<T, T, T>([](T a, T b) { return larger(a, b); });
    if (root == "rcp") {
      if constexpr (std::is_same_v<T, float>) {
        if (flush) return of<T, T>([](T a) { return flushed(T{1} / flushed(a)); });
      } else if (flush) {  // a first guess: the upper 32 bits
        return of<T, T>([](T a) {
          return std::bit_cast<T>(std::bit_cast<uint64_t>(T{1} / a) & 0xffffffff00000000u);
        });
      }
      return of<T, T>([](T a) { return T{1} / a; });
    }
    if constexpr (std::is_same_v<T, float>) {
      if (root == "ex2") {
        return flush ? of<T, T>([](T a) { return flushed(std::exp2(flushed(a))); })
                     : of<T, T>([](T a) { return std::exp2(a); });
      }
      if (root == "lg2") {
        return flush ? of<T, T>([](T a) { return flushed(std::log2(flushed(a))); })
                     : of<T, T>([](T a) { return std::log2(a); });
      }
      if (root == "rsqrt") {
        return flush ? of<T, T>([](T a) { return flushed(1 / std::sqrt(flushed(a))); })
                     : of<T, T>([](T a) { return 1 / std::sqrt(a); });
      }
    }
    return nullptr;
  });
}

// Towards minus infinity.
float fma_down(float a, float b, float c) {
  // Exact in f64 but for the last addition, whose error is known.
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double sum = product + static_cast<double>(c);
  const double back = sum - product;
  const double error = (product - (sum - back)) + (static_cast<double>(c) - back);
  auto result = static_cast<float>(sum);
  if (!std::isfinite(result)) return result;
  const bool above =
      static_cast<double>(result) > sum || (static_cast<double>(result) == sum && error < 0);
  return above ? std::nextafter(result, -std::numeric_limits<float>::infinity()) : result;
}

}  // namespace

Handler find_arithmetic(const Opcode& opcode, Instruction& instruction) {
  if (opcode.size() < 2) return nullptr;
  if (const Handler found = find_predicate(opcode)) return found;
  if (const Handler found = find_move(opcode, instruction)) return found;
  if (const Handler found = find_choice(opcode, instruction)) return found;
  if (const Handler found = find_conversion(opcode, instruction)) return found;
  if (const Handler found = find_integer(opcode)) return found;
  if (const Handler found = find_bits(opcode)) return found;
  if (opcode[0] == "fma" && has(opcode, "rm") && opcode.back() == "f32") {
    return of<float, float, float, float>(
        [](float a, float b, float c) { return fma_down(a, b, c); });
  }
  return find_floating(opcode);
}

}  // namespace mtl::ptx
