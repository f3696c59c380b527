// Loads, stores and atomics of all state spaces.
#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "ptx/machine.h"

namespace mtl::ptx {

namespace {

enum Space { generic, global, shared, local, parameter };

// What find_memory() keeps of a name: the state space in `a`, the bytes of an element and whether a
// sign goes on in `b`, what an atomic does in `c`.
constexpr int kSigned = 16, kAcquires = 32;

int bytes_of(const Instruction& instruction) {
  return instruction.b & 15;
}
size_t count_of(const Operand& operand) {
  return operand.kind == Operand::Kind::list ? operand.parts.size() : 1;
}
const Operand& part_of(const Operand& operand, size_t i) {
  return operand.kind == Operand::Kind::list ? operand.parts[i] : operand;
}

// The lanes' addresses within their space, and which space that is: of generic ones all lanes'.
struct Where {
  Space space = global;
  uint64_t at[kLanes] = {};
};
Where where(Warp& warp, const Instruction& instruction, Mask active, const Operand& operand) {
  Where result;
  result.space = static_cast<Space>(instruction.a);
  warp.addresses(operand, result.at);
  if (result.space != generic) return result;
  constexpr uint64_t kWindows = kSharedWindow | kParameterWindow | kLocalWindow;
  const uint64_t window = result.at[std::countr_zero(active)] & kWindows;
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) == 0) continue;
    if ((result.at[lane] & kWindows) != window) {
      fail(warp, instruction, "lanes in different state spaces");
    }
    result.at[lane] &= ~kWindows;
  }
  result.space = window == kSharedWindow      ? shared
                 : window == kParameterWindow ? parameter
                 : window == kLocalWindow     ? local
                                              : global;
  return result;
}

unsigned char* memory(Warp& warp, const Instruction& instruction, const Where& where, int lane,
                      size_t bytes) {
  const uint64_t address = where.at[lane];
  switch (where.space) {
    case shared:
      if (static_cast<uint32_t>(address) % bytes != 0) {
        fail(warp, instruction,
             fmt::format("lane {}: shared address {} is no multiple of {}", lane,
                         static_cast<uint32_t>(address), bytes));
      }
      return warp.block().shared(static_cast<uint32_t>(address), bytes, bytes);
    case local:
      return warp.local(static_cast<unsigned>(lane), address, bytes);
    case parameter: {
      const auto& all = warp.block().launch().parameters;
      if (address % bytes != 0 || address > all.size() || all.size() - address < bytes) {
        fail(warp, instruction, fmt::format("no parameter at {}", address));
      }
      return const_cast<unsigned char*>(all.data()) + address;
    }
    default:
      return global_memory(warp, instruction, address, bytes, bytes);
  }
}

void tell(Warp& warp, const Instruction& instruction, Mask active, const Where& where, size_t bytes,
          Access access) {
  if (warp.block().launch().watchers.empty()) return;
  const auto size = static_cast<unsigned>(bytes);
  if (where.space == shared) {
    uint32_t addresses[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      addresses[lane] = static_cast<uint32_t>(where.at[lane]);
    }
    warp.block().watch(&Watcher::shared, warp, instruction, active, addresses, size, access);
  } else if (where.space == global) {
    warp.block().watch(&Watcher::global, warp, instruction, active, where.at, size, access);
  }
}

uint64_t read_element(const unsigned char* from, int bytes, bool is_signed) {
  uint64_t value = 0;
  std::memcpy(&value, from, static_cast<size_t>(bytes));
  if (is_signed && bytes < 8) {
    const int shift = 64 - 8 * bytes;
    value = static_cast<uint64_t>(static_cast<int64_t>(value << shift) >> shift);
  }
  return value;
}
void put(Warp& warp, const Operand& to, int lane, uint64_t value) {
  if (to.kind == Operand::Kind::none) return;
  if (to.file == File::wide) {
    warp.wide(to)[lane] = value;
  } else {
    warp.narrow(to)[lane] = static_cast<uint32_t>(to.half ? value & 0xffff : value);
  }
}
uint64_t get(Warp& warp, const Operand& from, int lane, int bytes) {
  const bool is_wide = from.kind == Operand::Kind::constant ? bytes == 8 : from.file == File::wide;
  return is_wide ? warp.wide(from)[lane] : warp.narrow(from)[lane];
}

