#include "ptx/races.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "ptx/clocks.h"
#include "ptx/counts.h"
#include "ptx/machine.h"
#include "ptx/past.h"

namespace mtl::ptx {

namespace {

// Of shared memory: beyond this those that came before the one at hand are looked for and
// forgotten.
constexpr size_t kReads = 8;
// Of global memory, where a piece may be read by all blocks in no order: of more readers some are
// forgotten for others.
constexpr size_t kGlobalReads = 4;

// Whether an opcode has this among its parts.
bool has_part(std::string_view opcode, std::string_view part) {
  for (size_t at = opcode.find(part); at != opcode.npos; at = opcode.find(part, at + 1)) {
    const size_t end = at + part.size();
    if (at > 0 && opcode[at - 1] == '.' && (end == opcode.size() || opcode[end] == '.'))
      return true;
  }
  return false;
}

// Of accesses by `now`, which comes later in the order, those of `past` need not be remembered:
// what is held against it too.
bool stands_for(Access now, Access past) {
  if (now == Access::write) return true;
  return now == past;
}

template <typename Body>
void for_lanes_of(Mask lanes, Body body) {
  for (; lanes != 0; lanes &= lanes - 1) body(static_cast<unsigned>(std::countr_zero(lanes)));
}
// body(address, the lanes that have it): those that follow one another and have the same at once.
template <typename Address, typename Body>
void for_addresses(Mask lanes, const Address* addresses, Body body) {
  while (lanes != 0) {
    const Address address = addresses[std::countr_zero(lanes)];
    Mask same = 0;
    for (; lanes != 0 && addresses[std::countr_zero(lanes)] == address; lanes &= lanes - 1) {
      same |= lanes & ~(lanes - 1);
    }
    body(address, same);
  }
}

}  // namespace

struct Races::State {
  struct BarrierWord {
    unsigned number = 0;
    Past made;
  };
  // What an instruction has told before it was known which lanes ran it.
  struct Told {
    enum class Kind { made, arrival, wait } kind = Kind::made;
    uint32_t address = 0;
    uint64_t phase = 0;
  };
  struct WarpState {
    uint32_t serial = 0;
    std::vector<Told> told;
  };
  struct BlockState {
    BlockState(uint64_t index, const Block& block)
        : clocks(index, static_cast<unsigned>(block.warps().size())),
          pieces((block.shared_bytes() + kPiece - 1) / kPiece),
          written(pieces.size()),
          warps(block.warps().size()) {}
    Clocks clocks;
    std::vector<Piece> pieces;
    std::vector<uint16_t> written;  // bytes
    std::vector<WarpState> warps;
    std::map<uint32_t, BarrierWord> barriers;
  };
  enum class What { order, fence, unwritten, barrier };

  RaceOptions options;
  std::vector<Race> found;
  std::map<std::pair<const Instruction*, std::pair<const Instruction*, What>>, size_t> places;
  std::unordered_map<const Block*, std::unique_ptr<BlockState>> blocks;
  std::unordered_map<uint64_t, Piece> memory;     // global
  std::unordered_map<uint64_t, Elsewhere> words;  // of which something was released
  uint64_t begun = 0;                             // blocks
  size_t forgotten = 0;                           // reads

  BlockState& of(const Warp& warp) {
    const auto block = blocks.find(&warp.block());
    if (block == blocks.end()) throw std::logic_error("races: a block that has not begun");
    return *block->second;
  }

  void tell(const Block& block, const Instruction* before, const Instruction* now, What what,
            const std::string& text) {
    // Whichever has come first.
    const auto pair = std::minmax(before, now, std::less<>{});
    const auto [place, is_new] =
        places.try_emplace({pair.first, {pair.second, what}}, found.size());
    if (is_new) {
      const Dim3 index = block.index();
      const Kernel* const kernel = block.launch().kernel;
      found.push_back({fmt::format("{}, block ({}, {}, {}): {}",
                                   kernel != nullptr ? short_name(kernel->name) : "", index.x,
                                   index.y, index.z, text),
                       0});
    }
    ++found[place->second].times;
    if (options.stop) throw std::runtime_error(found[place->second].text);
  }

