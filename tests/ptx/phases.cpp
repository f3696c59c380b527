// mbarrier: phases of arrivals and of bytes.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "ptx/asynchronous.h"

namespace mtl::ptx {

namespace {

constexpr unsigned kMostArrivals = (1u << 20) - 1;
constexpr int64_t kMostBytes = (int64_t{1} << 20) - 1;

uint64_t word_of(uint32_t address, const PhaseBarrier& barrier) {
  uint64_t word = 0x9e3779b97f4a7c15;
  for (const uint64_t part : {uint64_t{address}, static_cast<uint64_t>(barrier.pending),
                              static_cast<uint64_t>(barrier.bytes), barrier.phase}) {
    word = (word ^ part) * 0xff51afd7ed558ccd;
    word ^= word >> 32;
  }
  return word;
}
unsigned char* place(Warp& warp, const Instruction& instruction, uint32_t address) {
  return shared_memory(warp, instruction, address, sizeof(uint64_t), sizeof(uint64_t));
}
bool is_whole(Warp& warp, const Instruction& instruction, uint32_t address,
              const PhaseBarrier& barrier) {
  const uint64_t word = word_of(address, barrier);
  return std::memcmp(place(warp, instruction, address), &word, sizeof word) == 0;
}
void write_word(Warp& warp, const Instruction& instruction, uint32_t address,
                const PhaseBarrier& barrier) {
  const uint64_t word = word_of(address, barrier);
  std::memcpy(place(warp, instruction, address), &word, sizeof word);
}

template <typename Body>
void for_lanes(Warp& warp, const Instruction& instruction, const Operand& operand, Mask active,
               Body body) {
  uint64_t addresses[kLanes];
  warp.addresses(operand, addresses);
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) == 0) continue;
    if (addresses[lane] >= kSharedWindow) fail(warp, instruction, "not an address of .shared");
    body(lane, static_cast<uint32_t>(addresses[lane]));
  }
}

Step init(Warp& warp, const Instruction& instruction, Mask active) {
  const uint32_t* const counts = warp.narrow(instruction.operands[1]);
  auto& all = warp.block().asynchronous().phases;
  for_lanes(warp, instruction, instruction.operands[0], active, [&](unsigned lane, uint32_t at) {
    place(warp, instruction, at);
    if (const auto known = all.find(at);
        known != all.end() && is_whole(warp, instruction, at, known->second)) {
      fail(warp, instruction, fmt::format("there is a barrier at {:#x} already", at));
    }
    if (counts[lane] == 0 || counts[lane] > kMostArrivals) {
      fail(warp, instruction,
           fmt::format("{} arrivals: 1 to {} can be", counts[lane], kMostArrivals));
    }
    PhaseBarrier made;
    made.expected = counts[lane];
    made.pending = counts[lane];
    made.maker = &warp;
    made.maker_lane = lane;
    write_word(warp, instruction, at, all[at] = made);
    warp.block().watch(&Watcher::mbarrier_made, warp, at);
  });
  return Step::done;
}

// b: with bytes that are announced.
Step arrive_at(Warp& warp, const Instruction& instruction, Mask active) {
  const uint32_t* const bytes = instruction.b != 0 ? warp.narrow(instruction.operands[2]) : nullptr;
  for_lanes(warp, instruction, instruction.operands[1], active, [&](unsigned lane, uint32_t at) {
    PhaseBarrier& barrier = phase_barrier(warp, instruction, at);
    if (barrier.pending == 0) {
      fail(warp, instruction,
           fmt::format("all {} arrivals of phase {} have come already", barrier.expected,
                       barrier.phase));
    }
    warp.block().watch(&Watcher::mbarrier_reached, warp, at, barrier.phase);
    if (bytes != nullptr) barrier.bytes += bytes[lane];
    --barrier.pending;
    settle(warp, instruction, at, barrier);
  });
  return Step::done;
}

