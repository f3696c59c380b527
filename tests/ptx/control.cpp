// Jumps, ends, and what the lanes of a warp tell each other.
#include <algorithm>
#include <bit>

#include "ptx/machine.h"

namespace mtl::ptx {

namespace {

Step jump(Warp& warp, const Instruction& instruction, Mask) {
  warp.jump_to = instruction.operands[0].index;
  return Step::jump;
}
Step leave(Warp&, const Instruction&, Mask) {
  return Step::exit;
}
Step trap(Warp& warp, const Instruction& instruction, Mask) {
  fail(warp, instruction, "trap");
}
Step nothing(Warp&, const Instruction&, Mask) {
  return Step::done;
}

// Whether all lanes of `members` that have not ended are here. What ".sync" without ".aligned" asks
// for.
bool gathered(const Warp& warp, const Instruction& instruction, Mask active, Mask members) {
  if ((active & ~members) != 0) fail(warp, instruction, "a lane that its own mask does not name");
  return (members & warp.alive() & ~active) == 0;
}
// The mask of members, which is the same in all lanes.
Mask members_of(Warp& warp, const Instruction& instruction, Mask active, const Operand& operand) {
  const uint32_t* const masks = warp.narrow(operand);
  const Mask members = masks[std::countr_zero(active)];
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) != 0 && masks[lane] != members) {
      fail(warp, instruction, "lanes with different masks");
    }
  }
  return members;
}

enum class Shuffle { up, down, butterfly, index };

// "shfl.sync" of the PTX manual: c has the clamp in its lower five bits, the mask of segments
// above.
template <Shuffle kKind>
Step shuffle(Warp& warp, const Instruction& instruction, Mask active) {
  const auto& operands = instruction.operands;
  const Mask members = members_of(warp, instruction, active, operands[4]);
  if (!gathered(warp, instruction, active, members)) return Step::again;
  const bool both = operands[0].kind == Operand::Kind::list;
  const Operand& to = both ? operands[0].parts[0] : operands[0];
  uint32_t values[kLanes], result[kLanes];
  std::copy_n(warp.narrow(operands[1]), kLanes, values);
  const uint32_t* const by = warp.narrow(operands[2]);
  const uint32_t* const clamps = warp.narrow(operands[3]);
  Mask within = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) == 0) continue;
    const int segment = static_cast<int>(clamps[lane] >> 8 & 31);
    const int clamp = static_cast<int>(clamps[lane] & 31);
    const int step = static_cast<int>(by[lane] & 31);
    const int last = (lane & segment) | (clamp & ~segment);
    const int first = lane & segment;
    int from = 0;
    bool valid = false;
    if constexpr (kKind == Shuffle::up) {
      from = lane - step;
      valid = from >= last;
    } else if constexpr (kKind == Shuffle::down) {
      from = lane + step;
      valid = from <= last;
    } else if constexpr (kKind == Shuffle::butterfly) {
      from = lane ^ step;
      valid = from <= last;
    } else {
      from = first | (step & ~segment);
      valid = from <= last;
    }
    if (!valid) from = lane;
    if ((active >> from & 1) == 0) {
      fail(warp, instruction, "of a lane that is not there");
    }
    within |= Mask{valid} << lane;
    result[lane] = values[from];
  }
  uint32_t* const out = warp.narrow(to);
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) != 0) out[lane] = result[lane];
  }
  if (both) warp.set_predicate(operands[0].parts[1], active, within);
  return Step::done;
}

enum class Vote { any, all, ballot };

template <Vote kKind>
Step vote(Warp& warp, const Instruction& instruction, Mask active) {
  const auto& operands = instruction.operands;
  const Mask members = members_of(warp, instruction, active, operands[2]);
  if (!gathered(warp, instruction, active, members)) return Step::again;
  const Mask votes = warp.predicate(operands[1]) & active;
  if constexpr (kKind == Vote::ballot) {
    uint32_t* const out = warp.narrow(operands[0]);
    for (int lane = 0; lane < kLanes; ++lane) {
      if ((active >> lane & 1) != 0) out[lane] = votes;
    }
  } else {
    const bool holds = kKind == Vote::any ? votes != 0 : votes == active;
    warp.set_predicate(operands[0], active, holds ? ~Mask{0} : 0);
  }
  return Step::done;
}

}  // namespace

Handler find_control(const Opcode& opcode, Instruction&) {
  if (opcode[0] == "bra") return jump;
  if (opcode[0] == "ret" || opcode[0] == "exit") return leave;
  if (opcode[0] == "trap") return trap;
  if (opcode[0] == "nanosleep") return nothing;
  if (opcode.size() < 4 || opcode[1] != "sync") return nullptr;
  if (opcode[0] == "shfl") {
    if (opcode[2] == "up") return shuffle<Shuffle::up>;
    if (opcode[2] == "down") return shuffle<Shuffle::down>;
    if (opcode[2] == "bfly") return shuffle<Shuffle::butterfly>;
    if (opcode[2] == "idx") return shuffle<Shuffle::index>;
  }
  if (opcode[0] == "vote") {
    if (opcode[2] == "any") return vote<Vote::any>;
    if (opcode[2] == "all") return vote<Vote::all>;
    if (opcode[2] == "ballot") return vote<Vote::ballot>;
  }
  return nullptr;
}

}  // namespace mtl::ptx