  void race(const Warp& warp, bool is_global, uint64_t address, const Past& past, const Past& now,
            What what) {
    const bool is_elsewhere = past.event.block != now.event.block;
    tell(warp.block(), past.by, now.by, what,
         fmt::format("{} memory at {:#x}: {}{} {}, {}, then {} {}, {}, with no {} between",
                     is_global ? "global" : "shared", address,
                     is_elsewhere ? fmt::format("block {} ", past.event.block) : "", doer_of(past),
                     deed_of(past), quoted(*past.by), doer_of(now), deed_of(now), quoted(*now.by),
                     what == What::order ? "order"
                     : is_global         ? "fence.proxy.async.global"
                                         : "fence.proxy.async"));
  }

  // An access of lanes (or of a product) to bytes of a piece.
  void touch(const Warp& warp, BlockState& block, bool is_global, uint64_t first, Piece& piece,
             const Past& now) {
    std::optional<std::pair<Past, What>> clashed;
    const StateSpace space = is_global ? StateSpace::global : StateSpace::shared;
    // Returns whether any of `pasts` may be gone.
    const auto hold_against = [&](std::vector<Past>& pasts) {
      bool some_gone = false;
      for (Past& past : pasts) {
        if ((past.bytes & now.bytes) == 0 ||
            (same_doer(past, now) && past.by == now.by && past.serial == now.serial)) {
          continue;
        }
        if (block.clocks.sees(warp.index(), now.event.lanes, past.event, now.event.actor, space)) {
          if (!stands_for(now.access, past.access)) continue;
        } else if (are_atomic(past, now)) {
          continue;
        } else {
          // Would there be an order, were it not for the proxies?
          const bool ordered =
              is_asynchronous(now.event.actor) &&
              block.clocks.sees(warp.index(), now.event.lanes, past.event, Actor::lane, space);
          clashed.emplace(past, ordered ? What::fence : What::order);
        }
        past.bytes &= static_cast<uint16_t>(~now.bytes);
        some_gone = some_gone || past.bytes == 0;
      }
      return some_gone;
    };
    if (hold_against(piece.writes)) drop_gone(piece.writes);
    if (now.access == Access::read) {
      add_read(warp, block, is_global, piece.reads, now);
    } else {
      if (hold_against(piece.reads)) drop_gone(piece.reads);
      if (!merged(piece.writes, now)) piece.writes.push_back(now);
    }
    if (clashed.has_value()) {
      const auto& [past, what] = *clashed;
      const auto both = static_cast<unsigned>(past.bytes & now.bytes);
      race(warp, is_global, first + static_cast<unsigned>(std::countr_zero(both)), past, now, what);
    }
  }

  static bool same_doer(const Past& a, const Past& b) {
    return a.event.warp == b.event.warp && a.event.block == b.event.block &&
           a.event.actor == b.event.actor && a.event.number == b.event.number;
  }
  // Towards each other: "Morally strong operations" are of the same proxy.
  static bool are_atomic(const Past& a, const Past& b) {
    return a.access == Access::atomic && b.access == Access::atomic &&
           is_asynchronous(a.event.actor) == is_asynchronous(b.event.actor);
  }
  static void drop_gone(std::vector<Past>& pasts) {
    std::erase_if(pasts, [](const Past& past) { return past.bytes == 0; });
  }
  // Whether there is one of the same instruction, to which these lanes are added.
  static bool merged(std::vector<Past>& pasts, const Past& now) {
    for (Past& past : pasts) {
      if (same_doer(past, now) && past.by == now.by && past.bytes == now.bytes &&
          past.access == now.access && past.event.time == now.event.time &&
          (past.serial == now.serial || now.access == Access::read)) {
        past.event.lanes |= now.event.lanes;
        return true;
      }
    }
    return false;
  }
  void add_read(const Warp& warp, BlockState& block, bool is_global, std::vector<Past>& reads,
                const Past& now) {
    if (merged(reads, now)) return;
    bool some_gone = false;
    for (Past& past : reads) {
      if ((past.bytes & ~now.bytes) != 0 || !same_doer(past, now)) continue;
      // Of a lane, and of a warp's products, the last one is enough.
      past.event.lanes &= ~now.event.lanes;
      if (past.event.lanes == 0) past.bytes = 0;
      some_gone = some_gone || past.bytes == 0;
    }
    if (some_gone) drop_gone(reads);
    if (is_global && reads.size() >= kGlobalReads) {
      reads[forgotten++ % kGlobalReads] = now;
      return;
    }
    if (reads.size() >= kReads) {
      std::erase_if(reads, [&](const Past& past) {
        return (past.bytes & ~now.bytes) == 0 &&
               block.clocks.sees(warp.index(), now.event.lanes, past.event, now.event.actor,
                                 StateSpace::shared);
      });
    }
    reads.push_back(now);
  }

