#include "ptx/machine.h"

#include <algorithm>
#include <bit>
#include <cxxabi.h>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "ptx/asynchronous.h"
#include "ptx/tensor_cores.h"

namespace mtl::ptx {

namespace {

std::string readable(const std::string& name) {
  int status = 0;
  char* const words = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string result = status == 0 ? words : name;
  std::free(words);
  return result;
}

std::string place(const Warp& warp, const Instruction& instruction) {
  const Block& block = warp.block();
  return fmt::format("{}, block ({}, {}, {}), warp {}, PTX line {} ({})",
                     readable(block.launch().kernel->name), block.index().x, block.index().y,
                     block.index().z, warp.index(), instruction.line, instruction.text);
}

}  // namespace

void fail(const Warp& warp, const Instruction& instruction, const std::string& what) {
  throw std::runtime_error(fmt::format("{}: {}", place(warp, instruction), what));
}

unsigned char* global_memory(const Warp& warp, const Instruction& instruction, uint64_t address,
                             size_t bytes, size_t align) {
  if (address % align != 0) {
    fail(warp, instruction, fmt::format("address {:#x} is no multiple of {}", address, align));
  }
  auto* const pointer = reinterpret_cast<unsigned char*>(address);
  const auto has = warp.block().launch().has;
  if (has != nullptr && !has(pointer, bytes)) {
    fail(warp, instruction, fmt::format("{} bytes at {:#x} are nobody's", bytes, address));
  }
  return pointer;
}

// --- a warp

Warp::Warp(Block& block, unsigned index)
    : block_(block), index_(index), products_(std::make_unique<Products>()) {
  const Launch& launch = block.launch();
  const Kernel& kernel = *launch.kernel;
  const unsigned first = index * kLanes, threads = block.threads();
  alive_ = threads - first >= kLanes ? ~Mask{0} : (Mask{1} << (threads - first)) - 1;
  paths_.push_back({0, alive_});
  predicates_.resize(static_cast<size_t>(kernel.predicates));
  // What nobody has written is no number.
  narrows_.assign(static_cast<size_t>(kernel.narrows) * kLanes, 0xffffffff);
  wides_.assign(static_cast<size_t>(kernel.wides) * kLanes, ~uint64_t{0});
  local_.assign(kernel.local_bytes * kLanes, 0xff);
  for (const auto& [at, value] : kernel.constants.narrow) {
    std::fill_n(&narrows_[static_cast<size_t>(at) * kLanes], kLanes, value);
  }
  for (const auto& [at, value] : kernel.constants.wide) {
    std::fill_n(&wides_[static_cast<size_t>(at) * kLanes], kLanes, value);
  }
  for (const auto& [special, at] : kernel.specials) {
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      const unsigned thread = first + lane;
      const auto value = [&](Special which) -> unsigned {
        switch (which) {
          case Special::tid_x:
            return thread % launch.block.x;
          case Special::tid_y:
            return thread / launch.block.x % launch.block.y;
          case Special::tid_z:
            return thread / launch.block.x / launch.block.y;
          case Special::ctaid_x:
            return block.index().x;
          case Special::ctaid_y:
            return block.index().y;
          case Special::ctaid_z:
            return block.index().z;
          case Special::ntid_x:
            return launch.block.x;
          case Special::ntid_y:
            return launch.block.y;
          case Special::ntid_z:
            return launch.block.z;
          case Special::nctaid_x:
            return launch.grid.x;
          case Special::nctaid_y:
            return launch.grid.y;
          case Special::nctaid_z:
            return launch.grid.z;
          case Special::laneid:
            return lane;
          case Special::warpid:
            return index;
          case Special::lanemask_lt:
            return (1u << lane) - 1;
        }
        return 0;
      }(special);
      narrows_[static_cast<size_t>(at) * kLanes + lane] = value;
    }
  }
}

Warp::~Warp() = default;

