#include "ptx/asynchronous.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include <fmt/format.h>

#include "ptx/tensor_cores.h"

namespace mtl::ptx {

namespace {

// --- setmaxnreg: the block's registers are a pool

constexpr unsigned kRegisters = 65536;  // of a multiprocessor
constexpr unsigned kRegisterUnit = 8;   // a thread's come by so many
constexpr unsigned kLeastRegisters = 24, kMostRegisters = 256;

Step set_registers(Warp& warp, const Instruction& instruction, Mask) {
  Block& block = warp.block();
  std::vector<unsigned>& all = block.asynchronous().registers;
  const bool takes = instruction.a == 1;
  const auto count = static_cast<unsigned>(instruction.operands[0].bits);
  if (count < kLeastRegisters || count > kMostRegisters || count % kRegisterUnit != 0) {
    fail(warp, instruction, "registers are 24 to 256, a multiple of 8");
  }
  // What ptxas gives to a kernel of so many threads of which a multiprocessor has one block.
  const unsigned warps = static_cast<unsigned>(block.warps().size());
  const unsigned at_start =
      std::min(kRegisters / (warps * kLanes) / kRegisterUnit * kRegisterUnit, kMostRegisters);
  if (all.empty()) all.assign(warps, at_start);
  unsigned& own = all[warp.index()];
  if (takes ? count < own : count > own) {
    fail(warp, instruction, fmt::format("the warp has {} registers a thread", own));
  }
  unsigned taken = 0;
  for (const unsigned one : all) taken += one;
  if (taken - own + count > at_start * warps) return Step::again;
  follow(warp, instruction, {&instruction});
  own = count;
  return Step::done;
}

// --- fences

// Barriers that the lanes have made are ready for the copy engine.
void publish(const Warp& warp, Mask active) {
  for (auto& [address, barrier] : warp.block().asynchronous().phases) {
    if (barrier.maker == &warp && (active >> barrier.maker_lane & 1) != 0) barrier.published = true;
  }
}
Step fence_proxy(Warp& warp, const Instruction&, Mask active) {
  publish(warp, active);
  warp.block().watch(&Watcher::proxy_fence, warp, active, StateSpace::shared);
  return Step::done;
}
Step fence_global(Warp& warp, const Instruction&, Mask active) {
  warp.block().watch(&Watcher::proxy_fence, warp, active, StateSpace::global);
  return Step::done;
}
Step fence_both(Warp& warp, const Instruction& instruction, Mask active) {
  fence_global(warp, instruction, active);
  return fence_proxy(warp, instruction, active);
}
Step fence_init(Warp& warp, const Instruction&, Mask active) {
  publish(warp, active);
  return Step::done;
}

}  // namespace

unsigned char* shared_memory(Warp& warp, const Instruction& instruction, uint32_t address,
                             size_t bytes, size_t align) {
  try {
    return warp.block().shared(address, bytes, align);
  } catch (const std::runtime_error& error) {
    fail(warp, instruction, error.what());
  }
}

uint32_t uniform(Warp& warp, const Instruction& instruction, const Operand& operand, Mask active,
                 const char* what) {
  const uint32_t* const values = warp.narrow(operand);
  const uint32_t first = values[std::countr_zero(active)];
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) != 0 && values[lane] != first) {
      fail(warp, instruction, fmt::format("lanes differ in {}", what));
    }
  }
  return first;
}

void ended(Block& block) {
  const Asynchronous& all = block.asynchronous();
  for (const Copy& copy : all.copies) {
    if (copy.is_bulk) {
      fail(*copy.warp, *copy.instruction, "the block has ended and the copy is under way");
    }
  }
  for (size_t i = 0; i < all.named.size(); ++i) {
    if (all.named[i].come != 0) {
      throw std::runtime_error(fmt::format(
          "{}: a block has ended and at its barrier {} some have come that nobody has waited for",
          block.launch().kernel->name, i));
    }
  }
  for (const auto& [address, barrier] : all.phases) {
    if (barrier.bytes == 0) continue;
    throw std::runtime_error(fmt::format(
        "{}: a block has ended and of the bytes that complete on its barrier at {:#x} {} more were "
        "announced than have come",
        block.launch().kernel->name, address, barrier.bytes));
  }
  products_ended(block);
  stores_ended(block);
}

std::string barriers_text(const Block& block) {
  const Asynchronous& all = const_cast<Block&>(block).asynchronous();
  std::string text;
  for (const auto& [address, barrier] : all.phases) {
    text += fmt::format("\n  barrier at {:#x}: in phase {} {} of {} arrivals and {} bytes to come",
                        address, barrier.phase, barrier.pending, barrier.expected, barrier.bytes);
  }
  for (size_t i = 0; i < all.named.size(); ++i) {
    if (all.named[i].come == 0) continue;
    text += fmt::format("\n  barrier {}: {} of {} threads have come", i,
                        std::popcount(all.named[i].come) * kLanes,
                        all.named[i].expected == 0 ? "all" : fmt::to_string(all.named[i].expected));
  }
  return text;
}

Handler find_asynchronous(const Opcode& opcode, Instruction& instruction) {
  const std::string& name = instruction.opcode;
  if (name == "fence.proxy.async") return fence_both;
  if (name == "fence.proxy.async.shared::cta") return fence_proxy;
  if (name == "fence.proxy.async.global") return fence_global;
  if (name == "fence.mbarrier_init.release.cluster") return fence_init;
  if (name == "setmaxnreg.inc.sync.aligned.u32" || name == "setmaxnreg.dec.sync.aligned.u32") {
    instruction.a = opcode[1] == "inc" ? 1 : 0;
    return instruction.operands.size() == 1 &&
                   instruction.operands[0].kind == Operand::Kind::constant
               ? set_registers
               : nullptr;
  }
  for (const auto find : {find_phases, find_named, find_copies, find_stores}) {
    if (const Handler found = find(opcode, instruction)) return found;
  }
  return nullptr;
}

}  // namespace mtl::ptx
