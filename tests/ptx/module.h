// PTX as nvcc writes it, taken apart: what machine.h runs. Not all of PTX: what it does not know is
// an error that quotes the line.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mtl::ptx {

inline constexpr int kLanes = 32;
// Of every block's shared memory, on Hopper: no variable has an address below.
inline constexpr size_t kReservedShared = 1024;
using Mask = uint32_t;  // of a warp's lanes

class Warp;
struct Instruction;

// What an instruction has come to.
enum class Step {
  done,   // go on behind it
  again,  // it waits for others: run it again later, nothing has changed
  jump,   // `next` of the path has been set
  exit,   // the lanes have ended
};
using Handler = Step (*)(Warp& warp, const Instruction& instruction, Mask active);

// Registers of a kernel lie in three files by their width; immediates, special registers and
// addresses of symbols are registers too, which nothing writes, so an operand is an index.
enum class File : uint8_t {
  predicate,  // a Mask
  narrow,     // 32 bits a lane: .b16 (in the lower half, the upper is 0), .b32, .f32
  wide,       // 64 bits a lane: .b64, .f64
};

struct Operand {
  enum class Kind : uint8_t {
    none,      // "_": a result that nobody wants
    value,     // a register
    constant,  // an immediate: `narrow` and `wide` say where it lies, in both files
    address,   // [value + offset], of a register or a symbol
    list,      // {a, b, ...}: `parts`
    label,
  } kind = Kind::none;
  File file = File::narrow;
  bool negated = false;  // "!%p"
  bool half = false;     // a narrow register of 16 bits
  int index = -1;        // value, and address: in `file`; label: the instruction it stands before
  int narrow = -1, wide = -1;
  int64_t offset = 0;
  uint64_t bits = 0;           // of a constant (f32: of 32 bits)
  std::vector<Operand> parts;  // of a list; of an address with more in its brackets: what follows
};

struct Instruction {
  Handler run = nullptr;
  std::vector<Operand> operands;
  int guard = -1;  // the predicate that it stands below, or -1
  bool guard_negated = false;
  // ".aligned": all lanes of the warp that have not ended run it together.
  bool aligned = false;
  // What find_*() below keep of the name for their handlers.
  int a = 0, b = 0, c = 0;
  int line = 0;           // of the module's text
  std::string opcode;     // "ld.shared.v4.f32"
  std::string_view text;  // the statement
};

struct Parameter {
  std::string name;
  size_t offset = 0, bytes = 0;
};

// The values of registers that nothing writes.
struct Constants {
  std::vector<std::pair<int, uint32_t>> narrow;
  std::vector<std::pair<int, uint64_t>> wide;
};
// Special registers, each (if the kernel has it) in a narrow register.
enum class Special : uint8_t {
  tid_x,
  tid_y,
  tid_z,
  ctaid_x,
  ctaid_y,
  ctaid_z,
  ntid_x,
  ntid_y,
  ntid_z,
  nctaid_x,
  nctaid_y,
  nctaid_z,
  laneid,
  warpid,
  lanemask_lt
};

struct Kernel {
  std::string name;
  std::vector<Parameter> parameters;
  size_t parameter_bytes = 0;
  int predicates = 0, narrows = 0, wides = 0;
  Constants constants;
  std::vector<std::pair<Special, int>> specials;
  // Where the static shared memory ends, of which the first kReservedShared bytes are the system's,
  // and where the dynamic one begins.
  size_t static_shared = kReservedShared, dynamic_shared = kReservedShared;
  size_t local_bytes = 0;  // of a thread
  unsigned most_threads = 1024;
  std::vector<Instruction> instructions;
};

// Kernels are taken apart when they are asked for. Errors are std::runtime_error with line and
// text.
class Module {
 public:
  explicit Module(std::string text);
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const std::string& text() const { return text_; }
  const std::string& target() const { return target_; }  // "sm_90a"
  std::vector<std::string> names() const;
  bool has(std::string_view name) const { return sources_.find(name) != sources_.end(); }
  // May be called by several threads.
  const Kernel& kernel(std::string_view name) const;

  // Variables of a module.
  struct Shared {
    size_t bytes = 0, align = 1;
    bool dynamic = false;
  };
  const std::map<std::string, Shared, std::less<>>& shared() const { return shared_; }

 private:
  struct Source {
    std::string_view text;  // from ".entry" on
    int line = 0;
  };
  const std::string text_;
  std::string target_;
  std::map<std::string, Source, std::less<>> sources_;
  std::map<std::string, Shared, std::less<>> shared_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::unique_ptr<const Kernel>, std::less<>> kernels_;
};

// An opcode in its parts: "ld.shared.v4.f32" is {"ld", "shared", "v4", "f32"}.
using Opcode = std::vector<std::string_view>;

// Each returns how `instruction` (all but `run` is known) is run, and may set its a, b and c; null
// where the opcode is not of its file. Asked in this order.
Handler find_control(const Opcode& opcode, Instruction& instruction);       // control.cpp
Handler find_arithmetic(const Opcode& opcode, Instruction& instruction);    // arithmetic.cpp
Handler find_memory(const Opcode& opcode, Instruction& instruction);        // memory.cpp
Handler find_tensor_cores(const Opcode& opcode, Instruction& instruction);  // tensor_cores.cpp
Handler find_asynchronous(const Opcode& opcode, Instruction& instruction);  // asynchronous.cpp

}  // namespace mtl::ptx
