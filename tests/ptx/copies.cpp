// cp.async, and the copy engine: cp.async.bulk of bytes and of a tensor's boxes.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "ptx/asynchronous.h"
#include "ptx/tensor_map.h"

namespace mtl::ptx {

namespace {

constexpr unsigned kChunk = 16;  // bytes that stay together in any pattern

void carry(const Copy::Piece& piece) {
  if (piece.from != nullptr) {
    std::memcpy(piece.to, piece.from, piece.bytes);
  } else {
    std::memset(piece.to, 0, piece.bytes);
  }
}

// A bulk copy, or the lanes' part of another.
void complete(Block& block, Copy& copy, Mask lanes) {
  for (const Copy::Piece& piece : copy.pieces) {
    if (copy.is_bulk || (lanes >> piece.lane & 1) != 0) carry(piece);
  }
  copy.lanes &= ~lanes;
  if (!copy.is_bulk) return;
  PhaseBarrier& barrier = phase_barrier(*copy.warp, *copy.instruction, copy.barrier);
  --barrier.copies;  // settle() has seen to it that the phase is still the copy's
  barrier.bytes -= copy.bytes;
  settle(*copy.warp, *copy.instruction, copy.barrier, barrier);
  (void)block;
}

// Some at once; most later, some much later.
void start(Block& block, Copy copy) {
  constexpr unsigned kLonger[] = {0, 8, 64, 256};  // turns
  Asynchronous& all = block.asynchronous();
  const unsigned longest = kLonger[block.grid().random() % 4];
  if (longest == 0) return complete(block, copy, copy.lanes);
  for (const Copy::Piece& piece : copy.pieces) std::memset(piece.to, 0xff, piece.bytes);  // NaN
  copy.due = all.turns + 1 + block.grid().random() % longest;
  all.next_due = all.copies.empty() ? copy.due : std::min(all.next_due, copy.due);
  all.copies.push_back(std::move(copy));
}

// --- cp.async: groups of each lane's own

std::array<uint32_t, kLanes>& committed(Warp& warp) {
  Asynchronous& all = warp.block().asynchronous();
  if (all.committed.empty()) all.committed.resize(warp.block().warps().size());
  return all.committed[warp.index()];
}

Step copy_async(Warp& warp, const Instruction& instruction, Mask active) {
  uint64_t to[kLanes], from[kLanes];
  warp.addresses(instruction.operands[0], to);
  warp.addresses(instruction.operands[1], from);
  const uint32_t* const sizes =
      instruction.operands.size() > 3 ? warp.narrow(instruction.operands[3]) : nullptr;
  Copy copy;
  copy.warp = &warp;
  copy.instruction = &instruction;
  copy.lanes = active;
  copy.groups = committed(warp);
  uint32_t places[kLanes] = {};
  Mask reads = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) == 0) continue;
    const uint32_t size = sizes != nullptr ? sizes[lane] : kChunk;
    if (size > kChunk) fail(warp, instruction, fmt::format("{} bytes of 16", size));
    places[lane] = static_cast<uint32_t>(to[lane]);
    unsigned char* const at = shared_memory(warp, instruction, places[lane], kChunk, kChunk);
    if (size > 0) {
      copy.pieces.push_back(
          {at, global_memory(warp, instruction, from[lane], size, kChunk), size, lane});
      reads |= Mask{1} << lane;
    }
    if (size < kChunk) copy.pieces.push_back({at + size, nullptr, kChunk - size, lane});
  }
  const Block& block = warp.block();
  if (reads != 0) {
    block.watch(&Watcher::global, warp, instruction, reads, from, kChunk, Access::read);
  }
  block.watch(&Watcher::copy, warp, instruction, active, places, kChunk);
  start(warp.block(), std::move(copy));
  return Step::done;
}

Step commit_copies(Warp& warp, const Instruction&, Mask active) {
  std::array<uint32_t, kLanes>& groups = committed(warp);
  for (unsigned lane = 0; lane < kLanes; ++lane) groups[lane] += active >> lane & 1;
  warp.block().watch(&Watcher::copies_committed, warp, active);
  return Step::done;
}

Step wait_for_copies(Warp& warp, const Instruction& instruction, Mask active) {
  const auto most = static_cast<uint32_t>(instruction.operands[0].bits);
  const std::array<uint32_t, kLanes>& groups = committed(warp);
  Asynchronous& all = warp.block().asynchronous();
  for (Copy& copy : all.copies) {
    if (copy.is_bulk || copy.warp != &warp) continue;
    Mask done = 0;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      const bool is_older = copy.groups[lane] + most < groups[lane];
      done |= (is_older ? Mask{1} << lane : 0) & active & copy.lanes;
    }
    if (done != 0) complete(warp.block(), copy, done);
  }
  std::erase_if(all.copies, [](const Copy& copy) { return !copy.is_bulk && copy.lanes == 0; });
  warp.block().watch(&Watcher::copies_waited, warp, active, static_cast<int>(most));
  return Step::done;
}

// --- the copy engine; each active lane asks for a copy of its own