  void touch_shared(const Warp& warp, BlockState& block, uint32_t address, size_t bytes, Past now) {
    const uint64_t end = uint64_t{address} + bytes;
    for (uint64_t piece = address / kPiece; piece * kPiece < end; ++piece) {
      if (piece >= block.pieces.size()) return;  // the machine says so
      now.bytes = bytes_in(piece, address, end);
      uint16_t& written = block.written[piece];
      if (now.access != Access::read) {
        written |= now.bytes;
      } else if (options.unwritten && (now.bytes & ~written) != 0) {
        const auto byte =
            static_cast<unsigned>(std::countr_zero(static_cast<unsigned>(now.bytes & ~written)));
        written |= now.bytes;
        tell(warp.block(), now.by, now.by, What::unwritten,
             fmt::format("shared memory at {:#x}: {} {}, {}, what nobody has written",
                         piece * kPiece + byte, doer_of(now), deed_of(now), quoted(*now.by)));
      }
      touch(warp, block, false, piece * kPiece, block.pieces[piece], now);
    }
  }

  void touch_global(const Warp& warp, BlockState& block, uint64_t address, size_t bytes, Past now) {
    const uint64_t end = address + bytes;
    for (uint64_t piece = address / kPiece; piece * kPiece < end; ++piece) {
      now.bytes = bytes_in(piece, address, end);
      touch(warp, block, true, piece * kPiece, memory[piece], now);
    }
  }

  static uint16_t bytes_in(uint64_t piece, uint64_t address, uint64_t end) {
    const uint64_t first = std::max(address, piece * kPiece) % kPiece;
    const uint64_t last = std::min(end, (piece + 1) * kPiece) - piece * kPiece;
    return static_cast<uint16_t>((1u << last) - (1u << first));
  }

