// wgmma: products of a warpgroup, of which each warp gets 16 rows of sums.
#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

#include "ptx/asynchronous.h"
#include "ptx/elements.h"
#include "ptx/tensor_cores.h"

namespace mtl::ptx {

namespace {

constexpr unsigned kWarpsOfGroup = 4;
constexpr unsigned kRows = 16;          // of a warp
constexpr unsigned kInner = 16;         // k
constexpr unsigned kPieceElements = 8;  // elements of 16 bytes, which no pattern takes apart

// "Matrix Descriptor Format", "Strides".
struct Descriptor {
  uint32_t start, leading, stride;  // bytes
  uint32_t pattern_row;             // bytes; 8 of them are the pattern
};
Descriptor descriptor_of(const Warp& warp, const Instruction& instruction, uint64_t bits) {
  const auto field = [&](int at) { return static_cast<uint32_t>(bits >> at & 0x3fff) << 4; };
  constexpr uint64_t kUsed = uint64_t{0x3fff} | uint64_t{0x3fff} << 16 | uint64_t{0x3fff} << 32 |
                             uint64_t{7} << 49 | uint64_t{3} << 62;
  if ((bits & ~kUsed) != 0) fail(warp, instruction, fmt::format("descriptor {:#x}", bits));
  if ((bits >> 49 & 7) != 0) {
    fail(warp, instruction, fmt::format("a base offset in descriptor {:#x}: not known", bits));
  }
  const auto mode = static_cast<unsigned>(bits >> 62);
  if (mode != 1 && mode != 2) {
    fail(warp, instruction,
         fmt::format("swizzling mode {} in descriptor {:#x}: not known", mode, bits));
  }
  return {field(0), field(16), field(32), mode == 1 ? 128u : 64u};
}

// Where the pieces of an operand lie, that is `width` rows (of A) or columns (of B) by 16 of k.
// Turned: those lie side by side, k from row to row of the pattern; otherwise k does.
class Layout {
 public:
  Layout(const Warp& warp, const Instruction& instruction, uint64_t bits, bool turned,
         unsigned width)
      : at_(descriptor_of(warp, instruction, bits)), turned_(turned) {
    // Base offset 0: the pattern begins at a multiple of its size.
    const uint32_t within = at_.start % (8 * at_.pattern_row);
    if (within >= at_.pattern_row) {
      fail(
          warp, instruction,
          fmt::format("an operand at {:#x} begins in row {} of a pattern that begins at a multiple "
                      "of {} bytes",
                      at_.start, within / at_.pattern_row, 8 * at_.pattern_row));
    }
    const uint32_t side = turned ? std::min(2 * width, at_.pattern_row) : 2 * kInner;
    if (within + side > at_.pattern_row) {
      fail(warp, instruction,
           fmt::format("an operand at {:#x} goes over the end of the pattern's rows", at_.start));
    }
    const bool leads = turned && 2 * width > at_.pattern_row;
    for (const uint32_t step : {at_.stride, leads ? at_.leading : 0}) {
      if (step % (8 * at_.pattern_row) != 0) {
        fail(warp, instruction,
             fmt::format("patterns are {} bytes apart, whole ones are {}", step,
                         8 * at_.pattern_row));
      }
    }
  }

  // The 16 bytes of elements (row, k) to (row, k + 7), or, turned, (row, k) to (row + 7, k).
  uint32_t piece(unsigned row, unsigned k) const {
    const uint32_t width = at_.pattern_row / 2;  // elements
    const uint32_t address =
        turned_ ? at_.start + row / width * at_.leading + k / 8 * at_.stride +
                      k % 8 * at_.pattern_row + row % width * 2
                : at_.start + row / 8 * at_.stride + row % 8 * at_.pattern_row + k * 2;
    return address ^ ((address >> 7) & (at_.pattern_row / 16 - 1)) << 4;
  }