// What a lane's copy has in common. The barrier's phase is the one at hand.
Copy bulk_copy(Warp& warp, const Instruction& instruction, unsigned lane, uint32_t to,
               unsigned bytes, uint32_t barrier_at) {
  PhaseBarrier& barrier = phase_barrier(warp, instruction, barrier_at);
  if (!barrier.published) {
    fail(warp, instruction,
         "the barrier's maker has not fenced it (fence.mbarrier_init, fence.proxy.async)");
  }
  Copy copy;
  copy.warp = &warp;
  copy.instruction = &instruction;
  copy.is_bulk = true;
  copy.barrier = barrier_at;
  copy.phase = barrier.phase;
  copy.bytes = bytes;
  ++barrier.copies;
  warp.block().watch(&Watcher::bulk_copy, warp, instruction, lane, to, bytes, barrier_at,
                     barrier.phase);
  return copy;
}

Step copy_bytes(Warp& warp, const Instruction& instruction, Mask active) {
  uint64_t to[kLanes], from[kLanes], barriers[kLanes];
  warp.addresses(instruction.operands[0], to);
  warp.addresses(instruction.operands[1], from);
  const uint32_t* const sizes = warp.narrow(instruction.operands[2]);
  warp.addresses(instruction.operands[3], barriers);
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) == 0) continue;
    const uint32_t size = sizes[lane];
    if (size == 0 || size % kChunk != 0) {
      fail(warp, instruction, fmt::format("{} bytes are no multiple of 16", size));
    }
    const auto place = static_cast<uint32_t>(to[lane]);
    unsigned char* const at = shared_memory(warp, instruction, place, size, kChunk);
    const unsigned char* const source = global_memory(warp, instruction, from[lane], size, kChunk);
    Copy copy =
        bulk_copy(warp, instruction, lane, place, size, static_cast<uint32_t>(barriers[lane]));
    warp.block().watch(&Watcher::bulk_reads, warp, instruction, lane, from[lane], size,
                       copy.barrier, copy.phase);
    copy.pieces.push_back({at, source, size, lane});
    start(warp.block(), std::move(copy));
  }
  return Step::done;
}

// A map lies in a parameter of the kernel, or in global memory.
TensorMap map_at(Warp& warp, const Instruction& instruction, uint64_t address) {
  TensorMap map;
  const std::vector<unsigned char>& parameters = warp.block().launch().parameters;
  const unsigned char* from = nullptr;
  if (address >= kParameterWindow && address < kLocalWindow) {
    const uint64_t offset = address - kParameterWindow;
    if (offset % alignof(TensorMap) != 0 || offset + sizeof map > parameters.size()) {
      fail(warp, instruction, fmt::format("no tensor map at byte {} of the parameters", offset));
    }
    from = parameters.data() + offset;
  } else {
    from = global_memory(warp, instruction, address, sizeof map, alignof(TensorMap));
  }
  std::memcpy(&map, from, sizeof map);
  if (map.mark != TensorMap::kMark) fail(warp, instruction, "this is no tensor map");
  return map;
}

// "Swizzling modes": of the address's bits the ones from 4 on are turned by those from 7 on.
uint32_t swizzled(uint32_t address, uint32_t swizzle_bytes) {
  const uint32_t pieces = swizzle_bytes == 0 ? 1 : swizzle_bytes / kChunk;
  return address ^ ((address >> 7) & (pieces - 1)) << 4;
}

// The parts of a row of the box, whose elements [first, end) are there, in shared memory.
void add_row(Warp& warp, const Instruction& instruction, const TensorMap& map, uint32_t to,
             const unsigned char* row, unsigned first, unsigned end, Copy& copy) {
  const unsigned row_bytes = map.box[0] * map.element_bytes;
  first *= map.element_bytes;
  end *= map.element_bytes;
  for (unsigned at = 0; at < row_bytes; at += kChunk) {
    unsigned char* const chunk =
        shared_memory(warp, instruction, swizzled(to + at, map.swizzle_bytes), kChunk, kChunk);
    const unsigned begin = std::clamp(first, at, at + kChunk) - at;
    const unsigned behind = std::clamp(end, at + begin, at + kChunk) - at;
    if (begin > 0) copy.pieces.push_back({chunk, nullptr, begin});
    if (behind > begin) {
      copy.pieces.push_back({chunk + begin, row + (at + begin - first), behind - begin});
    }
    if (behind < kChunk) copy.pieces.push_back({chunk + behind, nullptr, kChunk - behind});
  }
}

