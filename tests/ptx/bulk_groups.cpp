// The copy engine's way from shared to global memory: cp.async.bulk and cp.reduce.async.bulk in
// bulk groups ("Data Movement and Conversion Instructions: Bulk copy").
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ptx/asynchronous.h"

namespace mtl::ptx {

namespace {

constexpr unsigned kStoreUnit = 16;  // bytes, of sizes and addresses

// As the manual says of cp.reduce.async.bulk.add.f32.
float without_subnormals(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}

void write_part(const Store& store, const Store::Part& part) {
  const unsigned char* const from = store.taken.data() + part.first;
  unsigned char* const to = store.to + part.first;
  if (!store.adds) {
    std::memcpy(to, from, part.bytes);
    return;
  }
  for (unsigned at = 0; at < part.bytes; at += sizeof(float)) {
    float sum = 0, more = 0;
    std::memcpy(&sum, to + at, sizeof sum);
    std::memcpy(&more, from + at, sizeof more);
    sum = without_subnormals(without_subnormals(sum) + without_subnormals(more));
    std::memcpy(to + at, &sum, sizeof sum);
  }
}

// Reads and writes what is due by these turns.
void advance(Block& block, Store& store, uint64_t read_turn, uint64_t write_turn) {
  bool writes = false;
  for (Store::Part& part : store.parts) {
    if (!part.is_read && part.read_due <= read_turn) {
      std::memcpy(store.taken.data() + part.first, store.from + part.first, part.bytes);
      part.is_read = true;
    }
    if (part.write_due <= write_turn) {
      write_part(store, part);
      writes = true;
    }
  }
  if (!writes) return;
  std::erase_if(store.parts, [&](const Store::Part& part) { return part.write_due <= write_turn; });
  block.grid().polls = 0;
}

void forget_written(Asynchronous& all) {
  std::erase_if(all.stores, [](const Store& store) { return store.parts.empty(); });
  all.next_store_due = ~uint64_t{0};
  for (const Store& store : all.stores) {
    for (const Store::Part& part : store.parts) {
      all.next_store_due =
          std::min(all.next_store_due, part.is_read ? part.write_due : part.read_due);
    }
  }
}

// In up to four parts, each read at once, later or much later, and written the same way after that.
void divide(Block& block, Store& store, unsigned bytes) {
  constexpr unsigned kLonger[] = {0, 8, 64, 256};  // turns
  std::mt19937& random = block.grid().random;
  const auto later = [&](uint64_t turn) {
    const unsigned longest = kLonger[random() % 4];
    return longest == 0 ? turn : turn + 1 + random() % longest;
  };
  const unsigned elements = bytes / sizeof(float);
  std::vector<unsigned> ends(random() % 4);
  for (unsigned& end : ends) end = static_cast<unsigned>(random() % elements) * sizeof(float);
  ends.push_back(bytes);
  std::sort(ends.begin(), ends.end());
  unsigned first = 0;
  for (const unsigned end : ends) {
    if (end == first) continue;
    const uint64_t read = later(block.asynchronous().turns);
    store.parts.push_back({first, end - first, read, later(read), false});
    first = end;
  }
}

Step store_bytes(Warp& warp, const Instruction& instruction, Mask active) {
  uint64_t to[kLanes], from[kLanes];
  warp.addresses(instruction.operands[0], to);
  warp.addresses(instruction.operands[1], from);
  const uint32_t* const sizes = warp.narrow(instruction.operands[2]);
  Block& block = warp.block();
  Asynchronous& all = block.asynchronous();
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) == 0) continue;
    const uint32_t size = sizes[lane];
    if (size == 0 || size % kStoreUnit != 0) {
      fail(warp, instruction, fmt::format("{} bytes are no multiple of 16", size));
    }
    if (from[lane] > 0xffffffff) fail(warp, instruction, "not an address of .shared");
    BulkGroups& groups = all.bulk_groups[{warp.index(), lane}];
    Store store;
    store.warp = warp.index();
    store.lane = lane;
    store.group = groups.committed;
    store.adds = instruction.a != 0;
    store.from =
        shared_memory(warp, instruction, static_cast<uint32_t>(from[lane]), size, kStoreUnit);
    store.to = global_memory(warp, instruction, to[lane], size, kStoreUnit);
    block.watch(&Watcher::bulk_store, warp, instruction, lane, static_cast<uint32_t>(from[lane]),
                to[lane], size, store.adds ? Access::atomic : Access::write);
    groups.copies = groups.committed + 1;
    groups.warp = &warp;
    groups.last = &instruction;
    store.taken.resize(size);
    divide(block, store, size);
    advance(block, store, all.turns, all.turns);
    if (!store.adds) {
      for (const Store::Part& part : store.parts) {
        std::memset(store.to + part.first, 0xff, part.bytes);  // NaN
      }
    }
    all.stores.push_back(std::move(store));
  }
  forget_written(all);
  return Step::done;
}

