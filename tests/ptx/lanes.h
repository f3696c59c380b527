// What the files of arithmetic have in common: instructions that every lane does by itself, on
// registers, made of a function of values.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "ptx/machine.h"

namespace mtl::ptx {

template <typename T>
using Raw = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

// A lane of a register as a T and back; the upper half of 16 bits is 0.
template <typename T>
T value_of(Raw<T> raw) {
  if constexpr (sizeof(T) == sizeof(Raw<T>)) {
    return std::bit_cast<T>(raw);
  } else {
    return static_cast<T>(raw);
  }
}
template <typename T>
Raw<T> raw_of(T value) {
  if constexpr (sizeof(T) == sizeof(Raw<T>)) {
    return std::bit_cast<Raw<T>>(value);
  } else {
    return static_cast<std::make_unsigned_t<T>>(value);
  }
}
template <typename T>
Raw<T>* lanes(Warp& warp, const Operand& operand) {
  if constexpr (sizeof(T) == 8) {
    return warp.wide(operand);
  } else {
    return warp.narrow(operand);
  }
}

template <typename F, typename R, typename... A, size_t... kI>
void each(Warp& warp, const Instruction& instruction, Mask active, std::index_sequence<kI...>) {
  Raw<R>* const out = lanes<R>(warp, instruction.operands[0]);
  const std::tuple<const Raw<A>*...> in{lanes<A>(warp, instruction.operands[kI + 1])...};
  if (active == ~Mask{0}) {
    for (int lane = 0; lane < kLanes; ++lane) {
      out[lane] = raw_of<R>(F{}(value_of<A>(std::get<kI>(in)[lane])...));
    }
    return;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) != 0) {
      out[lane] = raw_of<R>(F{}(value_of<A>(std::get<kI>(in)[lane])...));
    }
  }
}
template <typename F, typename R, typename... A>
Step step(Warp& warp, const Instruction& instruction, Mask active) {
  each<F, R, A...>(warp, instruction, active, std::index_sequence_for<A...>{});
  return Step::done;
}
// d = f(a...), all of type A.
template <typename R, typename... A, typename F>
Handler of(F) {
  return step<F, R, A...>;
}

// Calls f with a null pointer of the type by PTX's name; null where there is no such type.
template <typename F>
Handler by_type(std::string_view name, F f) {
  if (name == "s16") return f(static_cast<int16_t*>(nullptr));
  if (name == "u16" || name == "b16") return f(static_cast<uint16_t*>(nullptr));
  if (name == "s32") return f(static_cast<int32_t*>(nullptr));
  if (name == "u32" || name == "b32") return f(static_cast<uint32_t*>(nullptr));
  if (name == "s64") return f(static_cast<int64_t*>(nullptr));
  if (name == "u64" || name == "b64") return f(static_cast<uint64_t*>(nullptr));
  if (name == "f32") return f(static_cast<float*>(nullptr));
  if (name == "f64") return f(static_cast<double*>(nullptr));
  return nullptr;
}
template <typename F>
Handler by_integer(std::string_view name, F f) {
  return by_type(name, [&](auto* type) -> Handler {
    if constexpr (std::is_integral_v<std::remove_pointer_t<decltype(type)>>) return f(type);
    return nullptr;
  });
}
template <typename F>
Handler by_float(std::string_view name, F f) {
  return by_type(name, [&](auto* type) -> Handler {
    if constexpr (std::is_floating_point_v<std::remove_pointer_t<decltype(type)>>) return f(type);
    return nullptr;
  });
}
#define MTL_PTX_TYPE(pointer) std::remove_pointer_t<decltype(pointer)>

inline bool has(const Opcode& opcode, std::string_view part) {
  return std::find(opcode.begin(), opcode.end(), part) != opcode.end();
}

// As find_arithmetic(), which asks them.
Handler find_integer(const Opcode& opcode);                           // integers.cpp
Handler find_bits(const Opcode& opcode);                              // integers.cpp
Handler find_choice(const Opcode& opcode, Instruction& instruction);  // choices.cpp
Handler find_predicate(const Opcode& opcode);                         // choices.cpp
Handler find_move(const Opcode& opcode, Instruction& instruction);    // conversions.cpp
// conversions.cpp
Handler find_conversion(const Opcode& opcode, const Instruction& instruction);

}  // namespace mtl::ptx
