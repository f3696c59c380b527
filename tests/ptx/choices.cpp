// Comparisons, what is chosen by them, and predicates.
#include <cmath>

#include "ptx/lanes.h"

namespace mtl::ptx {

namespace {

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

}  // namespace

Handler find_choice(const Opcode& opcode, Instruction& instruction) {
  if (opcode[0] == "selp" && opcode.size() == 2) {
    return by_type(opcode[1], [](auto* t) -> Handler { return select<MTL_PTX_TYPE(t)>; });
  }
  return find_comparison(opcode, instruction);
}

Handler find_predicate(const Opcode& opcode) {
  if (opcode.size() != 2 || opcode[1] != "pred") return nullptr;
  if (opcode[0] == "and") return combining([](Mask a, Mask b) { return a & b; });
  if (opcode[0] == "or") return combining([](Mask a, Mask b) { return a | b; });
  if (opcode[0] == "xor") return combining([](Mask a, Mask b) { return a ^ b; });
  if (opcode[0] == "not") return invert;
  return nullptr;
}

}  // namespace mtl::ptx
