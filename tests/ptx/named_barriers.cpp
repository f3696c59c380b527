// bar.sync and bar.arrive: barriers that the hardware has, which count threads in whole warps; and
// bar.warp.sync.
#include <bit>

#include <fmt/format.h>

#include "ptx/asynchronous.h"

namespace mtl::ptx {

namespace {

// Of a block's warps.
Mask bit_of(const Warp& warp) {
  return Mask{1} << warp.index();
}
bool has_come(const Block& block, const NamedBarrier& barrier) {
  if (barrier.expected != 0) {
    return static_cast<unsigned>(std::popcount(barrier.come)) * kLanes >= barrier.expected;
  }
  for (const auto& warp : block.warps()) {
    if (!warp->ended() && (barrier.come & bit_of(*warp)) == 0) return false;
  }
  return true;
}

// a: waits. b: all of the block. The lanes of the warp that have not ended are all here: bar is
// ".aligned" by itself.
Step reach(Warp& warp, const Instruction& instruction, Mask active) {
  Block& block = warp.block();
  const uint32_t number =
      uniform(warp, instruction, instruction.operands[0], active, "the barrier");
  if (number > 15) fail(warp, instruction, fmt::format("barrier {}: 0 to 15 can be", number));
  NamedBarrier& barrier = block.asynchronous().named[number];
  uint64_t& waits = barrier.waits[warp.index()];
  if (waits == 0) {
    unsigned expected = 0;
    if (instruction.b == 0) {
      expected = uniform(warp, instruction, instruction.operands[1], active, "the threads");
      if (expected == 0 || expected % kLanes != 0) {
        fail(warp, instruction, fmt::format("{} threads are no whole warps", expected));
      }
      if (expected > block.warps().size() * kLanes) {
        fail(warp, instruction,
             fmt::format("{} threads: the block has {}", expected, block.threads()));
      }
    }
    if (barrier.come != 0 && barrier.expected != expected) {
      fail(warp, instruction,
           fmt::format("others wait at barrier {} for {} threads, this warp for {} (0: all)",
                       number, barrier.expected, expected));
    }
    if ((barrier.come & bit_of(warp)) != 0) {
      fail(warp, instruction,
           fmt::format("this warp has come to barrier {} already, and it was not passed since",
                       number));
    }
    barrier.expected = expected;
    barrier.come |= bit_of(warp);
    block.watch(&Watcher::barrier_reached, warp, static_cast<int>(number), barrier.generation);
    if (instruction.a != 0) waits = barrier.generation + 1;
  }
  // Of those that wait for all the last one may have ended instead.
  if (barrier.come != 0 && has_come(block, barrier)) {
    ++barrier.generation;
    barrier.come = 0;
  }
  if (instruction.a == 0) return Step::done;
  if (barrier.generation < waits) return Step::again;
  block.watch(&Watcher::barrier_passed, warp, static_cast<int>(number), waits - 1);
  waits = 0;
  return Step::done;
}

Step reach_warp(Warp& warp, const Instruction& instruction, Mask active) {
  const Mask lanes =
      uniform(warp, instruction, instruction.operands[0], active, "the mask") & warp.alive();
  if ((active & ~lanes) != 0) fail(warp, instruction, "a lane is not in its own mask");
  if (active != lanes) return Step::again;
  warp.block().watch(&Watcher::warp_synchronized, warp, active);
  return Step::done;
}

}  // namespace

Handler find_named(const Opcode& opcode, Instruction& instruction) {
  const std::string& name = instruction.opcode;
  const size_t operands = instruction.operands.size();
  if (name == "bar.warp.sync") return operands == 1 ? reach_warp : nullptr;
  if (opcode.size() != 2 || (name != "bar.sync" && name != "bar.arrive")) return nullptr;
  instruction.a = opcode[1] == "sync" ? 1 : 0;
  instruction.b = operands == 1 ? 1 : 0;
  return operands == 2 || (operands == 1 && instruction.a == 1) ? reach : nullptr;
}

}  // namespace mtl::ptx