  // Whoever uses a barrier has to know that it was made.
  void uses(const Warp& warp, BlockState& block, Mask lanes, const BarrierWord& word,
            uint32_t address, const Instruction& by) {
    for_lanes_of(lanes, [&](unsigned lane) {
      if (block.clocks.sees(warp.index(), Mask{1} << lane, word.made.event, Actor::lane,
                            StateSpace::shared)) {
        return;
      }
      tell(warp.block(), word.made.by, &by, What::barrier,
           fmt::format("mbarrier at {:#x}: {} makes it, {}, then warp {} lane {} uses it, {}, with "
                       "no order between",
                       address, doer_of(word.made), quoted(*word.made.by), warp.index(), lane,
                       quoted(by)));
    });
  }
};

Races::Races(const RaceOptions& options) : state_(std::make_unique<State>()) {
  state_->options = options;
}
Races::~Races() = default;

const std::vector<Race>& Races::found() const {
  return state_->found;
}

void Races::block_began(const Block& block) {
  state_->blocks[&block] = std::make_unique<State::BlockState>(state_->begun++, block);
}
void Races::block_ended(const Block& block) {
  state_->blocks.erase(&block);
}

void Races::ran(const Warp& warp, const Instruction& instruction, Mask lanes) {
  State::BlockState& block = state_->of(warp);
  State::WarpState& own = block.warps[warp.index()];
  ++own.serial;
  if (own.told.empty()) return;
  const std::vector<State::Told> told = std::exchange(own.told, {});
  for (const State::Told& each : told) {
    if (each.kind == State::Told::Kind::made) {
      // By one lane: were they several, they would make it several times.
      const auto lane = static_cast<unsigned>(std::countr_zero(lanes));
      const Past made = {block.clocks.of_lanes(warp.index(), Mask{1} << lane), &instruction,
                         own.serial, 0, Access::write};
      state_->touch_shared(warp, block, each.address, sizeof(uint64_t), made);
      block.barriers[each.address] = {block.clocks.make_mbarrier(each.address), made};
      continue;
    }
    const auto word = block.barriers.find(each.address);
    if (word == block.barriers.end()) continue;  // asynchronous.cpp says so
    state_->uses(warp, block, lanes, word->second, each.address, instruction);
    if (each.kind == State::Told::Kind::arrival) {
      block.clocks.reach_mbarrier(warp.index(), lanes, word->second.number, each.phase);
    } else {
      block.clocks.pass_mbarrier(warp.index(), lanes, word->second.number, each.phase);
    }
  }
}

void Races::shared(const Warp& warp, const Instruction& instruction, Mask lanes,
                   const uint32_t* addresses, unsigned bytes, Access access) {
  State::BlockState& block = state_->of(warp);
  const uint32_t serial = block.warps[warp.index()].serial;
  for_addresses(lanes, addresses, [&](uint32_t address, Mask same) {
    state_->touch_shared(
        warp, block, address, bytes,
        {block.clocks.of_lanes(warp.index(), same), &instruction, serial, 0, access});
  });
}

void Races::global(const Warp& warp, const Instruction& instruction, Mask lanes,
                   const uint64_t* addresses, unsigned bytes, Access access) {
  if (!state_->options.global) return;
  State::BlockState& block = state_->of(warp);
  const uint32_t serial = block.warps[warp.index()].serial;
  const std::string& opcode = instruction.opcode;
  // Accesses that are meant to meet: they order, or are ordered by, the others around them.
  const bool acquires = has_part(opcode, "acquire") || has_part(opcode, "acq_rel");
  const bool releases = has_part(opcode, "release") || has_part(opcode, "acq_rel");
  if (acquires || releases || has_part(opcode, "relaxed") || has_part(opcode, "volatile")) {
    access = Access::atomic;
  }
  for_addresses(lanes, addresses, [&](uint64_t address, Mask same) {
    state_->touch_global(
        warp, block, address, bytes,
        {block.clocks.of_lanes(warp.index(), same), &instruction, serial, 0, access});
    if (acquires) {
      const auto word = state_->words.find(address);
      if (word != state_->words.end()) block.clocks.acquire(warp.index(), same, word->second);
    }
    if (releases) block.clocks.release(warp.index(), same, state_->words[address]);
  });
}

void Races::copy(const Warp& warp, const Instruction& instruction, Mask lanes,
                 const uint32_t* addresses, unsigned bytes) {
  State::BlockState& block = state_->of(warp);
  const uint32_t serial = block.warps[warp.index()].serial;
  for_lanes_of(lanes, [&](unsigned lane) {
    state_->touch_shared(
        warp, block, addresses[lane], bytes,
        {block.clocks.of_copy(warp.index(), lane), &instruction, serial, 0, Access::write});
  });
}
void Races::copies_committed(const Warp& warp, Mask lanes) {
  state_->of(warp).clocks.commit_copies(warp.index(), lanes);
}
void Races::copies_waited(const Warp& warp, Mask lanes, int pending) {
  state_->of(warp).clocks.wait_for_copies(warp.index(), lanes, pending);
}

void Races::bulk_copy(const Warp& warp, const Instruction& instruction, unsigned lane,
                      uint32_t address, size_t bytes, uint32_t barrier, uint64_t phase) {
  State::BlockState& block = state_->of(warp);
  const auto word = block.barriers.find(barrier);
  if (word == block.barriers.end()) return;
  state_->uses(warp, block, Mask{1} << lane, word->second, barrier, instruction);
  state_->touch_shared(warp, block, address, bytes,
                       {block.clocks.of_bulk(warp.index(), lane, word->second.number, phase),
                        &instruction, block.warps[warp.index()].serial, 0, Access::write});
}
void Races::bulk_reads(const Warp& warp, const Instruction& instruction, unsigned lane,
                       uint64_t address, size_t bytes, uint32_t barrier, uint64_t phase) {
  State::BlockState& block = state_->of(warp);
  const auto word = block.barriers.find(barrier);
  if (!state_->options.global || word == block.barriers.end()) return;
  state_->touch_global(warp, block, address, bytes,
                       {block.clocks.of_bulk(warp.index(), lane, word->second.number, phase),
                        &instruction, block.warps[warp.index()].serial, 0, Access::read});
}
void Races::bulk_store(const Warp& warp, const Instruction& instruction, unsigned lane,
                       uint32_t from, uint64_t to, size_t bytes, Access access) {
  State::BlockState& block = state_->of(warp);
  const uint32_t serial = block.warps[warp.index()].serial;
  state_->touch_shared(warp, block, from, bytes,
                       {block.clocks.of_store(warp.index(), lane, Actor::source), &instruction,
                        serial, 0, Access::read});
  if (!state_->options.global) return;
  state_->touch_global(
      warp, block, to, bytes,
      {block.clocks.of_store(warp.index(), lane, Actor::target), &instruction, serial, 0, access});
}
void Races::stores_committed(const Warp& warp, Mask lanes) {
  state_->of(warp).clocks.commit_stores(warp.index(), lanes);
}
void Races::stores_waited(const Warp& warp, Mask lanes, int pending, bool only_read) {
  state_->of(warp).clocks.wait_for_stores(warp.index(), lanes, pending, only_read);
}

void Races::product_reads(const Warp& warp, const Instruction& instruction, uint32_t address,
                          size_t bytes) {
  State::BlockState& block = state_->of(warp);
  state_->touch_shared(warp, block, address, bytes,
                       {block.clocks.of_product(warp.index()), &instruction,
                        block.warps[warp.index()].serial, 0, Access::read});
}
void Races::products_committed(const Warp& warp) {
  state_->of(warp).clocks.commit_products(warp.index());
}
void Races::products_waited(const Warp& warp, int pending) {
  state_->of(warp).clocks.wait_for_products(warp.index(), pending);
}

void Races::barrier_reached(const Warp& warp, int number, uint64_t generation) {
  state_->of(warp).clocks.reach(warp.index(), warp.alive(), number, generation);
}
void Races::barrier_passed(const Warp& warp, int number, uint64_t generation) {
  state_->of(warp).clocks.pass(warp.index(), warp.alive(), number, generation);
}

void Races::mbarrier_made(const Warp& warp, uint32_t address) {
  using Kind = State::Told::Kind;
  state_->of(warp).warps[warp.index()].told.push_back({Kind::made, address, 0});
}
void Races::mbarrier_reached(const Warp& warp, uint32_t address, uint64_t phase) {
  state_->of(warp).warps[warp.index()].told.push_back({State::Told::Kind::arrival, address, phase});
}
void Races::mbarrier_passed(const Warp& warp, uint32_t address, uint64_t phase) {
  state_->of(warp).warps[warp.index()].told.push_back({State::Told::Kind::wait, address, phase});
}

void Races::warp_synchronized(const Warp& warp, Mask lanes) {
  state_->of(warp).clocks.warp_barrier(warp.index(), lanes);
}
void Races::proxy_fence(const Warp& warp, Mask lanes, StateSpace space) {
  state_->of(warp).clocks.fence(warp.index(), lanes, space);
}

}  // namespace mtl::ptx
