// Moves between registers, and from type to type.
#include <cmath>
#include <limits>

#include "ptx/floats.h"
#include "ptx/lanes.h"

namespace mtl::ptx {

namespace {

// From one register to several that share its bits, or the other way.
Step split_register(Warp& warp, const Instruction& instruction, Mask active) {
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
Step join_registers(Warp& warp, const Instruction& instruction, Mask active) {
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

}  // namespace

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
      return splits ? split_register : join_registers;
    }
    return by_type(opcode[1], [](auto* t) {
      using T = MTL_PTX_TYPE(t);
      return of<T, T>([](T a) { return a; });
    });
  }
  return nullptr;
}

Handler find_conversion(const Opcode& opcode, const Instruction& instruction) {
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
  const bool wide = instruction.operands.size() > 1 && instruction.operands[1].file == File::wide;
  return by_type(to, [&](auto* t) -> Handler {
    return by_type(from, [&](auto* f) -> Handler {
      using To = MTL_PTX_TYPE(t);
      using From = MTL_PTX_TYPE(f);
      if constexpr (std::is_integral_v<From> && sizeof(From) < 8) {
        // A wider register than the type says: its lower bits.
        if (wide) {
          if (std::is_floating_point_v<To>) return nullptr;
          return of<To, uint64_t>([](uint64_t a) { return static_cast<To>(static_cast<From>(a)); });
        }
      }
      return converting<To, From>(opcode);
    });
  });
}

}  // namespace mtl::ptx