// The phase of this parity is the one at hand, or the one before it, which is complete.
Step try_wait(Warp& warp, const Instruction& instruction, Mask active) {
  const uint32_t* const parities = warp.narrow(instruction.operands[2]);
  std::vector<Asynchronous::Waiter>& waiters = warp.block().asynchronous().waiters;
  Mask complete = 0;
  const auto wait_is_over = [&](unsigned lane, uint32_t at) {
    for (size_t i = 0; i < waiters.size(); ++i) {
      Asynchronous::Waiter& waiter = waiters[i];
      if (waiter.warp != &warp || waiter.address != at || (waiter.lanes >> lane & 1) == 0) continue;
      waiter.lanes &= ~(Mask{1} << lane);
      if (waiter.lanes == 0) {
        waiter = waiters.back();
        waiters.pop_back();
      }
      return;
    }
  };
  const auto waits = [&](unsigned lane, uint32_t at, uint64_t phase) {
    for (Asynchronous::Waiter& waiter : waiters) {
      if (waiter.warp == &warp && waiter.address == at && waiter.phase == phase) {
        waiter.lanes |= Mask{1} << lane;
        return;
      }
    }
    waiters.push_back({&warp, Mask{1} << lane, at, phase});
  };
  uint32_t told = ~0u;
  for_lanes(warp, instruction, instruction.operands[1], active, [&](unsigned lane, uint32_t at) {
    const PhaseBarrier& barrier = phase_barrier(warp, instruction, at);
    if (parities[lane] > 1) fail(warp, instruction, "a parity is 0 or 1");
    if (barrier.phase % 2 == parities[lane]) return waits(lane, at, barrier.phase);
    complete |= Mask{1} << lane;
    wait_is_over(lane, at);
    // Before the first phase there is none.
    if (barrier.phase > 0 && told != at) {
      warp.block().watch(&Watcher::mbarrier_passed, warp, at, barrier.phase - 1);
    }
    told = at;
  });
  if (complete == 0) return Step::again;
  warp.set_predicate(instruction.operands[0], active, complete);
  return Step::done;
}

}  // namespace

PhaseBarrier& phase_barrier(Warp& warp, const Instruction& instruction, uint32_t address) {
  auto& all = warp.block().asynchronous().phases;
  place(warp, instruction, address);
  const auto known = all.find(address);
  if (known == all.end()) {
    fail(warp, instruction, fmt::format("nobody has made a barrier at {:#x}", address));
  }
  if (!is_whole(warp, instruction, address, known->second)) {
    fail(warp, instruction, fmt::format("the barrier at {:#x} was written over", address));
  }
  return known->second;
}

void settle(Warp& warp, const Instruction& instruction, uint32_t address, PhaseBarrier& barrier) {
  if (barrier.bytes > kMostBytes || barrier.bytes < -kMostBytes) {
    fail(warp, instruction,
         fmt::format("{} bytes to come are more than a barrier counts", barrier.bytes));
  }
  if (barrier.pending == 0 && barrier.bytes < 0) {
    fail(warp, instruction,
         fmt::format("{} bytes more have come in phase {} than were announced", -barrier.bytes,
                     barrier.phase));
  }
  if (barrier.pending == 0 && barrier.bytes == 0) {
    if (barrier.copies > 0) {
      fail(warp, instruction,
           fmt::format("phase {} ends and a copy for it is under way: fewer bytes were announced "
                       "than are copied",
                       barrier.phase));
    }
    for (const Asynchronous::Waiter& waiter : warp.block().asynchronous().waiters) {
      if (waiter.address == address && waiter.phase != barrier.phase) {
        fail(warp, instruction,
             fmt::format("phase {} ends and warp {} has not seen yet that phase {}, for which it "
                         "waits, has: it may miss it",
                         barrier.phase, waiter.warp->index(), waiter.phase));
      }
    }
    ++barrier.phase;
    barrier.pending = barrier.expected;
  }
  write_word(warp, instruction, address, barrier);
}

Handler find_phases(const Opcode&, Instruction& instruction) {
  const std::string& name = instruction.opcode;
  const std::vector<Operand>& operands = instruction.operands;
  const auto is_address = [&](size_t i) { return operands[i].kind == Operand::Kind::address; };
  if (name == "mbarrier.init.shared::cta.b64") {
    return operands.size() == 2 && is_address(0) ? init : nullptr;
  }
  if (name == "mbarrier.arrive.shared::cta.b64" ||
      name == "mbarrier.arrive.expect_tx.shared::cta.b64") {
    instruction.b = name.find("expect_tx") != name.npos ? 1 : 0;
    return operands.size() == (instruction.b != 0 ? 3 : 2) &&
                   operands[0].kind == Operand::Kind::none && is_address(1)
               ? arrive_at
               : nullptr;
  }
  if (name == "mbarrier.try_wait.parity.shared::cta.b64") {
    return operands.size() == 3 && is_address(1) ? try_wait : nullptr;
  }
  return nullptr;
}

}  // namespace mtl::ptx