void Warp::addresses(const Operand& address, uint64_t (&result)[kLanes]) {
  const auto at = static_cast<size_t>(address.index) * kLanes;
  const auto offset = static_cast<uint64_t>(address.offset);
  if (address.file == File::wide) {
    for (size_t lane = 0; lane < kLanes; ++lane) result[lane] = wides_[at + lane] + offset;
  } else {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      result[lane] = static_cast<uint32_t>(narrows_[at + lane] + offset);
    }
  }
}

unsigned char* Warp::local(unsigned lane, uint64_t address, size_t bytes) {
  const size_t each = block_.launch().kernel->local_bytes;
  if (address % bytes != 0 || address > each || each - address < bytes) {
    throw std::runtime_error(fmt::format("local address {} of {}", address, each));
  }
  return &local_[lane * each + address];
}

std::string Warp::where() const {
  std::string words;
  for (const Path& path : paths_) {
    const auto& all = block_.launch().kernel->instructions;
    words += fmt::format("\n  block ({}, {}, {}), warp {}, lanes {:08x}: ", block_.index().x,
                         block_.index().y, block_.index().z, index_, path.lanes);
    if (static_cast<size_t>(path.at) < all.size()) {
      const Instruction& instruction = all[static_cast<size_t>(path.at)];
      words += fmt::format("PTX line {} ({})", instruction.line, instruction.text);
    } else {
      words += "behind the last instruction";
    }
  }
  return words;
}

bool Warp::run(int instructions) {
  const auto& all = block_.launch().kernel->instructions;
  const bool watched = !block_.launch().watchers.empty();
  bool did = false;
  std::vector<Mask> stalled;  // paths that wait, by their lanes
  // Lanes that are behind come first, so that they meet the others again; but not for ever, since
  // they may wait for those.
  const bool last_first = paths_.size() > 1 && ++turn_ % 8 == 0;
  for (int n = 0; n < instructions && !paths_.empty();) {
    Path* path = nullptr;
    for (Path& one : paths_) {
      if (!stalled.empty() &&
          std::find(stalled.begin(), stalled.end(), one.lanes) != stalled.end()) {
        continue;
      }
      if (path == nullptr || (last_first ? one.at > path->at : one.at < path->at)) path = &one;
    }
    if (path == nullptr) break;
    if (static_cast<size_t>(path->at) >= all.size()) {
      throw std::runtime_error("lanes ran past the end of their kernel:" + where());
    }
    const Instruction& instruction = all[static_cast<size_t>(path->at)];
    Mask active = path->lanes;
    if (instruction.guard >= 0) {
      const Mask holds = predicates_[static_cast<size_t>(instruction.guard)];
      active &= instruction.guard_negated ? ~holds : holds;
    }
    if (active == 0) {
      ++path->at;
      ++n;
      did = true;
    } else if (instruction.aligned && active != alive_) {
      stalled.push_back(path->lanes);
      continue;
    } else {
      together_ = path->lanes;
      if (products_->under_way()) check_registers(*this, instruction);
      const Step step = instruction.run(*this, instruction, active);
      if (step == Step::again) {
        stalled.push_back(path->lanes);
        continue;
      }
      ++n;
      did = true;
      if (watched) block_.watch(&Watcher::ran, *this, instruction, active);
      if (step == Step::jump && active != path->lanes) {
        path->lanes &= ~active;
        ++path->at;
        paths_.push_back({jump_to, active});
      } else if (step == Step::jump) {
        path->at = jump_to;
      } else if (step == Step::exit) {
        alive_ &= ~active;
        path->lanes &= ~active;
        ++path->at;
        if (path->lanes == 0) paths_.erase(paths_.begin() + (path - paths_.data()));
        stalled.clear();
      } else {
        ++path->at;
      }
    }
    // Those that meet go on together.
    for (size_t i = 0; paths_.size() > 1 && i < paths_.size(); ++i) {
      for (size_t j = i + 1; j < paths_.size();) {
        if (paths_[i].at != paths_[j].at) {
          ++j;
          continue;
        }
        paths_[i].lanes |= paths_[j].lanes;
        paths_.erase(paths_.begin() + static_cast<std::ptrdiff_t>(j));
        stalled.clear();
      }
    }
  }
  return did;
}

