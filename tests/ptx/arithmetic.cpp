// What every lane does by itself, on registers. f32 as IEEE 754 has it and as the host computes it;
// the approximations (ex2, rcp, ...) are exact here and flush what .ftz flushes.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include "ptx/floats.h"
#include "ptx/machine.h"

namespace mtl::ptx {

namespace {

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

__extension__ using Int128 = __int128;
__extension__ using Uint128 = unsigned __int128;
// Twice as many bits, of the same sign.
template <typename T>
using Twice = std::conditional_t<
    sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
    std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                       std::conditional_t<std::is_signed_v<T>, Int128, Uint128>>>;
template <typename T>
using Unsigned = std::make_unsigned_t<T>;

float flushed(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

bool has(const Opcode& opcode, std::string_view part) {
  return std::find(opcode.begin(), opcode.end(), part) != opcode.end();
}

// Rounding as the name says: to nearest alone, what the compiler of a program writes.
bool rounds_otherwise(const Opcode& opcode) {
  return has(opcode, "rz") || has(opcode, "rp") || has(opcode, "rm");
}

Handler find_integer(const Opcode& opcode) {
  const std::string_view root = opcode[0], type = opcode.back();
  if (root == "add" && opcode.size() == 2) {
    return by_integer(type, [](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return of<T, T, T>([](T a, T b) {
        return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
      });
    });
  }
  if (root == "sub" && opcode.size() == 2) {
    return by_integer(type, [](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return of<T, T, T>([](T a, T b) {
        return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
      });
    });
  }
  if ((root == "mul" || root == "mad") && opcode.size() == 3) {
    const bool adds = root == "mad";
    return by_integer(type, [&](auto* t) -> Handler {
      using T = MTL_PTX_TYPE(t);
      using All = uint64_t;  // whose lower bits are those of the product
      if (opcode[1] == "lo" && adds) {
        return of<T, T, T, T>([](T a, T b, T c) {
          return static_cast<T>(static_cast<All>(a) * static_cast<All>(b) + static_cast<All>(c));
        });
      }
      if (opcode[1] == "lo") {
        return of<T, T, T>(
            [](T a, T b) { return static_cast<T>(static_cast<All>(a) * static_cast<All>(b)); });
      }
      if (opcode[1] == "hi" && !adds) {
        return of<T, T, T>([](T a, T b) {
          return static_cast<T>(static_cast<Twice<T>>(a) * static_cast<Twice<T>>(b) >>
                                8 * sizeof(T));
        });
      }
      if constexpr (sizeof(T) < 8) {
        using R = Twice<T>;
        if (opcode[1] == "wide" && !adds) {
          return of<R, T, T>([](T a, T b) { return static_cast<R>(static_cast<R>(a) * b); });
        }
        if (opcode[1] == "wide") {
          return of<R, T, T, R>([](T a, T b, R c) {
            return static_cast<R>(static_cast<All>(a) * static_cast<All>(b) + static_cast<All>(c));
          });
        }
      }
      return nullptr;
    });
  }
  if ((root == "div" || root == "rem") && opcode.size() == 2) {
    const bool divides = root == "div";
    return by_integer(type, [&](auto* t) -> Handler {
      using T = MTL_PTX_TYPE(t);
      // By 0: all ones, as GPUs do (and nobody should).
      if (divides) {
        return of<T, T, T>([](T a, T b) {
          if (b == 0) return static_cast<T>(-1);
          if constexpr (std::is_signed_v<T>) {
            if (b == -1) return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a));
          }
          return static_cast<T>(a / b);
        });
      }
      return of<T, T, T>([](T a, T b) {
        if (b == 0) return a;
        if constexpr (std::is_signed_v<T>) {
          if (b == -1) return T{0};
        }
        return static_cast<T>(a % b);
      });
    });
  }
  if (root == "neg" && opcode.size() == 2) {
    return by_integer(type, [](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return of<T, T>(
          [](T a) { return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a)); });
    });
  }
  if (root == "abs" && opcode.size() == 2) {
    return by_integer(type, [](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return of<T, T>([](T a) {
        return a < 0 ? static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a)) : a;
      });
    });
  }
  if ((root == "min" || root == "max") && opcode.size() == 2) {
    return by_integer(type, [&](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return root == "min" ? of<T, T, T>([](T a, T b) { return std::min(a, b); })
                           : of<T, T, T>([](T a, T b) { return std::max(a, b); });
    });
  }
  return nullptr;
}

