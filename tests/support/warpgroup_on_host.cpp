#include "support/warpgroup_on_host.h"

#include <bitset>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/cuda/warpgroup.h"
#include "support/block_on_host.h"

namespace mtl::gpu_on_host {

namespace {

constexpr unsigned kMostArrivals = (1u << 20) - 1;
constexpr int64_t kMostBytes = (1 << 20) - 1;  // that a phase may be behind or ahead by

// In the memory of a barrier, which nobody else may write.
constexpr uint64_t kMark = 0x6261727269657221;

struct Mbarrier {
  unsigned arrivals = 0, pending = 0;  // of a phase; that are still to come
  int64_t bytes = 0;                   // announced and not there; less than 0: there too early
  unsigned parity = 0;                 // of the phase that is under way
  unsigned maker = 0;
  bool made = false;  // barriers_made() has followed
  std::vector<unsigned> waiting;
};

struct NamedBarrier {
  int threads = 0;
  std::bitset<1024> come;
  std::vector<unsigned> waiting;
};

struct Copy {
  unsigned char* to;
  Mbarrier* barrier;
  unsigned bytes;
  const void* from;  // nullptr: a box of `map`
  TensorMap map;
  std::array<int, 4> at;
};

// From shared to global memory.
struct Write {
  unsigned thread;
  unsigned char* to;
  const unsigned char* from;
  unsigned bytes;
  bool adds;
  std::vector<unsigned char> read;  // once it has
};

struct State {
  std::map<void*, Mbarrier> barriers;
  std::map<int, NamedBarrier> named;  // that somebody has come to
  std::vector<Copy> copies;           // under way, the oldest first
  std::vector<Write> writes;          // not waited for
};
thread_local State state;

Mbarrier& use(void* barrier) {
  const auto found = state.barriers.find(barrier);
  if (found == state.barriers.end() || std::memcmp(barrier, &kMark, sizeof kMark) != 0) {
    throw std::runtime_error("a barrier that was not initialised or has been overwritten");
  }
  if (!found->second.made && found->second.maker != this_thread()) {
    throw std::runtime_error("a barrier that another thread uses before barriers_made()");
  }
  return found->second;
}

void end_phase_if_complete(Mbarrier& barrier) {
  if (barrier.bytes > kMostBytes || barrier.bytes < -kMostBytes) {
    throw std::runtime_error("more bytes than a barrier can count");
  }
  if (barrier.pending > 0) return;
  if (barrier.bytes < 0) {
    throw std::runtime_error("more bytes came to a barrier than its phase was told of");
  }
  if (barrier.bytes > 0) return;
  barrier.parity ^= 1;
  barrier.pending = barrier.arrivals;
  wake(std::exchange(barrier.waiting, {}));
}

unsigned char* destination(void* shared, unsigned bytes, unsigned alignment) {
  const uint32_t first = shared_address(shared);
  if (first % alignment != 0) {
    throw std::runtime_error("a copy to shared memory that is not aligned to " +
                             std::to_string(alignment) + " bytes");
  }
  if (bytes > dynamic_shared_bytes() - first) {
    throw std::runtime_error("a copy beyond the dynamic shared memory");
  }
  return static_cast<unsigned char*>(shared);
}

// Swizzle<3,4,3> with rows of 128 bytes, <2,4,3> with rows of 64.
uint32_t swizzled(uint32_t address, int panel) {
  return address ^ ((address >> 7 & (panel == 64 ? 7u : 3u)) << 4);
}

void copy_now(const Copy& copy) {
  const TensorMap& map = copy.map;
  const auto [column, head, first_row, sequence] = copy.at;
  const bool none = head < 0 || head >= map.heads || sequence < 0 || sequence >= map.batch;
  unsigned char* const memory = dynamic_shared();
  uint32_t address = shared_address(copy.to);
  for (int64_t row = first_row; row < first_row + int64_t{map.rows}; ++row) {
    const bool outside = none || row < 0 || row >= map.seq;
    const int64_t first = (sequence * map.seq + row) * map.row_stride + head * map.dim;
    for (int64_t i = column; i < column + int64_t{map.panel}; ++i, address += 2) {
      unsigned char* const to = memory + swizzled(address, map.panel);
      if (outside || i < 0 || i >= map.dim) {
        std::memset(to, 0, 2);
      } else {
        std::memcpy(to, map.data + 2 * (first + i), 2);
      }
    }
  }
}

void carry_out(const Copy& copy) {
  if (copy.from == nullptr) {
    copy_now(copy);
  } else {
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
  copy.barrier->bytes -= copy.bytes;
  end_phase_if_complete(*copy.barrier);
}

void read(Write& write) {
  if (write.read.empty()) write.read.assign(write.from, write.from + write.bytes);
}

void carry_out(Write& write) {
  read(write);
  if (!write.adds) {
    std::memcpy(write.to, write.read.data(), write.bytes);
    return;
  }
  for (unsigned i = 0; i < write.bytes; i += sizeof(float)) {
    float sum = 0, more = 0;
    std::memcpy(&sum, write.to + i, sizeof sum);
    std::memcpy(&more, write.read.data() + i, sizeof more);
    sum += more;
    std::memcpy(write.to + i, &sum, sizeof sum);
  }
}

void start(void* to, const void* shared, unsigned bytes, bool adds) {
  const uint32_t first = shared_address(shared);
  if (first % 16 != 0 || reinterpret_cast<uintptr_t>(to) % 16 != 0 || bytes % 16 != 0 ||
      bytes == 0) {
    throw std::runtime_error("a copy of bytes that is not aligned to 16");
  }
  if (bytes > dynamic_shared_bytes() - first) {
    throw std::runtime_error("a copy from beyond the dynamic shared memory");
  }
  Write write = {this_thread(),
                 static_cast<unsigned char*>(to),
                 static_cast<const unsigned char*>(shared),
                 bytes,
                 adds,
                 {}};
  if (copies_are_early()) return carry_out(write);
  state.writes.push_back(std::move(write));
}

void start(const Copy& copy) {
  if (!copy.barrier->made) throw std::runtime_error("a copy to a barrier before barriers_made()");
  if (copies_are_early()) return carry_out(copy);
  std::memset(copy.to, 0xff, copy.bytes);
  state.copies.push_back(copy);
}

}  // namespace

uint32_t shared_address(const void* pointer) {
  const auto first = reinterpret_cast<uintptr_t>(dynamic_shared());
  const auto at = reinterpret_cast<uintptr_t>(pointer);
  if (at < first || at > first + dynamic_shared_bytes()) {
    throw std::runtime_error("an address that is not in the dynamic shared memory");
  }
  return static_cast<uint32_t>(at - first);
}

void barrier_init(void* barrier, unsigned arrivals) {
  if (shared_address(barrier) % 8 != 0) {
    throw std::runtime_error("a barrier that is not aligned to 8 bytes");
  }
  if (arrivals < 1 || arrivals > kMostArrivals) {
    throw std::runtime_error("a barrier of " + std::to_string(arrivals) + " arrivals");
  }
  Mbarrier made;
  made.arrivals = made.pending = arrivals;
  made.maker = this_thread();
  if (!state.barriers.try_emplace(barrier, std::move(made)).second) {
    throw std::runtime_error("a barrier that is initialised twice");
  }
  std::memcpy(barrier, &kMark, sizeof kMark);
}

void barriers_made() {
  for (auto& [address, barrier] : state.barriers) {
    if (barrier.maker == this_thread()) barrier.made = true;
  }
}

void barrier_arrive(void* barrier, unsigned expected_bytes) {
  Mbarrier& it = use(barrier);
  if (it.pending == 0) throw std::runtime_error("more arrivals at a barrier than its phase has");
  it.bytes += expected_bytes;
  --it.pending;
  end_phase_if_complete(it);
}

void barrier_wait(void* barrier, unsigned parity) {
  if (parity > 1) throw std::runtime_error("a parity that is neither 0 nor 1");
  Mbarrier& it = use(barrier);
  // Looked at again when woken, as a GPU would: who comes a phase late misses it.
  while (it.parity == parity) {
    it.waiting.push_back(this_thread());
    stop(parity == 0 ? "a phase of parity 0 of the mbarrier at"
                     : "a phase of parity 1 of the mbarrier at",
         shared_address(barrier));
  }
}

void named_barrier(int id, int threads, bool waits) {
  if (id < 1 || id > 15) throw std::runtime_error("named barrier " + std::to_string(id));
  if (threads <= 0 || threads % 32 != 0 || threads > static_cast<int>(block_threads())) {
    throw std::runtime_error("a named barrier for " + std::to_string(threads) + " threads");
  }
  together(std::array<int, 3>{id, threads, waits ? 1 : 0});
  NamedBarrier& barrier = state.named.try_emplace(id, NamedBarrier{threads, {}, {}}).first->second;
  if (barrier.threads != threads) {
    throw std::runtime_error("a named barrier for " + std::to_string(threads) +
                             " threads that others take to be for " +
                             std::to_string(barrier.threads));
  }
  if (barrier.come.test(this_thread())) {
    throw std::runtime_error("a thread that comes to a named barrier twice before it opens");
  }
  barrier.come.set(this_thread());
  if (static_cast<int>(barrier.come.count()) == threads) {
    std::vector<unsigned> waiting = std::move(barrier.waiting);
    state.named.erase(id);
    wake(std::move(waiting));
  } else if (waits) {
    barrier.waiting.push_back(this_thread());
    stop("named barrier", static_cast<unsigned>(id));
  }
}

void copy_box(void* shared, const TensorMap& map, void* barrier, std::array<int, 4> at) {
  if (map.data == nullptr) throw std::runtime_error("a copy by a map that tensor_map has not made");
  const auto bytes = static_cast<unsigned>(2 * map.rows * map.panel);
  start({destination(shared, bytes, 1024), &use(barrier), bytes, nullptr, map, at});
}

void copy_bytes(void* shared, const void* from, unsigned bytes, void* barrier) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0 || bytes % 16 != 0 || bytes == 0) {
    throw std::runtime_error("a copy of bytes that is not aligned to 16");
  }
  start({destination(shared, bytes, 16), &use(barrier), bytes, from, {}, {}});
}

