// Runs a grid of a kernel's PTX on the host: warps of 32 lanes that run an instruction together
// while they are at the same one, several blocks at once, interleaved by lot. What it finds beside
// wrong results: addresses that are nobody's or not aligned, lanes that are not together where an
// instruction says .aligned, registers of products that are touched before they are waited for,
// blocks that hang; with watchers (watch.h) more.
//
// Addresses: those of global memory are the host's. Shared, parameter and local memory have windows
// of the generic space beyond any address of the host; within their own state spaces they begin at
// 0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ptx/module.h"
#include "ptx/watch.h"

namespace mtl::ptx {

inline constexpr uint64_t kSharedWindow = uint64_t{1} << 60;
inline constexpr uint64_t kParameterWindow = uint64_t{1} << 61;
inline constexpr uint64_t kLocalWindow = uint64_t{1} << 62;

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

struct Launch {
  const Kernel* kernel = nullptr;
  Dim3 grid, block;
  size_t dynamic_shared = 0;
  std::vector<unsigned char> parameters;  // as they lie in parameter space
  // Whether global memory has all of [address, + bytes). Null: whatever.
  bool (*has)(const void* address, size_t bytes) = nullptr;
  unsigned resident = 1;  // blocks at once
  unsigned seed = 1;      // of the order in which warps take turns and copies arrive
  std::vector<Watcher*> watchers;
};

class Grid;
struct Asynchronous;  // asynchronous.h: barriers and copies of a block
struct Products;      // tensor_cores.h: wgmma of a warp

class Block {
 public:
  Block(Grid& grid, uint64_t number);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  const Launch& launch() const;
  Grid& grid() { return grid_; }
  const std::vector<std::unique_ptr<Warp>>& warps() const { return warps_; }
  unsigned threads() const { return threads_; }
  Dim3 index() const { return index_; }

  // [address, + bytes) of shared memory. Throws where that is outside or not aligned to `align`.
  unsigned char* shared(uint32_t address, size_t bytes, size_t align);
  size_t shared_bytes() const { return shared_.size(); }
  Asynchronous& asynchronous() { return *asynchronous_; }

  template <typename... Hook, typename... Arguments>
  void watch(void (Watcher::*hook)(Hook...), Arguments&&... arguments) const {
    for (Watcher* const watcher : launch().watchers) (watcher->*hook)(arguments...);
  }

  bool ended() const;
  // Runs a warp for a while. Returns whether anything was done.
  bool turn();

 private:
  Grid& grid_;
  Dim3 index_;
  unsigned threads_;
  std::vector<unsigned char> shared_;
  std::unique_ptr<Asynchronous> asynchronous_;
  std::vector<std::unique_ptr<Warp>> warps_;
};

// Lanes of a warp that are at the same instruction.
struct Path {
  int at = 0;
  Mask lanes = 0;
};

class Warp {
 public:
  Warp(Block& block, unsigned index);
  ~Warp();
  Warp(const Warp&) = delete;
  Warp& operator=(const Warp&) = delete;

  Block& block() const { return block_; }
  unsigned index() const { return index_; }
  Mask alive() const { return alive_; }  // lanes that have not ended

  // A value's lanes. Of a narrow register of 16 bits the upper half is 0, and has to stay so.
  uint32_t* narrow(const Operand& value) {
    return &narrows_[size_t(value.kind == Operand::Kind::constant ? value.narrow : value.index) *
                     kLanes];
  }
  uint64_t* wide(const Operand& value) {
    return &wides_[size_t(value.kind == Operand::Kind::constant ? value.wide : value.index) *
                   kLanes];
  }
  // The lanes for which it holds (not where it is negated).
  Mask predicate(const Operand& value) const {
    const Mask mask = value.kind == Operand::Kind::constant ? (value.bits != 0 ? ~Mask{0} : 0)
                                                            : predicates_[size_t(value.index)];
    return value.negated ? ~mask : mask;
  }
  void set_predicate(const Operand& value, Mask active, Mask holds) {
    if (value.kind != Operand::Kind::value) return;  // "_"
    Mask& mask = predicates_[size_t(value.index)];
    mask = (mask & ~active) | (holds & active);
  }
  // Of [register + offset] for each lane; of state spaces with addresses of 32 bits the lower half
  // counts.
  void addresses(const Operand& address, uint64_t (&result)[kLanes]);

  unsigned char* local(unsigned lane, uint64_t address, size_t bytes);

  Products& products() { return *products_; }
  // By handlers that return Step::jump: where the active lanes go on.
  int jump_to = 0;
  // The lanes of the path that runs, whether or not a guard holds.
  Mask together() const { return together_; }

  bool ended() const { return alive_ == 0; }
  // Runs at most `instructions`; whether anything was done.
  bool run(int instructions);
  // What it waits at, for messages.
  std::string where() const;

 private:
  Block& block_;
  unsigned index_;
  Mask alive_, together_ = 0;
  std::vector<Path> paths_;
  size_t turn_ = 0;  // of the paths
  std::vector<Mask> predicates_;
  std::vector<uint32_t> narrows_;
  std::vector<uint64_t> wides_;
  std::vector<unsigned char> local_;
  std::unique_ptr<Products> products_;
};

class Grid {
 public:
  explicit Grid(const Launch& started) : launch(started), random(started.seed) {}
  void run();

  const Launch& launch;
  std::mt19937 random;
  // Reads of global memory that wait for another block (ld.acquire, atomics that change nothing),
  // since the last write: for the message of a grid that hangs.
  uint64_t polls = 0;
  // What the copy engine has still to write for blocks that have ended.
  std::vector<std::function<void()>> late;

 private:
  void write_one();  // of them
};

// Throws std::runtime_error where a GPU would fail, hang, or do what nobody can say.
void run(const Launch& launch);

// Of the instruction at hand: "kernel, line 12 (ld.shared ...), block 0, warp 3: what".
[[noreturn]] void fail(const Warp& warp, const Instruction& instruction, const std::string& what);

// Where the bytes of global memory are; throws where they are nobody's or not aligned.
unsigned char* global_memory(const Warp& warp, const Instruction& instruction, uint64_t address,
                             size_t bytes, size_t align);

}  // namespace mtl::ptx
