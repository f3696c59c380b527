// mma.sync m16n8k16, ldmatrix and stmatrix.
#include <bit>
#include <cstring>

#include "ptx/asynchronous.h"
#include "ptx/elements.h"
#include "ptx/tensor_cores.h"

namespace mtl::ptx {

namespace {

constexpr unsigned kSide = 8;  // of the matrices of ldmatrix
constexpr size_t kTiles = 4;   // of them

// "Matrix Fragments for mma.m16n8k16 with floating point type": element i of a lane's register.
constexpr unsigned row_of(unsigned lane) {
  return lane / 4;
}
constexpr unsigned column_of(unsigned lane) {
  return lane % 4 * 2;
}

template <float (*kWiden)(uint16_t)>
Step multiply(Warp& warp, const Instruction& instruction, Mask) {
  const std::vector<Operand>&to = instruction.operands[0].parts,
        &left = instruction.operands[1].parts, &right = instruction.operands[2].parts,
        &before = instruction.operands[3].parts;
  constexpr unsigned kM = 16, kN = 8, kK = 16;
  float a[kM][kK], b[kK][kN], d[kM][kN];
  for (unsigned i = 0; i < 4; ++i) {
    const uint32_t* const values = warp.narrow(left[i]);
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      const unsigned row = row_of(lane) + i % 2 * 8, column = column_of(lane) + i / 2 * 8;
      a[row][column] = kWiden(static_cast<uint16_t>(values[lane]));
      a[row][column + 1] = kWiden(static_cast<uint16_t>(values[lane] >> 16));
    }
  }
  for (unsigned i = 0; i < 2; ++i) {
    const uint32_t* const values = warp.narrow(right[i]);
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      const unsigned row = column_of(lane) + i * 8;
      b[row][row_of(lane)] = kWiden(static_cast<uint16_t>(values[lane]));
      b[row + 1][row_of(lane)] = kWiden(static_cast<uint16_t>(values[lane] >> 16));
    }
  }
  for (unsigned i = 0; i < 4; ++i) {
    const uint32_t* const values = warp.narrow(before[i]);
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      d[row_of(lane) + i / 2 * 8][column_of(lane) + i % 2] = std::bit_cast<float>(values[lane]);
    }
  }
  for (unsigned row = 0; row < kM; ++row) {
    for (unsigned k = 0; k < kK; ++k) {
      for (unsigned column = 0; column < kN; ++column) {
        d[row][column] += a[row][k] * b[k][column];
      }
    }
  }
  for (unsigned i = 0; i < 4; ++i) {
    uint32_t* const values = warp.narrow(to[i]);
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      values[lane] = std::bit_cast<uint32_t>(d[row_of(lane) + i / 2 * 8][column_of(lane) + i % 2]);
    }
  }
  return Step::done;
}

// The rows of 16 bytes whose addresses the lanes give: lane 8 t + r that of row r of tile t.
struct TileRows {
  unsigned char* at[kLanes];
};
TileRows tile_rows(Warp& warp, const Instruction& instruction, const Operand& address, Mask active,
                   Access access) {
  uint64_t addresses[kLanes];
  uint32_t places[kLanes];
  warp.addresses(address, addresses);
  TileRows rows;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    places[lane] = static_cast<uint32_t>(addresses[lane]);
    rows.at[lane] = shared_memory(warp, instruction, places[lane], 16, 16);
  }
  warp.block().watch(&Watcher::shared, warp, instruction, active, places, 16u, access);
  return rows;
}

// a: transposed.
Step load_tiles(Warp& warp, const Instruction& instruction, Mask active) {
  const TileRows rows = tile_rows(warp, instruction, instruction.operands[1], active, Access::read);
  for (size_t tile = 0; tile < kTiles; ++tile) {
    uint16_t elements[kSide][kSide];
    for (size_t row = 0; row < kSide; ++row) {
      std::memcpy(elements[row], rows.at[tile * kSide + row], sizeof elements[row]);
    }
    uint32_t* const values = warp.narrow(instruction.operands[0].parts[tile]);
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      const unsigned row = row_of(lane), column = column_of(lane);
      const uint32_t low = instruction.a != 0 ? elements[column][row] : elements[row][column];
      const uint32_t high =
          instruction.a != 0 ? elements[column + 1][row] : elements[row][column + 1];
      values[lane] = low | high << 16;
    }
  }
  return Step::done;
}

Step store_tiles(Warp& warp, const Instruction& instruction, Mask active) {
  const TileRows rows =
      tile_rows(warp, instruction, instruction.operands[0], active, Access::write);
  for (size_t tile = 0; tile < kTiles; ++tile) {
    const uint32_t* const values = warp.narrow(instruction.operands[1].parts[tile]);
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      std::memcpy(rows.at[tile * kSide + row_of(lane)] + 2 * column_of(lane), &values[lane],
                  sizeof(uint32_t));
    }
  }
  return Step::done;
}

// All lanes have to be there: a warp that has lost some cannot do these.
template <Step (*kRun)(Warp&, const Instruction&, Mask)>
Step by_all_lanes(Warp& warp, const Instruction& instruction, Mask active) {
  if (active != ~Mask{0}) fail(warp, instruction, "not all 32 lanes are here");
  return kRun(warp, instruction, active);
}

}  // namespace

Handler find_warp_products(const Opcode&, Instruction& instruction) {
  const std::string& name = instruction.opcode;
  const std::vector<Operand>& operands = instruction.operands;
  if (name.starts_with("mma.")) {
    const bool known = operands.size() == 4 && is_list(operands[0], 4) && is_list(operands[1], 4) &&
                       is_list(operands[2], 2) && is_list(operands[3], 4);
    if (!known) return nullptr;
    if (name == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") {
      return by_all_lanes<multiply<widened_bf16>>;
    }
    if (name == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") {
      return by_all_lanes<multiply<widened_half>>;
    }
    return nullptr;
  }
  if (name == "ldmatrix.sync.aligned.m8n8.x4.shared.b16" ||
      name == "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16") {
    instruction.a = name.find(".trans") != name.npos ? 1 : 0;
    const bool known = operands.size() == 2 && is_list(operands[0], kTiles) &&
                       operands[1].kind == Operand::Kind::address;
    return known ? by_all_lanes<load_tiles> : nullptr;
  }
  if (name == "stmatrix.sync.aligned.m8n8.x4.shared.b16") {
    const bool known = operands.size() == 2 && is_list(operands[1], kTiles) &&
                       operands[0].kind == Operand::Kind::address;
    return known ? by_all_lanes<store_tiles> : nullptr;
  }
  return nullptr;
}

}  // namespace mtl::ptx
