#include "ptx/counts.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cxxabi.h>
#include <memory>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "ptx/machine.h"

namespace mtl::ptx {

namespace {

constexpr unsigned kBanks = 32, kWord = 4, kSector = 32;

bool begins(std::string_view text, std::string_view with) {
  return text.substr(0, with.size()) == with;
}
bool has(std::string_view opcode, std::string_view part) {
  return opcode.find(part) != opcode.npos;
}
bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

Work work_of(std::string_view opcode) {
  const std::string_view name = opcode.substr(0, opcode.find('.'));
  const bool copies = begins(opcode, "cp.async") || begins(opcode, "cp.reduce.async");
  if (copies && has(opcode, ".global")) return Work::global;
  if (begins(opcode, "wgmma.mma") || begins(opcode, "mma.")) return Work::tensor;
  if (is_one_of(name, {"ldmatrix", "stmatrix"})) return Work::shared;
  if (is_one_of(name, {"ld", "ldu", "st", "atom", "red"})) {
    if (has(opcode, ".shared")) return Work::shared;
    if (has(opcode, ".param") || has(opcode, ".local") || has(opcode, ".const")) return Work::other;
    return Work::global;
  }
  if (is_one_of(name, {"shfl", "vote", "match", "redux", "activemask"})) return Work::exchange;
  if (is_one_of(name, {"bra", "brx", "ret", "exit", "call", "trap", "bar", "barrier", "mbarrier",
                       "fence", "membar", "setmaxnreg", "wgmma", "cp", "nanosleep",
                       "griddepcontrol", "prefetch", "prefetchu"})) {
    return Work::control;
  }
  if (is_one_of(name, {"ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "sqrt"})) {
    return Work::special;
  }
  if (name == "cvt") return Work::conversion;
  if (is_one_of(name, {"mov", "cvta", "isspacep"})) return Work::other;
  const bool is_float = has(opcode, ".f32") || has(opcode, ".f16") || has(opcode, ".bf16");
  if (name == "div" && (is_float || has(opcode, ".f64"))) return Work::special;
  if (has(opcode, ".f64")) return Work::f64;
  return is_float ? Work::f32 : Work::integer;
}

Cost wavefronts(Mask lanes, const uint32_t* addresses, unsigned bytes) {
  // Lanes at a time: 32 of 4 bytes, 16 of 8, 8 of 16.
  const unsigned part = kLanes * kWord / std::max(bytes, kWord);
  Cost cost;
  for (unsigned first = 0; first < kLanes; first += part) {
    std::array<uint32_t, kLanes> words;
    size_t count = 0;
    for (unsigned lane = first; lane < first + part; ++lane) {
      if ((lanes >> lane & 1) == 0) continue;
      for (unsigned byte = 0; byte < bytes; byte += kWord) {
        words[count++] = (addresses[lane] + byte) / kWord;
      }
    }
    if (count == 0) continue;
    std::sort(words.begin(), words.begin() + count);
    const auto end = std::unique(words.begin(), words.begin() + count);
    std::array<unsigned, kBanks> of_bank = {};
    for (auto word = words.begin(); word != end; ++word) ++of_bank[*word % kBanks];
    cost.asked += *std::max_element(of_bank.begin(), of_bank.end());
    ++cost.least;
  }
  return cost;
}

Cost sectors(Mask lanes, const uint64_t* addresses, unsigned bytes) {
  std::array<uint64_t, kLanes> places;
  size_t count = 0;
  for (; lanes != 0; lanes &= lanes - 1) places[count++] = addresses[std::countr_zero(lanes)];
  std::sort(places.begin(), places.begin() + count);
  uint64_t touched = 0, distinct = 0, next_sector = 0, next_byte = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t first = places[i], end = first + bytes;
    const uint64_t from = std::max(first / kSector, next_sector);
    const uint64_t to = (end - 1) / kSector + 1;
    if (to > from) touched += to - from;
    next_sector = std::max(next_sector, to);
    distinct += end - std::min(end, std::max(first, next_byte));
    next_byte = std::max(next_byte, end);
  }
  return {touched, (distinct + kSector - 1) / kSector};
}

Counts::Line& Counts::OfKernel::at(const Kernel& kernel, const Instruction& instruction) {
  const auto& all = kernel.instructions;
  if (all.empty() || std::less<>{}(&instruction, all.data()) ||
      !std::less<>{}(&instruction, all.data() + all.size())) {
    return odd[&instruction];
  }
  lines.resize(all.size());
  return lines[static_cast<size_t>(&instruction - all.data())];
}

Counts::Line& Counts::line_of(const Warp& warp, const Instruction& instruction) {
  const Kernel* const kernel = warp.block().launch().kernel;
  if (kernel != last_kernel_) {
    last_ = &kernels_[kernel];
    last_kernel_ = kernel;
  }
  return last_->at(*kernel, instruction);
}

void Counts::block_began(const Block& block) {
  OfKernel& kernel = kernels_[block.launch().kernel];
  ++kernel.blocks;
  const Dim3 index = block.index();
  if (index.x == 0 && index.y == 0 && index.z == 0) ++kernel.launches;
}

void Counts::ran(const Warp& warp, const Instruction& instruction, Mask lanes) {
  Line& line = line_of(warp, instruction);
  ++line.times;
  line.lanes += static_cast<uint64_t>(std::popcount(lanes));
}
void Counts::shared(const Warp& warp, const Instruction& instruction, Mask lanes,
                    const uint32_t* addresses, unsigned bytes, Access) {
  line_of(warp, instruction).shared += wavefronts(lanes, addresses, bytes);
}
void Counts::copy(const Warp& warp, const Instruction& instruction, Mask lanes,
                  const uint32_t* addresses, unsigned bytes) {
  line_of(warp, instruction).shared += wavefronts(lanes, addresses, bytes);
}
void Counts::global(const Warp& warp, const Instruction& instruction, Mask lanes,
                    const uint64_t* addresses, unsigned bytes, Access) {
  Line& line = line_of(warp, instruction);
  line.global += sectors(lanes, addresses, bytes);
  line.global_bytes += uint64_t{bytes} * static_cast<uint64_t>(std::popcount(lanes));
}
void Counts::bulk_reads(const Warp& warp, const Instruction& instruction, unsigned,
                        uint64_t address, size_t bytes, uint32_t, uint64_t) {
  Line& line = line_of(warp, instruction);
  line.global += sectors(1, &address, static_cast<unsigned>(bytes));
  line.global_bytes += bytes;
}
void Counts::bulk_store(const Warp& warp, const Instruction& instruction, unsigned, uint32_t,
                        uint64_t to, size_t bytes, Access) {
  Line& line = line_of(warp, instruction);
  line.global += sectors(1, &to, static_cast<unsigned>(bytes));
  line.global_bytes += bytes;
}

void Counts::add(const Counts& other) {
  const auto add_line = [](Line& to, const Line& from) {
    to.times += from.times;
    to.lanes += from.lanes;
    to.shared += from.shared;
    to.global += from.global;
    to.global_bytes += from.global_bytes;
  };
  for (const auto& [kernel, from] : other.kernels_) {
    OfKernel& to = kernels_[kernel];
    to.launches += from.launches;
    to.blocks += from.blocks;
    to.lines.resize(std::max(to.lines.size(), from.lines.size()));
    for (size_t i = 0; i < from.lines.size(); ++i) add_line(to.lines[i], from.lines[i]);
    for (const auto& [instruction, line] : from.odd) add_line(to.odd[instruction], line);
  }
}

std::string short_name(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> words(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), std::free);
  std::string name = status == 0 ? words.get() : mangled;
  for (const std::string_view dropped :
       {"(anonymous namespace)::", "mtl::cuda::", "warpgroups::", "void "}) {
    for (size_t at = name.find(dropped); at != name.npos; at = name.find(dropped, at)) {
      name.erase(at, dropped.size());
    }
  }
  // The parameters: from the first bracket that is in no template's arguments.
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth == 0) {
      name.resize(i);
      break;
    }
  }
  // "(int)64" and "(bool)1" are 64 and 1.
  for (const std::string_view dropped : {"(int)", "(unsigned int)", "(bool)"}) {
    for (size_t at = name.find(dropped); at != name.npos; at = name.find(dropped, at)) {
      name.erase(at, dropped.size());
    }
  }
  return name;
}