void write_bytes(void* to, const void* shared, unsigned bytes) {
  start(to, shared, bytes, false);
}
void add_floats(float* to, const void* shared, unsigned bytes) {
  start(to, shared, bytes, true);
}
void writes_have_read() {
  for (Write& write : state.writes) {
    if (write.thread == this_thread()) read(write);
  }
}
void writes_done() {
  const unsigned thread = this_thread();
  std::erase_if(state.writes, [&](Write& write) {
    if (write.thread == thread) carry_out(write);
    return write.thread == thread;
  });
}

void store_tiles(void* row, const uint32_t (&r)[4]) {
  if (shared_address(row) % 16 != 0) {
    throw std::runtime_error("a row of a tile that is not aligned to 16 bytes");
  }
  const unsigned char* const all = exchange(0xffffffffu, &row, sizeof row);
  for (unsigned tile = 0; tile < 4; ++tile) {
    unsigned char* to = nullptr;
    std::memcpy(&to, all + (8 * tile + lane() / 4) * kLaneBytes, sizeof to);
    std::memcpy(to + lane() % 4 * 4, &r[tile], 4);
  }
  exchange(0xffffffffu, nullptr, 0);  // .sync: all of the warp's is written
}

void forget_barriers() {
  state = {};
}

bool let_a_copy_arrive() {
  if (state.copies.empty()) return false;
  const auto next = state.copies.begin() + static_cast<ptrdiff_t>(choose(state.copies.size()));
  const Copy copy = *next;
  state.copies.erase(next);
  carry_out(copy);
  return true;
}

}  // namespace mtl::gpu_on_host