Step commit_stores(Warp& warp, const Instruction&, Mask active) {
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) != 0) {
      ++warp.block().asynchronous().bulk_groups[{warp.index(), lane}].committed;
    }
  }
  warp.block().watch(&Watcher::stores_committed, warp, active);
  return Step::done;
}

// a: only until they have read.
Step wait_for_stores(Warp& warp, const Instruction& instruction, Mask active) {
  constexpr uint64_t kAny = ~uint64_t{0};
  const auto most = static_cast<uint32_t>(instruction.operands[0].bits);
  Asynchronous& all = warp.block().asynchronous();
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) == 0) continue;
    const auto known = all.bulk_groups.find({warp.index(), lane});
    if (known == all.bulk_groups.end()) continue;
    BulkGroups& groups = known->second;
    const uint32_t done = groups.committed - std::min(groups.committed, most);
    for (Store& store : all.stores) {
      if (store.warp != warp.index() || store.lane != lane || store.group >= done) continue;
      advance(warp.block(), store, kAny, instruction.a != 0 ? 0 : kAny);
    }
    groups.read = std::max(groups.read, done);
  }
  forget_written(all);
  warp.block().watch(&Watcher::stores_waited, warp, active, static_cast<int>(most),
                     instruction.a != 0);
  return Step::done;
}

}  // namespace

void advance_stores(Block& block) {
  Asynchronous& all = block.asynchronous();
  for (Store& store : all.stores) advance(block, store, all.turns, all.turns);
  forget_written(all);
}

void stores_ended(Block& block) {
  Asynchronous& all = block.asynchronous();
  for (const auto& [thread, groups] : all.bulk_groups) {
    if (groups.read >= groups.copies) continue;
    fail(*groups.warp, *groups.last,
         fmt::format("the block has ended and lane {} has not waited until the copy has read "
                     "shared memory",
                     thread.second));
  }
  // All of it has been read.
  for (Store& store : all.stores) {
    const auto shared = std::make_shared<const Store>(std::move(store));
    for (const Store::Part& part : shared->parts) {
      block.grid().late.emplace_back([shared, &part] { write_part(*shared, part); });
    }
  }
  all.stores.clear();
}

Handler find_stores(const Opcode&, Instruction& instruction) {
  const std::string& name = instruction.opcode;
  const std::vector<Operand>& operands = instruction.operands;
  const bool adds = name == "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32";
  if (adds || name == "cp.async.bulk.global.shared::cta.bulk_group") {
    instruction.a = adds ? 1 : 0;
    const bool known = operands.size() == 3 && operands[0].kind == Operand::Kind::address &&
                       operands[1].kind == Operand::Kind::address;
    return known ? store_bytes : nullptr;
  }
  if (name == "cp.async.bulk.commit_group") return commit_stores;
  const bool reads = name == "cp.async.bulk.wait_group.read";
  if (reads || name == "cp.async.bulk.wait_group") {
    instruction.a = reads ? 1 : 0;
    return operands.size() == 1 && operands[0].kind == Operand::Kind::constant ? wait_for_stores
                                                                               : nullptr;
  }
  return nullptr;
}

}  // namespace mtl::ptx
