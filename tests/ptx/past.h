// Accesses to memory that races.h remembers, and how it tells of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ptx/clocks.h"
#include "ptx/module.h"
#include "ptx/watch.h"

namespace mtl::ptx {

// Accesses are kept for pieces of 16 bytes, which is what products, copies and the widest loads
// take; narrower ones say which bytes.
constexpr unsigned kPiece = 16;

struct Past {
  Event event;
  const Instruction* by = nullptr;
  uint32_t serial = 0;  // of the warp's instructions
  uint16_t bytes = 0;
  Access access = Access::read;
};
struct Piece {
  std::vector<Past> writes, reads;  // atomics among the writes
};

// "warp 3 lane 1 (and 2)", "copies to", "line 12 (st.shared.u32 ...)".
std::string doer_of(const Past& past);
std::string_view deed_of(const Past& past);
std::string quoted(const Instruction& instruction);

}  // namespace mtl::ptx
