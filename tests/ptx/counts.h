// A watcher that counts: the instructions of a kernel by what they keep busy, and what its accesses
// to memory cost beside what they would have to.
//
// Shared memory: wavefronts, that is, how often its 32 banks of 4 bytes are gone to; of an access
// of 8 bytes a lane those of each half warp, of 16 of each quarter (ldmatrix and stmatrix: of each
// 8 rows). Words that are the same are one. The least is one for each such part. Global memory:
// sectors of 32 bytes that an instruction's lanes touch; the least is their bytes (the same ones
// once), rounded up; the copy engine's by the row that lies together.
//
// It is PTX that is counted: ptxas drops, joins and adds instructions, the accesses to memory stay.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ptx/watch.h"

namespace mtl::ptx {

enum class Work : uint8_t {
  f32,  // and 16 bits
  f64,
  integer,  // and logic, comparisons, selections
  conversion,
  special,   // exponentials, roots, quotients
  shared,    // loads and stores, ldmatrix, stmatrix
  global,    // and copies from it or to it
  tensor,    // mma, wgmma
  exchange,  // shuffles, votes
  control,   // branches, barriers, fences, waits
  other,     // moves, parameters, local memory
};
inline constexpr size_t kWorks = 11;
Work work_of(std::string_view opcode);

// What was asked of a memory, and the least that would have done.
struct Cost {
  uint64_t asked = 0, least = 0;
  uint64_t lost() const { return asked - least; }
  Cost& operator+=(const Cost& more) {
    asked += more.asked;
    least += more.least;
    return *this;
  }
};
Cost wavefronts(Mask lanes, const uint32_t* addresses, unsigned bytes);
Cost sectors(Mask lanes, const uint64_t* addresses, unsigned bytes);

// Modules have to be there as long as what is counted in their kernels.
class Counts : public Watcher {
 public:
  struct Line {
    uint64_t times = 0, lanes = 0;  // by warps, and by their lanes that ran
    Cost shared, global;
    uint64_t global_bytes = 0;
  };
  struct OfKernel {
    uint64_t launches = 0, blocks = 0;
    std::map<const Instruction*, Line> odd;  // that are none of the kernel's own
    std::vector<Line> lines;                 // by instruction
    Line& at(const Kernel& kernel, const Instruction& instruction);
  };

  const std::map<const Kernel*, OfKernel>& kernels() const { return kernels_; }
  void add(const Counts& other);
  // A line for each kernel, then the `worst` lines of all by what they lose, with the place in a
  // source where a module has .loc (nvcc -lineinfo).
  std::string report(size_t worst, const std::vector<const Module*>& modules = {}) const;

  void ran(const Warp& warp, const Instruction& instruction, Mask lanes) override;
  void shared(const Warp& warp, const Instruction& instruction, Mask lanes,
              const uint32_t* addresses, unsigned bytes, Access access) override;
  void global(const Warp& warp, const Instruction& instruction, Mask lanes,
              const uint64_t* addresses, unsigned bytes, Access access) override;
  void copy(const Warp& warp, const Instruction& instruction, Mask lanes, const uint32_t* addresses,
            unsigned bytes) override;
  void bulk_reads(const Warp& warp, const Instruction& instruction, unsigned lane, uint64_t address,
                  size_t bytes, uint32_t barrier, uint64_t phase) override;
  void bulk_store(const Warp& warp, const Instruction& instruction, unsigned lane, uint32_t from,
                  uint64_t to, size_t bytes, Access access) override;
  void block_began(const Block& block) override;

 private:
  Line& line_of(const Warp& warp, const Instruction& instruction);

  std::map<const Kernel*, OfKernel> kernels_;
  const Kernel* last_kernel_ = nullptr;
  OfKernel* last_ = nullptr;
};

// "name<1, 2>" of "_ZN...": without name spaces that all have, and without parameters.
std::string short_name(const std::string& mangled);
// ".loc" and ".file" of a module: "gpu.h:120" of a line of its text; where that was inlined,
// "gpu.h:120 in norm.cu:88". Empty where it does not say.
class Sources {
 public:
  explicit Sources(std::string_view text);
  std::string at(int line) const;

 private:
  std::map<int, std::string> places_;  // from this line on
};

}  // namespace mtl::ptx
