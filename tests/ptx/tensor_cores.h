// Products on tensor cores: of a warp (mma.sync, with ldmatrix and stmatrix) and of a warpgroup
// (wgmma). Sections are the PTX manual's (ISA 9.0, "Warp Level Matrix Multiply-Accumulate
// Instructions", "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions").
//
// Sums are f32: the products of two elements of 16 bits, which are exact, are added to the
// accumulator one by one as k rises. What the hardware does is not documented; it adds several at a
// time, with fewer roundings, and cuts off low bits.
//
// wgmma reads and gives its sums when it is issued; what it may not rely on is told otherwise: of
// shared memory by race watchers, of registers by `Products`.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "ptx/machine.h"

namespace mtl::ptx {

// What a warpgroup's warps have to do alike, each at its own time.
struct Common {
  const Instruction* instruction = nullptr;
  uint64_t left = 0, right = 0;  // descriptors
  bool adds = false;
};

// Per instruction of a kernel: which registers of products it names. Empty for most.
struct RegisterUses {
  struct Use {
    int index;
    bool writes;
  };
  std::vector<uint32_t> begin;  // of each instruction, and the end
  std::vector<Use> uses;
};

// A warp's wgmma. Registers that are an operand of some product of the kernel are watched from the
// first wgmma.fence on.
struct Products {
  enum class Part : uint8_t { none, sums, left };
  // The last product that has used a register.
  struct Mark {
    uint64_t group = 0;
    uint64_t fence = 0;  // behind which it was issued
    Part part = Part::none;
    int columns = 0, at = 0;  // of the product; the place in its list
  };
  std::vector<Mark> marks;              // by register of 32 bits
  std::vector<uint64_t> read, written;  // by others: behind which fence the last time
  std::shared_ptr<const RegisterUses> uses;
  uint64_t fences = 0;
  uint64_t issued = 0, committed = 0, done = 0;  // groups; the one at hand is committed + 1

  // Of the first warp of a warpgroup: what the foremost of the four has done and not all have.
  std::deque<Common> common;
  uint64_t common_begin = 0;
  uint64_t common_at = 0;  // of each warp: how much it has done

  bool under_way() const { return uses != nullptr; }
};

// Before an instruction, if Products::under_way(). Throws where another instruction than wgmma
// reads or writes registers of products that were not waited for.
void check_registers(Warp& warp, const Instruction& instruction);

// Throws where a warp of the warpgroup has done something else at this place.
void follow(Warp& warp, const Instruction& instruction, const Common& common);
// wgmma.fence: what other instructions have done to registers is ordered before products.
void fence_registers(Warp& warp);
// A product's, at its issue: whether it may use them; and they are under way.
void use_registers(Warp& warp, const Instruction& instruction, unsigned columns,
                   bool left_in_registers);
// Throws where a warp has products that it has not waited for, or that others of its warpgroup had
// and it had not.
void products_ended(Block& block);

// --- for the files of products

inline bool is_list(const Operand& operand, size_t parts) {
  return operand.kind == Operand::Kind::list && operand.parts.size() == parts;
}

Handler find_warp_products(const Opcode& opcode, Instruction& instruction);   // warp_products.cpp
Handler find_group_products(const Opcode& opcode, Instruction& instruction);  // group_products.cpp

}  // namespace mtl::ptx