// --- a block

Block::Block(Grid& grid, uint64_t number)
    : grid_(grid),
      threads_(static_cast<unsigned>(grid.launch.block.count())),
      asynchronous_(std::make_unique<Asynchronous>()) {
  const Launch& launch = grid.launch;
  index_ = {static_cast<unsigned>(number % launch.grid.x),
            static_cast<unsigned>(number / launch.grid.x % launch.grid.y),
            static_cast<unsigned>(number / launch.grid.x / launch.grid.y)};
  // Full of NaN.
  shared_.assign(launch.kernel->dynamic_shared + launch.dynamic_shared, 0xff);
  for (unsigned i = 0; i * kLanes < threads_; ++i) {
    warps_.push_back(std::make_unique<Warp>(*this, i));
  }
  watch(&Watcher::block_began, *this);
}

Block::~Block() = default;

const Launch& Block::launch() const {
  return grid_.launch;
}

unsigned char* Block::shared(uint32_t address, size_t bytes, size_t align) {
  if (address < kReservedShared || address > shared_.size() || shared_.size() - address < bytes ||
      address % align != 0) {
    throw std::runtime_error(
        fmt::format("{}, block ({}, {}, {}): {} bytes at {} of shared memory, which has {} to {}",
                    readable(launch().kernel->name), index_.x, index_.y, index_.z, bytes, address,
                    kReservedShared, shared_.size()));
  }
  return &shared_[address];
}

bool Block::ended() const {
  return std::all_of(warps_.begin(), warps_.end(), [](const auto& warp) { return warp->ended(); });
}

bool Block::turn() {
  const bool waited = waiting(*this);
  arrive(*this);
  const size_t count = warps_.size(), first = grid_.random() % count;
  const int instructions = 1 << grid_.random() % 9;
  for (size_t i = 0; i < count; ++i) {
    Warp& warp = *warps_[(first + i) % count];
    if (!warp.ended() && warp.run(instructions)) return true;
  }
  return waited;
}

// --- a grid

void Grid::write_one() {
  std::swap(late[random() % late.size()], late.back());
  late.back()();
  late.pop_back();
  polls = 0;
}

void Grid::run() {
  const uint64_t count = launch.grid.count();
  uint64_t next = 0;
  std::vector<std::unique_ptr<Block>> blocks;
  while (next < count || !blocks.empty()) {
    while (next < count && blocks.size() < launch.resident) {
      blocks.push_back(std::make_unique<Block>(*this, next++));
    }
    const size_t first = random() % blocks.size();
    bool did = false;
    if (!late.empty() && random() % 16 == 0) write_one();
    for (size_t i = 0; i < blocks.size() && !did; ++i) {
      auto& block = blocks[(first + i) % blocks.size()];
      did = block->turn();
      if (!block->ended()) continue;
      ptx::ended(*block);
      block->watch(&Watcher::block_ended, *block);
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>((first + i) % blocks.size()));
      did = true;
    }
    if (did) continue;
    if (!late.empty()) {
      write_one();
      continue;
    }
    std::string words = fmt::format("{} hangs:", readable(launch.kernel->name));
    for (const auto& block : blocks) {
      for (const auto& warp : block->warps()) words += warp->where();
      words += barriers_text(*block);
    }
    throw std::runtime_error(words);
  }
  while (!late.empty()) write_one();
}

void run(const Launch& launch) {
  const Kernel& kernel = *launch.kernel;
  if (launch.block.count() > kernel.most_threads) {
    throw std::runtime_error(fmt::format("{}: {} threads, {} at most", readable(kernel.name),
                                         launch.block.count(), kernel.most_threads));
  }
  if (launch.parameters.size() != kernel.parameter_bytes) {
    throw std::runtime_error(fmt::format("{}: {} bytes of parameters, it has {}",
                                         readable(kernel.name), launch.parameters.size(),
                                         kernel.parameter_bytes));
  }
  Grid(launch).run();
}

}  // namespace mtl::ptx