Handler find_bits(const Opcode& opcode) {
  const std::string_view root = opcode[0], type = opcode.back();
  if (opcode.size() != 2 || type == "pred") return nullptr;
  if (root == "and" || root == "or" || root == "xor") {
    return by_integer(type, [&](auto* t) {
      using T = MTL_PTX_TYPE(t);
      if (root == "and") return of<T, T, T>([](T a, T b) { return static_cast<T>(a & b); });
      if (root == "or") return of<T, T, T>([](T a, T b) { return static_cast<T>(a | b); });
      return of<T, T, T>([](T a, T b) { return static_cast<T>(a ^ b); });
    });
  }
  if (root == "not") {
    return by_integer(type, [](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return of<T, T>([](T a) { return static_cast<T>(~a); });
    });
  }
  // Shifts by more than there is leave nothing, or the sign.
  if (root == "shl") {
    return by_integer(type, [](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return of<T, T, uint32_t>([](T a, uint32_t b) {
        return b >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<Unsigned<T>>(a) << b);
      });
    });
  }
  if (root == "shr") {
    return by_integer(type, [](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return of<T, T, uint32_t>([](T a, uint32_t b) {
        if (b >= 8 * sizeof(T)) return static_cast<T>(a < 0 ? -1 : 0);
        return static_cast<T>(a >> b);
      });
    });
  }
  if (root == "popc" || root == "clz") {
    return by_integer(type, [&](auto* t) {
      using T = MTL_PTX_TYPE(t);
      using U = Unsigned<T>;
      return root == "popc"
                 ? of<uint32_t, U>([](U a) { return static_cast<uint32_t>(std::popcount(a)); })
                 : of<uint32_t, U>([](U a) { return static_cast<uint32_t>(std::countl_zero(a)); });
    });
  }
  if (root == "bfi") {  // a into b, from bit c on, d bits
    return by_integer(type, [](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return of<T, T, T, uint32_t, uint32_t>([](T a, T b, uint32_t from, uint32_t count) {
        constexpr uint32_t kBits = 8 * sizeof(T);
        from &= 255;
        count &= 255;
        if (count == 0 || from >= kBits) return b;
        const T mask = static_cast<T>((count >= kBits ? ~T{0} : (T{1} << count) - 1) << from);
        return static_cast<T>((b & ~mask) | ((a << from) & mask));
      });
    });
  }
  if (root == "bfe") {
    return by_integer(type, [](auto* t) -> Handler {
      using T = MTL_PTX_TYPE(t);
      if constexpr (std::is_signed_v<T>) return nullptr;
      return of<T, T, uint32_t, uint32_t>([](T a, uint32_t from, uint32_t count) {
        constexpr uint32_t kBits = 8 * sizeof(T);
        from &= 255;
        count &= 255;
        if (from >= kBits || count == 0) return T{0};
        const T rest = static_cast<T>(a >> from);
        return count >= kBits ? rest : static_cast<T>(rest & ((T{1} << count) - 1));
      });
    });
  }
  if (root == "prmt") {
    return of<uint32_t, uint32_t, uint32_t, uint32_t>([](uint32_t a, uint32_t b, uint32_t c) {
      const uint64_t both = uint64_t{b} << 32 | a;
      uint32_t result = 0;
      for (int i = 0; i < 4; ++i) {
        const uint32_t selector = c >> 4 * i & 15;
        auto byte = static_cast<uint8_t>(both >> 8 * (selector & 7));
        if ((selector & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;  // its sign
        result |= uint32_t{byte} << 8 * i;
      }
      return result;
    });
  }
  return nullptr;
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

// --- comparisons and choices

template <typename T, typename F>
Step compare(Warp& warp, const Instruction& instruction, Mask active) {
  const Raw<T>* const a = lanes<T>(warp, instruction.operands[1]);
  const Raw<T>* const b = lanes<T>(warp, instruction.operands[2]);
  Mask holds = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    holds |= Mask{F{}(value_of<T>(a[lane]), value_of<T>(b[lane]))} << lane;
  }
  // setp.CMP.BOOL: with a predicate.
  if (instruction.operands.size() > 3) {
    const Mask other = warp.predicate(instruction.operands[3]);
    holds = instruction.a == 1 ? holds & other : instruction.a == 2 ? holds | other : holds ^ other;
  }
  const Operand& to = instruction.operands[0];
  if (to.kind == Operand::Kind::list) {
    warp.set_predicate(to.parts[0], active, holds);
    warp.set_predicate(to.parts[1], active, ~holds);
  } else {
    warp.set_predicate(to, active, holds);
  }
  return Step::done;
}
template <typename T, typename F>
Handler comparing(F) {
  return compare<T, F>;
}

Handler find_comparison(const Opcode& opcode, Instruction& instruction) {
  if (opcode[0] != "setp") return nullptr;
  const std::string_view by = opcode[1];
  if (opcode.size() == 4) {
    instruction.a = opcode[2] == "and" ? 1 : opcode[2] == "or" ? 2 : opcode[2] == "xor" ? 3 : 0;
    if (instruction.a == 0) return nullptr;
  } else if (opcode.size() != 3) {
    return nullptr;
  }
  return by_type(opcode.back(), [&](auto* t) -> Handler {
    using T = MTL_PTX_TYPE(t);
    if (by == "eq") return comparing<T>([](T a, T b) { return a == b; });
    if (by == "lt") return comparing<T>([](T a, T b) { return a < b; });
    if (by == "le") return comparing<T>([](T a, T b) { return a <= b; });
    if (by == "gt") return comparing<T>([](T a, T b) { return a > b; });
    if (by == "ge") return comparing<T>([](T a, T b) { return a >= b; });
    if constexpr (std::is_floating_point_v<T>) {  // "...u": also where one is no number
      if (by == "ne") {
        return comparing<T>([](T a, T b) { return a < b || a > b; });
      }
      if (by == "equ") return comparing<T>([](T a, T b) { return !(a < b || a > b); });
      if (by == "neu") return comparing<T>([](T a, T b) { return !(a == b); });
      if (by == "ltu") return comparing<T>([](T a, T b) { return !(a >= b); });
      if (by == "leu") return comparing<T>([](T a, T b) { return !(a > b); });
      if (by == "gtu") return comparing<T>([](T a, T b) { return !(a <= b); });
      if (by == "geu") return comparing<T>([](T a, T b) { return !(a < b); });
      if (by == "nan") return comparing<T>([](T a, T b) { return std::isnan(a) || std::isnan(b); });
      if (by == "num") {
        return comparing<T>([](T a, T b) { return !std::isnan(a) && !std::isnan(b); });
      }
    } else {
      if (by == "ne") return comparing<T>([](T a, T b) { return a != b; });
    }
    return nullptr;
  });
}

template <typename T>
Step select(Warp& warp, const Instruction& instruction, Mask active) {
  Raw<T>* const out = lanes<T>(warp, instruction.operands[0]);
  const Raw<T>* const a = lanes<T>(warp, instruction.operands[1]);
  const Raw<T>* const b = lanes<T>(warp, instruction.operands[2]);
  const Mask first = warp.predicate(instruction.operands[3]);
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) == 0) continue;
    out[lane] = raw_of(value_of<T>((first >> lane & 1) != 0 ? a[lane] : b[lane]));
  }
  return Step::done;
}