void copy_box(Warp& warp, const Instruction& instruction, unsigned lane, const TensorMap& map,
              uint32_t to, const std::array<int32_t, 4>& at, uint32_t barrier) {
  const unsigned row_bytes = map.box[0] * map.element_bytes;
  if (row_bytes % kChunk != 0 || (map.swizzle_bytes != 0 && row_bytes > map.swizzle_bytes)) {
    fail(warp, instruction, fmt::format("a box's row of {} bytes", row_bytes));
  }
  const uint32_t align = std::max(128u, 8 * map.swizzle_bytes);
  if (to % align != 0) {
    fail(warp, instruction,
         fmt::format("{:#x} is no multiple of {} bytes, with which the pattern begins", to, align));
  }
  const unsigned rows = map.box[1] * map.box[2] * map.box[3];
  Copy copy = bulk_copy(warp, instruction, lane, to, rows * row_bytes, barrier);
  for (unsigned row = 0; row < rows; ++row) {
    const unsigned inside[3] = {row % map.box[1], row / map.box[1] % map.box[2],
                                row / map.box[1] / map.box[2]};
    const unsigned char* from = map.base;
    bool is_there = true;
    for (size_t i = 0; i < 3; ++i) {
      const int64_t place = int64_t{at[i + 1]} + inside[i];
      is_there = is_there && place >= 0 && place < static_cast<int64_t>(map.sizes[i + 1]);
      if (is_there) from += static_cast<uint64_t>(place) * map.strides[i];
    }
    const int64_t size = map.box[0];
    const int64_t first = std::clamp<int64_t>(-int64_t{at[0]}, 0, size);
    const int64_t end =
        std::clamp<int64_t>(static_cast<int64_t>(map.sizes[0]) - at[0], first, size);
    if (is_there && end > first) {
      from += (at[0] + first) * map.element_bytes;
      const auto address = reinterpret_cast<uint64_t>(from);
      const size_t bytes = static_cast<size_t>(end - first) * map.element_bytes;
      global_memory(warp, instruction, address, bytes, map.element_bytes);
      warp.block().watch(&Watcher::bulk_reads, warp, instruction, lane, address, bytes,
                         copy.barrier, copy.phase);
    }
    add_row(warp, instruction, map, to + row * row_bytes, from, static_cast<unsigned>(first),
            static_cast<unsigned>(is_there ? end : first), copy);
  }
  start(warp.block(), std::move(copy));
}

// [to], [map, {column, head, row, sequence}], [barrier]
Step copy_boxes(Warp& warp, const Instruction& instruction, Mask active) {
  uint64_t to[kLanes], maps[kLanes], barriers[kLanes];
  warp.addresses(instruction.operands[0], to);
  warp.addresses(instruction.operands[1], maps);
  warp.addresses(instruction.operands[2], barriers);
  const std::vector<Operand>& places = instruction.operands[1].parts[0].parts;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) == 0) continue;
    std::array<int32_t, 4> at;
    for (size_t i = 0; i < at.size(); ++i) {
      at[i] = static_cast<int32_t>(warp.narrow(places[i])[lane]);
    }
    copy_box(warp, instruction, lane, map_at(warp, instruction, maps[lane]),
             static_cast<uint32_t>(to[lane]), at, static_cast<uint32_t>(barriers[lane]));
  }
  return Step::done;
}

Step fetch_map(Warp& warp, const Instruction& instruction, Mask active) {
  uint64_t maps[kLanes];
  warp.addresses(instruction.operands[0], maps);
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) != 0) map_at(warp, instruction, maps[lane]);
  }
  return Step::done;
}

}  // namespace

void arrive(Block& block) {
  Asynchronous& all = block.asynchronous();
  ++all.turns;
  if (!all.stores.empty() && all.turns >= all.next_store_due) advance_stores(block);
  if (all.copies.empty() || all.turns < all.next_due) return;
  all.next_due = ~uint64_t{0};
  for (Copy& copy : all.copies) {
    if (copy.due <= all.turns) {
      complete(block, copy, copy.lanes);
    } else {
      all.next_due = std::min(all.next_due, copy.due);
    }
  }
  std::erase_if(all.copies, [&](const Copy& copy) { return copy.due <= all.turns; });
}

bool waiting(const Block& block) {
  const Asynchronous& all = const_cast<Block&>(block).asynchronous();
  return !all.copies.empty() || !all.stores.empty();
}

Handler find_copies(const Opcode&, Instruction& instruction) {
  const std::string& name = instruction.opcode;
  const std::vector<Operand>& operands = instruction.operands;
  const auto is_address = [&](size_t i) { return operands[i].kind == Operand::Kind::address; };
  const auto is_constant = [&](size_t i) { return operands[i].kind == Operand::Kind::constant; };
  if (name == "cp.async.cg.shared.global") {
    const bool known = (operands.size() == 3 || operands.size() == 4) && is_address(0) &&
                       is_address(1) && is_constant(2) && operands[2].bits == kChunk;
    return known ? copy_async : nullptr;
  }
  if (name == "cp.async.commit_group") return commit_copies;
  if (name == "cp.async.wait_group") {
    return operands.size() == 1 && is_constant(0) ? wait_for_copies : nullptr;
  }
  if (name == "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes") {
    const bool known = operands.size() == 4 && is_address(0) && is_address(1) && is_address(3);
    return known ? copy_bytes : nullptr;
  }
  if (name == "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes") {
    const bool known = operands.size() == 3 && is_address(0) && is_address(1) && is_address(2) &&
                       operands[1].parts.size() == 1 && operands[1].parts[0].parts.size() == 4;
    return known ? copy_boxes : nullptr;
  }
  if (name == "prefetch.tensormap") {
    return operands.size() == 1 && is_address(0) ? fetch_map : nullptr;
  }
  return nullptr;
}

}  // namespace mtl::ptx