Sources::Sources(std::string_view text) {
  std::map<int, std::string> files;
  struct Place {
    int file = 0, line = 0, outer_file = 0, outer_line = 0;
  };
  std::map<int, Place> found;
  const auto number = [](std::string_view& from) {
    while (!from.empty() && (from.front() == ' ' || from.front() == '\t')) from.remove_prefix(1);
    int value = 0;
    while (!from.empty() && from.front() >= '0' && from.front() <= '9') {
      value = value * 10 + (from.front() - '0');
      from.remove_prefix(1);
    }
    return value;
  };
  int line_number = 0;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    ++line_number;
    while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
    if (begins(line, ".file")) {
      line.remove_prefix(5);
      const int file = number(line);
      const size_t from = line.find('"'), to = line.rfind('"');
      if (from == line.npos || to <= from) continue;
      const std::string_view path = line.substr(from + 1, to - from - 1);
      files[file] = path.substr(path.rfind('/') + 1);
    } else if (begins(line, ".loc")) {
      line.remove_prefix(4);
      Place place;
      place.file = number(line);
      place.line = number(line);
      if (const size_t at = line.find("inlined_at"); at != line.npos) {
        line.remove_prefix(at + 10);
        place.outer_file = number(line);
        place.outer_line = number(line);
      }
      found[line_number] = place;
    } else if (has(line, ".entry")) {
      found[line_number] = {};
    }
  }
  for (const auto& [at, place] : found) {
    std::string& words = places_[at];
    if (place.file == 0) continue;
    words = fmt::format("{}:{}", files[place.file], place.line);
    if (place.outer_file != 0) {
      words += fmt::format(" in {}:{}", files[place.outer_file], place.outer_line);
    }
  }
}

std::string Sources::at(int line) const {
  const auto after = places_.upper_bound(line);
  return after == places_.begin() ? "" : std::prev(after)->second;
}

}  // namespace mtl::ptx