// --- moves and conversions

// From one register to several that share its bits, or the other way.
Step split(Warp& warp, const Instruction& instruction, Mask active) {
  const Operand& from = instruction.operands[1];
  const auto& parts = instruction.operands[0].parts;
  const auto bits = static_cast<size_t>(instruction.a) / parts.size();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].kind == Operand::Kind::none) continue;
    for (int lane = 0; lane < kLanes; ++lane) {
      if ((active >> lane & 1) == 0) continue;
      const uint64_t whole = instruction.a == 64 ? warp.wide(from)[lane] : warp.narrow(from)[lane];
      const uint64_t part = whole >> bits * i;
      warp.narrow(parts[i])[lane] = static_cast<uint32_t>(bits == 16 ? part & 0xffff : part);
    }
  }
  return Step::done;
}
Step join(Warp& warp, const Instruction& instruction, Mask active) {
  const Operand& to = instruction.operands[0];
  const auto& parts = instruction.operands[1].parts;
  const auto bits = static_cast<size_t>(instruction.a) / parts.size();
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) == 0) continue;
    uint64_t whole = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const uint64_t part = warp.narrow(parts[i])[lane];
      whole |= (bits == 16 ? part & 0xffff : part) << bits * i;
    }
    if (instruction.a == 64) {
      warp.wide(to)[lane] = whole;
    } else {
      warp.narrow(to)[lane] = static_cast<uint32_t>(whole);
    }
  }
  return Step::done;
}
Step move_predicate(Warp& warp, const Instruction& instruction, Mask active) {
  warp.set_predicate(instruction.operands[0], active, warp.predicate(instruction.operands[1]));
  return Step::done;
}