 private:
  Descriptor at_;
  bool turned_;
};

// What a warp reads, for watchers: pieces that lie together told as one.
void tell(const Warp& warp, const Instruction& instruction, std::vector<uint32_t>& pieces) {
  std::sort(pieces.begin(), pieces.end());
  for (size_t begin = 0; begin < pieces.size();) {
    size_t end = begin + 1;
    while (end < pieces.size() && pieces[end] == pieces[end - 1] + 16) ++end;
    warp.block().watch(&Watcher::product_reads, warp, instruction, pieces[begin],
                       16 * (end - begin));
    begin = end;
  }
}

// Reads rows [first, first + rows) of an operand into element(row, k).
template <float (*kWiden)(uint16_t), typename Element>
void read_operand(Warp& warp, const Instruction& instruction, const Layout& layout, bool turned,
                  unsigned first, unsigned rows, Element element) {
  const bool is_watched = !warp.block().launch().watchers.empty();
  std::vector<uint32_t> pieces;
  const unsigned row_step = turned ? kPieceElements : 1, inner_step = turned ? 1 : kPieceElements;
  for (unsigned row = first; row < first + rows; row += row_step) {
    for (unsigned k = 0; k < kInner; k += inner_step) {
      const uint32_t address = layout.piece(row, k);
      uint16_t elements[kPieceElements];
      std::memcpy(elements, shared_memory(warp, instruction, address, sizeof elements, 16),
                  sizeof elements);
      for (unsigned i = 0; i < kPieceElements; ++i) {
        element(row - first + (turned ? i : 0), k + (turned ? 0 : i)) = kWiden(elements[i]);
      }
      if (is_watched) pieces.push_back(address);
    }
  }
  if (is_watched) tell(warp, instruction, pieces);
}

// What find_group_products() keeps: `a` the columns; `b` the bits below; operands as they stand.
enum Bits {
  kLeftInRegisters = 1,
  kLeftTurned = 2,
  kRightTurned = 4,
  kLeftNegated = 8,
  kRightNegated = 16
};

uint64_t descriptor_operand(Warp& warp, const Instruction& instruction, const Operand& operand) {
  const uint64_t* const values = warp.wide(operand);
  for (unsigned lane = 1; lane < kLanes; ++lane) {
    if (values[lane] != values[0]) fail(warp, instruction, "lanes differ in a descriptor");
  }
  return values[0];
}

template <float (*kWiden)(uint16_t), unsigned kColumns>
Step multiply(Warp& warp, const Instruction& instruction, Mask active) {
  if (active != ~Mask{0}) fail(warp, instruction, "not all 32 lanes are here");
  const bool in_registers = (instruction.b & kLeftInRegisters) != 0;
  const Operand& left = instruction.operands[1];
  const Mask scale = warp.predicate(instruction.operands[3]);
  if (scale != 0 && scale != ~Mask{0}) fail(warp, instruction, "lanes differ in scale-d");
  const bool adds = scale != 0;
  const uint64_t left_bits = in_registers ? 0 : descriptor_operand(warp, instruction, left);
  const uint64_t right_bits = descriptor_operand(warp, instruction, instruction.operands[2]);
  follow(warp, instruction, {&instruction, left_bits, right_bits, adds});
  use_registers(warp, instruction, kColumns, in_registers);

  // Rows of A that are this warp's, and all of B, its k rows one behind the other.
  float a[kRows][kInner], b[kInner][kColumns], d[kRows][kColumns];
  if (in_registers) {
    for (unsigned i = 0; i < 4; ++i) {
      const uint32_t* const values = warp.narrow(left.parts[i]);
      for (unsigned lane = 0; lane < kLanes; ++lane) {
        float* const two = &a[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8];
        two[0] = kWiden(static_cast<uint16_t>(values[lane]));
        two[1] = kWiden(static_cast<uint16_t>(values[lane] >> 16));
      }
    }
  } else {
    const bool turned = (instruction.b & kLeftTurned) != 0;
    const Layout layout(warp, instruction, left_bits, turned, kRows * kWarpsOfGroup);
    read_operand<kWiden>(warp, instruction, layout, turned, warp.index() % kWarpsOfGroup * kRows,
                         kRows, [&](unsigned row, unsigned k) -> float& { return a[row][k]; });
  }
  const bool turned = (instruction.b & kRightTurned) != 0;
  const Layout layout(warp, instruction, right_bits, turned, kColumns);
  read_operand<kWiden>(warp, instruction, layout, turned, 0, kColumns,
                       [&](unsigned column, unsigned k) -> float& { return b[k][column]; });
  // The sign of either turns the products'.
  if (((instruction.b & kLeftNegated) != 0) != ((instruction.b & kRightNegated) != 0)) {
    for (auto& row : a) {
      for (float& value : row) value = -value;
    }
  }

  const std::vector<Operand>& sums = instruction.operands[0].parts;
  const auto for_sums = [&](auto body) {
    for (unsigned i = 0; i < kColumns / 2; ++i) {
      uint32_t* const values = warp.narrow(sums[i]);
      for (unsigned lane = 0; lane < kLanes; ++lane) {
        body(values[lane], d[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2]);
      }
    }
  };
  if (adds) {
    for_sums([](uint32_t value, float& sum) { sum = std::bit_cast<float>(value); });
  } else {
    std::memset(d, 0, sizeof d);
  }
  for (unsigned row = 0; row < kRows; ++row) {
    for (unsigned k = 0; k < kInner; ++k) {
      const float factor = a[row][k];
      for (unsigned column = 0; column < kColumns; ++column) {
        d[row][column] += factor * b[k][column];
      }
    }
  }
  for_sums([](uint32_t& value, float sum) { value = std::bit_cast<uint32_t>(sum); });
  return Step::done;
}

template <unsigned kColumns>
Handler multiply_of(bool is_bf16) {
  return is_bf16 ? Handler{multiply<widened_bf16, kColumns>}
                 : Handler{multiply<widened_half, kColumns>};
}

Step fence(Warp& warp, const Instruction& instruction, Mask active) {
  if (active != ~Mask{0}) fail(warp, instruction, "not all 32 lanes are here");
  follow(warp, instruction, {&instruction});
  fence_registers(warp);
  return Step::done;
}
Step commit(Warp& warp, const Instruction& instruction, Mask) {
  follow(warp, instruction, {&instruction});
  ++warp.products().committed;
  warp.block().watch(&Watcher::products_committed, warp);
  return Step::done;
}
Step wait(Warp& warp, const Instruction& instruction, Mask) {
  follow(warp, instruction, {&instruction});
  Products& products = warp.products();
  const uint64_t pending = instruction.operands[0].bits;
  if (products.committed > pending) {
    products.done = std::max(products.done, products.committed - pending);
  }
  warp.block().watch(&Watcher::products_waited, warp, static_cast<int>(pending));
  return Step::done;
}

// d, a, b, scale-d, imm-scale-a, imm-scale-b, (imm-trans-a,) imm-trans-b
Handler find_product(const Opcode& opcode, Instruction& instruction) {
  if (opcode.size() != 8 || opcode[2] != "sync" || opcode[3] != "aligned" || opcode[5] != "f32" ||
      opcode[6] != opcode[7] || (opcode[6] != "bf16" && opcode[6] != "f16")) {
    return nullptr;
  }
  unsigned columns = 0;
  for (const unsigned n : {32u, 48u, 64u, 96u, 128u}) {
    if (opcode[4] == fmt::format("m64n{}k16", n)) columns = n;
  }
  const std::vector<Operand>& operands = instruction.operands;
  if (columns == 0 || operands.size() < 7 || !is_list(operands[0], columns / 2)) return nullptr;
  const bool in_registers = is_list(operands[1], 4);
  if (operands.size() != (in_registers ? 7u : 8u)) return nullptr;
  for (size_t i = 4; i < operands.size(); ++i) {
    if (operands[i].kind != Operand::Kind::constant) return nullptr;
  }
  const uint64_t signs[2] = {operands[4].bits, operands[5].bits};
  for (const uint64_t sign : signs) {
    if (sign != 1 && sign != ~uint64_t{0}) return nullptr;
  }
  const uint64_t left_turned = in_registers ? 0 : operands[6].bits;
  const uint64_t right_turned = operands.back().bits;
  if (left_turned > 1 || right_turned > 1) return nullptr;
  instruction.a = static_cast<int>(columns);
  instruction.b = (in_registers ? kLeftInRegisters : 0) | (left_turned != 0 ? kLeftTurned : 0) |
                  (right_turned != 0 ? kRightTurned : 0) | (signs[0] != 1 ? kLeftNegated : 0) |
                  (signs[1] != 1 ? kRightNegated : 0);
  const bool is_bf16 = opcode[6] == "bf16";
  return columns == 32   ? multiply_of<32>(is_bf16)
         : columns == 48 ? multiply_of<48>(is_bf16)
         : columns == 64 ? multiply_of<64>(is_bf16)
         : columns == 96 ? multiply_of<96>(is_bf16)
                         : multiply_of<128>(is_bf16);
}

}  // namespace

Handler find_group_products(const Opcode& opcode, Instruction& instruction) {
  const std::string& name = instruction.opcode;
  const std::vector<Operand>& operands = instruction.operands;
  if (name.starts_with("wgmma.mma_async.")) return find_product(opcode, instruction);
  if (name == "wgmma.fence.sync.aligned") return fence;
  if (name == "wgmma.commit_group.sync.aligned") return commit;
  if (name == "wgmma.wait_group.sync.aligned") {
    return operands.size() == 1 && operands[0].kind == Operand::Kind::constant ? wait : nullptr;
  }
  return nullptr;
}

}  // namespace mtl::ptx