constexpr uint64_t kMostPolls = 1'000'000;
void poll(Warp& warp, const Instruction& instruction) {
  if (++warp.block().grid().polls > kMostPolls) {
    fail(warp, instruction, "waits for what no block will write");
  }
}

Step load(Warp& warp, const Instruction& instruction, Mask active) {
  const Operand& to = instruction.operands[0];
  const int bytes = bytes_of(instruction);
  const size_t count = count_of(to), all = count * static_cast<size_t>(bytes);
  if ((instruction.b & kAcquires) != 0) poll(warp, instruction);
  const Where from = where(warp, instruction, active, instruction.operands[1]);
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) == 0) continue;
    const unsigned char* const begin = memory(warp, instruction, from, lane, all);
    for (size_t i = 0; i < count; ++i) {
      put(warp, part_of(to, i), lane,
          read_element(begin + i * static_cast<size_t>(bytes), bytes,
                       (instruction.b & kSigned) != 0));
    }
  }
  tell(warp, instruction, active, from, all, Access::read);
  return Step::done;
}

Step store(Warp& warp, const Instruction& instruction, Mask active) {
  const Operand& value = instruction.operands[1];
  const int bytes = bytes_of(instruction);
  const size_t count = count_of(value), all = count * static_cast<size_t>(bytes);
  const Where to = where(warp, instruction, active, instruction.operands[0]);
  if (to.space == parameter) fail(warp, instruction, "parameters are not written");
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) == 0) continue;
    unsigned char* const begin = memory(warp, instruction, to, lane, all);
    for (size_t i = 0; i < count; ++i) {
      const uint64_t element = get(warp, part_of(value, i), lane, bytes);
      std::memcpy(begin + i * static_cast<size_t>(bytes), &element, static_cast<size_t>(bytes));
    }
  }
  if (to.space == global) warp.block().grid().polls = 0;
  tell(warp, instruction, active, to, all, Access::write);
  return Step::done;
}

enum Atomic {
  add,
  add_f32,
  largest_u32,
  largest_s32,
  smallest_u32,
  smallest_s32,
  set_bits,
  clear_bits,
  exchange,
  compare_exchange
};

uint64_t changed(int atomic, uint64_t before, uint64_t value, uint64_t other, int bytes) {
  const auto b32 = static_cast<uint32_t>(before), v32 = static_cast<uint32_t>(value);
  switch (atomic) {
    case add:
      return before + value;
    case add_f32:
      return std::bit_cast<uint32_t>(std::bit_cast<float>(b32) + std::bit_cast<float>(v32));
    case largest_u32:
      return std::max(b32, v32);
    case smallest_u32:
      return std::min(b32, v32);
    case largest_s32:
      return static_cast<uint32_t>(std::max(static_cast<int32_t>(b32), static_cast<int32_t>(v32)));
    case smallest_s32:
      return static_cast<uint32_t>(std::min(static_cast<int32_t>(b32), static_cast<int32_t>(v32)));
    case set_bits:
      return before | value;
    case clear_bits:
      return before & value;
    case exchange:
      return value;
    default: {  // the value, where it is as expected
      const uint64_t expected = bytes == 8 ? value : v32;
      return before == expected ? other : before;
    }
  }
}