Handler find_move(const Opcode& opcode, Instruction& instruction) {
  if (opcode[0] == "mov" && opcode.size() == 2) {
    if (opcode[1] == "pred") return move_predicate;
    const bool splits = instruction.operands[0].kind == Operand::Kind::list;
    const bool joins = instruction.operands[1].kind == Operand::Kind::list;
    instruction.a = opcode[1].ends_with("64") ? 64 : opcode[1].ends_with("32") ? 32 : 16;
    if (splits || joins) {
      const auto& parts = instruction.operands[splits ? 0 : 1].parts;
      if (parts.size() != 2 && parts.size() != 4) return nullptr;
      if (instruction.a == 16) return nullptr;
      return splits ? split : join;
    }
    return by_type(opcode[1], [](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return of<T, T>([](T a) { return a; });
    });
  }
  if (opcode[0] == "selp" && opcode.size() == 2) {
    return by_type(opcode[1], [](auto* t) -> Handler { return select<MTL_PTX_TYPE(t)>; });
  }
  return nullptr;
}

// To an integer of its own or another width: what is above is cut off, or the sign goes on.
template <typename To, typename From>
Handler converting(const Opcode& opcode) {
  constexpr bool kToFloat = std::is_floating_point_v<To>;
  constexpr bool kFromFloat = std::is_floating_point_v<From>;
  if constexpr (kToFloat && kFromFloat) {
    if (has(opcode, "sat")) {  // to [0, 1]; what is no number is 0
      return of<To, From>(
          [](From a) { return a > From{0} ? (a < From{1} ? static_cast<To>(a) : To{1}) : To{0}; });
    }
    if (has(opcode, "rmi") || has(opcode, "rpi") || has(opcode, "rzi")) return nullptr;
    if (has(opcode, "rni")) return of<To, From>([](From a) { return To(std::nearbyint(a)); });
    return of<To, From>([](From a) { return static_cast<To>(a); });
  } else if constexpr (kFromFloat) {
    // Beyond the range: its end; what is no number: 0.
    constexpr auto kLeast = static_cast<double>(std::numeric_limits<To>::min());
    constexpr auto kMost = static_cast<double>(std::numeric_limits<To>::max());
    const auto clamped = []<typename F>(F) {
      return of<To, From>([](From a) {
        const auto whole = F{}(static_cast<double>(a));
        if (std::isnan(whole)) return To{0};
        if (whole >= kMost) return std::numeric_limits<To>::max();
        return whole <= kLeast ? std::numeric_limits<To>::min() : static_cast<To>(whole);
      });
    };
    if (has(opcode, "rzi")) return clamped([](double a) { return std::trunc(a); });
    if (has(opcode, "rni")) return clamped([](double a) { return std::nearbyint(a); });
    if (has(opcode, "rmi")) return clamped([](double a) { return std::floor(a); });
    if (has(opcode, "rpi")) return clamped([](double a) { return std::ceil(a); });
    return nullptr;
  } else {
    if (kToFloat && !has(opcode, "rn")) return nullptr;
    return of<To, From>([](From a) { return static_cast<To>(a); });
  }
}

