// Barriers and copies of a block. Sections are the PTX manual's (ISA 9.0, "Parallel Synchronization
// and Communication Instructions", "Data Movement and Conversion Instructions: Asynchronous copy").
//
// A copy takes as long as it may: it arrives in a turn drawn by lot, or at once, or when a wait
// asks for it; from its issue on its destination is NaN. So what is read before a wait, or written
// over while others still read it, shows in the results too, not to race watchers alone.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ptx/machine.h"

namespace mtl::ptx {

// An object of 64 bits in shared memory, of which a word of ours stands there: whether anybody has
// written over it.
struct PhaseBarrier {
  unsigned expected = 0;  // arrivals of each phase
  int64_t pending = 0;    // of the phase at hand: arrivals to come
  int64_t bytes = 0;      // bytes to come; below 0 where they came before they were announced
  uint64_t phase = 0;
  unsigned copies = 0;  // under way to complete on this phase
  const Warp* maker = nullptr;
  unsigned maker_lane = 0;
  bool published = false;  // to the async proxy, by a fence of the thread that has made it
};

// One of the sixteen that the hardware has.
struct NamedBarrier {
  static constexpr unsigned kMostWarps = 32;
  unsigned expected = 0;  // threads; 0: all of the block's that have not ended
  Mask come = 0;          // warps, since it was passed the last time
  uint64_t generation = 0;
  std::array<uint64_t, kMostWarps> waits = {};  // generation + 1 that the warp waits to see pass
};

struct Copy {
  struct Piece {
    unsigned char* to = nullptr;
    const unsigned char* from = nullptr;  // null: zeros
    unsigned bytes = 0;
    unsigned lane = 0;
  };
  Warp* warp = nullptr;
  const Instruction* instruction = nullptr;
  std::vector<Piece> pieces;
  uint64_t due = 0;
  // Of bulk copies.
  bool is_bulk = false;
  uint32_t barrier = 0;
  uint64_t phase = 0;
  unsigned bytes = 0;
  // Of cp.async: the lanes, each with the group of its own that is the copy's.
  Mask lanes = 0;
  std::array<uint32_t, kLanes> groups = {};
};

// A copy or a sum by the copy engine from shared to global memory, of a lane's own bulk group. It
// goes in parts of its own time each, so that others may come between: first what lies in shared
// memory is read, then, at once or later, it is written or added.
struct Store {
  struct Part {
    unsigned first = 0, bytes = 0;
    uint64_t read_due = 0, write_due = 0;  // turns
    bool is_read = false;
  };
  unsigned warp = 0, lane = 0;
  uint32_t group = 0;
  bool adds = false;  // elements of f32
  const unsigned char* from = nullptr;
  unsigned char* to = nullptr;
  std::vector<unsigned char> taken;  // as it was read
  std::vector<Part> parts;           // that are not written yet
};
struct BulkGroups {
  uint32_t committed = 0;
  uint32_t read = 0;    // those before have been waited for: what they copy has been read
  uint32_t copies = 0;  // beyond the last group that copies anything
  const Warp* warp = nullptr;
  const Instruction* last = nullptr;  // copy
};

struct Asynchronous {
  std::map<uint32_t, PhaseBarrier> phases;  // by address
  // Who has looked at a phase that is not complete.
  struct Waiter {
    const Warp* warp;
    Mask lanes;
    uint32_t address;
    uint64_t phase;
  };
  std::vector<Waiter> waiters;
  std::array<NamedBarrier, 16> named;
  uint64_t turns = 0, next_due = 0;
  std::vector<Copy> copies;
  // Of each warp's lanes: groups of cp.async that were committed.
  std::vector<std::array<uint32_t, kLanes>> committed;
  std::vector<Store> stores;
  uint64_t next_store_due = 0;
  std::map<std::pair<unsigned, unsigned>, BulkGroups> bulk_groups;  // by warp and lane
  std::vector<unsigned> registers;  // a thread, of each warp (setmaxnreg)
};

// Block::turn calls this: copies whose time has come arrive.
void arrive(Block& block);
// Whether copies are under way: a block of which no warp can go on has not come to a halt.
bool waiting(const Block& block);
// At the end of a block. Throws where something is left that nobody has waited for: copies to a
// barrier, arrivals, products, copies that have still to read shared memory. What they have to
// write is written later.
void ended(Block& block);
// For the message of a block that hangs: what its barriers still wait for.
std::string barriers_text(const Block& block);

// --- for the files of asynchronous instructions

// Block::shared(), with the instruction in the error.
unsigned char* shared_memory(Warp& warp, const Instruction& instruction, uint32_t address,
                             size_t bytes, size_t align);
// The barrier that was made at an address. Throws where there is none, or it was written over.
PhaseBarrier& phase_barrier(Warp& warp, const Instruction& instruction, uint32_t address);
// After a change: writes the word, and ends the phase if all has come.
void settle(Warp& warp, const Instruction& instruction, uint32_t address, PhaseBarrier& barrier);

// The value that all active lanes have.
uint32_t uniform(Warp& warp, const Instruction& instruction, const Operand& operand, Mask active,
                 const char* what);

Handler find_phases(const Opcode& opcode, Instruction& instruction);  // phases.cpp
Handler find_named(const Opcode& opcode, Instruction& instruction);   // named_barriers.cpp
Handler find_copies(const Opcode& opcode, Instruction& instruction);  // copies.cpp
Handler find_stores(const Opcode& opcode, Instruction& instruction);  // bulk_groups.cpp

// bulk_groups.cpp, for arrive() and ended().
void advance_stores(Block& block);
void stores_ended(Block& block);

}  // namespace mtl::ptx