// Lane by lane, in their order.
template <bool kReturns>
Step atomic(Warp& warp, const Instruction& instruction, Mask active) {
  const auto& operands = instruction.operands;
  const Operand& value = operands[kReturns ? 2 : 1];
  const int bytes = bytes_of(instruction);
  const size_t count = count_of(value), all = count * static_cast<size_t>(bytes);
  const Where at = where(warp, instruction, active, operands[kReturns ? 1 : 0]);
  bool changes = false;
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((active >> lane & 1) == 0) continue;
    unsigned char* const begin = memory(warp, instruction, at, lane, all);
    for (size_t i = 0; i < count; ++i) {
      unsigned char* const element = begin + i * static_cast<size_t>(bytes);
      const uint64_t before = read_element(element, bytes, false);
      const uint64_t other = instruction.c == compare_exchange
                                 ? get(warp, operands[kReturns ? 3 : 2], lane, bytes)
                                 : 0;
      const uint64_t after =
          changed(instruction.c, before, get(warp, part_of(value, i), lane, bytes), other, bytes);
      changes = changes || after != before;
      std::memcpy(element, &after, static_cast<size_t>(bytes));
      if constexpr (kReturns) put(warp, part_of(operands[0], i), lane, before);
    }
  }
  if (at.space == global) {
    if (changes) {
      warp.block().grid().polls = 0;
    } else {
      poll(warp, instruction);
    }
  }
  tell(warp, instruction, active, at, all, Access::atomic);
  return Step::done;
}

Step order(Warp&, const Instruction&, Mask) {
  return Step::done;  // all is seen at once
}

int space_of(std::string_view part) {
  if (part == "global") return global;
  if (part == "shared" || part == "shared::cta") return shared;
  if (part == "local") return local;
  if (part == "param" || part == "param::entry") return parameter;
  return -1;
}

// An element's bytes and sign; 0: no type of memory.
int type_of(std::string_view name) {
  for (const auto& [type, bytes] :
       {std::pair{"8", 1}, std::pair{"16", 2}, std::pair{"32", 4}, std::pair{"64", 8}}) {
    if (name.size() < 2 || name.substr(1) != type) continue;
    if (name[0] == 's') return bytes | kSigned;
    if (name[0] == 'u' || name[0] == 'b' || name[0] == 'f') return bytes;
  }
  return 0;
}

int atomic_of(std::string_view name, std::string_view type) {
  const bool is_float = type.starts_with('f');
  if (name == "add") return is_float ? (type == "f32" ? add_f32 : -1) : add;
  if (is_float) return -1;
  if (name == "max" && type == "u32") return largest_u32;
  if (name == "max" && type == "s32") return largest_s32;
  if (name == "min" && type == "u32") return smallest_u32;
  if (name == "min" && type == "s32") return smallest_s32;
  if (name == "or") return set_bits;
  if (name == "and") return clear_bits;
  if (name == "exch") return exchange;
  if (name == "cas") return compare_exchange;
  return -1;
}

}  // namespace

Handler find_memory(const Opcode& opcode, Instruction& instruction) {
  const std::string_view root = opcode[0];
  if (root == "membar" || (root == "fence" && opcode.size() > 1 && opcode[1] != "proxy" &&
                           !opcode[1].starts_with("mbarrier"))) {
    return order;
  }
  const bool changes = root == "atom" || root == "red";
  if (root != "ld" && root != "ldu" && root != "st" && !changes) return nullptr;
  instruction.a = generic;
  instruction.b = type_of(opcode.back());
  instruction.c = -1;
  if (instruction.b == 0) return nullptr;
  for (size_t i = 1; i + 1 < opcode.size(); ++i) {
    const std::string_view part = opcode[i];
    if (const int space = space_of(part); space >= 0) {
      instruction.a = space;
    } else if (changes && atomic_of(part, opcode.back()) >= 0) {
      instruction.c = atomic_of(part, opcode.back());
    } else if (part == "acquire") {
      instruction.b |= kAcquires;
    } else if (part == "async") {
      return nullptr;
    }
  }
  if (changes && instruction.c < 0) return nullptr;
  if (root == "atom") return atomic<true>;
  if (root == "red") return atomic<false>;
  return root == "st" ? store : load;
}

}  // namespace mtl::ptx