Handler find_conversion(const Opcode& opcode) {
  if (opcode[0] == "cvta") {
    // Global addresses are the generic ones; the windows of the others begin where machine.h says.
    if (opcode.size() != 3 && opcode.size() != 4) return nullptr;
    const bool to = opcode[1] == "to";
    const std::string_view space = opcode[to ? 2 : 1];
    using Address = uint64_t;
    if (opcode.back() != "u64") return nullptr;
    if (space == "global") return of<Address, Address>([](Address a) { return a; });
    if (space == "shared") {
      return to ? of<Address, Address>([](Address a) { return a & ~kSharedWindow; })
                : of<Address, Address>([](Address a) { return a | kSharedWindow; });
    }
    if (space == "param") {
      return to ? of<Address, Address>([](Address a) { return a & ~kParameterWindow; })
                : of<Address, Address>([](Address a) { return a | kParameterWindow; });
    }
    if (space == "local") {
      return to ? of<Address, Address>([](Address a) { return a & ~kLocalWindow; })
                : of<Address, Address>([](Address a) { return a | kLocalWindow; });
    }
    return nullptr;
  }
  if (opcode[0] != "cvt" || opcode.size() < 3) return nullptr;
  const std::string_view to = opcode[opcode.size() - 2], from = opcode.back();
  if (to == "bf16x2" && from == "f32" && has(opcode, "rn") && opcode.size() == 4) {
    return of<uint32_t, float, float>([](float upper, float lower) {
      return uint32_t{float_to_bf16(upper)} << 16 | float_to_bf16(lower);
    });
  }
  if (to == "f16x2" && from == "f32" && has(opcode, "rn") && opcode.size() == 4) {
    return of<uint32_t, float, float>([](float upper, float lower) {
      return uint32_t{float_to_half(upper)} << 16 | float_to_half(lower);
    });
  }
  if (to == "e4m3x2" && from == "f32" && has(opcode, "rn") && has(opcode, "satfinite")) {
    return of<uint16_t, float, float>([](float upper, float lower) {
      return static_cast<uint16_t>(float_to_fp8<3>(upper) << 8 | float_to_fp8<3>(lower));
    });
  }
  if (to == "e5m2x2" && from == "f32" && has(opcode, "rn") && has(opcode, "satfinite")) {
    return of<uint16_t, float, float>([](float upper, float lower) {
      return static_cast<uint16_t>(float_to_fp8<2>(upper) << 8 | float_to_fp8<2>(lower));
    });
  }
  if (to == "bf16" && from == "f32" && has(opcode, "rn") && opcode.size() == 4) {
    return of<uint16_t, float>([](float a) { return float_to_bf16(a); });
  }
  if (to == "f16" && from == "f32" && has(opcode, "rn") && opcode.size() == 4) {
    return of<uint16_t, float>([](float a) { return float_to_half(a); });
  }
  if (to == "f32" && from == "f16") {
    return of<float, uint16_t>([](uint16_t a) { return half_to_float(a); });
  }
  if (to == "f32" && from == "bf16") {
    return of<float, uint16_t>([](uint16_t a) { return bf16_to_float(a); });
  }
  return by_type(to, [&](auto* t) -> Handler {
    return by_type(from, [&](auto* f) -> Handler {
      return converting<MTL_PTX_TYPE(t), MTL_PTX_TYPE(f)>(opcode);
    });
  });
}

// --- predicates

template <typename F>
Step combine(Warp& warp, const Instruction& instruction, Mask active) {
  warp.set_predicate(
      instruction.operands[0], active,
      F{}(warp.predicate(instruction.operands[1]), warp.predicate(instruction.operands[2])));
  return Step::done;
}
template <typename F>
Handler combining(F) {
  return combine<F>;
}
Step invert(Warp& warp, const Instruction& instruction, Mask active) {
  warp.set_predicate(instruction.operands[0], active, ~warp.predicate(instruction.operands[1]));
  return Step::done;
}

Handler find_predicate(const Opcode& opcode) {
  if (opcode.size() != 2 || opcode[1] != "pred") return nullptr;
  if (opcode[0] == "and") return combining([](Mask a, Mask b) { return a & b; });
  if (opcode[0] == "or") return combining([](Mask a, Mask b) { return a | b; });
  if (opcode[0] == "xor") return combining([](Mask a, Mask b) { return a ^ b; });
  if (opcode[0] == "not") return invert;
  return nullptr;
}

}  // namespace

Handler find_arithmetic(const Opcode& opcode, Instruction& instruction) {
  if (opcode.size() < 2) return nullptr;
  if (const Handler found = find_predicate(opcode)) return found;
  if (const Handler found = find_move(opcode, instruction)) return found;
  if (const Handler found = find_comparison(opcode, instruction)) return found;
  if (const Handler found = find_conversion(opcode)) return found;
  if (const Handler found = find_integer(opcode)) return found;
  if (const Handler found = find_bits(opcode)) return found;
  if (opcode[0] == "fma" && has(opcode, "rm") && opcode.back() == "f32") {
    return of<float, float, float, float>(
        [](float a, float b, float c) { return fma_down(a, b, c); });
  }
  return find_floating(opcode);
}

#undef MTL_PTX_TYPE

}  // namespace mtl::ptx
